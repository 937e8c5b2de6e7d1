"""Packs that are cut short, changed, gone, or not what an index or their own table says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from dsv import reader
from dsv.errors import IntegrityError
from dsv.format import keys
from dsv.format.index import Index, IndexBuilder
from dsv.format.locator import Locator, ObjectKind
from dsv.reader import StoreError
from dsv.values.ids import ChunkId, PackId
from tests.golden.building import name_of
from tests.inputs.scene import CACHE, CLONE, FILES, WHOLE, Scene, nothing_partial, refused
from tests.kit import packs

Keys = Mapping[str, bytes]


def pack_of(synced: Keys, kind: ObjectKind) -> str:
    """The key of the one pack that holds objects of this kind."""
    (found,) = [
        key for key, data in synced.items() if key.startswith("packs/") and _has(packs.verify(data), kind)
    ]
    return found


def _has(table: packs.PackTable, kind: ObjectKind) -> bool:
    return kind in {row.kind for row in table}


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def id_of(key: str) -> str:
    return key.rpartition("/")[2]


DATA, METADATA = ObjectKind.CHUNK, ObjectKind.NODE
BEGIN: Callable[[bytes], bytes] = lambda data: b""  # noqa: E731
HALF: Callable[[bytes], bytes] = lambda data: data[: len(data) // 2]  # noqa: E731
MAGIC: Callable[[bytes], bytes] = lambda data: data[:8]  # noqa: E731


@pytest.mark.parametrize("kind", [DATA, METADATA])
@pytest.mark.parametrize("cut", [BEGIN, HALF, MAGIC, None], ids=["empty", "half", "magic", "gone"])
def test_a_pack_that_ends_too_soon(
    scene: Scene, synced: Keys, kind: ObjectKind, cut: Callable[[bytes], bytes] | None
) -> None:
    """Each command names the pack, shows nothing, and works once the pack is whole again."""
    key = pack_of(synced, kind)
    scene.reset(synced)
    if cut is None:
        scene.remove(key)
    else:
        scene.put(key, cut(synced[key]))
    damaged = scene.contents()
    uses = WHOLE if cut is HALF else (CACHE, CLONE)
    people = {use: scene.newcomer() for use in uses}
    for use, person in people.items():
        refused(use(person, "set"), use.code(5), id_of(key))
        nothing_partial(person, FILES)
    with pytest.raises(StoreError):
        reader.restore(scene.store, "set", scene.folder / "restored")
    assert scene.contents() == damaged
    scene.reset(synced)
    for use, person in people.items():
        result = use(person, "set")
        assert result.code == 0, result
        assert use.result(person, "set") == FILES


def test_what_lies_before_the_cut_is_read(scene: Scene, synced: Keys) -> None:
    """The table at the end of a pack is for rebuilding indexes; nothing else needs it."""
    scene.reset(synced)
    for kind in (DATA, METADATA):
        key = pack_of(synced, kind)
        scene.put(key, synced[key][: packs.parse_footer(synced[key]).table_offset])
        with pytest.raises(IntegrityError):
            packs.verify(scene.contents()[key])
    person = scene.newcomer()
    assert CACHE(person, "set").code == 0
    assert CACHE.result(person, "set") == FILES


def test_a_flipped_bit_in_a_chunk_is_named_and_costs_that_file_alone(scene: Scene, synced: Keys) -> None:
    scene.reset(synced)
    key = pack_of(synced, DATA)
    row = next(row for row in packs.verify(synced[key]) if row.id == ChunkId.hash(FILES["a.bin"] or b""))
    scene.put(key, flipped(synced[key], row.offset + row.stored // 2))
    person = scene.newcomer()
    told = (str(row.id), id_of(key))
    refused(person("cat", "set:a.bin"), 5, *told)
    assert person("cat", "set:text.txt").out.encode() == FILES["text.txt"]
    for use in (CACHE, CLONE):
        refused(use(person, "set"), 5, *told)
        nothing_partial(person, FILES)
    document = person("cat", "set:a.bin", "--json").json["error"]
    assert (document["kind"], document["object"], document["retryable"]) == ("integrity", "set:a.bin", False)


def test_a_flipped_bit_anywhere_in_a_large_or_compressed_file(scene: Scene, synced: Keys) -> None:
    scene.reset(synced)
    key = pack_of(synced, DATA)
    person = scene.newcomer()
    for row in packs.verify(synced[key]):
        name = "set:text.txt" if row.length == len(FILES["text.txt"] or b"") else "set:b/large.bin"
        if row.length == len(FILES["a.bin"] or b""):
            continue
        for at in (row.offset, row.offset + row.stored - 1):
            scene.put(key, flipped(synced[key], at))
            refused(person("cat", name), 5, str(row.id))


def test_a_flipped_bit_in_the_metadata(scene: Scene, synced: Keys) -> None:
    """Of a locator it costs nothing; of all else it is named."""
    key = pack_of(synced, METADATA)
    for row in packs.verify(synced[key]):
        scene.reset(synced)
        scene.put(key, flipped(synced[key], row.offset + row.stored // 2))
        person = scene.newcomer()
        result = CACHE(person, "set")
        if row.kind is ObjectKind.LOCATOR:
            assert result.code == 0, result
            assert CACHE.result(person, "set") == FILES
        else:
            refused(result, 5, row.kind.name.lower(), str(row.id), id_of(key))
            nothing_partial(person, FILES)


def test_a_table_that_points_outside_its_pack(scene: Scene, synced: Keys) -> None:
    """The hash is right, the offsets are not. Readers go by the index; who rebuilds an index must refuse it."""
    scene.reset(synced)
    for kind in (DATA, METADATA):
        key = pack_of(synced, kind)
        scene.put(key, beyond_the_end(synced[key]))
        with pytest.raises(IntegrityError, match="one after the other"):
            packs.verify(scene.contents()[key])
    for use in (CACHE, CLONE):
        person = scene.newcomer()
        assert use(person, "set").code == 0
        assert use.result(person, "set") == FILES


def beyond_the_end(data: bytes) -> bytes:
    """The pack with each offset in its table 2^31 further on, and a hash that fits."""
    from blake3 import blake3

    footer = packs.parse_footer(data)
    offsets = footer.table_offset + (1 + 1 + 32) * footer.rows
    changed = bytearray(data)
    for row in range(footer.rows):
        changed[offsets + 4 * row + 3] |= 0x80
    changed[-40:-8] = blake3(changed[:-40]).digest()
    return bytes(changed)


def test_locators_that_point_outside_their_packs_cost_nothing(scene: Scene, synced: Keys) -> None:
    scene.reset(synced)
    (key,) = [key for key in synced if key.startswith("locators/")]
    rows = [
        place._replace(offset=place.offset + (64 << 20)) for place in Locator.decode(synced[key]).locations()
    ]
    scene.put(key, Locator.of(rows).encode())
    person = scene.newcomer()
    assert CACHE(person, "set").code == 0
    assert CACHE.result(person, "set") == FILES


def changed_index(synced: Keys, **changes: int) -> dict[str, bytes]:
    """The store's index with these fields of every chunk's row replaced, and no locators to do without it."""
    (key,) = [key for key in synced if key.startswith("index/")]
    builder = IndexBuilder()
    for kind, object_id, place in Index.parse(synced[key]).rows():
        builder.add(
            kind, object_id, place._replace(**changes, tail=0) if kind is DATA else place._replace(tail=0)
        )  # type: ignore[arg-type]
    without = {key: data for key, data in synced.items() if not key.startswith("locators/")}
    return {**without, key: builder.finish()}


@pytest.mark.parametrize(
    "changes", [{"offset": 100 << 20}, {"offset": 9}, {"stored": 100 << 20}, {"length": 7}]
)
def test_an_index_that_claims_what_its_pack_lacks(
    scene: Scene, synced: Keys, changes: dict[str, int]
) -> None:
    """Beyond the end of the pack, or where something else lies."""
    scene.reset(changed_index(synced, **changes))
    people = {use: scene.newcomer() for use in (CACHE, CLONE)}
    for use, person in people.items():
        refused(use(person, "set"), 5, "chunk", id_of(pack_of(synced, DATA)))
        nothing_partial(person, FILES)
    refused(people[CACHE]("cat", "set:text.txt"), 5, str(ChunkId.hash(FILES["text.txt"] or b"")))
    with pytest.raises(StoreError, match="damaged in every copy"):
        reader.restore(scene.store, "set", scene.folder / "restored")
    scene.reset(synced)
    for use, person in people.items():  # they have copies of the index that was wrong, under the same name
        result = use(person, "set")
        assert result.code == 0, result
        assert use.result(person, "set") == FILES


def right_index(synced: Keys) -> bytes:
    return next(data for key, data in synced.items() if key.startswith("index/"))


def test_another_index_that_is_right_will_do(scene: Scene, synced: Keys) -> None:
    scene.reset(changed_index(synced, offset=100 << 20))
    for number in range(14):  # wherever in the order of asking, and where small ones are merged
        scene.put(keys.index_key(name_of(f"right {number}").index), right_index(synced))
        if number in (0, 1, 13):
            person = scene.newcomer()
            assert CACHE(person, "set").code == 0
            assert CACHE.result(person, "set") == FILES
    reader.restore(scene.store, "set", scene.folder / "restored")


def test_an_index_that_names_a_pack_that_is_not_there(scene: Scene, synced: Keys) -> None:
    nowhere = PackId(b"\7" * 16)
    scene.reset(changed_index(synced, pack=nowhere))  # type: ignore[arg-type]
    person = scene.newcomer()
    refused(CACHE(person, "set"), 5, "chunk", str(nowhere), "gone")
    nothing_partial(person, FILES)


@pytest.mark.parametrize("damage", [HALF, lambda data: flipped(data, len(data) // 2), lambda data: b""])
def test_an_index_that_is_damaged_itself(
    scene: Scene, synced: Keys, damage: Callable[[bytes], bytes]
) -> None:
    """A reader with locators does not need it; any other gets an error with its name, and a sync publishes nothing."""
    scene.reset(synced)
    (key,) = [key for key in synced if key.startswith("index/")]
    scene.put(key, damage(synced[key]))
    person = scene.newcomer()
    assert CACHE(person, "set").code == 0
    assert CLONE(person, "set").code == 0
    damaged = scene.contents()
    (person.cwd / "clone/new").write_bytes(b"new")
    there = person.at(person.cwd / "clone")
    refused(there("sync"), 5, "index", id_of(key))
    changed = {key for key, data in scene.contents().items() if damaged.get(key) != data}
    assert {key.partition("/")[0] for key in changed} <= {"sessions"}
    scene.put(key, synced[key])
    there.ok("sync")
    assert there.ok("cat", ":new").out == "new"
