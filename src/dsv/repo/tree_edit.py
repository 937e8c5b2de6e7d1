"""Writing a commit's tree as an edit of its parent's: only segments that a change touches are read and rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.ids import NodeId, PackId, SegmentId
from dsv.model.location import Location
from dsv.model.locator import Locator, LocatorBuilder
from dsv.model.segment import Segment, SegmentBuilder
from dsv.model.segment_rows import SegmentRows
from dsv.model.tree import Child, Cutter, Node, check_follows, group, parent
from dsv.repo.trees import Leaf, LocatedSegment, TreeReader


class TreeChange(NamedTuple):
    """A path's new entry and where its content lies, or None where the path goes."""

    path: bytes
    entry: Entry | None
    location: Location | None = None


class TreeSink(Protocol):
    """Takes what the tree is made of. Writing what the store has already costs nothing."""

    def put_segment(self, segment: Segment, locator: Locator) -> tuple[SegmentId, Location]: ...

    def put_node(self, node: Node) -> tuple[NodeId, Location]: ...

    def segment_location(self, leaf: Leaf) -> Location:
        """Where a segment that stays lies, outside condemned packs."""
        ...

    def avoids(self, pack_id: PackId) -> bool:
        """Whether a pack is condemned, or lost: nothing new may refer to what lies in it. Asks nothing."""
        ...

    def content_location(self, entry: Entry, known: Location | None) -> Location:
        """Where an entry's content lies, outside condemned packs; `known` is from its segment's locator."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenTree:
    """The root of a tree that is written, its totals, and the commit's locator.

    links_moved: whether any symlink came, changed or went.
    """

    root: NodeId
    level: int
    entries: int
    files: int
    bytes: int
    locator: Locator
    links_moved: bool = False


def write_tree(sink: TreeSink, base: TreeReader | None, changes: Iterable[TreeChange]) -> WrittenTree:
    """Applies `changes`, which are in tree order with one for each path, to the base tree (None: an empty one)."""
    bottom = _Bottom(sink)
    upcoming = _Upcoming(changes)
    leaves = [] if base is None else base.leaves()
    for number, leaf in enumerate(leaves):
        is_last = number == len(leaves) - 1
        limit = None if is_last else sort_key(leaf.child.last)
        if bottom.aligned and not upcoming.within(limit):
            bottom.reuse(leaf)
            continue
        assert base is not None
        located = next(base.segments([leaf]))
        rows = _rows_that_stay(sink, located)
        if rows is None:
            for entry, location in _merge(located.entries(), upcoming, limit):
                bottom.add(entry, location)
        else:
            _merge_rows(bottom, rows, upcoming, limit)
    for change in upcoming.take(None):
        if change.entry is not None:
            bottom.add(change.entry, change.location)
    return replace(_write_nodes(sink, bottom.finish()), links_moved=upcoming.links_moved)


class _Upcoming:
    """The changes not applied yet. links_moved: whether one so far gave or took a symlink."""

    def __init__(self, changes: Iterable[TreeChange]) -> None:
        self._source = iter(changes)
        self._next = next(self._source, None)
        self.links_moved = False

    def within(self, limit: bytes | None) -> bool:
        """Whether a change is due at or before the key `limit` (None: at all)."""
        return self._next is not None and (limit is None or sort_key(self._next.path) <= limit)

    def take(self, limit: bytes | None) -> Iterator[TreeChange]:
        while self._next is not None and (limit is None or sort_key(self._next.path) <= limit):
            if self._next.entry is not None and self._next.entry.kind == Kind.SYMLINK:
                self.links_moved = True
            yield self._next
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


def _merge_rows(bottom: _Bottom, rows: SegmentRows, upcoming: _Upcoming, limit: bytes | None) -> None:
    """As `_merge`, without an entry being made of a row that stays."""
    segment = rows.segment
    for change in upcoming.take(limit):
        at = rows.position(change.path)
        bottom.copy(rows, at)
        if at < len(segment) and segment.paths[at] == change.path:
            upcoming.links_moved |= segment.kinds[at] == Kind.SYMLINK
            rows.skip(at + 1)
        if change.entry is not None:
            bottom.add(change.entry, change.location)
    bottom.copy(rows, len(segment))


class _Bottom:
    """Cuts entries into segments."""

    def __init__(self, sink: TreeSink) -> None:
        self._sink = sink
        self._cutter = Cutter(0)
        self._columns = SegmentBuilder()
        self._places = LocatorBuilder()
        self._written: list[tuple[Child, Location]] = []
        self._previous: bytes | None = None

    @property
    def aligned(self) -> bool:
        """Whether the next entry starts a segment, as it did in the base."""
        return not self._columns.paths

    def add(self, entry: Entry, location: Location | None) -> None:
        check_follows(self._previous, entry.path)
        self._previous = entry.path
        self._columns.add(entry)
        if entry.is_file and entry.size:
            self._places.add(self._sink.content_location(entry, location))
        if self._cutter.add(entry.path):
            self._cut()

    def copy(self, rows: SegmentRows, stop: int) -> None:
        """Adds rows of the base up to, not including, `stop`."""
        paths = rows.segment.paths
        if rows.at < stop:
            check_follows(self._previous, paths[rows.at])
            self._previous = paths[stop - 1]
        while rows.at < stop:
            count = self._cutter.add_all(paths[rows.at : stop])
            rows.take(stop if count is None else rows.at + count, self._columns, self._places)
            if count is not None:
                self._cut()

    def reuse(self, leaf: Leaf) -> None:
        self._written.append((leaf.child, self._sink.segment_location(leaf)))
        self._previous = leaf.child.last

    def finish(self) -> list[tuple[Child, Location]]:
        if not self.aligned:
            self._cut()
        return self._written

    def _cut(self) -> None:
        segment = self._columns.finish()
        segment_id, location = self._sink.put_segment(segment, self._places.finish())
        child = Child(segment.last, segment_id, len(segment), segment.files, segment.total_bytes)
        self._written.append((child, location))
        self._columns, self._places = SegmentBuilder(), LocatorBuilder()


def _write_nodes(sink: TreeSink, segments: list[tuple[Child, Location]]) -> WrittenTree:
    """Writes the levels above the segments, up to the one whose single node is the root."""
    children = [child for child, _ in segments]
    levels: list[list[Location]] = [[location for _, location in segments]]
    level = 0
    while True:
        level += 1
        nodes = [(sink.put_node(Node(level, tuple(below))), below) for below in group(children, level)]
        levels.append([location for (_, location), _ in nodes])
        if len(nodes) == 1:
            break
        children = [parent(node_id, below) for (node_id, _), below in nodes]
    (root, _), below = nodes[0]
    return WrittenTree(
        root=root,
        level=level,
        entries=sum(child.entries for child in below),
        files=sum(child.files for child in below),
        bytes=sum(child.bytes for child in below),
        locator=Locator.of([location for places in reversed(levels) for location in places]),
    )
