"""A commit: a tree, its parents, who, when, why."""

from __future__ import annotations

from dsv.format.envelope import Count, Long, Millis, Record, Short
from dsv.format.tree import MAX_LEVEL, MAX_TREE_ENTRIES
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import BranchName, DatasetName

MAX_PARENTS = 64


class Commit(Record, frozen=True):
    """A commit: its tree, parents, author and message."""

    kind = "commit"
    added = 2
    root: NodeId
    """The root node of the tree."""
    level: Count
    """The level of the root node."""
    parents: tuple[CommitId, ...]
    author: Short
    time_ms: Millis
    """Milliseconds since 1970 in UTC by the writer's clock."""
    message: Long
    files: Count
    """This and the next two are the tree's totals."""
    bytes: Count
    entries: Count
    dataset: DatasetName | None = None
    """The dataset and branch for which the commit was made; both or neither. Old commits have neither."""
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
