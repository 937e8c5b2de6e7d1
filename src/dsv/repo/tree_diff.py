"""What differs between the trees of two commits."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from dsv.model.diff import Change, Located, diff_entries
from dsv.model.entry import sort_key
from dsv.model.ids import SegmentId
from dsv.model.path_set import PathSet
from dsv.repo.trees import Leaf, TreeReader

WHOLE = PathSet()


def diff_trees(
    before: TreeReader | None, after: TreeReader | None, scope: PathSet = WHOLE
) -> Iterator[Change]:
    """The paths that differ, in tree order. Reads only segments that one side alone has. None: an empty tree.

    scope: where to look; segments that hold nothing of it are not read.
    """
    shared = _segment_ids(before) & _segment_ids(after)
    old = (entry for entry, _ in _entries(before, shared, scope))
    return diff_entries(old, _entries(after, shared, scope))


def find_entries(tree: TreeReader | None, paths: Iterable[bytes]) -> dict[bytes, Located]:
    """Those of the paths that the tree has. Each segment that could have one of them is read once."""
    if tree is None:
        return {}
    leaves = tree.leaves()
    wanted: dict[int, list[bytes]] = {}
    for path in paths:
        at = bisect.bisect_left(leaves, sort_key(path), key=lambda leaf: sort_key(leaf.child.last))
        if at < len(leaves):
            wanted.setdefault(at, []).append(path)
    places = sorted(wanted)
    found: dict[bytes, Located] = {}
    for at, located in zip(places, tree.segments([leaves[at] for at in places]), strict=True):
        for path in wanted[at]:
            entry = located.find(path)
            if entry is not None:
                found[path] = entry
    return found


def _segment_ids(tree: TreeReader | None) -> set[SegmentId]:
    return set() if tree is None else {leaf.id for leaf in tree.leaves()}


def _entries(tree: TreeReader | None, shared: set[SegmentId], scope: PathSet) -> Iterator[Located]:
    if tree is None:
        return
    for located in tree.segments([leaf for leaf in _leaves(tree, scope) if leaf.id not in shared]):
        if scope.whole:
            yield from located.entries()
        else:
            yield from (each for each in located.entries() if each[0].path in scope)


def _leaves(tree: TreeReader, scope: PathSet) -> Iterator[Leaf]:
    """Those that may hold something of the scope."""
    previous: bytes | None = None
    for leaf in tree.leaves():
        if scope.overlaps(previous, leaf.child.last):
            yield leaf
        previous = leaf.child.last
