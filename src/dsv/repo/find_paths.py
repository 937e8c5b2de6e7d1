"""Looking up many paths of one tree at once: each segment that has one of them is read once."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsv.model.entry import Entry, sort_key
from dsv.model.location import Location
from dsv.repo.trees import LocatedSegment, TreeReader


class Found(NamedTuple):
    """What a tree has at a path, and around it.

    entry, location: at the path itself. above: the entry that the path lies below, which then is no folder.
    below: whether something lies below the path, which makes it a folder.
    """

    entry: Entry | None = None
    location: Location | None = None
    above: Entry | None = None
    below: bool = False


NOTHING = Found()


def find_paths(tree: TreeReader | None, paths: Iterable[bytes]) -> Iterator[tuple[bytes, Found]]:
    """Each path once, in tree order. Reads the segments that have one, or would have it. None: an empty tree."""
    wanted = sorted(set(paths), key=sort_key)
    holding = [None for _ in wanted] if tree is None else tree.holding(wanted)
    chosen = list({leaf.id: leaf for leaf in holding if leaf is not None}.values())
    segments = iter(()) if tree is None else tree.segments(chosen)
    at, rows = None, _Rows()
    for path, leaf in zip(wanted, holding, strict=True):
        if leaf is None:
            rows = _Rows()
        elif leaf.id != at:
            at, rows = leaf.id, _Rows(next(segments))
        before = leaf.before if leaf is not None else None if tree is None else tree.last()
        yield path, _find(tree, rows, path, before)


class _Rows:
    def __init__(self, located: LocatedSegment | None = None) -> None:
        self.rows = [] if located is None else list(located.entries())
        self.keys = [sort_key(entry.path) for entry, _ in self.rows]


def _find(tree: TreeReader | None, segment: _Rows, path: bytes, before: bytes | None) -> Found:
    """before: the last path of the segment before this one.

    Nothing stands between an entry and a path below it, or between a folder and the first path in it.
    """
    key = sort_key(path)
    at = bisect.bisect_left(segment.keys, key)
    if at < len(segment.keys) and segment.keys[at] == key:
        return Found(*segment.rows[at])
    if at < len(segment.keys) and segment.keys[at].startswith(key + b"\0"):
        return Found(below=True)
    above: Entry | None = None
    if at:
        above = segment.rows[at - 1][0] if key.startswith(segment.keys[at - 1] + b"\0") else None
    elif before is not None and key.startswith(sort_key(before) + b"\0"):
        assert tree is not None
        found = tree.entry(before)
        above = None if found is None else found[0]
    return Found(above=above)
