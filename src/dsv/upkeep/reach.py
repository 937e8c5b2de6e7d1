"""Walks over the objects of commits, a segment at a time, each read once; and losses by unreadable ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import numpy as np

from dsv.errors import IntegrityError, NotFound
from dsv.format.columns import cut
from dsv.format.locator import Location, ObjectKind, place_at, places_of
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.segment import Segment
from dsv.format.tree import Child, Kind, Node
from dsv.repo.errors import NOT_OURS
from dsv.repo.objects.erasures import Erasures
from dsv.repo.objects.objects import Located, Objects
from dsv.stores.base import together
from dsv.upkeep.ids import Heads, IdSet, Seen, heads_of, is_in
from dsv.values.ids import CommitId, Id, NodeId, RecipeId, SegmentId
from dsv.values.progress import NoProgress, Progress

AddIds: TypeAlias = Callable[[ObjectKind, bytes], None]
"""Takes concatenated 32-byte ids of one kind."""
Large: TypeAlias = list[tuple[RecipeId, Location | None]]
"""Recipes, with the locations that a locator gives."""

_COMMITS = 64
"""Commits whose trees are walked together."""
_NODES = 32
"""Nodes of one level whose children are held in memory."""
_RECIPES = 1024
"""Recipes that are read together."""
_READ = (IntegrityError, NotFound)


def reach(
    objects: Objects, commits: Iterable[CommitId], add: AddIds, seen: Seen, progress: Progress | None = None
) -> None:
    """Pass the ids of all nodes, segments, recipes and chunks below these commits to `add`; a chunk may be
    passed often. seen: nodes, segments and recipes to skip, with all below them; new ones are added. Raises
    what reading raises: nothing is skipped for it."""
    waiting: Large = []
    for located in walk_segments(objects, commits, add, seen, progress):
        chunks, large = not_erased(objects.erasures, *contents(located))
        if chunks:
            add(ObjectKind.CHUNK, chunks)
        waiting += large
        if len(waiting) >= _RECIPES:
            reach_recipes(objects, waiting, add, seen)
            waiting = []
    reach_recipes(objects, waiting, add, seen)


def walk_segments(
    objects: Objects, commits: Iterable[CommitId], add: AddIds, seen: Seen, progress: Progress | None = None
) -> Iterator[Located[Segment]]:
    """Yield the segments of these commits that `seen` lacks. Pass their ids and those of nodes to `add`."""
    shown = NoProgress() if progress is None else progress
    source = iter(commits)
    while batch := list(islice(source, _COMMITS)):
        roots: dict[int, list[tuple[Id, Location | None]]] = {}
        for commit, locator in together([partial(objects.commit_and_locator, one) for one in batch]):
            roots.setdefault(commit.level, []).append((commit.root, place_at(locator, 0)))
        for level, listed in roots.items():
            new = seen.add(b"".join(node_id for node_id, _ in listed))
            if new.any():
                chosen = [_placed(objects, ObjectKind.NODE, *listed[at]) for at in np.flatnonzero(new)]
                add(ObjectKind.NODE, b"".join(node_id for node_id, _ in chosen))
                for located in _segments_below(objects, level, chosen, add, seen):
                    shown.advance(files=located.value.files, bytes=located.value.total_bytes)
                    yield located


def _segments_below(
    objects: Objects, level: int, nodes: Sequence[tuple[Id, Location | None]], add: AddIds, seen: Seen
) -> Iterator[Located[Segment]]:
    kind = ObjectKind.SEGMENT if level == 1 else ObjectKind.NODE
    for start in range(0, len(nodes), _NODES):
        below: list[tuple[Id, Location | None]] = []
        window = nodes[start : start + _NODES]
        read = objects.nodes((NodeId(object_id), where) for object_id, where in window)
        for (node_id, _), located in zip(window, read, strict=True):
            if located.value.level != level:
                raise _broken(
                    f"node {node_id} has level {located.value.level}, and {level} belongs there", node_id
                )
            ids = [child.id for child in located.value.children]
            new = np.flatnonzero(seen.add(b"".join(ids))).tolist()
            locator = located.locator if new else None
            below += [_placed(objects, kind, ids[at], place_at(locator, at)) for at in new]
        if below:
            add(kind, b"".join(object_id for object_id, _ in below))
        if level > 1:
            yield from _segments_below(objects, level - 1, below, add, seen)
        else:
            yield from objects.segments((SegmentId(object_id), where) for object_id, where in below)


def contents(located: Located[Segment]) -> tuple[bytes, Large]:
    """Return the ids of the chunks of a segment's small files, and the recipes of its large ones."""
    segment = located.value
    if not segment.recipe_ids and not segment.without_content:
        return segment.file_ids, []
    sizes = np.frombuffer(segment.sizes, np.uint64)
    of_files = sizes[np.frombuffer(segment.kinds, np.uint8) <= Kind.EXECUTABLE]
    small = (of_files > 0) & (of_files <= SINGLE_CHUNK_MAX)
    chunks = np.frombuffer(segment.file_ids, np.uint8).reshape(-1, 32)[small].tobytes()
    if not segment.recipe_ids:
        return chunks, []
    rows = np.flatnonzero(sizes[sizes > 0] > SINGLE_CHUNK_MAX).tolist()
    recipes = map(RecipeId, cut(segment.recipe_ids, 32))
    locator = located.locator
    return chunks, [(one, place_at(locator, row)) for one, row in zip(recipes, rows, strict=True)]


def not_erased(erasures: Erasures, chunks: bytes, large: Large) -> tuple[bytes, Large]:
    """Return the result of `contents` without erased objects."""
    if not erasures:
        return chunks, large
    small = cut(chunks, 32)
    return (
        b"".join(one for one in small if not erasures.is_gone(ObjectKind.CHUNK, Id(one))),
        [one for one in large if not erasures.is_gone(ObjectKind.RECIPE, one[0])],
    )


def parts_left(erasures: Erasures, ids: bytes) -> bytes:
    """Return the chunks of a large file, without those erased with another file."""
    if not erasures.objects:
        return ids
    return b"".join(one for one in cut(ids, 32) if (ObjectKind.CHUNK, one) not in erasures.objects)


def reach_recipes(objects: Objects, wanted: Large, add: AddIds, seen: Seen) -> None:
    """Pass the ids of these recipes that `seen` lacks, of recipes below, and of their chunks to `add`."""
    said: list[tuple[int, int] | None] = [None] * len(wanted)
    while wanted:
        new = np.flatnonzero(seen.add(b"".join(recipe_id for recipe_id, _ in wanted)))
        chosen = [_placed(objects, ObjectKind.RECIPE, *wanted[at]) for at in new]
        expected = [said[at] for at in new]
        if chosen:
            add(ObjectKind.RECIPE, b"".join(recipe_id for recipe_id, _ in chosen))
        wanted, said, chunks = [], [], list[bytes]()
        read = objects.recipes((RecipeId(recipe_id), where) for recipe_id, where in chosen)
        for (recipe_id, _), located, by_parent in zip(chosen, read, expected, strict=True):
            recipe = located.value
            if by_parent not in (None, (recipe.level, recipe.size)):
                raise _broken(f"recipe {recipe_id} is not what the recipe above it says", recipe_id)
            if not recipe.level:
                chunks.append(parts_left(objects.erasures, recipe.ids))
                continue
            wanted += zip(map(RecipeId, recipe.children()), places_of(located.locator), strict=False)
            said += [(recipe.level - 1, length) for length in recipe.lengths]
        if chunks:
            add(ObjectKind.CHUNK, b"".join(chunks))


def _placed(
    objects: Objects, kind: ObjectKind, object_id: Id, where: Location | None
) -> tuple[Id, Location | None]:
    """Return an object with a location, by the index if need be: then many can be read together."""
    if where is None and objects.local(kind, object_id) is None:
        with suppress(NotFound):
            where = objects.indexes.find(kind, object_id)
    return object_id, where


def _broken(what: str, object_id: Id) -> IntegrityError:
    return IntegrityError(what, subject=str(object_id), hint=NOT_OURS)


class LostPart(msgspec.Struct, frozen=True):
    """A part of a tree of which something is lost."""

    paths: tuple[bytes, ...] = ()
    """Files whose content is lost."""
    last: bytes | None = None
    """The last path of a part that can't be read itself, with `entries` entries. `paths` is then empty."""
    entries: int = 0


class Losses:
    """Walks the trees of commits, and skips what can't be read. Each part of a tree is read once."""

    def __init__(self, objects: Objects, lost: Heads, collect: IdSet | None = None) -> None:
        """lost: sorted heads of ids of objects that can't be read. collect: gets the ids of objects seen."""
        self._objects = objects
        self._lost = lost
        self._collect = collect
        self._below: dict[Id, tuple[Id, ...]] = {}
        """The ids in `parts` that each node or segment has."""
        self._recipes: dict[RecipeId, bool] = {}
        self.parts: dict[Id, LostPart] = {}
        """By the id of a segment, or of a node that can't be read."""
        self.named: set[tuple[ObjectKind, Id]] = set()
        """Lost objects that were seen."""

    def of_commit(self, commit_id: CommitId) -> tuple[Id, ...]:
        """Return the ids in `parts` that a commit has. Raises what reading the commit itself raises."""
        commit, locator = self._objects.commit_and_locator(commit_id)
        top = Child(b"", NodeId(commit.root), commit.entries, commit.files, commit.bytes)
        return self._parts_of([(top, place_at(locator, 0))], commit.level)

    def _is_lost(self, kind: ObjectKind, object_id: Id) -> bool:
        if self._collect is not None:
            self._collect.add(object_id)
        lost = bool(is_in(heads_of(object_id), self._lost)[0])
        if lost:
            self.named.add((kind, Id(object_id)))
        return lost

    def _parts_of(self, listed: Sequence[tuple[Child, Location | None]], level: int) -> tuple[Id, ...]:
        """Return the ids in `parts` that these nodes of a level have, or these segments, whose level is 0."""
        kind = ObjectKind.NODE if level else ObjectKind.SEGMENT
        new = [listed_child for listed_child in listed if listed_child[0].id not in self._below]
        lost = {said.id for said, _ in new if self._is_lost(kind, said.id)}
        read = self._read(kind, [(said.id, where) for said, where in new if said.id not in lost])
        for said, _ in new:
            located = None if said.id in lost else next(read)
            if located is not None and isinstance(located.value, Node):
                below = list(zip(located.value.children, places_of(located.locator), strict=False))
                self._below[said.id] = self._parts_of(below, level - 1)
                continue
            part = LostPart(last=said.last, entries=said.entries)
            if located is not None:
                part = LostPart(self._lost_paths(located))
            if located is None or part.paths:
                self.parts[said.id] = part
            self._below[said.id] = (said.id,) if said.id in self.parts else ()
        return tuple(dict.fromkeys(part for said, _ in listed for part in self._below[said.id]))

    def _read(
        self, kind: ObjectKind, wanted: list[tuple[Id, Location | None]]
    ) -> Iterator[Located[Any] | None]:
        """Yield each node or segment; None for one that can't be read."""
        read: Any = self._objects.nodes if kind is ObjectKind.NODE else self._objects.segments
        count = 0
        try:
            for located in read(wanted):
                count += 1
                yield located
        except _READ:
            for node in wanted[count:]:
                try:
                    yield next(read([node]))
                except _READ:
                    self.named.add((kind, Id(node[0])))
                    yield None

    def _lost_paths(self, located: Located[Segment]) -> tuple[bytes, ...]:
        erasures = self._objects.erasures
        chunks, large = not_erased(erasures, *contents(located))
        if self._collect is not None:
            self._collect.add(chunks)
        ids = cut(chunks, 32)
        bad = {ids[at] for at in np.flatnonzero(is_in(heads_of(chunks), self._lost))}
        self.named.update((ObjectKind.CHUNK, Id(one)) for one in bad)
        bad.update(recipe_id for recipe_id, where in large if self._is_recipe_lost(recipe_id, where))
        return tuple(
            entry.path
            for entry in (located.value.entries() if bad else ())
            if entry.is_file and entry.size and (entry.recipe_id or entry.file_id) in bad
            if erasures.of(entry) is None
        )

    def _is_recipe_lost(self, recipe_id: RecipeId, where: Location | None, *said: tuple[int, int]) -> bool:
        """Return whether a part of a large file is lost. said: as in `Objects.recipe`."""
        if recipe_id not in self._recipes:
            lost = self._is_lost(ObjectKind.RECIPE, recipe_id) or self._lacks(recipe_id, where, *said)
            self._recipes[recipe_id] = lost
        return self._recipes[recipe_id]

    def _lacks(self, recipe_id: RecipeId, where: Location | None, *said: tuple[int, int]) -> bool:
        try:
            recipe, locator = self._objects.recipe(recipe_id, where, *said)
        except _READ:
            self.named.add((ObjectKind.RECIPE, Id(recipe_id)))
            return True
        if recipe.level:
            sizes = ((recipe.level - 1, length) for length in recipe.lengths)
            below = zip(map(RecipeId, recipe.children()), places_of(locator), sizes, strict=False)
            return any([self._is_recipe_lost(*one) for one in below])  # noqa: C419 (all are looked at)
        if self._collect is not None:
            self._collect.add(recipe.ids)
        ids = parts_left(self._objects.erasures, recipe.ids)
        bad = np.flatnonzero(is_in(heads_of(ids), self._lost))
        self.named.update((ObjectKind.CHUNK, Id(ids[32 * at : 32 * at + 32])) for at in bad)
        return bool(len(bad))
