"""Writing a commit's tree as an edit of its parent's: only segments and nodes that a change touches are read and
rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.ids import NodeId
from dsv.model.location import Location, ObjectKind
from dsv.model.locator import Locator
from dsv.model.segment_rows import SegmentRows
from dsv.repo.tree_levels import Levels, Made, TreeSink
from dsv.repo.tree_nodes import Leaf, Part
from dsv.repo.trees import LocatedSegment, TreeReader


class TreeChange(NamedTuple):
    """A path's new entry and where its content lies, or None where the path goes."""

    path: bytes
    entry: Entry | None
    location: Location | None = None


class WrittenTree(msgspec.Struct, frozen=True):
    """The root of a tree that is written, its totals, and the commit's locator (None: it would be too large).

    links_moved: whether any symlink came, changed or went.
    """

    root: NodeId
    level: int
    entries: int
    files: int
    bytes: int
    locator: Locator | None
    links_moved: bool = False


def write_tree(sink: TreeSink, base: TreeReader | None, changes: Iterable[TreeChange]) -> WrittenTree:
    """Applies `changes`, which are in tree order with one for each path, to the base tree (None: an empty one)."""
    levels = Levels(sink)
    upcoming = _Upcoming(sink, changes)
    if base is not None and sink.keeps_nodes:
        _apply(base, base.top(), base.commit.level - 1, levels, upcoming)
    elif base is not None:
        _apply(base, base.leaves(), 0, levels, upcoming)
    for change in upcoming.take(None):
        if change.entry is not None:
            levels.add(change.entry, change.location)
    top, level = levels.finish()
    while base is not None and level > 1 and top.kept:
        # Nothing is left but this node of the base: the root is the lowest node that has all of it.
        below = base.below_nodes([Part(top.child, top.where)], level)
        if len(below) > 1:
            break
        level -= 1
        top = Made(below[0].child, sink.kept_location(ObjectKind.NODE, below[0]), kept=True)
    return WrittenTree(
        root=NodeId(top.child.id),
        level=level,
        entries=top.child.entries,
        files=top.child.files,
        bytes=top.child.bytes,
        locator=Locator.of([top.where]) if sink.node_locators else levels.locator(),
        links_moved=upcoming.links_moved,
    )


def _apply(
    base: TreeReader,
    parts: Sequence[Part],
    level: int,
    levels: Levels,
    upcoming: _Upcoming,
    *,
    at_end: bool = True,
) -> None:
    """Takes over these parts of the base in a row, with the changes that are due in them. level: of nodes; 0 for
    segments. at_end: whether the tree ends with the last of them, so that everything behind it belongs to it.
    """
    for number, part in enumerate(parts):
        if level > 1:
            levels.write_full()
        is_last = at_end and number == len(parts) - 1
        limit = None if is_last else sort_key(part.child.last)
        if levels.is_aligned(level) and not upcoming.within(limit):
            levels.keep(part, level)
        elif level:
            _apply(base, base.below_nodes([part], level), level - 1, levels, upcoming, at_end=is_last)
        else:
            located = next(base.segments([Leaf(part.child, part.where, part.before)]))
            rows = _rows_that_stay(levels.sink, located)
            if rows is not None:
                _merge_rows(levels, rows, upcoming, limit)
                continue
            for entry, location in _merge(located.entries(), upcoming, limit):
                levels.add(entry, location)


class _Upcoming:
    """The changes not applied yet. links_moved: whether one so far gave or took a symlink."""

    def __init__(self, sink: TreeSink, changes: Iterable[TreeChange]) -> None:
        self._sink = sink
        self._source = iter(changes)
        self._next = next(self._source, None)
        self.links_moved = False

    def within(self, limit: bytes | None) -> bool:
        """Whether a change is due at or before the key `limit` (None: at all)."""
        return self._next is not None and (limit is None or sort_key(self._next.path) <= limit)

    def take(self, limit: bytes | None) -> Iterator[TreeChange]:
        while (change := self._next) is not None and (limit is None or sort_key(change.path) <= limit):
            entry = change.entry
            if entry is not None and entry.kind == Kind.SYMLINK:
                self.links_moved = True
            elif entry is not None and entry.is_file and entry.size:
                location = self._sink.new_location(entry, change.location)
                if location is not change.location:
                    change = TreeChange(change.path, entry, location)
            yield change
            self._next = next(self._source, None)


def _merge(
    entries: Iterator[tuple[Entry, Location | None]], upcoming: _Upcoming, limit: bytes | None
) -> Iterator[tuple[Entry, Location | None]]:
    for entry, location in entries:
        replaced = False
        for change in upcoming.take(sort_key(entry.path)):
            if change.entry is not None:
                yield change.entry, change.location
            if change.path == entry.path:
                replaced = True
                upcoming.links_moved |= entry.kind == Kind.SYMLINK
        if not replaced:
            yield entry, location
    for change in upcoming.take(limit):
        if change.entry is not None:
            yield change.entry, change.location


def _rows_that_stay(sink: TreeSink, located: LocatedSegment) -> SegmentRows | None:
    """The segment's rows, to be copied as they are; None if a content has to be looked for, as its pack may go."""
    locator = located.locator
    if locator is None or any(map(sink.avoids, locator.packs)):
        return None
    try:
        return SegmentRows(located.segment, locator)
    except ValueError:
        return None


def _merge_rows(levels: Levels, rows: SegmentRows, upcoming: _Upcoming, limit: bytes | None) -> None:
    """As `_merge`, without an entry being made of a row that stays."""
    segment = rows.segment
    for change in upcoming.take(limit):
        at = rows.position(change.path)
        levels.copy(rows, at)
        if at < len(segment) and segment.paths[at] == change.path:
            upcoming.links_moved |= segment.kinds[at] == Kind.SYMLINK
            rows.skip(at + 1)
        if change.entry is not None:
            levels.add(change.entry, change.location)
    levels.copy(rows, len(segment))
