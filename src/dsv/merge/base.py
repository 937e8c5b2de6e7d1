"""What two commits are merged against: the tree that both were made from.

Histories that were merged into each other both ways may have several such commits. Two are merged in their turn, as git
does: a path that only one of them changed is taken from that one. What can't be known that way, and every path at which
more than two disagree, has no common state: both sides count as having changed it, so that nothing is lost unsaid.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from dsv.format.tree import Entry
from dsv.merge.paths import UNDECIDED, merge_changes, since_another
from dsv.repo.history import merge_bases
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.diff import Change, diff_trees
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId
from dsv.values.paths import sort_key

# So many criss-cross merges one before the other are followed.
_DEPTH = 8


class MergeBase(msgspec.Struct, frozen=True):
    """The tree of a commit (None: an empty one), but for some paths.

    commits: the merge bases that it was made from. apart: how it differs from the commit's tree, in tree order.
    """

    commits: tuple[CommitId, ...]
    apart: tuple[Change, ...] = ()

    @property
    def commit(self) -> CommitId | None:
        return self.commits[0] if self.commits else None

    def changes(self, objects: Objects, commit: CommitId | None) -> Iterator[Change]:
        """Yield the changes of a commit (None: an empty tree) since the base. Reads only the segments that differ."""
        before, after = (None if one is None else TreeReader(objects, one) for one in (self.commit, commit))
        return since_another(diff_trees(before, after), self.apart)


def find_merge_base(objects: Objects, left: CommitId, right: CommitId, depth: int = 0) -> MergeBase:
    """Return the base of a merge of two commits; an empty tree if their histories have nothing in common."""
    commits = merge_bases(objects, left, right)
    if len(commits) < 2:
        return MergeBase(commits)
    if len(commits) == 2 and depth < _DEPTH:
        return MergeBase(commits, tuple(_merged(objects, *commits, depth)))
    return MergeBase(commits, tuple(_disagreements(objects, commits)))


def _merged(objects: Objects, first: CommitId, second: CommitId, depth: int) -> Iterator[Change]:
    below = find_merge_base(objects, first, second, depth + 1)
    ours, theirs = below.changes(objects, first), below.changes(objects, second)
    for decision in merge_changes(ours, theirs, lambda *_: ""):
        result: Entry | None = UNDECIDED if decision.undecided else decision.result
        if result != decision.ours:
            yield Change(decision.path, decision.ours, result)


def _disagreements(objects: Objects, commits: tuple[CommitId, ...]) -> Iterator[Change]:
    first, *others = (TreeReader(objects, commit) for commit in commits)
    every: Iterable[Change] = heapq.merge(
        *(diff_trees(first, other) for other in others), key=lambda change: sort_key(change.path)
    )
    for path, changes in groupby(every, key=lambda change: change.path):
        yield Change(path, next(changes).before, UNDECIDED)
