"""Contents that are not what a tree promises: recipes that are not their file, frames that would fill the memory."""

from __future__ import annotations

import resource
import struct
from array import array
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from dsv import reader
from dsv.format import keys
from dsv.format.locator import ObjectKind
from dsv.format.recipe import Recipe
from dsv.format.tree import Entry, Kind
from dsv.reader import StoreError
from dsv.values.ids import ChunkId, CommitId, FileId, RecipeId
from tests.inputs.hostile import Maker, file, named
from tests.inputs.scene import CACHE, CLONE, Scene, nothing_partial, refused
from tests.kit.dsv import Dsv, Result

MB = 1 << 20
ONE, TWO = bytes(MB), b"1" * MB
WHOLE_FILE = ONE + TWO


def with_recipe(recipe: Recipe, size: int, file_id: FileId, *further: Recipe) -> tuple[Maker, CommitId]:
    """A commit whose file `f` has this recipe, this size and this id; chunks of `ONE`, `TWO` and both are there."""
    maker = Maker()
    for content in (ONE, TWO, WHOLE_FILE):
        maker.chunk(content)
    for each in (recipe, *further):
        encoded = each.encode()
        maker.add(ObjectKind.RECIPE, RecipeId.hash(encoded), encoded)
    entry = Entry(b"f", Kind.FILE, size, file_id, RecipeId.hash(recipe.encode()))
    return maker, maker.tree([entry])


def level_0(*chunks: bytes, lengths: Sequence[int] | None = None) -> Recipe:
    sizes = [len(chunk) for chunk in chunks] if lengths is None else lengths
    return Recipe(0, b"".join(map(ChunkId.hash, chunks)), array("I", sizes))


def above(*recipes: Recipe, level: int = 1) -> Recipe:
    ids = b"".join(RecipeId.hash(recipe.encode()) for recipe in recipes)
    return Recipe(level, ids, array("Q", [recipe.size for recipe in recipes]))


RIGHT = FileId.hash(WHOLE_FILE)
FALSE = {
    "its chunks the other way round": (level_0(TWO, ONE), 2 * MB, RIGHT, ()),
    "a chunk too few": (level_0(ONE), 2 * MB, RIGHT, ()),
    "a chunk too many": (level_0(ONE, TWO, ONE), 2 * MB, RIGHT, ()),
    "a chunk too many, as the size says": (level_0(ONE, TWO, ONE), 3 * MB, RIGHT, ()),
    "a length that no chunk has": (level_0(ONE, TWO, lengths=[MB, MB - 1]), 2 * MB - 1, RIGHT, ()),
    "lengths that only sum up": (level_0(ONE, TWO, lengths=[MB + 1, MB - 1]), 2 * MB, RIGHT, ()),
    "a size of another file": (level_0(ONE, TWO), 2 * MB + 1, RIGHT, ()),
    "an id of another file": (level_0(ONE, TWO), 2 * MB, FileId.hash(ONE), ()),
    "the only chunk of another file": (level_0(WHOLE_FILE), 2 * MB, FileId.hash(ONE), ()),
    "a level left out": (above(level_0(ONE, TWO), level=2), 2 * MB, RIGHT, (level_0(ONE, TWO),)),
    "a length that a recipe below has not": (
        Recipe(1, RecipeId.hash(level_0(ONE).encode()), array("Q", [2 * MB])), 2 * MB, RIGHT, (level_0(ONE),),
    ),
    "a recipe that is not there": (above(level_0(ONE, TWO)), 2 * MB, RIGHT, ()),
}  # fmt: skip


@pytest.mark.parametrize(("recipe", "size", "file_id", "further"), FALSE.values(), ids=FALSE.keys())
def test_a_recipe_that_is_not_its_file(
    scene: Scene, recipe: Recipe, size: int, file_id: FileId, further: Sequence[Recipe]
) -> None:
    maker, commit = with_recipe(recipe, size, file_id, *further)
    scene.reset(maker.store(commit))
    people = {use: scene.newcomer() for use in (CACHE, CLONE)}
    for use, person in people.items():
        refused(use(person, "set"), 5, "recipe")
        nothing_partial(person)
    refused(people[CACHE]("cat", "set:f"), 5, "recipe")
    with pytest.raises(StoreError, match="recipe"):
        reader.restore(scene.store, "set", scene.folder / "restored")
    assert not (scene.folder / "restored").exists()
    good, commit = with_recipe(level_0(ONE, TWO), 2 * MB, RIGHT)
    scene.reset({**good.store(None), **named(commit, 1)})
    for use, person in people.items():
        assert use(person, "set").code == 0
        assert use.result(person, "set") == {"f": WHOLE_FILE}


def test_nested_recipes_are_refused_for_nothing_else(scene: Scene) -> None:
    below = (level_0(ONE), level_0(TWO))
    maker, commit = with_recipe(above(*below), 2 * MB, RIGHT, *below)
    scene.reset(maker.store(commit))
    assert scene.newcomer().process("cat", "set:f").out.encode() == WHOLE_FILE


@pytest.mark.parametrize("size", [4, 6])
def test_a_small_file_of_another_size_than_its_chunk(scene: Scene, size: int) -> None:
    maker = Maker()
    maker.chunk(b"12345")
    commit = maker.tree([Entry(b"f", Kind.FILE, size, FileId.hash(b"12345"))])
    scene.reset(maker.store(commit))
    for use in (CACHE, CLONE):
        person = scene.newcomer()
        refused(use(person, "set"), 5, "the chunk of 'f'")
        nothing_partial(person)
    with pytest.raises(StoreError):
        reader.restore(scene.store, "set", scene.folder / "restored")


# --- frames that unpack to more than they should

LENGTH = 1000
SAYS_100_GB = b"\xc0\x58" + struct.pack("<Q", 100_000_000_000)
SAYS_1000 = b"\x40\x58" + struct.pack("<H", LENGTH - 256)
SAYS_NOTHING = b"\x00\x58"


def bomb(header: bytes) -> bytes:
    """A zstd frame of 3 MB whose content are 100 GB of zeros, whatever its header says (RFC 8878)."""
    blocks = 100_000_000_000 // (128 << 10)
    run = ((128 << 10) << 3 | 2).to_bytes(3, "little") + b"\0"
    last = ((128 << 10) << 3 | 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd" + header + run * (blocks - 1) + last


def with_little_memory(person: Dsv, *arguments: str) -> Result:
    """With 4 GiB of addresses, where 100 GB would be an end with a traceback, or the machine's.

    An arena for each thread, of which there are the more the more cores there are, would take 64 MiB of them.
    """
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (4 << 30, 4 << 30))
    return person.at(person.cwd, MALLOC_ARENA_MAX="2").process(*arguments, preexec_fn=limit)


def bomb_as_chunk(frame: bytes) -> dict[str, bytes]:
    maker = Maker()
    maker.chunk(bytes(LENGTH), frame)
    return maker.store(maker.tree([file(b"f", bytes(LENGTH))]))


def bomb_as_segment(frame: bytes) -> dict[str, bytes]:
    maker = Maker()
    maker.chunk()
    return maker.store(maker.tree([file(b"f" * 200)], frame=frame))


def bomb_as_locator(frame: bytes) -> dict[str, bytes]:
    maker = Maker()
    maker.chunk()
    commit = maker.tree([file(b"f")])
    maker.keys[keys.locator_key(commit)] = frame
    return maker.store(commit)


@pytest.mark.parametrize("header", [SAYS_100_GB, SAYS_1000, SAYS_NOTHING], ids=["honest", "lying", "silent"])
@pytest.mark.parametrize("make", [bomb_as_chunk, bomb_as_segment])
def test_a_frame_that_unpacks_to_100_gb(
    scene: Scene, make: Callable[[bytes], dict[str, bytes]], header: bytes
) -> None:
    scene.reset(make(bomb(header)))
    kind = make.__name__.rpartition("_")[2]
    for use in (CACHE, CLONE):
        person = scene.newcomer()
        result = with_little_memory(person, *use.arguments("set"))
        refused(result, 5, kind, "is damaged")
        nothing_partial(person)
    with pytest.raises(StoreError, match=f"{kind}.*damaged"):
        reader.restore(scene.store, "set", scene.folder / "restored")


def test_a_locator_that_unpacks_to_100_gb_is_done_without(scene: Scene) -> None:
    scene.reset(bomb_as_locator(bomb(SAYS_100_GB)))
    person = scene.newcomer()
    result = with_little_memory(person, "cat", "set:f")
    assert (result.code, result.out) == (0, "x")


def test_a_large_object_that_is_honest_is_read_with_that_memory(scene: Scene) -> None:
    maker, commit = with_recipe(level_0(ONE, TWO), 2 * MB, RIGHT)
    scene.reset(maker.store(commit))
    result = with_little_memory(scene.newcomer(), "cat", "set:f")
    assert (result.code, len(result.out)) == (0, 2 * MB)
