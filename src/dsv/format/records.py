"""The small records of a store: moves of refs, rules, tags, the feature log, sessions, and erased datasets."""

from __future__ import annotations

import enum

import msgspec

from dsv.errors import UsageError
from dsv.format import envelope, recipe
from dsv.format.envelope import Buffer, Count, Long, Millis, Raw16, Raw32, Record, Short
from dsv.values.ids import CommitId, ErasedId, Nonce, PackId, StoreId
from dsv.values.json import LONG_MAX, SHORT_MAX, check_length
from dsv.values.names import BranchName, DatasetName, TagName

HASH = "blake3"
MAX_CONDEMNED = 1 << 20
CONDEMNED_MAX = (1 << 12) + 18 * MAX_CONDEMNED
"""Bytes of a `gc-condemned` record."""

_REF = Record("ref", tuple[Raw32 | None, bool, Raw16, Millis, Short, Short])
_NAMED_REF = Record(
    "ref", tuple[Raw32 | None, bool, Raw16, Millis, Short, Short, Short, Short, Count], version=2
)
_TAG = Record("tag", tuple[Raw32, Raw16, Millis, Short, Long])
_NAMED_TAG = Record("tag", tuple[Raw32, Raw16, Millis, Short, Long, Short, Short], version=2)
_TAG_DELETED = Record("tag-deleted", tuple[Raw16, Millis, Short, Long])
_CHUNKING = tuple[Short, Count, Count, Count, Count, Count]
_FORMAT = Record(
    "format",
    tuple[Raw16, Short, _CHUNKING, tuple[tuple[Short, Short], ...], bool, Raw16, Millis, Short, Short],
)
_MOVED_FORMAT = Record(
    "format",
    tuple[Raw16, Short, _CHUNKING, tuple[tuple[Short, Short], ...], bool, Raw16, Millis, Short, Short, Short],
    version=2,
)
_SESSION_OPEN = Record("session-open", tuple[Raw16, Millis, Short, Short, Short])
_SESSION_BEAT = Record("session-beat", tuple[Raw16, Millis])
_SESSION_VERDICT = Record("session-verdict", tuple[Raw32 | None, Raw16])
_SESSION_CLOSED = Record("session-closed", tuple[Raw16, Millis])
_GC_CONDEMNED = Record(
    "gc-condemned",
    tuple[Count, tuple[Raw16, ...], Raw16, Millis, Short],
    limit=CONDEMNED_MAX,
)
_GC_DECISION = Record(
    "gc-decision",
    tuple[Count, tuple[Raw16, ...], Raw16, Millis, Short],
    limit=CONDEMNED_MAX,
)
_GC_DONE = Record("gc-done", tuple[Count, Raw16, Millis])


class RefEntry(msgspec.Struct, frozen=True):
    """One move of a branch."""

    commit: CommitId | None
    """None for a deleted branch, and for one without commits."""
    deleted: bool
    nonce: Nonce
    time_ms: int
    author: str
    action: str
    dataset: DatasetName | None = None
    """With `branch` and `number` the key of the entry (see `repo.refs`): all three or none."""
    branch: BranchName | None = None
    number: int | None = None

    def encode(self) -> bytes:
        """Raise `ValueError` if a deleted branch names a commit, or only some of the names are given."""
        if self.deleted and self.commit is not None:
            raise ValueError("a deleted branch names no commit")
        fields = (self.commit and bytes(self.commit), self.deleted, bytes(self.nonce), self.time_ms,
                  self.author, self.action)  # fmt: skip
        if self.dataset is None and self.branch is None and self.number is None:
            return _REF.encode(fields)
        if self.dataset is None or self.branch is None or self.number is None:
            raise ValueError("a ref carries its dataset, its branch and its number, or none of them")
        return _NAMED_REF.encode((*fields, str(self.dataset), str(self.branch), self.number))

    @classmethod
    def decode(cls, data: Buffer) -> RefEntry:
        dataset = branch = number = None
        if envelope.version_of(data) == 1:
            commit, deleted, nonce, time_ms, author, action = _REF.decode(data)
        else:
            commit, deleted, nonce, time_ms, author, action, *names, number = _NAMED_REF.decode(data)
            dataset = envelope.carried("ref", DatasetName.parse, names[0])
            branch = envelope.carried("ref", BranchName.parse, names[1])
        if deleted and commit is not None:
            raise envelope.damaged("ref", "it is deleted and names a commit")
        return cls(CommitId(commit) if commit else None, deleted, Nonce(nonce), time_ms, author, action,
                   dataset, branch, number)  # fmt: skip


class TagValue(msgspec.Struct, frozen=True):
    """The value of a tag."""

    commit: CommitId
    nonce: Nonce
    time_ms: int
    author: str
    message: str
    dataset: DatasetName | None = None
    """With `tag` the key of the value (see `repo.refs`): both or neither."""
    tag: TagName | None = None

    def encode(self) -> bytes:
        """Raise `ValueError` if only one of both names is given."""
        fields = (bytes(self.commit), bytes(self.nonce), self.time_ms, self.author, self.message)
        if self.dataset is None and self.tag is None:
            return _TAG.encode(fields)
        if self.dataset is None or self.tag is None:
            raise ValueError("a tag carries its dataset and its name, or neither")
        return _NAMED_TAG.encode((*fields, str(self.dataset), str(self.tag)))

    @classmethod
    def decode(cls, data: Buffer) -> TagValue:
        dataset = tag = None
        if envelope.version_of(data) == 1:
            commit, nonce, time_ms, author, message = _TAG.decode(data)
        else:
            commit, nonce, time_ms, author, message, *names = _NAMED_TAG.decode(data)
            dataset = envelope.carried("tag", DatasetName.parse, names[0])
            tag = envelope.carried("tag", TagName.parse, names[1])
        return cls(CommitId(commit), Nonce(nonce), time_ms, author, message, dataset, tag)


class TagDeleted(msgspec.Struct, frozen=True):
    nonce: Nonce
    time_ms: int
    author: str
    message: str

    def encode(self) -> bytes:
        return _TAG_DELETED.encode((bytes(self.nonce), self.time_ms, self.author, self.message))

    @classmethod
    def decode(cls, data: Buffer) -> TagDeleted:
        nonce, time_ms, author, message = _TAG_DELETED.decode(data)
        return cls(Nonce(nonce), time_ms, author, message)


class FeatureRule(enum.StrEnum):
    """The behaviour of a program that does not know the feature."""

    IGNORE = "ignore"
    READ_ONLY = "read-only"
    REFUSE = "refuse"


class Feature(msgspec.Struct, frozen=True):
    name: str
    rule: FeatureRule


class ChunkingParams(msgspec.Struct, frozen=True):
    """The way in which files are cut. Sizes in bytes; a file up to `single` is one chunk."""

    algorithm: str = recipe.ALGORITHM
    single: int = recipe.SINGLE_CHUNK_MAX
    minimum: int = recipe.MIN_CHUNK
    average: int = recipe.AVERAGE_CHUNK
    maximum: int = recipe.MAX_CHUNK
    normalization: int = recipe.NORMALIZATION


class FormatEntry(msgspec.Struct, frozen=True):
    """One entry of the feature log: the whole state from then on.

    `store_id`, `hash` and `chunking` never differ from those of the first entry.
    """

    store_id: StoreId
    nonce: Nonce
    time_ms: int
    author: str
    tool: str
    hash: str = HASH
    chunking: ChunkingParams = ChunkingParams()
    features: tuple[Feature, ...] = ()
    single_writer: bool = False
    names: str | None = None
    """The place to which the store's names are moving or have moved; see `repo.names_place`."""

    def encode(self) -> bytes:
        """Raise `ValueError` where the features are not sorted by name."""
        names = [one.name for one in self.features]
        if names != sorted(set(names)):
            raise ValueError("features are sorted by name, each once")
        cut = self.chunking
        fields = (
            bytes(self.store_id), self.hash,
            (cut.algorithm, cut.single, cut.minimum, cut.average, cut.maximum, cut.normalization),
            tuple((one.name, one.rule.value) for one in self.features),
            self.single_writer, bytes(self.nonce), self.time_ms, self.author, self.tool,
        )  # fmt: skip
        return _FORMAT.encode(fields) if self.names is None else _MOVED_FORMAT.encode((*fields, self.names))

    @classmethod
    def decode(cls, data: Buffer) -> FormatEntry:
        place = None
        if envelope.version_of(data) == 1:
            store, hash_, cut, features, single_writer, nonce, time_ms, author, tool = _FORMAT.decode(data)
        else:
            store, hash_, cut, features, single_writer, nonce, time_ms, author, tool, place = (
                _MOVED_FORMAT.decode(data)
            )
        if place == "":
            raise envelope.damaged("format", "its names have moved nowhere")
        names = [name for name, _ in features]
        if names != sorted(set(names)):
            raise envelope.damaged("format", "its features are not sorted")
        try:
            parsed = tuple(Feature(name, FeatureRule(rule)) for name, rule in features)
        except ValueError:
            raise envelope.damaged("format", "it has a feature with an unknown rule") from None
        return cls(StoreId(store), Nonce(nonce), time_ms, author, tool, hash_, ChunkingParams(*cut), parsed,
                   single_writer, place)  # fmt: skip


class SessionOpen(msgspec.Struct, frozen=True):
    nonce: Nonce
    time_ms: int
    author: str
    host: str
    tool: str

    def encode(self) -> bytes:
        return _SESSION_OPEN.encode((bytes(self.nonce), self.time_ms, self.author, self.host, self.tool))

    @classmethod
    def decode(cls, data: Buffer) -> SessionOpen:
        nonce, time_ms, author, host, tool = _SESSION_OPEN.decode(data)
        return cls(Nonce(nonce), time_ms, author, host, tool)


class SessionBeat(msgspec.Struct, frozen=True):
    nonce: Nonce
    time_ms: int

    def encode(self) -> bytes:
        return _SESSION_BEAT.encode((bytes(self.nonce), self.time_ms))

    @classmethod
    def decode(cls, data: Buffer) -> SessionBeat:
        nonce, time_ms = _SESSION_BEAT.decode(data)
        return cls(Nonce(nonce), time_ms)


class SessionVerdict(msgspec.Struct, frozen=True):
    """The commit that a session is about to name, or None: gc fenced the session first."""

    commit: CommitId | None
    nonce: Nonce

    def encode(self) -> bytes:
        return _SESSION_VERDICT.encode((self.commit and bytes(self.commit), bytes(self.nonce)))

    @classmethod
    def decode(cls, data: Buffer) -> SessionVerdict:
        commit, nonce = _SESSION_VERDICT.decode(data)
        return cls(CommitId(commit) if commit else None, Nonce(nonce))


class SessionClosed(msgspec.Struct, frozen=True):
    """The session writes nothing more."""

    nonce: Nonce
    time_ms: int

    def encode(self) -> bytes:
        return _SESSION_CLOSED.encode((bytes(self.nonce), self.time_ms))

    @classmethod
    def decode(cls, data: Buffer) -> SessionClosed:
        nonce, time_ms = _SESSION_CLOSED.decode(data)
        return cls(Nonce(nonce), time_ms)


class GcCondemned(msgspec.Struct, frozen=True):
    """The packs that this epoch may delete: writers whose session began later treat them as absent."""

    epoch: int
    packs: tuple[PackId, ...]
    nonce: Nonce
    time_ms: int
    tool: str

    def encode(self) -> bytes:
        """Raise `ValueError` where the packs are not sorted, or are too many for one epoch."""
        if list(self.packs) != sorted(set(self.packs)):
            raise ValueError("condemned packs are sorted, each once")
        packs = tuple(bytes(pack) for pack in self.packs)
        return _GC_CONDEMNED.encode((self.epoch, packs, bytes(self.nonce), self.time_ms, self.tool))

    @classmethod
    def decode(cls, data: Buffer) -> GcCondemned:
        epoch, packs, nonce, time_ms, tool = _GC_CONDEMNED.decode(data)
        if list(packs) != sorted(set(packs)):
            raise envelope.damaged("gc-condemned", "its packs are not sorted")
        return cls(epoch, tuple(map(PackId, packs)), Nonce(nonce), time_ms, tool)


class GcDecision(msgspec.Struct, frozen=True):
    """The packs that this epoch deletes, whoever continues it: none if it was given up."""

    epoch: int
    packs: tuple[PackId, ...]
    nonce: Nonce
    time_ms: int
    tool: str

    def encode(self) -> bytes:
        """Raise `ValueError` where the packs are not sorted."""
        if list(self.packs) != sorted(set(self.packs)):
            raise ValueError("the packs to delete are sorted, each once")
        packs = tuple(bytes(pack) for pack in self.packs)
        return _GC_DECISION.encode((self.epoch, packs, bytes(self.nonce), self.time_ms, self.tool))

    @classmethod
    def decode(cls, data: Buffer) -> GcDecision:
        epoch, packs, nonce, time_ms, tool = _GC_DECISION.decode(data)
        if list(packs) != sorted(set(packs)):
            raise envelope.damaged("gc-decision", "its packs are not sorted")
        return cls(epoch, tuple(map(PackId, packs)), Nonce(nonce), time_ms, tool)


class GcDone(msgspec.Struct, frozen=True):
    """Every pack of the epoch was deleted or found to be needed; its condemnation no longer counts."""

    epoch: int
    nonce: Nonce
    time_ms: int

    def encode(self) -> bytes:
        return _GC_DONE.encode((self.epoch, bytes(self.nonce), self.time_ms))

    @classmethod
    def decode(cls, data: Buffer) -> GcDone:
        epoch, nonce, time_ms = _GC_DONE.decode(data)
        return cls(epoch, Nonce(nonce), time_ms)


_RULE = Record(
    "branch-rule",
    tuple[bool, bool, tuple[Short, ...], Count | None, Raw16, Millis, Short, Long, Short, Short, Count],
)


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
        if list(self.who) != sorted(set(self.who)) or "" in self.who:
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


class BranchRule(msgspec.Struct, frozen=True):
    """One entry of the log of a branch's rules, of which the last one is in force."""

    limits: Limits | None
    """None if the branch is not protected."""
    nonce: Nonce
    time_ms: int
    author: str
    message: str
    dataset: DatasetName
    branch: BranchName
    number: int
    """The position of the entry, from 0."""

    def encode(self) -> bytes:
        """Raise `ValueError` for limits that make no sense."""
        limits = self.limits or Limits()
        fault = limits.fault()
        if fault is not None:
            raise ValueError(fault)
        return _RULE.encode((
            self.limits is not None, limits.only_merge, limits.who, limits.max_removals, bytes(self.nonce),
            self.time_ms, self.author, self.message, str(self.dataset), str(self.branch), self.number,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer) -> BranchRule:
        protected, only_merge, who, max_removals, nonce, time_ms, author, message, *names, number = (
            _RULE.decode(data)
        )
        limits = Limits(only_merge, who, max_removals)
        fault = limits.fault()
        if fault is None and not protected and limits != Limits():
            fault = "it protects nothing and has limits"
        if fault is not None:
            raise envelope.damaged("branch-rule", fault)
        dataset = envelope.carried("branch-rule", DatasetName.parse, names[0])
        branch = envelope.carried("branch-rule", BranchName.parse, names[1])
        return cls(
            limits if protected else None, Nonce(nonce), time_ms, author, message, dataset, branch, number
        )


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


_ERASED = Record("dataset-erased", tuple[Raw16, Millis, Short | None, Long])


class DatasetErased(msgspec.Struct, frozen=True):
    """The tombstone of an erased dataset."""

    nonce: Nonce
    time_ms: int
    successor: DatasetName | None
    """The dataset with the commits that were kept, if there is one."""
    message: str
    """The reason."""

    def encode(self) -> bytes:
        successor = None if self.successor is None else str(self.successor)
        return _ERASED.encode((bytes(self.nonce), self.time_ms, successor, self.message))

    @classmethod
    def decode(cls, data: Buffer) -> DatasetErased:
        nonce, time_ms, successor, message = _ERASED.decode(data)
        name = None if successor is None else envelope.carried("dataset-erased", DatasetName.parse, successor)
        return cls(Nonce(nonce), time_ms, name, message)


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
