"""A commit: a tree, its parents, who, when, why."""

from __future__ import annotations

import builtins

import msgspec

from dsv.format.envelope import (
    Buffer,
    Count,
    Long,
    Millis,
    Raw32,
    Record,
    Short,
    carried,
    damaged,
    version_of,
)
from dsv.format.tree import MAX_LEVEL, MAX_TREE_ENTRIES
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import BranchName, DatasetName

MAX_PARENTS = 64
_COMMIT = Record("commit", tuple[Raw32, Count, tuple[Raw32, ...], Short, Millis, Long, Count, Count, Count])
_NAMED_COMMIT = Record(
    "commit",
    tuple[Raw32, Count, tuple[Raw32, ...], Short, Millis, Long, Count, Count, Count, Short, Short],
    version=2,
)


class Commit(msgspec.Struct, frozen=True):
    """A commit: its tree, parents, author and message."""

    root: NodeId
    """The root node of the tree."""
    level: int
    """The level of the root node."""
    parents: tuple[CommitId, ...]
    author: str
    time_ms: int
    """Milliseconds since 1970 in UTC by the writer's clock."""
    message: str
    files: int
    """This and the next two are the tree's totals."""
    bytes: int
    entries: int
    dataset: DatasetName | None = None
    """The dataset and branch for which the commit was made; both or neither. Old commits have neither."""
    branch: BranchName | None = None

    @property
    def id(self) -> CommitId:
        return CommitId.hash(self.encode())

    def encode(self) -> builtins.bytes:
        """Raise `ValueError` for what `decode` would refuse."""
        fault = self._fault()
        if fault is not None:
            raise ValueError(f"a commit can't hold this: {fault}")
        fields = (
            builtins.bytes(self.root), self.level, tuple(map(builtins.bytes, self.parents)), self.author,
            self.time_ms, self.message, self.files, self.bytes, self.entries,
        )  # fmt: skip
        if self.dataset is None or self.branch is None:
            return _COMMIT.encode(fields)
        return _NAMED_COMMIT.encode((*fields, str(self.dataset), str(self.branch)))

    @classmethod
    def decode(cls, data: Buffer) -> Commit:
        """Raise `IntegrityError`, or `Unsupported` for a newer version."""
        dataset = branch = None
        if version_of(data) == 1:
            root, level, parents, author, time_ms, message, files, size, entries = _COMMIT.decode(data)
        else:
            root, level, parents, author, time_ms, message, files, size, entries, *names = (
                _NAMED_COMMIT.decode(data)
            )
            dataset = carried("commit", DatasetName.parse, names[0])
            branch = carried("commit", BranchName.parse, names[1])
        commit = cls(
            NodeId(root), level, tuple(map(CommitId, parents)), author, time_ms, message, files, size, entries,
            dataset, branch,
        )  # fmt: skip
        fault = commit._fault()
        if fault is not None:
            raise damaged("commit", fault)
        return commit

    def _fault(self) -> str | None:
        if (self.dataset is None) != (self.branch is None):
            return "it has a dataset without a branch, or a branch without a dataset"
        if not 1 <= self.level <= MAX_LEVEL:
            return f"its tree has level {self.level}"
        if len(self.parents) > MAX_PARENTS or len(set(self.parents)) != len(self.parents):
            return "it has too many parents, or one twice"
        if self.files > self.entries or (self.bytes and not self.files):
            return "its totals contradict each other"
        if self.entries > MAX_TREE_ENTRIES:
            return f"its tree has {self.entries} entries, over the limit of {MAX_TREE_ENTRIES}"
        return None
