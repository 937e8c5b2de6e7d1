from __future__ import annotations

import random
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError, Unsupported
from dsv.format.recipe import MAX_ROWS, MIN_ROWS, Recipe, build_recipe
from dsv.values.ids import ChunkId, RecipeId
from tests.format.strategies import mutations


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    level = draw(st.integers(0, 4))
    largest = 1 << 40 if level else 4 << 20
    lengths = draw(st.lists(st.integers(1, largest), min_size=1, max_size=10))
    return Recipe(level, draw(st.binary(min_size=32 * len(lengths), max_size=32 * len(lengths))),
                  array("Q" if level else "I", lengths))  # fmt: skip


@given(recipes())
def test_round_trip(recipe: Recipe) -> None:
    decoded = Recipe.decode(recipe.encode())
    assert decoded == recipe
    assert decoded.size == sum(recipe.lengths)
    kind = RecipeId if recipe.level else ChunkId
    assert [type(child) for child in decoded.children()] == [kind] * len(recipe)
    assert [length for _, length in decoded.rows()] == list(recipe.lengths)


@given(recipes(), st.data())
def test_what_is_decoded_is_what_would_be_encoded(recipe: Recipe, data: st.DataObject) -> None:
    changed = data.draw(mutations(recipe.encode()))
    try:
        decoded = Recipe.decode(changed)
    except (IntegrityError, Unsupported):
        return
    assert decoded.encode() == changed


def built(
    level: int = 0, ids: bytes = b"i" * 64, lengths: bytes = struct.pack("<2I", 1, 2), count: int = 2
) -> bytes:
    return b"dsv recipe 1\n" + struct.pack("<II", level, count) + ids + lengths


def test_the_layout() -> None:
    assert Recipe(0, b"i" * 64, array("I", [1, 2])).encode() == built()
    assert Recipe(1, b"i" * 64, array("Q", [1, 2])).encode() == built(1, lengths=struct.pack("<2Q", 1, 2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (built(5), "over the limit"),
        (built(count=65537), "over the limit"),
        (built(0, b"", b"", 0), "0 rows"),
        (built(1), "cut short"),
        (built(count=3), "cut short"),
        (built(count=1), "follow its end"),
        (built(lengths=struct.pack("<2I", 0, 2)), "impossible length"),
        (built(lengths=struct.pack("<2I", 1, (4 << 20) + 1)), "impossible length"),
        (built(1, lengths=struct.pack("<2Q", 1 << 62, 1 << 62)), "too large"),
        (built() + b"\0", "follow its end"),
        (b"dsv recipe 1\n" + struct.pack("<II", 0, 65536), "cut short"),
    ],
)
def test_damage_is_found(data: bytes, message: str) -> None:
    with pytest.raises(IntegrityError, match=f"recipe is damaged.*{message}"):
        Recipe.decode(data)


def chunk_ids(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(32 * count)


@pytest.mark.parametrize("count", [1, 2, 1000, MAX_ROWS])
def test_up_to_the_limit_one_recipe_is_enough(count: int) -> None:
    ids = chunk_ids(count)
    ((recipe_id, recipe),) = build_recipe(ids, [7] * count)
    assert (recipe.level, recipe.ids, recipe.size) == (0, ids, 7 * count)
    assert recipe_id == RecipeId.hash(recipe.encode())


def test_longer_ones_nest() -> None:
    count = 200_000
    ids, lengths = chunk_ids(count), [1 + at % 1000 for at in range(count)]
    *leaves, (_, top) = build_recipe(ids, lengths)
    assert top.level == 1
    assert list(top.children()) == [leaf_id for leaf_id, _ in leaves]
    assert list(top.lengths) == [leaf.size for _, leaf in leaves]
    assert b"".join(leaf.ids for _, leaf in leaves) == ids
    assert [length for _, leaf in leaves for length in leaf.lengths] == lengths
    assert all(MIN_ROWS <= len(leaf) <= MAX_ROWS for _, leaf in leaves[:-1])


def test_an_insertion_changes_few_sub_recipes() -> None:
    count = 300_000
    ids = chunk_ids(count)
    at = 32 * (count // 3)
    longer = ids[:at] + chunk_ids(1, seed=1) + ids[at:]
    before = {one for one, _ in build_recipe(ids, [7] * count)}
    after = [one for one, _ in build_recipe(longer, [7] * (count + 1))]
    assert sum(one not in before for one in after) <= 3  # one or two leaves, and the top


def test_equal_chunk_ids_do_not_defeat_the_limit() -> None:
    made = build_recipe(bytes(32) * 150_000, [1] * 150_000)
    assert all(len(recipe) <= MAX_ROWS for _, recipe in made)
