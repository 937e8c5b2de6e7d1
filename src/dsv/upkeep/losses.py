"""What a person lost: the paths of commits that objects which can't be read make up."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from dsv.errors import IntegrityError, NotFound
from dsv.format.locator import Location, ObjectKind, place_at, places_of
from dsv.format.segment import Segment
from dsv.format.tree import Child, Entry, Node
from dsv.repo.objects.objects import Located, Objects
from dsv.repo.tree.read import LocatedSegment
from dsv.upkeep.ids import Heads, IdSet, heads_of, is_in
from dsv.upkeep.reach import contents, not_erased, parts_left
from dsv.values.ids import CommitId, Id, NodeId, RecipeId, SegmentId

_READ = (IntegrityError, NotFound)


class Part(msgspec.Struct, frozen=True):
    """A part of a tree of which something is lost."""

    paths: tuple[bytes, ...] = ()
    """Files whose content is lost."""
    last: bytes | None = None
    """The part itself can't be read: its last path, and how many entries it has. `paths` is then empty."""
    entries: int = 0


class Losses:
    """Walks the trees of commits, and passes over what can't be read. Each part of a tree is looked at once."""

    def __init__(self, objects: Objects, lost: Heads, collect: IdSet | None = None) -> None:
        """lost: heads of the ids of objects that can't be read, sorted. collect: gets the ids of all that is met."""
        self._objects = objects
        self._lost = lost
        self._collect = collect
        self._below: dict[bytes, tuple[bytes, ...]] = {}
        self._recipes: dict[bytes, bool] = {}
        self.parts: dict[bytes, Part] = {}
        """By the id of a segment, or of a node that can't be read."""
        self.named: set[tuple[ObjectKind, Id]] = set()
        """Objects that were met, and are lost."""

    def of_commit(self, commit_id: CommitId) -> tuple[bytes, ...]:
        """Return which of `parts` are in a commit. Raises what reading the commit itself raises."""
        commit, locator = self._objects.commit_and_locator(commit_id)
        top = Child(b"", NodeId(commit.root), commit.entries, commit.files, commit.bytes)
        return self._node(top, place_at(locator, 0), commit.level)

    def _is_lost(self, kind: ObjectKind, object_id: Id) -> bool:
        if self._collect is not None:
            self._collect.add(object_id)
        lost = bool(is_in(heads_of(object_id), self._lost)[0])
        if lost:
            self.named.add((kind, Id(object_id)))
        return lost

    def _node(self, said: Child, where: Location | None, level: int) -> tuple[bytes, ...]:
        node_id = bytes(said.id)
        if node_id in self._below:
            return self._below[node_id]
        node: Located[Node] | None = None
        if not self._is_lost(ObjectKind.NODE, said.id):
            try:
                node = next(self._objects.nodes([(NodeId(said.id), where)]))
            except _READ:
                self.named.add((ObjectKind.NODE, Id(said.id)))
        found: dict[bytes, None] = {}
        if node is None:
            found[node_id] = None
            self.parts[node_id] = Part(last=said.last, entries=said.entries)
        else:
            below = list(zip(node.value.children, places_of(node.locator), strict=False))
            if level == 1:
                found.update(dict.fromkeys(self._segments(below)))
            else:
                for child, place in below:
                    found.update(dict.fromkeys(self._node(child, place, level - 1)))
        self._below[node_id] = tuple(found)
        return self._below[node_id]

    def _segments(self, wanted: list[tuple[Child, Location | None]]) -> Iterator[bytes]:
        """Yield the ids of segments of which something is lost."""
        new = [(child, where) for child, where in wanted if bytes(child.id) not in self._below]
        readable = [one for one in new if not self._is_lost(ObjectKind.SEGMENT, one[0].id)]
        read: dict[bytes, Located[Segment]] = {}
        pairs = [(SegmentId(child.id), where) for child, where in readable]
        try:
            read.update(
                (bytes(one[0]), got) for one, got in zip(pairs, self._objects.segments(pairs), strict=True)
            )
        except _READ:
            for segment_id, where in pairs:
                try:
                    read[bytes(segment_id)] = next(self._objects.segments([(segment_id, where)]))
                except _READ:
                    self.named.add((ObjectKind.SEGMENT, Id(segment_id)))
        for child, _ in new:
            self._look(child, read.get(bytes(child.id)))
        for child, _ in wanted:
            yield from self._below[bytes(child.id)]

    def _look(self, child: Child, located: Located[Segment] | None) -> None:
        key = bytes(child.id)
        if located is None:
            part = Part(last=child.last, entries=child.entries)
        else:
            paths = self._lost_paths(located)
            part = Part(paths)
            if not paths:
                self._below[key] = ()
                return
        self.parts[key] = part
        self._below[key] = (key,)

    def _lost_paths(self, located: Located[Segment]) -> tuple[bytes, ...]:
        chunks, large = not_erased(self._objects.erasures, *contents(located))
        if self._collect is not None:
            self._collect.add(chunks)
        bad_recipes = {recipe_id for recipe_id, where in large if self._is_recipe_lost(recipe_id, where)}
        if not bad_recipes and not is_in(heads_of(chunks), self._lost).any():
            return ()
        found = []
        for entry, _ in LocatedSegment(located.value, located).entries():
            if self._is_entry_lost(entry, bad_recipes):
                found.append(entry.path)
        return tuple(found)

    def _is_entry_lost(self, entry: Entry, bad_recipes: set[RecipeId]) -> bool:
        if not entry.is_file or not entry.size or entry.file_id is None:
            return False
        if self._objects.erasures.of(entry) is not None:
            return False
        if entry.recipe_id is not None:
            return entry.recipe_id in bad_recipes
        if not is_in(heads_of(entry.file_id), self._lost)[0]:
            return False
        self.named.add((ObjectKind.CHUNK, Id(entry.file_id)))
        return True

    def _is_recipe_lost(self, recipe_id: RecipeId, where: Location | None) -> bool:
        """Return whether something of a large file is lost."""
        key = bytes(recipe_id)
        if key in self._recipes:
            return self._recipes[key]
        if self._is_lost(ObjectKind.RECIPE, recipe_id):
            self._recipes[key] = True
            return True
        try:
            recipe, locator = self._objects.recipe(recipe_id, where)
        except _READ:
            self.named.add((ObjectKind.RECIPE, Id(recipe_id)))
            self._recipes[key] = True
            return True
        if recipe.level:
            below = zip(map(RecipeId, recipe.children()), places_of(locator), strict=False)
            lost = [self._is_recipe_lost(*one) for one in below]
            self._recipes[key] = any(lost)
        else:
            if self._collect is not None:
                self._collect.add(recipe.ids)
            ids = parts_left(self._objects.erasures, recipe.ids)
            bad = is_in(heads_of(ids), self._lost)
            self.named.update(
                (ObjectKind.CHUNK, Id(ids[32 * at : 32 * at + 32])) for at in np.flatnonzero(bad)
            )
            self._recipes[key] = bool(bad.any())
        return self._recipes[key]
