from __future__ import annotations

import random

import pytest

from dsv.format import keys, recipe
from dsv.format.locator import ObjectKind
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import Reached, TreeReader, reach_content, reach_tree
from dsv.stores.memory import MemoryStore
from tests.kit import packs
from tests.kit.repositories import commit, create

BIG = random.Random(5).randbytes(12 << 20)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Recipes that hold few rows, so that a large file has recipes above recipes."""
    monkeypatch.setattr(recipe, "MAX_ROWS", 4)
    return create(MemoryStore())


def stored(repository: Repository) -> set[Reached]:
    """All that the packs hold."""
    found: set[Reached] = set()
    for item in repository.store.list(keys.PACK_PREFIX):
        pack_id = keys.parse_pack_key(item.key)
        assert pack_id is not None
        table = packs.verify(repository.store.get(item.key))
        found |= {Reached(*row) for row in table.indexed(pack_id)}
    return found


def test_a_tree_reaches_all_that_was_stored_for_it_and_where(repository: Repository) -> None:
    small = {f"d{n % 7}/f{n}": b"%d" % n for n in range(3_000)}
    made = commit(repository, {**small, "big": BIG, "link@": b"big", "none": None, "empty": b""})
    reached = list(reach_tree(TreeReader(repository.objects, made)))
    assert {one.kind for one in reached} == set(ObjectKind) - {ObjectKind.LOCATOR}
    assert set(reached) == stored(repository)


def test_recipes_above_recipes_are_followed_and_each_comes_once(repository: Repository) -> None:
    tree = TreeReader(repository.objects, commit(repository, {"big": BIG, "copy": BIG}))
    found = tree.entry(b"big")
    assert found is not None and found[0].recipe_id is not None
    assert repository.objects.recipe(found[0].recipe_id)[0].level > 0
    recipes = [one.id for one in reach_tree(tree) if one.kind is ObjectKind.RECIPE]
    assert len(recipes) == len(set(recipes)) > 2
    assert {one for one in stored(repository) if one.kind in (ObjectKind.CHUNK, ObjectKind.RECIPE)} == set(
        reach_content(repository.objects, *found)
    )


def test_what_holds_no_content_reaches_nothing(repository: Repository) -> None:
    tree = TreeReader(repository.objects, commit(repository, {"link@": b"x", "none": None, "empty": b""}))
    for entry, location in tree.below(b""):
        assert list(reach_content(repository.objects, entry, location)) == []
