"""An edited tree is the tree that the same entries would make from nothing, down to the bytes of each segment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv.format import tree as trees
from dsv.format.codec import Codec
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Kind, Node
from dsv.repo.tree.reader import LocatedSegment, TreePart, TreeReader
from dsv.repo.tree.writer import TreeChange, WrittenTree, write_tree
from dsv.values.ids import EMPTY_FILE, FileId, NodeId, PackId, RecipeId, SegmentId
from dsv.values.paths import sort_key
from tests.format.strategies import SINGLE

PACKS = [PackId(bytes([n]) * 16) for n in range(4)]
MOVED_TO = PackId(b"m" * 16)

Files = Mapping[bytes, tuple[Entry, Location | None]]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few entries make many segments, of which some end by each of the three rules."""
    monkeypatch.setattr(trees, "MIN_ENTRIES", 3)
    monkeypatch.setattr(trees, "MAX_ENTRIES", 9)
    monkeypatch.setattr(trees, "MAX_PATH_BYTES", 60)


@dataclass(slots=True)
class Sink:
    """Keeps a tree in memory. going: packs that nothing new may refer to."""

    going: frozenset[PackId] = frozenset()
    segments: dict[SegmentId, LocatedSegment] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    leaves: list[TreePart] = field(default_factory=list)

    def put_segment(self, segment: Segment, locator: Locator) -> tuple[SegmentId, Location]:
        encoded = segment.encode()
        segment_id = SegmentId.hash(encoded)
        self.segments[segment_id] = LocatedSegment(
            Segment.decode(encoded), Locator.decode(locator.encode(), len(segment))
        )
        return segment_id, self._place(segment_id)

    node_locators = keeps_nodes = False

    def put_node(self, node: Node, locations: list[Location]) -> tuple[NodeId, Location]:
        assert len(locations) == len(node.children)
        self.nodes.append(node)
        node_id = NodeId.hash(node.encode())
        if node.level == 1:
            self.leaves += [TreePart(child, None) for child in node.children]
        return node_id, self._place(node_id)

    def kept_location(self, kind: ObjectKind, part: TreePart) -> Location:
        return self._place(part.child.id)

    def avoids(self, pack_id: PackId) -> bool:
        return pack_id in self.going

    def content_location(self, entry: Entry, known: Location | None) -> Location:
        if known is not None and known.pack not in self.going:
            return known
        assert entry.file_id is not None
        return Location(MOVED_TO, entry.file_id[0], 1, 1, Codec.RAW)

    def new_location(self, entry: Entry, known: Location | None) -> Location:
        return self.content_location(entry, known)

    def _place(self, of: bytes) -> Location:
        return Location(PACKS[0], of[0], 7, 7, Codec.RAW)


@dataclass(slots=True)
class Base(TreeReader):
    """The tree that a sink kept, as a base of edits. read: the segments that were asked for."""

    sink: Sink
    read: list[SegmentId]

    def __init__(self, sink: Sink) -> None:
        self.sink, self.read = sink, []

    def leaves(self) -> list[TreePart]:
        return self.sink.leaves

    def segments(self, leaves: list[TreePart] | None = None) -> Iterator[LocatedSegment]:
        for leaf in self.leaves() if leaves is None else leaves:
            self.read.append(leaf.id)
            yield self.sink.segments[leaf.id]


names = st.integers(0, 99).map(lambda n: b"%s/f%02d%s" % (b"abc"[n % 3 :][:1], n, b"x" * (n % 7)))


@st.composite
def files(draw: st.DrawFn, path: bytes) -> tuple[Entry, Location | None]:
    kind = draw(st.sampled_from([*Kind, Kind.FILE, Kind.FILE]))
    if kind is Kind.SYMLINK:
        return Entry(path, kind, target=draw(st.sampled_from([b"t", b"u"]))), None
    if kind is Kind.EMPTY_DIRECTORY:
        return Entry(path, kind), None
    size = draw(st.sampled_from([0, 1, 2, 3, 4, SINGLE + 1]))
    if not size:
        return Entry(path, kind, 0, EMPTY_FILE), None
    number = draw(st.integers(0, 255))
    recipe = RecipeId(bytes([number]) * 32) if size > SINGLE else None
    place = Location(draw(st.sampled_from(PACKS)), number, 5, 5, draw(st.sampled_from(Codec)))
    return Entry(path, kind, size, FileId(bytes([number]) * 32), recipe), place


@st.composite
def trees_of_files(draw: st.DrawFn, most: int = 60) -> dict[bytes, tuple[Entry, Location | None]]:
    return {path: draw(files(path)) for path in draw(st.sets(names, max_size=most))}


def made(
    sink: Sink, found: Files, base: Base | None = None, gone: frozenset[bytes] = frozenset()
) -> WrittenTree:
    changes = [
        TreeChange(path, *found[path]) if path in found else TreeChange(path, None)
        for path in {*found, *gone}
    ]
    return write_tree(sink, base, sorted(changes, key=lambda change: sort_key(change.path)))


def rows(sink: Sink) -> list[tuple[Entry, Location | None]]:
    return [row for leaf in sink.leaves for row in sink.segments[leaf.id].entries()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(trees_of_files(), trees_of_files(20), st.sets(names, max_size=20))
def test_an_edited_tree_is_the_tree_that_is_made_from_nothing(
    before: Files, changed: Files, removed: set[bytes]
) -> None:
    first = Sink()
    made(first, before)
    gone = frozenset(removed - changed.keys())
    after = {path: row for path, row in {**before, **changed}.items() if path not in gone}
    edited = Sink(segments=first.segments)
    tree = made(edited, changed, Base(first), gone)
    anew = Sink()
    expected = made(anew, after)
    assert (tree.root, tree.level, tree.entries, tree.files, tree.bytes) == (
        expected.root, expected.level, expected.entries, expected.files, expected.bytes,
    )  # fmt: skip
    assert edited.nodes == anew.nodes
    assert rows(edited) == rows(anew)
    links = {path for path, (entry, _) in before.items() if entry.kind is Kind.SYMLINK} & {*changed, *gone}
    links |= {path for path, (entry, _) in changed.items() if entry.kind is Kind.SYMLINK}
    assert tree.links_moved == bool(links)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(trees_of_files(), trees_of_files(10), st.sets(st.sampled_from(PACKS)))
def test_what_lies_in_a_pack_that_goes_is_looked_for_elsewhere(
    before: Files, changed: Files, going: set[PackId]
) -> None:
    first = Sink()
    made(first, before)
    edited = Sink(frozenset(going), first.segments)
    made(edited, changed, Base(first))
    anew = Sink(frozenset(going))
    made(anew, {**before, **changed})
    assert edited.nodes == anew.nodes
    rewritten = {leaf.id for leaf in edited.leaves} - {leaf.id for leaf in first.leaves}
    for segment_id in rewritten:
        assert list(edited.segments[segment_id].entries()) == list(anew.segments[segment_id].entries())


@pytest.mark.parametrize("rows_left", [0, 1])
def test_a_locator_that_is_too_short_is_not_believed(rows_left: int) -> None:
    """Its contents are looked for in the index."""
    before = {b"f%d" % n: (Entry(b"f%d" % n, Kind.FILE, 1, FileId(bytes([n]) * 32)),
              Location(PACKS[0], n, 1, 1, Codec.RAW)) for n in range(3)}  # fmt: skip
    first = Sink()
    made(first, before)
    [leaf] = first.leaves
    located = first.segments[leaf.id]
    short = Locator.of(list(located.locator.locations())[:rows_left] if located.locator else [])
    first.segments[leaf.id] = LocatedSegment(located.segment, short)
    edited = Sink(segments=first.segments)
    made(edited, {b"a": (Entry(b"a", Kind.FILE, 0, EMPTY_FILE), None)}, Base(first))
    places = [place for _, place in rows(edited) if place is not None]
    assert [place.pack for place in places] == [PACKS[0]] * rows_left + [MOVED_TO] * (3 - rows_left)


def test_only_segments_with_a_change_are_read_until_boundaries_coincide_again() -> None:
    before = {b"f%03d" % n: (Entry(b"f%03d" % n, Kind.FILE, 0, EMPTY_FILE), None) for n in range(400)}
    first = Sink()
    made(first, before)
    base = Base(first)
    made(
        Sink(segments=first.segments), {b"f200": (Entry(b"f200", Kind.EXECUTABLE, 0, EMPTY_FILE), None)}, base
    )
    assert len(first.leaves) > 40 and len(base.read) == 1
