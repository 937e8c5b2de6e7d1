"""Reading a commit's tree: its nodes, its entries, single paths, and every object that it refers to.

A node is read when it is needed, and then kept, so looking up a path costs one node of each level. Only in a
store without `node-locators` all nodes are read at once: there the commit's own locator lists the whole tree,
in an order that can only be read from the start.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from dsv.errors import IntegrityError
from dsv.format.locator import Location, Locator, ObjectKind, place_at, places_of
from dsv.format.segment import Segment
from dsv.format.tree import Child, Entry, Kind, Node, Totals, check_follows
from dsv.repo.errors import NOT_OURS
from dsv.repo.objects.externals import shown
from dsv.repo.objects.objects import Located, Objects
from dsv.values.ids import CommitId, Id, NodeId, RecipeId, SegmentId
from dsv.values.paths import WHOLE, PathSet, Scope, link_escapes, show, sort_key
from dsv.values.units import format_count


class TreePart(msgspec.Struct, frozen=True):
    """A node or segment as listed in its parent node."""

    child: Child
    where: Location | None
    """The location by a locator."""
    before: bytes | None = None
    """The path before its first one; None at the start of the tree, or if unknown."""

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.child.id)


T = TypeVar("T")


def _place(part: TreePart) -> tuple[Id, bytes]:
    return part.child.id, part.child.last


class LocatedSegment(Located[Segment]):
    """A segment, and the locations of its files' contents by its locator."""

    __slots__ = ()

    @property
    def segment(self) -> Segment:
        return self.value

    def entries(self) -> Iterator[tuple[Entry, Location | None]]:
        """Yield each entry with the location of its chunk or recipe, or None if absent or unknown."""
        places = places_of(self.locator)
        for entry in self.segment.entries():
            yield entry, next(places) if entry.size and entry.is_file else None

    def entry(self, at: int) -> tuple[Entry, Location | None]:
        """Return the entry at a position from 0, like `entries`."""
        entry = self.segment.entry(at)
        if self.locator is None or not entry.size:
            return entry, None
        row = at - (self.segment.sizes[:at].count(0) if self.segment.without_content else 0)
        return entry, place_at(self.locator, row)

    def find(self, path: bytes) -> tuple[Entry, Location | None] | None:
        """Return the entry of exactly this path."""
        at = self.segment.position(path)
        return None if at is None else self.entry(at)


_FEW = 64
"""Entries of a segment that are read one by one."""


class TreeReader:
    """The tree of one commit. The commit is read at once, nodes and segments when they are needed."""

    def __init__(self, objects: Objects, commit_id: CommitId) -> None:
        self.objects = objects
        self.commit_id = commit_id
        objects.opened.add(commit_id)
        self.commit, self._locator = objects.commit_and_locator(commit_id)
        self._top: list[TreePart] | None = None
        self._below: dict[tuple[Id, bytes], list[TreePart]] = {}
        """By a node's id and last path, which together are unique in the tree."""
        self._leaves: list[TreePart] | None = None
        self.left_out: Callable[[Child, IntegrityError], None] | None = None
        """Called with each unreadable part of the tree, which is left out. If None, the error is raised."""

    def leaves(self) -> list[TreePart]:
        """Return all segments, in order."""
        if self._leaves is None:
            self._leaves = self._wanted_leaves(lambda before, last: True)
        return self._leaves

    def leaves_of(self, scope: Scope) -> list[TreePart]:
        """Return the segments that may hold something of the scope, in order."""
        return self.leaves() if scope.whole else self._wanted_leaves(scope.overlaps)

    def top(self) -> list[TreePart]:
        """Return the root's children: segments, if the commit's level is 1."""
        if self._top is None:
            if self._locator is not None and len(self._locator) > 1:
                self._read_all(self._locator)
            else:
                found = next(self.objects.nodes([(self.commit.root, place_at(self._locator, 0))]))
                self._top = self._opened(None, found, self.commit.level, places_of(None))
        assert self._top is not None
        return self._top

    def below_nodes(self, parts: Sequence[TreePart], level: int) -> list[TreePart]:
        """Return the children of these nodes of a level, in order."""
        self.top()
        missing = [part for part in parts if _place(part) not in self._below]
        for part, node in self._read(missing, self._nodes):
            self._below[_place(part)] = self._opened(part, node, level, places_of(None))
        return [leaf for part in parts for leaf in self._below.get(_place(part), ())]

    def _nodes(self, parts: Sequence[TreePart]) -> Iterator[Located[Node]]:
        return self.objects.nodes((NodeId(part.child.id), part.where) for part in parts)

    def _segments(self, leaves: Sequence[TreePart]) -> Iterator[Located[Segment]]:
        return self.objects.segments((leaf.id, leaf.where) for leaf in leaves)

    def _read(
        self, parts: Sequence[TreePart], read: Callable[[Sequence[TreePart]], Iterator[Located[T]]]
    ) -> Iterator[tuple[TreePart, Located[T]]]:
        """Yield the parts with their contents. An unreadable one raises `IntegrityError` or is left out."""
        at = 0
        while at < len(parts):
            try:
                for found in read(parts[at:]):
                    yield parts[at], found
                    at += 1
            except IntegrityError as error:
                child = parts[at].child
                where = self.commit.dataset or f"commit {str(self.commit_id)[:12]}"
                named = IntegrityError(
                    f"{format_count(child.entries, 'path')} of {where} up to {show(child.last)} can't be listed: "
                    f"{error.message}",
                    subject=error.subject,
                    hint=error.hint,
                )
                if self.left_out is None:
                    raise named from error
                self.left_out(child, named)
                at += 1

    def _wanted_leaves(self, wanted: Callable[[bytes | None, bytes], bool]) -> list[TreePart]:
        """Return the wanted segments, in order. wanted: called for each segment and each node above it, with
        the last path before it and its own."""
        chosen = self.top()
        for level in range(self.commit.level - 1, -1, -1):
            chosen = [part for part in chosen if wanted(part.before, part.child.last)]
            if level:
                chosen = self.below_nodes(chosen, level)
        return chosen

    def holding(self, paths: Iterable[bytes]) -> list[TreePart | None]:
        """Return the segment that has or would have each path (in tree order); None after the end."""
        keys = [sort_key(path) for path in paths]
        parts = self.top()
        for level in range(self.commit.level - 1, -1, -1):
            lasts = [sort_key(part.child.last) for part in parts]
            found = [bisect.bisect_left(lasts, key) for key in keys]
            if level:
                parts = self.below_nodes([parts[at] for at in sorted(set(found)) if at < len(parts)], level)
        return [parts[at] if at < len(parts) else None for at in found]

    def last(self) -> bytes | None:
        """Return the last path; None if the tree is empty."""
        top = self.top()
        return top[-1].child.last if top else None

    def nodes(self) -> list[tuple[ObjectKind, NodeId, Location | None]]:
        """Return every node above the segments, breadth first, with its location by a locator."""
        parts = self.top()
        found = [(ObjectKind.NODE, self.commit.root, place_at(self._locator, 0))]
        for level in range(self.commit.level - 1, 0, -1):
            found += [(ObjectKind.NODE, NodeId(part.child.id), part.where) for part in parts]
            parts = self.below_nodes(parts, level)
        return found

    def segments(self, leaves: list[TreePart] | None = None) -> Iterator[LocatedSegment]:
        """Yield the given (else all) segments in order, checked for their order and against their nodes."""
        chosen = self.leaves() if leaves is None else leaves
        previous: bytes | None = None
        for leaf, located in self._read(chosen, self._segments):
            segment = located.value
            self._check_segment(leaf.child, segment, previous)
            previous = segment.last
            yield LocatedSegment(segment, located)

    def entry(self, path: bytes) -> tuple[Entry, Location | None] | None:
        """Return the entry of exactly this path. Reads one segment, and the nodes that lead to it."""
        [leaf] = self.holding([path])
        return None if leaf is None else next(self.segments([leaf])).find(path)

    def within(self, scope: Scope) -> Iterator[tuple[Entry, Location | None]]:
        """Yield the entries in the scope. Reads only segments that may have some."""
        for located in self.segments(self.leaves_of(scope)):
            if scope.whole:
                yield from located.entries()
                continue
            for entry, where in located.entries():
                if entry.path in scope:
                    yield entry, where

    def below(self, path: bytes) -> Iterator[tuple[Entry, Location | None]]:
        """Yield the entry of this path, or all entries below it; the whole tree for an empty path."""
        return self.within(PathSet.of([path]))

    def children(self, folder: bytes) -> Iterator[tuple[bytes, Entry | None, Location | None]]:
        """Yield the paths directly in a folder, in tree order, with their entries, or None for a folder.

        A segment whose paths are all in one folder below it is not read.
        """
        low = sort_key(folder) + b"\0" if folder else b""
        high = low[:-1] + b"\1" if folder else b"\xff\xff"
        skip = len(low)

        def is_wanted(before: bytes | None, last: bytes) -> bool:
            if before is None:
                return sort_key(last) >= low
            return sort_key(last) >= low and sort_key(before) < high and not _one_folder(before, last, low)

        chosen = self._wanted_leaves(is_wanted)
        seen: bytes | None = None
        for located in self.segments(chosen):
            paths = located.segment.paths
            at = bisect.bisect_left(paths, low, key=sort_key)
            many = bisect.bisect_left(paths, high, at, key=sort_key) - at > _FEW
            rows = list(located.entries()) if many else []
            while at < len(paths) and sort_key(paths[at]).startswith(low):
                slash = paths[at].find(b"/", skip)
                if slash < 0:
                    yield paths[at], *(rows[at] if many else located.entry(at))
                    at += 1
                    continue
                if paths[at][:slash] != seen:
                    seen = paths[at][:slash]
                    yield seen, None, None
                at = bisect.bisect_left(paths, sort_key(seen) + b"\1", at, key=sort_key)

    def starting_with(self, prefix: bytes) -> Iterator[tuple[Entry, Location | None]]:
        """Yield every entry whose path begins with these bytes, which may end inside a name."""
        low = sort_key(prefix)
        chosen = self._wanted_leaves(
            lambda before, last: (
                sort_key(last) >= low and (before is None or sort_key(before) < low + b"\xff")
            )
        )
        for located in self.segments(chosen):
            for entry, where in located.entries():
                if entry.path.startswith(prefix):
                    yield entry, where

    def links(self, scope: Scope = WHOLE) -> dict[bytes, bytes]:
        """Return every symlink's target by its path."""
        return {
            entry.path: entry.target or b""
            for located in self.segments(self.leaves_of(scope))
            for entry in located.segment.entries()
            if entry.kind == Kind.SYMLINK and entry.path in scope
        }

    def check_links(self, links: dict[bytes, bytes]) -> None:
        """Raises `IntegrityError` if a symlink leads out of the tree: such a link must not be followed."""
        escaping = link_escapes(links)
        if escaping:
            raise self._broken(f"a symlink that leaves the dataset: {show(escaping[0])}")

    def _check_segment(self, child: Child, segment: Segment, previous: bytes | None) -> None:
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

    def _read_all(self, locator: Locator) -> None:
        """Read all nodes breadth first, in the order of the commit's locator in an older store."""
        listed = places_of(locator)
        above: list[tuple[TreePart | None, NodeId, Location | None]] = [
            (None, self.commit.root, next(listed))
        ]
        for level in range(self.commit.level, 0, -1):
            found = self.objects.nodes((node_id, where) for _, node_id, where in above)
            parts: list[TreePart] = []
            for (said, _, _), node in zip(above, found, strict=True):
                opened = self._opened(said, node, level, listed)
                if said is None:
                    self._top = opened
                else:
                    self._below[_place(said)] = opened
                parts += opened
            above = [(part, NodeId(part.child.id), part.where) for part in parts]

    def _opened(
        self, said: TreePart | None, found: Located[Node], level: int, listed: Iterator[Location | None]
    ) -> list[TreePart]:
        """Return a node's children, located by its own locator, or else by the next rows of the commit's."""
        before = None if said is None else said.before
        self._check_node(None if said is None else said.child, found.value, level, before)
        parts: list[TreePart] = []
        for child, place, by_commit in zip(
            found.value.children, places_of(found.locator), listed, strict=False
        ):
            parts.append(TreePart(child, place or by_commit, before))
            before = child.last
        return parts

    def _check_node(self, said: Child | None, node: Node, level: int, before: bytes | None) -> None:
        """Compare a node with what its parent says of it, before anything below it is read.

        So no part of a tree is read twice, and the whole tree is no larger than the commit's totals.
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
            self._check_order(before, child.last)


def _one_folder(first: bytes, last: bytes, low: bytes) -> bool:
    """Return whether both paths are in one folder below the folder whose keys begin with `low`."""
    slash = last.find(b"/", len(low))
    return slash >= 0 and sort_key(last).startswith(low) and first.startswith(last[: slash + 1])


class TreeLookup(NamedTuple):
    """The result of looking up a path in a tree."""

    entry: Entry | None = None
    """The entry at the path; `location` is that of its content."""
    location: Location | None = None
    above: Entry | None = None
    """The entry of a parent path, which is therefore not a folder."""
    below: bool = False
    """The tree has entries below the path, so it is a folder."""


NOTHING = TreeLookup()


def find_paths(tree: TreeReader | None, paths: Iterable[bytes]) -> Iterator[tuple[bytes, TreeLookup]]:
    """Yield each path once, in tree order. Reads the segments that may have one. None: an empty tree."""
    wanted = sorted(set(paths), key=sort_key)
    holding = [None for _ in wanted] if tree is None else tree.holding(wanted)
    chosen = list({leaf.id: leaf for leaf in holding if leaf is not None}.values())
    segments = iter(()) if tree is None else tree.segments(chosen)
    at: SegmentId | None = None
    located: LocatedSegment | None = None
    for path, leaf in zip(wanted, holding, strict=True):
        if leaf is None:
            located = None
        elif leaf.id != at:
            at, located = leaf.id, next(segments)
        before = leaf.before if leaf is not None else None if tree is None else tree.last()
        yield path, _find(tree, located, path, before)


def find_entries(
    tree: TreeReader | None, paths: Iterable[bytes]
) -> dict[bytes, tuple[Entry, Location | None]]:
    """Return the paths that the tree has. Each segment that could have one is read once."""
    located = find_paths(tree, paths)
    return {path: (place.entry, place.location) for path, place in located if place.entry is not None}


def _find(
    tree: TreeReader | None, located: LocatedSegment | None, path: bytes, before: bytes | None
) -> TreeLookup:
    """Look up a path in its segment. before: the last path of the segment before.

    In tree order an entry is directly followed by the paths below it, and a folder by its first path.
    """
    key, paths = sort_key(path), () if located is None else located.segment.paths
    at = bisect.bisect_left(paths, key, key=sort_key)
    if located is not None and at < len(paths):
        if paths[at] == path:
            return TreeLookup(*located.entry(at))
        if sort_key(paths[at]).startswith(key + b"\0"):
            return TreeLookup(below=True)
    if located is not None and at:
        above = key.startswith(sort_key(paths[at - 1]) + b"\0")
        return TreeLookup(above=located.segment.entry(at - 1) if above else None)
    if tree is None or before is None or not key.startswith(sort_key(before) + b"\0"):
        return NOTHING
    found = tree.entry(before)
    return TreeLookup(above=None if found is None else found[0])


class Reached(NamedTuple):
    """An object that another one refers to."""

    kind: ObjectKind
    id: Id
    location: Location | None
    """The location by a locator, if known."""


def reach_tree(tree: TreeReader) -> Iterator[Reached]:
    """Yield the nodes, the segments, and the objects of the files' contents. Each recipe is yielded once."""
    for kind, node_id, location in tree.nodes():
        yield Reached(kind, node_id, location)
    for leaf in tree.leaves():
        yield Reached(ObjectKind.SEGMENT, leaf.id, leaf.where)
    seen = set[RecipeId]()
    for entry, location in tree.below(b""):
        yield from reach_content(tree.objects, entry, location, seen)


def reach_content(
    objects: Objects, entry: Entry, location: Location | None, seen: set[RecipeId] | None = None
) -> Iterator[Reached]:
    """Yield the chunk of one file, or its recipes and their chunks; nothing if it is empty or erased.

    seen: recipes to leave out, to which those yielded are added. A recipe is yielded before it is read.
    """
    if objects.erasures.of(entry) is not None:
        return
    if entry.recipe_id is not None:
        yield from _reach_recipe(objects, entry.recipe_id, location, set() if seen is None else seen)
    elif entry.is_file and entry.size:
        assert entry.file_id is not None
        yield Reached(ObjectKind.CHUNK, entry.file_id, location)


def urls_of(objects: Objects, entry: Entry, where: Location | None) -> Iterator[str]:
    """Yield where the content of one file lies outside the store, for each such chunk."""
    for kind, chunk, place in reach_content(objects, entry, where):
        if kind is ObjectKind.CHUNK and (place is None or place.pack.is_external):
            place = objects.find(kind, chunk)  # it may be in the store now
            if place.pack.is_external:
                yield shown(objects.externals.row(place).source)


def _reach_recipe(
    objects: Objects,
    recipe_id: RecipeId,
    location: Location | None,
    seen: set[RecipeId],
    expected: tuple[int, int] | None = None,
) -> Iterator[Reached]:
    if recipe_id in seen:
        return
    seen.add(recipe_id)
    yield Reached(ObjectKind.RECIPE, recipe_id, location)
    recipe, locator = objects.recipe(recipe_id, location, expected)
    for (child, length), place in zip(recipe.rows(), places_of(locator), strict=False):
        if recipe.level:
            yield from _reach_recipe(objects, RecipeId(child), place, seen, (recipe.level - 1, length))
        elif (ObjectKind.CHUNK, child) not in objects.erasures.objects:
            yield Reached(ObjectKind.CHUNK, child, place)
