"""Walking a commit's tree: whole, below a path, or one path."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from itertools import chain, repeat

import msgspec

from dsv.errors import IntegrityError
from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.ids import CommitId, NodeId, SegmentId
from dsv.model.location import Location, ObjectKind
from dsv.model.path_set import WHOLE, Scope
from dsv.model.paths import link_escapes, show
from dsv.model.segment import Segment
from dsv.model.tree import Child, Node, Totals, check_follows
from dsv.repo.damage import NOT_OURS
from dsv.repo.located import Located
from dsv.repo.objects import Objects


class LocatedSegment(Located[Segment]):
    """A segment, and where the contents of its files lie by the locator that travels with it."""

    __slots__ = ()

    @property
    def segment(self) -> Segment:
        return self.value

    def entries(self) -> Iterator[tuple[Entry, Location | None]]:
        """Each entry with the place of its chunk or recipe; None where there is none, or none is known."""
        places = iter(()) if self.locator is None else self.locator.locations()
        for entry in self.segment.entries():
            yield entry, next(places, None) if entry.size and entry.is_file else None

    def entry(self, at: int) -> tuple[Entry, Location | None]:
        """The entry at a place from 0, as `entries` gives it."""
        entry = self.segment.entry(at)
        if self.locator is None or not entry.size:
            return entry, None
        row = at - self.segment.sizes[:at].count(0)
        return entry, self.locator.get(row) if row < len(self.locator) else None

    def find(self, path: bytes) -> tuple[Entry, Location | None] | None:
        """The entry of exactly this path."""
        at = self.segment.position(path)
        return None if at is None else self.entry(at)


class Part(msgspec.Struct, frozen=True):
    """A segment or node as its parent node names it, and where it lies by a locator."""

    child: Child
    where: Location | None


class Leaf(Part, frozen=True):
    """A segment."""

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.child.id)


class TreeReader:
    """The tree of one commit. Reads nodes when made, segments when asked."""

    def __init__(self, objects: Objects, commit_id: CommitId) -> None:
        self.objects = objects
        self.commit_id = commit_id
        self.commit, self._locator = objects.commit_and_locator(commit_id)
        self._leaves: list[Leaf] | None = None
        self._nodes: list[tuple[NodeId, Location | None]] = []

    def leaves(self) -> list[Leaf]:
        """All segments, in order."""
        if self._leaves is None:
            self._leaves = self._read_nodes()
        return self._leaves

    def leaves_of(self, scope: Scope) -> list[Leaf]:
        """Segments that may hold something of the scope, in order."""
        leaves = self.leaves()
        if scope.whole:
            return leaves
        before = [None, *(leaf.child.last for leaf in leaves)]
        return [
            leaf
            for leaf, after in zip(leaves, before, strict=False)
            if scope.overlaps(after, leaf.child.last)
        ]

    def top(self) -> list[Part]:
        """What the root lists."""
        locator = self._locator
        return self._opened(
            None, self.commit.root, None if not locator else locator.get(0), self.commit.level
        )

    def children(self, part: Part, level: int) -> list[Part]:
        """What a node of this level lists. Without a store's `node-locators` nothing tells where that lies."""
        return self._opened(part.child, NodeId(part.child.id), part.where, level)

    def nodes(self) -> Iterator[tuple[ObjectKind, NodeId, Location | None]]:
        """Every node above the segments, breadth first, and where a locator says that it lies."""
        self.leaves()
        for node_id, where in self._nodes:
            yield ObjectKind.NODE, node_id, where

    def segments(self, leaves: list[Leaf] | None = None) -> Iterator[LocatedSegment]:
        """The given (else all) segments in order; checks that they follow each other and are what nodes say."""
        chosen = self.leaves() if leaves is None else leaves
        found = self.objects.segments((leaf.id, leaf.where) for leaf in chosen)
        previous: bytes | None = None
        for leaf, located in zip(chosen, found, strict=True):
            segment = located.value
            self._check(leaf.child, segment, previous)
            previous = segment.last
            yield LocatedSegment(segment, located.find_locator)

    def entry(self, path: bytes) -> tuple[Entry, Location | None] | None:
        """The entry of exactly this path; reads one segment."""
        leaves = self.leaves()
        position = self._position(sort_key(path))
        if position == len(leaves):
            return None
        return next(self.segments(leaves[position : position + 1])).find(path)

    def within(self, scope: Scope) -> Iterator[tuple[Entry, Location | None]]:
        """The entries in the scope. Reads only segments that may have some."""
        for located in self.segments(self.leaves_of(scope)):
            if scope.whole:
                yield from located.entries()
                continue
            for entry, where in located.entries():
                if entry.path in scope:
                    yield entry, where

    def below(self, path: bytes) -> Iterator[tuple[Entry, Location | None]]:
        """The entry of this path, or everything below it; all of the tree for an empty path."""
        if not path:
            for located in self.segments():
                yield from located.entries()
            return
        key = sort_key(path)
        inside = key + b"\0"
        leaves = self.leaves()
        first, last = self._position(key), self._position(key + b"\1")
        for located in self.segments(leaves[first : last + 1]):
            if sort_key(located.segment.first) > key + b"\1" or sort_key(located.segment.last) < key:
                continue
            for entry, where in located.entries():
                entry_key = sort_key(entry.path)
                if entry_key == key or entry_key.startswith(inside):
                    yield entry, where

    def starting_with(self, prefix: bytes) -> Iterator[tuple[Entry, Location | None]]:
        """Every entry whose path begins with these bytes, which need not be those of a whole name."""
        key = sort_key(prefix)
        leaves = self.leaves()
        first, last = self._position(key), self._position(key + b"\xff")
        for located in self.segments(leaves[first : last + 1]):
            for entry, where in located.entries():
                if entry.path.startswith(prefix):
                    yield entry, where

    def links(self, scope: Scope = WHOLE) -> dict[bytes, bytes]:
        """Every symlink's target by its path."""
        return {
            entry.path: entry.target or b""
            for located in self.segments(self.leaves_of(scope))
            for entry in located.segment.entries()
            if entry.kind == Kind.SYMLINK and entry.path in scope
        }

    def check_links(self, links: dict[bytes, bytes]) -> None:
        """Raises `IntegrityError` where a symlink leaves the tree; nobody who sees such a tree may follow it."""
        escaping = link_escapes(links)
        if escaping:
            raise self._broken(f"a symlink that leaves the dataset: {show(escaping[0])}")

    def _position(self, key: bytes) -> int:
        """The first leaf whose last path is not before `key`."""
        return bisect.bisect_left(self.leaves(), key, key=lambda leaf: sort_key(leaf.child.last))

    def _opened(self, said: Child | None, node_id: NodeId, where: Location | None, level: int) -> list[Part]:
        found = next(self.objects.nodes([(node_id, where)]))
        self._check_node(said, found.value, level, None)
        places = iter(()) if found.locator is None else found.locator.locations()
        return [Part(child, next(places, None)) for child in found.value.children]

    def _read_nodes(self) -> list[Leaf]:
        """Breadth first. Where a node or segment lies is told by the locator of the node above it, or by the commit's
        own, which in an older store lists all of them in this very order."""
        locator, self._locator = self._locator, None
        listed = iter(()) if locator is None else locator.locations()
        commit = self.commit
        above: list[tuple[Child | None, Location | None]] = [(None, next(listed, None))]
        level: list[Leaf] = []
        for depth in range(commit.level, 0, -1):
            level = []
            located = [(commit.root if said is None else NodeId(said.id), where) for said, where in above]
            self._nodes.extend(located)
            for (said, _), found in zip(above, self.objects.nodes(located), strict=True):
                node = found.value
                self._check_node(said, node, depth, level[-1].child.last if level else None)
                places = iter(()) if found.locator is None else found.locator.locations()
                level.extend(
                    Leaf(child, next(places, None) or where)
                    for child, where in zip(node.children, chain(listed, repeat(None)), strict=False)
                )
            above = [(leaf.child, leaf.where) for leaf in level]
        return level

    def _check_node(self, said: Child | None, node: Node, level: int, previous: bytes | None) -> None:
        """Holds a node against what is said of it above, before anything below it is read.

        So no part of a tree is read twice, and all of it is no more than the commit's totals.
        """
        if node.level != level:
            raise self._broken(f"a node of level {node.level} where {level} belongs")
        totals = Totals.of(node.children)
        if said is None:
            if totals != (self.commit.entries, self.commit.files, self.commit.bytes):
                raise self._broken("totals that are not its root's")
        elif (node.children[-1].last, *totals) != (said.last, said.entries, said.files, said.bytes):
            raise self._broken(f"a node {said.id} that is not what the node above says")
        for child in node.children[:1]:
            self._check_order(previous, child.last)

    def _check(self, child: Child, segment: Segment, previous: bytes | None) -> None:
        said = (child.last, child.entries, child.files, child.bytes)
        if (segment.last, len(segment), segment.files, segment.total_bytes) != said:
            raise self._broken(f"a segment {child.id} that is not what its node says")
        self._check_order(previous, segment.first)

    def _check_order(self, previous: bytes | None, path: bytes) -> None:
        try:
            check_follows(previous, path)
        except IntegrityError as error:
            raise IntegrityError(
                f"{error.message} (commit {self.commit_id})", subject=str(self.commit_id), hint=NOT_OURS
            ) from None

    def _broken(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"commit {str(self.commit_id)[:12]} has {what}", subject=str(self.commit_id), hint=NOT_OURS
        )
