"""What differs between the trees of two commits."""

from __future__ import annotations

from collections.abc import Iterator

from dsv.model.diff import Change, Located, diff_entries
from dsv.model.ids import SegmentId
from dsv.repo.trees import TreeReader


def diff_trees(before: TreeReader | None, after: TreeReader | None) -> Iterator[Change]:
    """The paths that differ, in tree order. Reads only the segments that one side alone has. None: an empty tree."""
    shared = _segment_ids(before) & _segment_ids(after)
    old = (entry for entry, _ in _entries(before, shared))
    return diff_entries(old, _entries(after, shared))


def _segment_ids(tree: TreeReader | None) -> set[SegmentId]:
    return set() if tree is None else {leaf.id for leaf in tree.leaves()}


def _entries(tree: TreeReader | None, shared: set[SegmentId]) -> Iterator[Located]:
    if tree is not None:
        for located in tree.segments([leaf for leaf in tree.leaves() if leaf.id not in shared]):
            yield from located.entries()
