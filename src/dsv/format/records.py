"""The small records of a store: moves of refs, rules, tags, the feature log, sessions, and erased datasets."""

from __future__ import annotations

import enum

import msgspec

from dsv.errors import UsageError
from dsv.format import recipe
from dsv.format.envelope import Count, Long, Millis, Record, Short, is_sorted, learn
from dsv.values.ids import CommitId, ErasedId, Nonce, PackId, StoreId
from dsv.values.json import LONG_MAX, SHORT_MAX, check_length
from dsv.values.names import BranchName, DatasetName, TagName

HASH = "blake3"
MAX_CONDEMNED = 1 << 20
CONDEMNED_MAX = (1 << 12) + 18 * MAX_CONDEMNED
"""Bytes of a `gc-condemned` record."""


class RefEntry(Record, frozen=True):
    """One move of a branch."""

    kind = "ref"
    added = 3
    commit: CommitId | None
    """None for a deleted branch, and for one without commits."""
    deleted: bool
    nonce: Nonce
    time_ms: Millis
    author: Short
    action: Short
    dataset: DatasetName | None = None
    """With `branch` and `number` the key of the entry (see `repo.refs`): all three or none."""
    branch: BranchName | None = None
    number: Count | None = None

    @classmethod
    def of(
        cls, writer: Writer, time_ms: int, commit: CommitId | None, action: str, *, deleted: bool = False
    ) -> RefEntry:
        """Return a move by this writer, to a commit if there is one."""
        return cls(commit, deleted, Nonce.random(), time_ms, writer.author, action)

    def fault(self) -> str | None:
        return "it is deleted and names a commit" if self.deleted and self.commit is not None else None


class TagValue(Record, frozen=True):
    """The value of a tag."""

    kind = "tag"
    added = 2
    commit: CommitId
    nonce: Nonce
    time_ms: Millis
    author: Short
    message: Long
    dataset: DatasetName | None = None
    """With `tag` the key of the value (see `repo.refs`): both or neither."""
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
    """The way in which files are cut. Sizes in bytes; a file up to `single` is one chunk."""

    algorithm: Short = recipe.ALGORITHM
    single: Count = recipe.SINGLE_CHUNK_MAX
    minimum: Count = recipe.MIN_CHUNK
    average: Count = recipe.AVERAGE_CHUNK
    maximum: Count = recipe.MAX_CHUNK
    normalization: Count = recipe.NORMALIZATION


learn(Feature, ChunkingParams)


class FormatEntry(Record, frozen=True):
    """One entry of the feature log: the whole state from then on.

    `store_id`, `hash` and `chunking` never differ from those of the first entry.
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
    """The place to which the store's names are moving or have moved; see `repo.names_place`."""

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
    """The commit that a session is about to name, or None: gc fenced the session first."""

    kind = "session-verdict"
    commit: CommitId | None
    nonce: Nonce


class SessionClosed(Record, frozen=True):
    """The session writes nothing more."""

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
    """The packs that this epoch may delete: writers whose session began later treat them as absent."""

    kind = "gc-condemned"


class GcDecision(_GcPacks, frozen=True):
    """The packs that this epoch deletes, whoever continues it: none if it was given up."""

    kind = "gc-decision"


class GcDone(Record, frozen=True):
    """Every pack of the epoch was deleted or found to be needed; its condemnation no longer counts."""

    kind = "gc-done"
    epoch: Count
    nonce: Nonce
    time_ms: Millis


class Limits(msgspec.Struct, frozen=True):
    """The rule of a protected branch. Such a branch can only be fast-forwarded."""

    only_merge: bool = False
    """Only merges may move it."""
    who: tuple[str, ...] = ()
    """The authors who may move it, sorted and unique; empty for anyone."""
    max_removals: int | None = None
    """Percentage of the head's paths that one move may remove; None for all."""

    def fault(self) -> str | None:
        """Return what is wrong with it, if anything is."""
        if not is_sorted(self.who) or "" in self.who:
            return "its authors are not sorted, each once"
        if self.max_removals is not None and not 0 <= self.max_removals <= 100:
            return f"{self.max_removals} percent of the paths can't be removed"
        return None

    def names(self, author: str) -> bool:
        """Return whether this author is one of those who may move the branch: by the whole text, the name, or the
        address."""
        name, _, address = author.partition("<")
        known = {part.strip(" >").casefold() for part in (author, name, address)} | {author.casefold()}
        return not self.who or any(one.casefold() in known for one in self.who)


class BranchRule(Record, frozen=True):
    """One entry of the log of a branch's rules, of which the last one is in force."""

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
        cls, limits: Limits | None, nonce: Nonce, time_ms: int, author: str, message: str,
        dataset: DatasetName, branch: BranchName, number: int,
    ) -> BranchRule:  # fmt: skip
        said = limits or Limits()
        return cls(
            limits is not None, said.only_merge, said.who, said.max_removals,
            nonce, time_ms, author, message, dataset, branch, number,
        )  # fmt: skip

    @property
    def limits(self) -> Limits | None:
        """None if the branch is not protected."""
        return Limits(self.only_merge, self.who, self.max_removals) if self.is_protected else None

    def fault(self) -> str | None:
        limits = Limits(self.only_merge, self.who, self.max_removals)
        if not self.is_protected and limits != Limits():
            return "it protects nothing and has limits"
        return limits.fault()


def checked_limits(*, only_merge: bool, who: tuple[str, ...], max_removals: int | None) -> Limits:
    """Limits as a person gives them. Raises `UsageError`."""
    for one in who:
        check_length(one, SHORT_MAX, "an author of --who")
    check_length("".join(who), LONG_MAX, "the list of authors of --who")
    limits = Limits(only_merge, tuple(sorted({one.strip() for one in who})), max_removals)
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
"""Verbs and beginnings of messages that dsv relies on when it reads the log."""

_FORCED = " (forced)"
MESSAGE_MAX = 900
"""Characters of a message that go into a move of a branch, beside the rest of its action."""


class Action(msgspec.Struct, frozen=True):
    """The action that moved a branch."""

    verb: str
    message: str = ""
    forced: bool = False
    """It overrode the rule of a protected branch."""

    @classmethod
    def parse(cls, text: str) -> Action:
        """Any text is one: it is for people."""
        verb, _, message = text.partition(": ")
        return cls(verb.removesuffix(_FORCED), message, verb.endswith(_FORCED))

    def __str__(self) -> str:
        verb = self.verb + _FORCED if self.forced else self.verb
        return f"{verb}: {self.message}" if self.message else verb

    def overriding(self, why: str) -> Action:
        """Return the same, forced for this reason."""
        said = self.message if why in self.message else "; ".join(filter(None, (self.message, why)))
        return Action(self.verb, said[: MESSAGE_MAX + 100], forced=True)


class DatasetErased(Record, frozen=True):
    """The tombstone of an erased dataset."""

    kind = "dataset-erased"
    nonce: Nonce
    time_ms: Millis
    successor: DatasetName | None
    """The dataset with the commits that were kept, if there is one."""
    message: Long
    """The reason."""


def erased_id(store: StoreId, dataset: DatasetName) -> ErasedId:
    """Under which id the tombstone of a dataset stands: only who knows the name finds it."""
    return ErasedId.hash(store + str(dataset).encode())


class Writer(msgspec.Struct, frozen=True):
    """The person and the program that write, for the records of a session: never used to decide anything."""

    author: str
    host: str
    tool: str


def describe_limits(limits: Limits) -> str:
    """Return what a rule says, in a few words."""
    said = ["only merges"] if limits.only_merge else []
    said += [f"only {', '.join(limits.who)}"] if limits.who else []
    said += [f"at most {limits.max_removals} % removed"] if limits.max_removals is not None else []
    return "; ".join(said) or "only forward"
