"""The chunks that large files share, found by their recipes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dsv.stores.base import together
from dsv.values.ids import Id, RecipeId

if TYPE_CHECKING:
    from dsv.format.locator import Location
    from dsv.format.recipe import Recipe
    from dsv.format.tree import Entry
    from dsv.repo.objects.objects import Objects


def read_chunks(objects: Objects, entries: Sequence[Entry]) -> list[Counter[Id]]:
    """Return for each large file its parts and the bytes of each. One recipe is read for each file.

    The parts are chunks, or recipes if a file has more than 65,536 chunks. An erased file has none.
    """
    erased = objects.erasures
    left = [entry.recipe_id for entry in entries if erased.of(entry) is None]
    read = iter(_read(objects, left))
    return [_parts(next(read)) if erased.of(entry) is None else Counter() for entry in entries]


def shared_bytes(objects: Objects, before: Entry, after: Entry) -> int:
    """Return how many bytes of `after` are in chunks that `before` has too. Reads no recipe of both."""
    if before.file_id == after.file_id:
        return after.size
    if before.recipe_id is None or after.recipe_id is None:
        return 0
    if objects.erasures.of(before) is not None or objects.erasures.of(after) is not None:
        return 0
    return _shared(objects, _read(objects, [before.recipe_id]), _read(objects, [after.recipe_id]))


def count_chunks(objects: Objects, entry: Entry, location: Location | None = None) -> int:
    """Return the number of a file's chunks. Reads every recipe of a large one."""
    if objects.erasures.of(entry) is not None:
        return 0
    if entry.recipe_id is None:
        return 1 if entry.is_file and entry.size else 0
    times = Counter[Id]({entry.recipe_id: 1})  # how often each recipe is listed
    level = _read(objects, [entry.recipe_id], location)
    while level[0].level:
        below = Counter[Id]()
        for recipe, count in zip(level, times.values(), strict=True):
            for child, number in Counter(recipe.children()).items():
                below[child] += count * number
        times = below
        level = _read(objects, [RecipeId(one) for one in times])
    return sum(len(recipe) * count for recipe, count in zip(level, times.values(), strict=True))


def _shared(objects: Objects, old: list[Recipe], new: list[Recipe]) -> int:
    """Compare recipes of one level each. The higher ones are opened first, until both have the same level."""
    shared = 0
    while True:
        left, right = _sum(old), _sum(new)
        common = left.keys() & right.keys()
        shared += sum(right[one] for one in common)
        above, below = max(old[0].level, new[0].level), min(old[0].level, new[0].level)
        if not above:
            return shared
        if old[0].level == above:
            old = _open(objects, left, common)
        if above == below or new[0].level == above:
            new = _open(objects, right, common)
        if not old or not new:
            return shared


def _open(objects: Objects, parts: Counter[Id], common: set[Id]) -> list[Recipe]:
    return _read(objects, [RecipeId(one) for one in parts if one not in common])


def _sum(recipes: Sequence[Recipe]) -> Counter[Id]:
    total = Counter[Id]()
    for recipe in recipes:
        total.update(_parts(recipe))
    return total


def _parts(recipe: Recipe) -> Counter[Id]:
    parts = Counter[Id]()
    for child, length in recipe.rows():
        parts[child] += length
    return parts


def _read(
    objects: Objects, recipe_ids: Sequence[RecipeId | None], location: Location | None = None
) -> list[Recipe]:
    calls = [
        partial(objects.recipe, recipe_id, location) for recipe_id in recipe_ids if recipe_id is not None
    ]
    assert len(calls) == len(recipe_ids)
    return [recipe for recipe, _ in together(calls)]
