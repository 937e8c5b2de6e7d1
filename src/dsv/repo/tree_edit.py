"""Writing a commit's tree as an edit of its parent's: only segments that a change touches are read and rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.ids import NodeId, SegmentId
from dsv.model.location import Location
from dsv.model.locator import Locator
from dsv.model.segment import Segment
from dsv.model.tree import Child, Cutter, Node, check_follows, group, parent
from dsv.repo.trees import Leaf, TreeReader


class TreeChange(NamedTuple):
    """A path's new entry and where its content lies, or None where the path goes."""

    path: bytes
    entry: Entry | None
    location: Location | None = None


class TreeSink(Protocol):
    """Takes what the tree is made of. Writing what the store has already costs nothing."""

    def put_segment(self, segment: Segment, locations: list[Location]) -> tuple[SegmentId, Location]: ...

    def put_node(self, node: Node) -> tuple[NodeId, Location]: ...

    def segment_location(self, leaf: Leaf) -> Location:
        """Where a segment that stays lies, outside condemned packs."""
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
        for entry, location in _merge(located.entries(), upcoming, limit):
            bottom.add(entry, location)
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


class _Bottom:
    """Cuts entries into segments."""

    def __init__(self, sink: TreeSink) -> None:
        self._sink = sink
        self._cutter = Cutter(0)
        self._entries: list[Entry] = []
        self._locations: list[Location] = []
        self._written: list[tuple[Child, Location]] = []
        self._previous: bytes | None = None

    @property
    def aligned(self) -> bool:
        """Whether the next entry starts a segment, as it did in the base."""
        return not self._entries

    def add(self, entry: Entry, location: Location | None) -> None:
        check_follows(self._previous, entry.path)
        self._previous = entry.path
        self._entries.append(entry)
        if entry.is_file and entry.size:
            self._locations.append(self._sink.content_location(entry, location))
        if self._cutter.add(entry.path):
            self._cut()

    def reuse(self, leaf: Leaf) -> None:
        self._written.append((leaf.child, self._sink.segment_location(leaf)))
        self._previous = leaf.child.last

    def finish(self) -> list[tuple[Child, Location]]:
        if self._entries:
            self._cut()
        return self._written

    def _cut(self) -> None:
        segment = Segment.of(self._entries)
        segment_id, location = self._sink.put_segment(segment, self._locations)
        child = Child(segment.last, segment_id, len(segment), segment.files, segment.total_bytes)
        self._written.append((child, location))
        self._entries, self._locations = [], []


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
