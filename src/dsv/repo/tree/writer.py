"""Writing a commit's tree as an edit of its parent's: only segments and nodes that changed are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import msgspec

from dsv.format.locator import MAX_ROWS, Location, Locator, LocatorBuilder, ObjectKind
from dsv.format.segment import Segment, SegmentBuilder, SegmentRows
from dsv.format.tree import MAX_LEVEL, Child, Cutter, Entry, Kind, Node, check_follows, parent
from dsv.repo.tree.reader import LocatedSegment, TreePart, TreeReader
from dsv.values.ids import NodeId, PackId, SegmentId
from dsv.values.paths import sort_key

# The nodes of level 1 that are written together: few requests read them, and until then their lists take little memory.
_TOGETHER = 64


class TreeSink(Protocol):
    """Takes the parts of a tree. Writing a part that the store already has costs nothing."""

    @property
    def node_locators(self) -> bool:
        """True if nodes are stored with their own locators. If not, the commit's lists the whole tree."""
        ...

    @property
    def keeps_nodes(self) -> bool:
        """True if a commit may refer to a node again without a look at what is below it."""
        ...

    def put_segment(self, segment: Segment, locator: Locator) -> tuple[SegmentId, Location]: ...

    def put_node(self, node: Node, locations: list[Location]) -> tuple[NodeId, Location]: ...

    def kept_location(self, kind: ObjectKind, part: TreePart) -> Location:
        """Return the location of a kept segment or node, outside condemned packs."""
        ...

    def avoids(self, pack_id: PackId) -> bool:
        """Return whether a pack is condemned or lost: nothing new may refer to it. Sends no request."""
        ...

    def content_location(self, entry: Entry, known: Location | None) -> Location:
        """Return the location of an entry's content, outside condemned packs; `known` is from its segment."""
        ...

    def new_location(self, entry: Entry, known: Location | None) -> Location:
        """Return where the store has the content of an entry that the base may lack, whatever `known` says.

        Raises `IntegrityError` if the store does not have it, and `Conflict` if gc is removing it.
        """
        ...


class WrittenPart(NamedTuple):
    """A node or segment of the new tree, and its location."""

    child: Child
    where: Location
    kept: bool = False
    """It is from the base, and was not opened."""


class _Level:
    """The nodes or segments of one level that wait for their parent node."""

    def __init__(self, level: int) -> None:
        self.count = 0
        """The number of all of this level so far."""
        self.cutter = Cutter(level + 1)
        self.waiting: list[WrittenPart] = []

    def take(self) -> list[WrittenPart]:
        taken, self.waiting = self.waiting, []
        return taken


class Levels:
    """Cuts entries into segments, segments into nodes, nodes into higher nodes. Segments are level 0."""

    def __init__(self, sink: TreeSink) -> None:
        self.sink = sink
        self._cutter = Cutter(0)
        self._columns = SegmentBuilder()
        self._places = LocatorBuilder()
        self._levels = [_Level(level) for level in range(MAX_LEVEL + 2)]
        self._full: list[list[WrittenPart]] = []  # children of unwritten, complete nodes of level 1
        self._placed: list[list[Location]] = [[] for _ in self._levels]
        self._previous: bytes | None = None

    def is_aligned(self, level: int) -> bool:
        """Return whether the next entry starts a segment or a node of this level, as it did in the base. For
        levels above 1 call `write_full` first."""
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
        """Add the rows of the base before `stop`."""
        paths = rows.segment.paths
        if rows.at < stop:
            check_follows(self._previous, paths[rows.at])
            self._previous = paths[stop - 1]
        while rows.at < stop:
            count = self._cutter.add_all(paths[rows.at : stop], rows.at, len(paths))
            rows.take(stop if count is None else rows.at + count, self._columns, self._places)
            if count is not None:
                self._end_segment()

    def keep(self, part: TreePart, level: int) -> None:
        """Take a segment or node unchanged. Its order is not checked, because its tree is valid."""
        if level:
            self.write_full()
        kind = ObjectKind.NODE if level else ObjectKind.SEGMENT
        self._add_made(level, WrittenPart(part.child, self.sink.kept_location(kind, part), kept=True))
        self._previous = part.child.last

    def finish(self) -> tuple[WrittenPart, int]:
        """Return the root and its level: the lowest level with a single node. An empty tree also has one."""
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
        """Locate all nodes, breadth first, then the segments. Only for a tree without kept nodes."""
        rows = [where for placed in reversed(self._placed) for where in placed]
        return Locator.of(rows) if len(rows) <= MAX_ROWS else None

    def _end_segment(self) -> None:
        segment = self._columns.finish()
        segment_id, location = self.sink.put_segment(segment, self._places.finish())
        child = Child(segment.last, segment_id, len(segment), segment.files, segment.total_bytes)
        self._columns, self._places = SegmentBuilder(), LocatorBuilder()
        self._add_made(0, WrittenPart(child, location))

    def write_full(self) -> None:
        """Write the nodes of level 1 that have all their children."""
        full, self._full = self._full, []
        for below in full:
            self._put_node(1, below)

    def _put_node(self, level: int, below: list[WrittenPart]) -> None:
        children = tuple(one.child for one in below)
        node_id, location = self.sink.put_node(Node(level, children), [one.where for one in below])
        made = parent(node_id, children) if children else Child(b"", node_id, 0, 0, 0)
        self._add_made(level, WrittenPart(made, location))

    def _add_made(self, level: int, made: WrittenPart) -> None:
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


class TreeChange(NamedTuple):
    """A path's new entry and the location of its content; no entry if the path is removed."""

    path: bytes
    entry: Entry | None
    location: Location | None = None


class WrittenTree(msgspec.Struct, frozen=True):
    """The root and the totals of a tree that was written."""

    root: NodeId
    level: int
    entries: int
    files: int
    bytes: int
    locator: Locator | None
    """The commit's locator; None if it would be too large."""
    links_moved: bool = False
    """A symlink was added, changed or removed."""


class TreeWriter:
    """Writes a tree as an edit of a base tree (None: an empty one), one change after the other.

    Segments and nodes without a change are kept, and not read.
    """

    def __init__(self, sink: TreeSink, base: TreeReader | None) -> None:
        self._sink = sink
        self._base = base
        self._levels = Levels(sink)
        self._parts: list[_Part] = []
        self._rows: _Rows | None = None
        self._links_moved = False
        if base is not None:
            by_nodes = sink.keeps_nodes
            self._push(base.top() if by_nodes else base.leaves(), base.commit.level - 1 if by_nodes else 0)

    def add(self, change: TreeChange) -> None:
        """Apply a change. Changes must be in tree order, one for each path."""
        path, entry, location = change
        if self._parts or self._rows is not None:
            self._copy_to(path)
        if entry is None:
            return
        if entry.kind == Kind.SYMLINK:
            self._links_moved = True
        elif entry.is_file and entry.size:
            location = self._sink.new_location(entry, location)
        self._levels.add(entry, location)

    def finish(self) -> WrittenTree:
        """Write the rest of the tree. Called once, after the last change."""
        self._copy_to(None)
        base, sink = self._base, self._sink
        top, level = self._levels.finish()
        while base is not None and level > 1 and top.kept:
            # Only this node of the base is left: the root is the lowest node that has all of it.
            below = base.below_nodes([TreePart(top.child, top.where)], level)
            if len(below) > 1:
                break
            level -= 1
            top = WrittenPart(below[0].child, sink.kept_location(ObjectKind.NODE, below[0]), kept=True)
        return WrittenTree(
            root=NodeId(top.child.id),
            level=level,
            entries=top.child.entries,
            files=top.child.files,
            bytes=top.child.bytes,
            locator=Locator.of([top.where]) if sink.node_locators else self._levels.locator(),
            links_moved=self._links_moved,
        )

    def _copy_to(self, path: bytes | None) -> None:
        """Copy what the base has before a path, and leave out the path itself (None: copy the rest)."""
        key = None if path is None else sort_key(path)
        while True:
            if self._rows is not None:
                limit = self._rows.limit
                if path is not None and key is not None and (limit is None or key <= limit):
                    self._links_moved |= self._rows.copy_to(path, self._levels)
                    return
                self._rows.copy_rest(self._levels)
                self._rows = None
            if not self._parts:
                return
            self._take_part(self._parts.pop(), key)

    def _take_part(self, due: _Part, key: bytes | None) -> None:
        """Keep a segment or node of the base, or open it if it has a change or boundaries have moved."""
        part, level, limit = due
        if level > 1:
            self._levels.write_full()
        has_change = key is not None and (limit is None or key <= limit)
        if not has_change and self._levels.is_aligned(level):
            self._levels.keep(part, level)
            return
        assert self._base is not None
        if level:
            self._push(self._base.below_nodes([part], level), level - 1, limit)
            return
        self._rows = _Rows(self._sink, next(self._base.segments([part])), limit)

    def _push(self, parts: Sequence[TreePart], level: int, limit: bytes | None = None) -> None:
        """Make these consecutive parts the next of the base. limit: the key of the last path of them."""
        limits = [sort_key(part.child.last) for part in parts[:-1]]
        due = zip(parts, [*limits, limit], strict=True) if parts else ()
        self._parts += reversed([_Part(part, level, end) for part, end in due])


class _Part(NamedTuple):
    """A segment (level 0) or node of the base that is still to be copied."""

    part: TreePart
    level: int
    limit: bytes | None
    """The key of the last path that belongs to it; None for the last part, which has all later paths."""


class _Rows:
    """The rows of a segment of the base that was opened."""

    def __init__(self, sink: TreeSink, located: LocatedSegment, limit: bytes | None) -> None:
        self.limit = limit
        """The same as in `_Part`."""
        self._segment = located.segment
        self._columns = _rows_that_stay(sink, located)
        # Without columns, each content has to be looked for, because its pack may be deleted: one entry at a time.
        self._entries = [] if self._columns is not None else list(located.entries())
        self._at = 0

    def copy_to(self, path: bytes, levels: Levels) -> bool:
        """Copy the rows before a path, and skip the row of the path. Return whether that is a symlink."""
        if self._columns is None:
            return self._copy_entries(path, levels)
        segment, rows = self._segment, self._columns
        at = rows.position(path)
        levels.copy(rows, at)
        if at == len(segment) or segment.paths[at] != path:
            return False
        rows.skip(at + 1)
        return segment.kinds[at] == Kind.SYMLINK

    def copy_rest(self, levels: Levels) -> None:
        if self._columns is not None:
            levels.copy(self._columns, len(self._segment))
        for entry, location in self._entries[self._at :]:
            levels.add(entry, location)

    def _copy_entries(self, path: bytes, levels: Levels) -> bool:
        key = sort_key(path)
        while self._at < len(self._entries):
            entry, location = self._entries[self._at]
            if sort_key(entry.path) >= key:
                break
            levels.add(entry, location)
            self._at += 1
        else:
            return False
        if entry.path != path:
            return False
        self._at += 1
        return entry.kind == Kind.SYMLINK


def _rows_that_stay(sink: TreeSink, located: LocatedSegment) -> SegmentRows | None:
    """Return the segment's rows, to be copied unchanged; None if one of their packs may be deleted."""
    locator = located.locator
    if locator is None or any(map(sink.avoids, locator.packs)):
        return None
    try:
        return SegmentRows(located.segment, locator)
    except ValueError:
        return None


def write_tree(sink: TreeSink, base: TreeReader | None, changes: Iterable[TreeChange]) -> WrittenTree:
    """Write the base tree (None: an empty one) with these changes, which are in tree order."""
    writer = TreeWriter(sink, base)
    for change in changes:
        writer.add(change)
    return writer.finish()
