"""Every object that a commit's tree refers to: the one walk for whoever must know that all of it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dsv.model.entry import Entry
from dsv.model.ids import Id, RecipeId
from dsv.model.location import Location, ObjectKind
from dsv.repo.objects import Objects
from dsv.repo.trees import TreeReader


class Reached(NamedTuple):
    """An object that something refers to. location: where a locator says that it lies, if one does."""

    kind: ObjectKind
    id: Id
    location: Location | None


def reach_tree(tree: TreeReader) -> Iterator[Reached]:
    """The nodes, the segments, and what the contents of the files consist of. Each recipe comes once."""
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
    """The chunk of one file, or its recipes and their chunks; nothing for an entry without content.

    seen: recipes to leave out; those that come are added. A recipe comes before it is read.
    """
    if entry.recipe_id is not None:
        yield from _reach_recipe(objects, entry.recipe_id, location, set() if seen is None else seen)
    elif entry.is_file and entry.size:
        assert entry.file_id is not None
        yield Reached(ObjectKind.CHUNK, entry.file_id, location)


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
    for row, (child, length) in enumerate(recipe.rows()):
        place = locator.get(row) if locator is not None and row < len(locator) else None
        if recipe.level:
            yield from _reach_recipe(objects, RecipeId(child), place, seen, (recipe.level - 1, length))
        else:
            yield Reached(ObjectKind.CHUNK, child, place)
