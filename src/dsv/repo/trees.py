"""Walking a commit's tree: whole, below a path, or one path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.ids import CommitId, NodeId
from dsv.model.location import Location, ObjectKind
from dsv.model.path_set import WHOLE, Scope
from dsv.model.paths import link_escapes, show
from dsv.model.segment import Segment
from dsv.model.tree import Child
from dsv.repo.located import Located
from dsv.repo.objects import Objects
from dsv.repo.tree_nodes import Leaf, Part, TreeNodes


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
        row = at - (self.segment.sizes[:at].count(0) if self.segment.without_content else 0)
        return entry, self.locator.get(row) if row < len(self.locator) else None

    def find(self, path: bytes) -> tuple[Entry, Location | None] | None:
        """The entry of exactly this path."""
        at = self.segment.position(path)
        return None if at is None else self.entry(at)


class TreeReader:
    """The tree of one commit. Reads the commit when made, nodes and segments when asked."""

    def __init__(self, objects: Objects, commit_id: CommitId) -> None:
        self.objects = objects
        self.commit_id = commit_id
        self._nodes = TreeNodes(objects, commit_id)
        self.commit = self._nodes.commit
        self._leaves: list[Leaf] | None = None

    def leaves(self) -> list[Leaf]:
        """All segments, in order."""
        if self._leaves is None:
            self._leaves = self._nodes.leaves()
        return self._leaves

    def leaves_of(self, scope: Scope) -> list[Leaf]:
        """Segments that may hold something of the scope, in order."""
        return self.leaves() if scope.whole else self._nodes.leaves(scope.overlaps)

    def holding(self, paths: Iterable[bytes]) -> list[Leaf | None]:
        """Of each of these paths, which are in tree order, the segment that has it, or would have it; None behind the
        end."""
        return self._nodes.holding([sort_key(path) for path in paths])

    def last(self) -> bytes | None:
        """The last path; None if the tree is empty."""
        return self._nodes.last()

    def top(self) -> list[Leaf]:
        """What the root lists."""
        return self._nodes.top()

    def below_nodes(self, parts: Sequence[Part], level: int) -> list[Leaf]:
        """What these nodes of a level list, in order."""
        return self._nodes.below(parts, level)

    def nodes(self) -> list[tuple[ObjectKind, NodeId, Location | None]]:
        """Every node above the segments, breadth first, and where a locator says that it lies."""
        return self._nodes.nodes()

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
        """The entry of exactly this path; reads one segment, and the nodes that lead to it."""
        [leaf] = self.holding([path])
        return None if leaf is None else next(self.segments([leaf])).find(path)

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
        for located in self.segments(self._between(key, key + b"\1")):
            if sort_key(located.segment.first) > key + b"\1" or sort_key(located.segment.last) < key:
                continue
            for entry, where in located.entries():
                entry_key = sort_key(entry.path)
                if entry_key == key or entry_key.startswith(inside):
                    yield entry, where

    def starting_with(self, prefix: bytes) -> Iterator[tuple[Entry, Location | None]]:
        """Every entry whose path begins with these bytes, which need not be those of a whole name."""
        key = sort_key(prefix)
        for located in self.segments(self._between(key, key + b"\xff")):
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
            raise self._nodes.broken(f"a symlink that leaves the dataset: {show(escaping[0])}")

    def _between(self, low: bytes, high: bytes) -> list[Leaf]:
        """The segments that may have paths with keys from `low` up to `high`."""
        return self._nodes.leaves(
            lambda before, last: sort_key(last) >= low and (before is None or sort_key(before) < high)
        )

    def _check(self, child: Child, segment: Segment, previous: bytes | None) -> None:
        said = (child.last, child.entries, child.files, child.bytes)
        if (segment.last, len(segment), segment.files, segment.total_bytes) != said:
            raise self._nodes.broken(f"a segment {child.id} that is not what its node says")
        self._nodes.check_order(previous, segment.first)
