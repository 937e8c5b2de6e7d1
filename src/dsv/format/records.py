"""The records of a store: commits, moves of branches, branch rules, tags, the feature log, sessions, garbage
collections, erased datasets, expiry, erasures, damage, verification times and merges of index files."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dsv.errors import UsageError
from dsv.format import recipe
from dsv.format.envelope import U32, Count, Long, Millis, Record, Short, is_sorted, learn
from dsv.format.locator import ObjectKind
from dsv.format.tree import MAX_LEVEL, MAX_TREE_ENTRIES
from dsv.values.ids import CommitId, ErasedId, FileId, Id, IndexId, NodeId, Nonce, PackId, StoreId
from dsv.values.json import LONG_MAX, SHORT_MAX, check_length
from dsv.values.names import BranchName, DatasetName, TagName

HASH = "blake3"
MAX_CONDEMNED = 1 << 20
CONDEMNED_MAX = (1 << 12) + 18 * MAX_CONDEMNED
"""Maximum size of a `gc-condemned` record in bytes."""


class RefEntry(Record, frozen=True):
    """One move of a branch."""

    kind = "ref"
    added = 3
    commit: CommitId | None
    """None for a deleted branch or a branch without commits."""
    deleted: bool
    nonce: Nonce
    time_ms: Millis
    author: Short
    action: Short
    dataset: DatasetName | None = None
    """`dataset`, `branch` and `number` form the key of the entry (see `repo.refs`): all or none are set."""
    branch: BranchName | None = None
    number: Count | None = None

    @classmethod
    def of(
        cls,
        writer: WriterIdentity,
        time_ms: int,
        commit: CommitId | None,
        action: str,
        *,
        deleted: bool = False,
    ) -> RefEntry:
        """Return a move by this writer with a new nonce."""
        return cls(commit, deleted, Nonce.random(), time_ms, writer.author, action)

    def fault(self) -> str | None:
        return "it is deleted and names a commit" if self.deleted and self.commit is not None else None


class TagValue(Record, frozen=True):
    kind = "tag"
    added = 2
    commit: CommitId
    nonce: Nonce
    time_ms: Millis
    author: Short
    message: Long
    dataset: DatasetName | None = None
    """`dataset` and `tag` form the key of the value (see `repo.refs`): both or neither are set."""
    tag: TagName | None = None


class TagDeleted(Record, frozen=True):
    kind = "tag-deleted"
    nonce: Nonce
    time_ms: Millis
    author: Short
    message: Long


class FeatureRule(enum.StrEnum):
    """The behaviour of a program that does not know the feature."""

    IGNORE = "ignore"
    READ_ONLY = "read-only"
    REFUSE = "refuse"


class Feature(msgspec.Struct, frozen=True, array_like=True):
    name: Short
    rule: FeatureRule


class ChunkingParams(msgspec.Struct, frozen=True, array_like=True):
    """Parameters of chunking. Sizes are in bytes; a file of at most `single` bytes is one chunk."""

    algorithm: Short = recipe.ALGORITHM
    single: Count = recipe.SINGLE_CHUNK_MAX
    minimum: Count = recipe.MIN_CHUNK
    average: Count = recipe.AVERAGE_CHUNK
    maximum: Count = recipe.MAX_CHUNK
    normalization: Count = recipe.NORMALIZATION


learn(Feature, ChunkingParams)


class FormatEntry(Record, frozen=True):
    """One entry of the feature log: the complete state from this entry on.

    All entries have the same `store_id`, `hash` and `chunking`.
    """

    kind = "format"
    added = 1
    order = (
        "store_id", "hash", "chunking", "features", "single_writer", "nonce", "time_ms", "author", "tool", "names"
    )  # fmt: skip
    store_id: StoreId
    nonce: Nonce
    time_ms: Millis
    author: Short
    tool: Short
    hash: Short = HASH
    chunking: ChunkingParams = ChunkingParams()
    features: tuple[Feature, ...] = ()
    single_writer: bool = False
    names: Short | None = None
    """The location that the store's names are moving to or have moved to; see `repo.move_refs`."""

    def fault(self) -> str | None:
        if not is_sorted([one.name for one in self.features]):
            return "its features are not sorted"
        return "its names have moved nowhere" if self.names == "" else None


class SessionOpen(Record, frozen=True):
    kind = "session-open"
    nonce: Nonce
    time_ms: Millis
    author: Short
    host: Short
    tool: Short


class SessionBeat(Record, frozen=True):
    kind = "session-beat"
    nonce: Nonce
    time_ms: Millis


class SessionVerdict(Record, frozen=True):
    """The commit that a session will publish, or None if gc fenced the session first."""

    kind = "session-verdict"
    commit: CommitId | None
    nonce: Nonce


class SessionClosed(Record, frozen=True):
    """The end of a session, which writes nothing more."""

    kind = "session-closed"
    nonce: Nonce
    time_ms: Millis


class _GcPacks(Record, frozen=True):
    limit = CONDEMNED_MAX
    epoch: Count
    packs: tuple[PackId, ...]
    nonce: Nonce
    time_ms: Millis
    tool: Short

    def fault(self) -> str | None:
        return None if is_sorted(self.packs) else "its packs are not sorted, each once"


class GcCondemned(_GcPacks, frozen=True):
    """The packs that this epoch may delete. Writers whose session began later treat them as absent."""

    kind = "gc-condemned"


class GcDecision(_GcPacks, frozen=True):
    """The packs that this epoch deletes, whichever process continues it; empty if the epoch was given up."""

    kind = "gc-decision"


class GcDone(Record, frozen=True):
    """Every pack of the epoch was deleted or found to be needed; its condemnation no longer counts."""

    kind = "gc-done"
    epoch: Count
    nonce: Nonce
    time_ms: Millis


class BranchLimits(msgspec.Struct, frozen=True):
    """The rule of a protected branch. Such a branch can only be fast-forwarded."""

    only_merge: bool = False
    """Only merges may move it."""
    who: tuple[str, ...] = ()
    """The authors who may move it, sorted and unique; empty for anyone."""
    max_removals: int | None = None
    """Percentage of the head's paths that one move may remove; None for all."""

    def fault(self) -> str | None:
        if not is_sorted(self.who) or "" in self.who:
            return "its authors are not sorted, each once"
        if self.max_removals is not None and not 0 <= self.max_removals <= 100:
            return f"{self.max_removals} percent of the paths can't be removed"
        return None

    def names(self, author: str) -> bool:
        """Return whether this author may move the branch, by the whole text, the name or the address."""
        name, _, address = author.partition("<")
        known = {part.strip(" >").casefold() for part in (author, name, address)} | {author.casefold()}
        return not self.who or any(one.casefold() in known for one in self.who)


class BranchRule(Record, frozen=True):
    """One entry of the log of a branch's rules. The last entry is in force."""

    kind = "branch-rule"
    is_protected: bool
    only_merge: bool
    who: tuple[Short, ...]
    max_removals: Count | None
    nonce: Nonce
    time_ms: Millis
    author: Short
    message: Long
    dataset: DatasetName
    branch: BranchName
    number: Count
    """The position of the entry, from 0."""

    @classmethod
    def of(
        cls, limits: BranchLimits | None, nonce: Nonce, time_ms: int, author: str, message: str,
        dataset: DatasetName, branch: BranchName, number: int,
    ) -> BranchRule:  # fmt: skip
        said = limits or BranchLimits()
        return cls(
            limits is not None, said.only_merge, said.who, said.max_removals,
            nonce, time_ms, author, message, dataset, branch, number,
        )  # fmt: skip

    @property
    def limits(self) -> BranchLimits | None:
        """None if the branch is not protected."""
        return BranchLimits(self.only_merge, self.who, self.max_removals) if self.is_protected else None

    def fault(self) -> str | None:
        if self.limits is not None:
            return self.limits.fault()
        is_bare = (self.only_merge, self.who, self.max_removals) == (False, (), None)
        return None if is_bare else "it protects nothing and has limits"


def checked_limits(*, only_merge: bool, who: tuple[str, ...], max_removals: int | None) -> BranchLimits:
    """Return the limits that a user gave. Raises `UsageError`."""
    for one in who:
        check_length(one, SHORT_MAX, "an author of --who")
    check_length("".join(who), LONG_MAX, "the list of authors of --who")
    limits = BranchLimits(only_merge, tuple(sorted({one.strip() for one in who})), max_removals)
    fault = limits.fault()
    if fault is not None:
        raise UsageError(fault)
    return limits


MERGE = "merge"
RENAME = "rename"
RENAMED_TO = "to "
RENAMED_FROM = "from "
DELETE_DATASET = "delete dataset"
UNDELETE_DATASET = "undelete dataset"
RENAME_DATASET = "rename dataset"
"""Verbs and message prefixes that dsv relies on when it reads the log."""

_FORCED = " (forced)"
MESSAGE_MAX = 900
"""Maximum characters of the message in a move of a branch, not counting the rest of its action."""


class Action(msgspec.Struct, frozen=True):
    """The action that moved a branch."""

    verb: str
    message: str = ""
    forced: bool = False
    """The move overrode the rule of a protected branch."""

    @classmethod
    def parse(cls, text: str) -> Action:
        """Accept any text: actions are for people to read."""
        verb, _, message = text.partition(": ")
        return cls(verb.removesuffix(_FORCED), message, verb.endswith(_FORCED))

    def __str__(self) -> str:
        verb = self.verb + _FORCED if self.forced else self.verb
        return f"{verb}: {self.message}" if self.message else verb

    def overriding(self, why: str) -> Action:
        """Return this action, forced for the reason `why`."""
        said = self.message if why in self.message else "; ".join(filter(None, (self.message, why)))
        return Action(self.verb, said[: MESSAGE_MAX + 100], forced=True)


class DatasetErased(Record, frozen=True):
    kind = "dataset-erased"
    nonce: Nonce
    time_ms: Millis
    successor: DatasetName | None
    """The dataset with the commits that were kept, if there is one."""
    message: Long
    """The reason."""


def erased_id(store: StoreId, dataset: DatasetName) -> ErasedId:
    """Return the id of a dataset's tombstone. Only a program that knows the dataset's name can find it."""
    return ErasedId.hash(store + str(dataset).encode())


class WriterIdentity(msgspec.Struct, frozen=True):
    """The person and the program that write, for the records of a session. No decision depends on them."""

    author: str
    host: str
    tool: str


def describe_limits(limits: BranchLimits) -> str:
    said = ["only merges"] if limits.only_merge else []
    said += [f"only {', '.join(limits.who)}"] if limits.who else []
    said += [f"at most {limits.max_removals} % removed"] if limits.max_removals is not None else []
    return "; ".join(said) or "only forward"


MAX_PARENTS = 64


class CommitRecord(Record, frozen=True):
    kind = "commit"
    added = 2
    root: NodeId
    level: Count
    parents: tuple[CommitId, ...]
    author: Short
    time_ms: Millis
    """Milliseconds since 1970 in UTC by the writer's clock."""
    message: Long
    files: Count
    """`files`, `bytes` and `entries` are the totals of the tree."""
    bytes: Count
    entries: Count
    dataset: DatasetName | None = None
    """The dataset and branch that the commit was made for: both, or neither in old commits."""
    branch: BranchName | None = None

    @property
    def id(self) -> CommitId:
        return CommitId.hash(self.encode())

    def fault(self) -> str | None:
        if not 1 <= self.level <= MAX_LEVEL:
            return f"its tree has level {self.level}"
        if len(self.parents) > MAX_PARENTS or len(set(self.parents)) != len(self.parents):
            return "it has too many parents, or one twice"
        if self.files > self.entries or (self.bytes and not self.files):
            return "its totals contradict each other"
        if self.entries > MAX_TREE_ENTRIES:
            return f"its tree has {self.entries} entries, over the limit of {MAX_TREE_ENTRIES}"
        return None


MAX_COMMITS = 1 << 14
"""Maximum commits of one entry; more take several entries."""


class ExpiryAction(enum.StrEnum):
    EXPIRE = "expire"
    DELETE = "delete"
    """The commits expire because their dataset is deleted."""
    UNDO = "undo"
    """The commits are kept again, unless their content was freed."""
    FREE = "free"
    """A garbage collection removes the content of expired commits. This can't be undone."""


class ExpiryEntry(Record, frozen=True):
    kind = "expiry"
    action: ExpiryAction
    commits: tuple[CommitId, ...]
    """Sorted, each once."""
    nonce: Nonce
    """The same in all entries that one command wrote."""
    time_ms: Millis
    author: Short
    message: Long
    dataset: DatasetName
    number: Count
    """The position of the entry, from 0."""

    def fault(self) -> str | None:
        if not 0 < len(self.commits) <= MAX_COMMITS:
            return f"it has {len(self.commits)} commits"
        return None if is_sorted(self.commits) else "its commits are not sorted, each once"


MAX_ERASED = 1 << 18
"""Maximum files, and maximum objects, of one record; more take several records."""
ERASURE_MAX = (1 << 19) + (34 + 38) * MAX_ERASED
"""Maximum size of an `erasure` record in bytes."""

_ERASABLE = frozenset((ObjectKind.CHUNK, ObjectKind.RECIPE))
Named = tuple[ObjectKind, Id]


def _fault_of_lists(most: int, *lists: Sequence[Any]) -> str | None:
    for named in lists:
        if not is_sorted(named):
            return "what it names is not sorted, each once"
        if len(named) > most:
            return f"it names {len(named)} of one sort, over the limit of {most}"
    return None


class Erasure(Record, frozen=True):
    """An erasure: what was erased, by which author, when and why."""

    kind = "erasure"
    limit = ERASURE_MAX
    files: tuple[FileId, ...]
    """Files of which nothing is read any more, in any commit. Sorted, each once. Empty if a later record of
    the same command has them."""
    objects: tuple[Named, ...]
    """Chunks and recipes that are removed and never stored again. Sorted, each once."""
    nonce: Nonce
    """The same in all records that one command writes."""
    time_ms: Millis
    author: Short
    reason: Long
    tool: Short

    def fault(self) -> str | None:
        if not self.files and not self.objects:
            return "it names nothing"
        if not {kind for kind, _ in self.objects} <= _ERASABLE:
            return "it names an object of an unknown kind"
        return _fault_of_lists(MAX_ERASED, self.files, self.objects)


MAX_MARKS = 1 << 18
"""Maximum packs, damaged objects and missing objects of one record, each."""
DAMAGE_MAX = (1 << 12) + (18 + 56 + 38) * MAX_MARKS
"""Maximum size of a `damage` record in bytes."""

Place = tuple[PackId, ObjectKind, Id]
"""An object in a pack."""
_MARKED = frozenset(ObjectKind) - {ObjectKind.LOCATOR}
"""Kinds of objects that a mark can name."""
MAX_DIGITS = 4


class Damage(Record, frozen=True):
    kind = "damage"
    limit = DAMAGE_MAX
    packs: tuple[PackId, ...]
    """Packs that are lost or must not be used. Sorted, each once."""
    objects: tuple[Place, ...]
    """Objects whose bytes in a pack are damaged. Sorted, each once."""
    missing: tuple[Named, ...]
    """Objects that had no other copy when this was written. Sorted, each once."""
    all_missing: bool
    """`missing` is complete."""
    nonce: Nonce
    time_ms: Millis
    author: Short
    tool: Short

    def fault(self) -> str | None:
        if not {kind for _, kind, _ in self.objects} | {kind for kind, _ in self.missing} <= _MARKED:
            return "it names an object of an unknown kind"
        return _fault_of_lists(MAX_MARKS, self.packs, self.objects, self.missing)


S = TypeVar("S", FormatEntry, Damage)


def signed(record: S, writer: WriterIdentity, time_ms: int) -> S:
    """Return the record as written by this writer, with a new nonce."""
    return replace(record, nonce=Nonce.random(), time_ms=time_ms, author=writer.author, tool=writer.tool)


class Verified(Record, frozen=True):
    """The times of the last verification of each slice: packs whose ids begin with the same digits."""

    kind = "verified"
    digits: Count
    """Hex digits that the packs of a slice share. There are 16^digits slices."""
    times: Annotated[bytes, Meta(max_length=4 << 4 * MAX_DIGITS)]
    """A `u32` for each slice: seconds since 1970 by the store's clock, 0 if it was never verified."""
    fresh: tuple[U32, ...]
    """Slices verified just before this was written; their time is this record's in the store. Sorted, each
    once."""
    nonce: Nonce
    time_ms: Millis
    author: Short
    tool: Short

    def fault(self) -> str | None:
        if not 1 <= self.digits <= MAX_DIGITS or len(self.times) != 4 * 16**self.digits:
            return "it does not have a time for each slice"
        if not is_sorted(self.fresh) or any(one >= 16**self.digits for one in self.fresh):
            return "its slices are not sorted, each once"
        return None


MAX_FILES = 1 << 18
MERGE_MAX = (1 << 12) + 30 * MAX_FILES
"""Maximum size of an `index-merge` record in bytes."""


class MergedFile(NamedTuple):
    id: IndexId
    first: U32
    """The first 4 bytes of the first row's id, as a number."""
    last: U32
    """The same of the last row."""


learn(MergedFile)


Run = tuple[MergedFile, ...]
"""The files that one merge wrote."""


class IndexMerge(Record, frozen=True):
    """A merge of index files: `files` have all rows of the `replaced` files, which need not be read any more
    and may be deleted some time later. No concurrent write makes it false, so any process may merge."""

    kind = "index-merge"
    limit = MERGE_MAX
    files: tuple[MergedFile, ...]
    runs: tuple[U32, ...]
    """The number of files in each run."""
    replaced: tuple[IndexId, ...]
    time_ms: Millis
    tool: Short

    @classmethod
    def of(cls, runs: Iterable[Run], replaced: Iterable[IndexId], time_ms: int, tool: str) -> IndexMerge:
        grouped = tuple(runs)
        files = tuple(chain.from_iterable(grouped))
        return cls(files, tuple(map(len, grouped)), tuple(sorted(set(replaced))), time_ms, tool)

    @property
    def by_run(self) -> tuple[Run, ...]:
        files = iter(self.files)
        return tuple(tuple(islice(files, count)) for count in self.runs)

    def fault(self) -> str | None:
        if not self.files or not all(self.runs) or sum(self.runs) != len(self.files):
            return "its runs are not those of its files"
        if not is_sorted(self.replaced):
            return "the files that were replaced are not sorted, each once"
        if len(self.files) + len(self.replaced) > MAX_FILES:
            return "it names too many files"
        if any(one.first > one.last for one in self.files):
            return "the last row of a file is before its first"
        return None
