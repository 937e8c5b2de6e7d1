"""Cutting a tree as it is written: entries into segments, those into nodes, level above level."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, Protocol

from dsv.model.entry import Entry
from dsv.model.ids import NodeId, PackId, SegmentId
from dsv.model.location import Location, ObjectKind
from dsv.model.locator import MAX_ROWS, Locator, LocatorBuilder
from dsv.model.segment import Segment, SegmentBuilder
from dsv.model.segment_rows import SegmentRows
from dsv.model.tree import MAX_LEVEL, Child, Cutter, Node, check_follows, parent
from dsv.repo.tree_nodes import Part

# So many nodes of level 1 are written in a row: few requests read them, and until then what they list takes little
# memory.
_TOGETHER = 64


class TreeSink(Protocol):
    """Takes what the tree is made of. Writing what the store has already costs nothing."""

    @property
    def node_locators(self) -> bool:
        """Whether a node is stored with a locator of its own. Else the commit's locator lists the whole tree."""
        ...

    @property
    def keeps_nodes(self) -> bool:
        """Whether a commit may go on referring to a node without a look at what is below it."""
        ...

    def put_segment(self, segment: Segment, locator: Locator) -> tuple[SegmentId, Location]: ...

    def put_node(self, node: Node, locations: list[Location]) -> tuple[NodeId, Location]: ...

    def kept_location(self, kind: ObjectKind, part: Part) -> Location:
        """Where a segment or node that stays lies, outside condemned packs."""
        ...

    def avoids(self, pack_id: PackId) -> bool:
        """Whether a pack is condemned, or lost: nothing new may refer to what lies in it. Asks nothing."""
        ...

    def content_location(self, entry: Entry, known: Location | None) -> Location:
        """Where an entry's content lies, outside condemned packs; `known` is from its segment's locator."""
        ...

    def new_location(self, entry: Entry, known: Location | None) -> Location:
        """Where the content of an entry that the base may lack lies. The store has it there, whatever `known` says.

        Raises `IntegrityError` if the store has it nowhere, and `Conflict` if gc is about to remove it.
        """
        ...


class Made(NamedTuple):
    """A segment or node of the new tree, and where it lies. kept: it is one of the base, which was not opened."""

    child: Child
    where: Location
    kept: bool = False


class _Level:
    """The segments or nodes of one level that wait for the node above them. count: all of this level so far."""

    def __init__(self, level: int) -> None:
        self.count = 0
        self.cutter = Cutter(level + 1)
        self.waiting: list[Made] = []

    def take(self) -> list[Made]:
        taken, self.waiting = self.waiting, []
        return taken


class Levels:
    """Cuts entries into segments, those into nodes, and nodes into nodes above them. Level 0 is that of segments."""

    def __init__(self, sink: TreeSink) -> None:
        self.sink = sink
        self._cutter = Cutter(0)
        self._columns = SegmentBuilder()
        self._places = LocatorBuilder()
        self._levels = [_Level(level) for level in range(MAX_LEVEL + 2)]
        self._full: list[list[Made]] = []  # what nodes of level 1 will list that are not written yet
        self._placed: list[list[Location]] = [[] for _ in self._levels]
        self._previous: bytes | None = None

    def is_aligned(self, level: int) -> bool:
        """Whether the next entry starts a segment or a node of this level, as it did in the base. For levels above 1
        `write_full` comes first."""
        return not self._columns.paths and not any(one.waiting for one in self._levels[:level])

    def add(self, entry: Entry, location: Location | None) -> None:
        check_follows(self._previous, entry.path)
        self._previous = entry.path
        self._columns.add(entry)
        if entry.is_file and entry.size:
            self._places.add(self.sink.content_location(entry, location))
        if self._cutter.add(entry.path):
            self._end_segment()

    def copy(self, rows: SegmentRows, stop: int) -> None:
        """Adds rows of the base up to, not including, `stop`."""
        paths = rows.segment.paths
        if rows.at < stop:
            check_follows(self._previous, paths[rows.at])
            self._previous = paths[stop - 1]
        while rows.at < stop:
            count = self._cutter.add_all(paths[rows.at : stop], rows.at, len(paths))
            rows.take(stop if count is None else rows.at + count, self._columns, self._places)
            if count is not None:
                self._end_segment()

    def keep(self, part: Part, level: int) -> None:
        """Takes a segment or node as it is. What it begins with is known to follow: its tree is one already."""
        if level:
            self.write_full()
        kind = ObjectKind.NODE if level else ObjectKind.SEGMENT
        self._add_made(level, Made(part.child, self.sink.kept_location(kind, part), kept=True))
        self._previous = part.child.last

    def finish(self) -> tuple[Made, int]:
        """The root and its level: the lowest level with a single node. An empty tree has one too."""
        if self._columns.paths:
            self._end_segment()
        self.write_full()
        if not any(one.count for one in self._levels):
            self._put_node(1, [])
        for level, (below, here) in enumerate(pairwise(self._levels), 1):
            if below.waiting:
                self._put_node(level, below.take())
            if here.count == 1 and not any(one.count for one in self._levels[level + 1 :]):
                return here.waiting[0], level
        raise ValueError(f"a tree has at most {MAX_LEVEL} levels")

    def locator(self) -> Locator | None:
        """Of all nodes, breadth first, then of the segments. Only of a tree without kept nodes."""
        rows = [where for placed in reversed(self._placed) for where in placed]
        return Locator.of(rows) if len(rows) <= MAX_ROWS else None

    def _end_segment(self) -> None:
        segment = self._columns.finish()
        segment_id, location = self.sink.put_segment(segment, self._places.finish())
        child = Child(segment.last, segment_id, len(segment), segment.files, segment.total_bytes)
        self._columns, self._places = SegmentBuilder(), LocatorBuilder()
        self._add_made(0, Made(child, location))

    def write_full(self) -> None:
        """Writes the nodes of level 1 that have all of their children."""
        full, self._full = self._full, []
        for below in full:
            self._put_node(1, below)

    def _put_node(self, level: int, below: list[Made]) -> None:
        children = tuple(one.child for one in below)
        node_id, location = self.sink.put_node(Node(level, children), [one.where for one in below])
        made = parent(node_id, children) if children else Child(b"", node_id, 0, 0, 0)
        self._add_made(level, Made(made, location))

    def _add_made(self, level: int, made: Made) -> None:
        here = self._levels[level]
        here.count += 1
        here.waiting.append(made)
        if not self.sink.node_locators:
            self._placed[level].append(made.where)
        if not here.cutter.add(made.child.last):
            return
        if level:
            self._put_node(level + 1, here.take())
            return
        self._full.append(here.take())
        if len(self._full) == _TOGETHER:
            self.write_full()
