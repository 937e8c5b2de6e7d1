from __future__ import annotations

import mmap
import struct
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.format.codec import Codec
from dsv.format.index import ROW_SIZE, Index, IndexBuilder, merge, merge_all
from dsv.format.locator import Location, ObjectKind
from dsv.values.ids import ChunkId, Id, PackId, SegmentId
from tests.format.strategies import locations, mutations

PACKS = [PackId(bytes([at]) * 16) for at in range(4)]
KINDS = st.sampled_from([ObjectKind.CHUNK, ObjectKind.RECIPE, ObjectKind.SEGMENT, ObjectKind.NODE])
# Few first bytes and shared beginnings, so that several rows fall into one bucket.
IDS = st.builds(
    lambda first, middle, last: Id(bytes([first]) + middle + last),
    st.sampled_from([0, 1, 127, 255]),
    st.sampled_from([bytes(27), b"m" * 27]),
    st.binary(min_size=4, max_size=4),
)
Rows = dict[tuple[ObjectKind, Id], Location]
ROWS = st.dictionaries(st.tuples(KINDS, IDS), locations(PACKS), max_size=25)


def built(rows: Rows) -> bytes:
    builder = IndexBuilder()
    for (kind, object_id), location in rows.items():
        builder.add(kind, object_id, location)
    return builder.finish()


@given(ROWS)
def test_round_trip(rows: Rows) -> None:
    index = Index.parse(built(rows))
    assert len(index) == len(rows)
    assert {(kind, object_id): location for kind, object_id, location in index.rows()} == rows
    order = [(object_id, kind) for kind, object_id, _ in index.rows()]
    assert order == sorted(order)
    for (kind, object_id), location in rows.items():
        assert index.find(kind, object_id) == location


@given(ROWS, KINDS, IDS)
def test_what_is_not_there_is_not_found(rows: Rows, kind: ObjectKind, object_id: Id) -> None:
    for verify in (True, False):
        index = Index.parse(built(rows), verify=verify)
        assert index.find(kind, object_id) == rows.get((kind, object_id))


@given(ROWS, st.randoms())
def test_the_order_of_adding_does_not_matter(rows: Rows, random: object) -> None:
    shuffled = list(rows.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert built(dict(shuffled)) == built(rows)


def rehashed(data: bytes) -> bytes:
    return data[:-32] + blake3(data[:-32]).digest()


@given(ROWS, st.data())
@settings(max_examples=200)
def test_what_is_parsed_is_what_would_be_built(rows: Rows, data: st.DataObject) -> None:
    whole = built(rows)
    changed = data.draw(mutations(whole))
    if changed != whole:
        with pytest.raises((IntegrityError, Unsupported)):
            Index.parse(changed)
    if len(changed) < 32:
        return
    changed = rehashed(changed)
    try:
        index = Index.parse(changed)
    except (IntegrityError, Unsupported):
        return
    assert merge([index]) == changed


@given(ROWS, ROWS)
def test_merging_is_the_union_and_the_first_counts(one: Rows, other: Rows) -> None:
    merged = merge([Index.parse(built(one)), Index.parse(built(other))])
    assert merged == built({**other, **one})
    assert len(Index.parse(merged, "merged in memory")) == len(one.keys() | other.keys())


def row(
    object_id: bytes,
    kind: int = 1,
    where: int = 0,
    codec: int = 0,
    pack: int = 0,
    offset: int = 8,
    stored: int = 5,
    length: int = 5,
    tail: int = 0,
    padding: int = 0,
) -> bytes:
    return object_id + struct.pack(
        "<BBBBIIIII", kind, where, codec, padding, pack, offset, stored, length, tail
    )


A, B = ChunkId(b"\x01" * 32), ChunkId(b"\x01" * 31 + b"\x02")


def by_hand(rows: list[bytes], packs: bytes = PACKS[1], fanout: dict[int, int] | None = None) -> bytes:
    """An index file's bytes as docs/internals/format.md has them."""
    counts = [sum(one[0] <= first for one in rows) for first in range(256)]
    for first, count in (fanout or {}).items():
        counts[first] = count
    data = b"dsvindx1" + struct.pack("<II", len(packs) // 16, len(rows)) + struct.pack("<256I", *counts)
    data += packs + b"".join(rows)
    return data + blake3(data).digest()


def test_the_layout() -> None:
    builder = IndexBuilder()
    builder.add(ObjectKind.CHUNK, B, Location(PACKS[2], 8, 5, 5, Codec.RAW))
    builder.add(ObjectKind.CHUNK, A, Location(PACKS[1], 13, 5, 50, Codec.ZSTD, 9))
    rows = [row(A, codec=1, offset=13, length=50, tail=9), row(B, pack=1)]
    assert builder.finish() == by_hand(rows, PACKS[1] + PACKS[2])
    assert len(rows[0]) == ROW_SIZE


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (by_hand([row(B), row(A)]), "not sorted"),
        (by_hand([row(A), row(A)]), "not sorted"),
        (by_hand([row(A, kind=2), row(A, kind=1)]), "not sorted"),
        (by_hand([row(A), row(B)], fanout={1: 1}), "fanout"),
        (by_hand([row(A), row(B)], fanout={0: 1}), "fanout"),
        (by_hand([row(A), row(B)], fanout={200: 1}), "fanout"),
        (by_hand([row(A)], fanout={255: 2}), "fanout"),
        (by_hand([row(A, kind=5)]), "unknown kind"),
        (by_hand([row(A, kind=0)]), "unknown kind"),
        (by_hand([row(A, where=3)]), "unknown kind"),
        (by_hand([row(A, codec=2)]), "unknown kind"),
        (by_hand([row(A, padding=1)]), "padding"),
        (by_hand([row(A, pack=1)]), "packs"),
        (by_hand([row(A)], PACKS[1] + PACKS[2]), "not what its head says|packs"),
        (by_hand([row(A), row(B)], PACKS[1] + PACKS[2]), "packs"),
        (by_hand([row(A), row(B, pack=1)], PACKS[2] + PACKS[1]), "packs are not sorted"),
        (by_hand([row(A), row(B, pack=1)], PACKS[1] * 2), "packs are not sorted"),
        (by_hand([row(A, offset=0xFFFFFFFF)]), "outside its pack"),
        (by_hand([row(A, offset=0xFFFFFFF0, tail=100)]), "outside its pack"),
        (by_hand([row(A, stored=128 << 20)]), "outside its pack"),
        (by_hand([row(A, tail=0xFFFFFFFF)]), "outside its pack"),
        (by_hand([row(A, stored=0)]), "impossible length"),
        (by_hand([row(A, length=0)]), "impossible length"),
        (by_hand([row(A, length=(32 << 20) + 1)]), "impossible length"),
        (by_hand([])[:500], "cut short"),
        (by_hand([row(A)]) + b"\0", "not what its head says"),
        (by_hand([row(A)])[:-1], "not what its head says"),
        (b"dsvindx0" + by_hand([])[8:], "does not begin"),
        (by_hand([row(A)])[:-1] + b"\0", "hash"),
    ],
)
def test_damage_is_found_and_named(changed: bytes, message: str) -> None:
    with pytest.raises(IntegrityError, match=f"index 0f is damaged.*({message})"):
        Index.parse(changed, "0f")


def test_a_newer_version() -> None:
    with pytest.raises(Unsupported, match="version 2"):
        Index.parse(b"dsvindx2" + by_hand([])[8:])


def test_counts_are_checked_before_memory_is_taken() -> None:
    head = b"dsvindx1" + struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)
    with pytest.raises(IntegrityError):
        Index.parse(head + bytes(2000))


def test_reserved_places() -> None:
    index = Index.parse(by_hand([row(A, where=1), row(B, where=2)]))
    with pytest.raises(NotFound, match="erased"):
        index.find(ObjectKind.CHUNK, B)
    assert [(one, place) for _, one, place in index.rows()] == [(A, index.find(ObjectKind.CHUNK, A))]


def test_a_place_in_the_store_wins_over_one_outside() -> None:
    outside, inside = PackId.external(), PackId.random()
    files = []
    for pack in (outside, inside):
        builder = IndexBuilder()
        builder.add(ObjectKind.CHUNK, A, Location(pack, 8, 5, 5, Codec.RAW))
        files.append(Index.parse(builder.finish()))
        assert files[-1].row_bytes[33] == (1 if pack is outside else 0)
    for order in (files, files[::-1]):
        found = Index.parse(merge(order)).find(ObjectKind.CHUNK, A)
        assert found is not None and found.pack == inside
        rows = [row for file in merge_all(order, 100) for row in Index.parse(file).rows()]
        assert {place.pack for _, _, place in rows} == {outside, inside}


def test_erased_wins_over_every_other_entry() -> None:
    packed, erased = (Index.parse(by_hand([row(A, where=where)])) for where in (0, 2))
    for order in ([packed, erased], [erased, packed], [packed, erased, packed]):
        with pytest.raises(NotFound, match="erased"):
            Index.parse(merge(order)).find(ObjectKind.CHUNK, A)


def test_a_locator_is_in_no_index() -> None:
    with pytest.raises(ValueError, match="locators"):
        IndexBuilder().add(ObjectKind.LOCATOR, SegmentId(bytes(32)), Location(PACKS[0], 8, 5, 5, Codec.RAW))


@pytest.mark.parametrize("size", [1, 31, 33])
def test_an_id_of_another_length_is_not_indexed(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        IndexBuilder().add(ObjectKind.CHUNK, Id(b"i" * size), Location(PACKS[0], 8, 5, 5, Codec.RAW))


def test_it_works_on_a_mapped_file(tmp_path: Path) -> None:
    rows: Rows = {
        (ObjectKind.CHUNK, ChunkId.hash(b"%d" % at)): Location(PACKS[at % 4], 8 + at, 5, 5, Codec.RAW)
        for at in range(5000)
    }
    path = tmp_path / "index"
    path.write_bytes(built(rows))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for verify in (True, False):
            view = memoryview(mapped)
            index = Index.parse(view, verify=verify)
            assert all(index.find(kind, object_id) == place for (kind, object_id), place in rows.items())
            assert index.find(ObjectKind.NODE, ChunkId.hash(b"1")) is None
            del index
            view.release()


def test_an_unverified_copy_that_is_damaged_gives_no_wild_places() -> None:
    index = Index.parse(by_hand([row(A, pack=7), row(B, codec=9)]), verify=False)
    for object_id in (A, B):
        with pytest.raises(IntegrityError, match="names a pack or codec"):
            index.find(ObjectKind.CHUNK, object_id)
