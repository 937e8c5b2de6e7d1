"""The id of a tree that is not stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dsv.format.codec import Codec
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Node
from dsv.repo.tree.reader import TreePart
from dsv.repo.tree.writer import TreeChange, TreeWriter
from dsv.values.ids import NodeId, PackId, SegmentId

_NOT_STORED: Final = Location(PackId(bytes(32)), 0, 0, 0, Codec.RAW)


class _Hashing:
    """A `TreeSink` that stores nothing. It gets whole trees, never an edit of a base."""

    node_locators = True
    keeps_nodes = False

    def put_segment(self, segment: Segment, locator: Locator) -> tuple[SegmentId, Location]:
        return SegmentId.hash(segment.encode()), _NOT_STORED

    def put_node(self, node: Node, locations: list[Location]) -> tuple[NodeId, Location]:
        return NodeId.hash(node.encode()), _NOT_STORED

    def kept_location(self, kind: ObjectKind, part: TreePart) -> Location:
        return _NOT_STORED

    def avoids(self, pack_id: PackId) -> bool:
        return False

    def content_location(self, entry: Entry, known: Location | None) -> Location:
        return _NOT_STORED

    def new_location(self, entry: Entry, known: Location | None) -> Location:
        return _NOT_STORED


def root_of(entries: Iterable[Entry]) -> NodeId:
    """Return the root that a commit of these entries, in tree order, would have."""
    writer = TreeWriter(_Hashing(), None)
    for entry in entries:
        writer.add(TreeChange(entry.path, entry))
    return writer.finish().root
