from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError, Unsupported
from dsv.format import pack
from dsv.format.codec import Codec
from dsv.format.index import Index, IndexBuilder
from dsv.format.locator import ObjectKind
from dsv.format.pack import PackBuilder, Packed
from dsv.values.ids import ChunkId, Id, PackId, RecipeId, SegmentId
from tests.format.strategies import mutations
from tests.kit.packs import FOOTER_SIZE, PackRow, PackTable, parse_footer, parse_table, verify

Object = tuple[ObjectKind, bytes, Codec, bytes, int]
PACK = PackId(b"p" * 16)


@st.composite
def objects(draw: st.DrawFn) -> list[Object]:
    """Objects as a writer adds them; locators follow recipes and segments now and then."""
    made: list[Object] = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(
            st.sampled_from([ObjectKind.CHUNK, ObjectKind.RECIPE, ObjectKind.SEGMENT, ObjectKind.NODE])
        )
        name = draw(st.binary(min_size=32, max_size=32))
        stored = draw(st.binary(min_size=1, max_size=50))
        codec = draw(st.sampled_from(Codec))
        made.append(
            (kind, name, codec, stored, len(stored) if codec is Codec.RAW else draw(st.integers(1, 1 << 25)))
        )
        if kind in (ObjectKind.RECIPE, ObjectKind.SEGMENT) and draw(st.booleans()):
            made.append((ObjectKind.LOCATOR, name, Codec.ZSTD, draw(st.binary(min_size=1, max_size=50)), 99))
    return made


def built(found: list[Object]) -> bytes:
    builder = PackBuilder()
    for kind, name, codec, stored, length in found:
        builder.add(kind, Id(name), codec, stored, length)
    assert builder.rows == len(found)
    size = builder.size
    data = builder.finish()
    assert len(data) == size
    return bytes(data)


def rebuilt(table: PackTable, data: bytes) -> bytes:
    return built([(k, i, c, data[at : at + stored], length) for k, i, c, at, stored, length in table])


@given(objects())
def test_round_trip(found: list[Object]) -> None:
    data = built(found)
    table = verify(data)
    assert [
        (row.kind, row.id, row.codec, data[row.offset : row.offset + row.stored], row.length) for row in table
    ] == found
    footer = parse_footer(data[-FOOTER_SIZE:])
    assert parse_table(data[footer.table_offset : -FOOTER_SIZE], footer, len(data)) == table
    assert rebuilt(table, data) == data


CHUNKS = st.lists(
    st.tuples(
        st.binary(min_size=32, max_size=32), st.sampled_from(Codec), st.binary(min_size=1, max_size=50)
    ),
    min_size=1,
    max_size=9,
)


@given(objects(), CHUNKS, objects())
def test_many_at_once_are_as_one_by_one(before: list[Object], chunks: list[Any], after: list[Object]) -> None:
    builder = PackBuilder()
    for one in before:
        builder.add(one[0], Id(one[1]), *one[2:])
    packed = columns(*((ChunkId(name), codec, 7 * len(data), data) for name, codec, data in chunks))
    room = builder.size + sum(len(data) + 46 for _, _, data in chunks)
    assert builder.has_room(packed, room) and not builder.has_room(packed, room - 1)
    offsets = builder.add_all(packed)
    for one in after:
        builder.add(one[0], Id(one[1]), *one[2:])
    rows = [
        (ObjectKind.CHUNK, one, codec, data, length)
        for one, codec, length, data in zip(
            packed.ids, map(Codec, packed.codecs), packed.lengths, split(packed), strict=True
        )
    ]
    data = bytes(builder.finish())
    assert data == built([*before, *rows, *after])
    assert [row.offset for row in verify(data)][len(before) : len(before) + len(chunks)] == offsets


def columns(*chunks: tuple[ChunkId, Codec, int, bytes]) -> Packed:
    """A length counts for what is compressed alone."""
    ids, codecs, lengths, stored = zip(*chunks, strict=True)
    lengths = [
        len(data) if codec is Codec.RAW else one
        for one, codec, data in zip(lengths, codecs, stored, strict=True)
    ]
    return Packed(ids, bytes(codecs), lengths, list(map(len, stored)), memoryview(b"".join(stored)))


def split(packed: Packed) -> list[bytes]:
    ends = list(accumulate(packed.stored, initial=0))
    return [bytes(packed.data[start:end]) for start, end in pairwise(ends)]


def rehashed(data: bytes) -> bytes:
    """The pack with a hash that fits its bytes: what somebody writes who means harm."""
    return data[:-40] + blake3(data[:-40]).digest() + data[-8:]


@given(objects(), st.data())
def test_what_is_parsed_is_what_would_be_built(found: list[Object], data: st.DataObject) -> None:
    pack = built(found)
    changed = data.draw(mutations(pack))
    with pytest.raises((IntegrityError, Unsupported)):
        verify(changed if changed != pack else b"")
    if len(changed) < 40:
        return
    changed = rehashed(changed)
    try:
        table = verify(changed)
    except (IntegrityError, Unsupported):
        return
    assert rebuilt(table, changed) == changed


A, B = ChunkId.hash(b"one"), ChunkId.hash(b"two")
TWO: list[Object] = [
    (ObjectKind.CHUNK, A, Codec.RAW, b"one", 3),
    (ObjectKind.CHUNK, B, Codec.RAW, b"two!", 4),
]


def by_hand(
    kinds: bytes = b"\1\1",
    codecs: bytes = b"\0\0",
    numbers: tuple[int, ...] = (8, 11, 3, 4, 3, 4),
    table_at: int = 15,
    rows: int = 2,
    ids: bytes = A + B,
    content: bytes = b"onetwo!",
    cipher: bytes = bytes(4),
) -> bytes:
    """A pack's bytes as docs/internals/format.md has them: the columns are offsets, then stored, then lengths."""
    table = kinds + codecs + ids + struct.pack(f"<{len(numbers)}I", *numbers)
    data = b"dsvpack1" + content + table + struct.pack("<QI", table_at, rows) + cipher
    return data + blake3(data).digest() + b"dsvpack1"


def test_the_layout() -> None:
    assert built(TWO) == by_hand()
    assert verify(by_hand()).row(1) == PackRow(ObjectKind.CHUNK, B, Codec.RAW, 11, 4, 4)


@pytest.mark.parametrize(
    "changed",
    [
        by_hand(numbers=(8, 11, 3, 5, 3, 5)),  # beyond the objects, into the table
        by_hand(numbers=(8, 11, 3, 0xFFFFFFFF, 3, 4)),
        by_hand(numbers=(8, 1000, 3, 4, 3, 4)),
        by_hand(numbers=(8, 10, 3, 4, 3, 4)),  # overlapping
        by_hand(numbers=(8, 12, 3, 3, 3, 3)),  # a gap
        by_hand(numbers=(0, 11, 11, 4, 11, 4)),  # the magic
        by_hand(numbers=(11, 8, 4, 3, 4, 3)),  # not in order
        by_hand(numbers=(8, 11, 3, 4, 4, 4)),  # raw with two lengths
        by_hand(numbers=(8, 8, 0, 7, 0, 7)),  # nothing stored
        by_hand(codecs=b"\1\1", numbers=(8, 11, 3, 4, (32 << 20) + 1, 4)),  # too large an object
        by_hand(kinds=b"\1\6"),
        by_hand(kinds=b"\0\1"),
        by_hand(codecs=b"\0\2"),
        by_hand(kinds=b"\1\5"),  # a locator behind a chunk
        by_hand(kinds=b"\5\1"),  # a locator first
        by_hand(kinds=b"\3\5", codecs=b"\0\1", numbers=(8, 11, 3, 4, 3, 99)),  # behind another's
        by_hand(kinds=b"\3\5", ids=A + A),  # not compressed
        by_hand(table_at=14),
        by_hand(table_at=1 << 40),
        by_hand(table_at=7),
        by_hand(rows=1),
        by_hand(rows=3),
        by_hand(rows=0xFFFFFFFF),
        by_hand(rows=0),
    ],
)
def test_a_table_that_points_elsewhere_is_refused(changed: bytes) -> None:
    with pytest.raises(IntegrityError, match="a pack is damaged"):
        verify(changed)


def test_a_pack_with_a_cipher_is_of_a_newer_dsv() -> None:
    with pytest.raises(Unsupported, match="a pack is encrypted"):
        verify(by_hand(cipher=b"\0\0\0\1"))


@pytest.mark.parametrize("length", range(0, 200, 7))
def test_a_pack_cut_short(length: int) -> None:
    data = built(TWO)
    with pytest.raises(IntegrityError, match="a pack is damaged"):
        verify(data[:length] if length < len(data) else b"")


def test_every_flipped_bit_is_found() -> None:
    data = built(TWO)
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises((IntegrityError, Unsupported)):
                verify(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])


def test_a_newer_version() -> None:
    with pytest.raises(Unsupported, match="pack has version 2"):
        verify(by_hand()[:-1] + b"2")


def test_the_table_alone_can_be_read() -> None:
    data = by_hand()
    footer = parse_footer(data[-FOOTER_SIZE:])
    with pytest.raises(IntegrityError, match="does not fit"):
        parse_table(data[footer.table_offset : -FOOTER_SIZE], footer, len(data) + 1)
    with pytest.raises(IntegrityError, match="cut short"):
        parse_table(data[footer.table_offset : -FOOTER_SIZE - 1], footer, len(data))
    with pytest.raises(IntegrityError, match="cut short"):
        parse_footer(b"x" * (FOOTER_SIZE - 1))


def test_an_index_is_rebuilt_from_the_pack_alone() -> None:
    segment, recipe = SegmentId(b"s" * 32), RecipeId(b"r" * 32)
    data = built(
        [
            (ObjectKind.SEGMENT, segment, Codec.ZSTD, b"seg", 100),
            (ObjectKind.LOCATOR, segment, Codec.ZSTD, b"locat", 50),
            (ObjectKind.RECIPE, recipe, Codec.RAW, b"rec", 3),
            *TWO,
        ]
    )
    builder = IndexBuilder()
    for kind, object_id, location in verify(data).indexed(PACK):
        builder.add(kind, object_id, location)
    index = Index.parse(builder.finish())
    assert len(index) == 4
    assert index.find(ObjectKind.SEGMENT, segment) == (PACK, 8, 3, 100, Codec.ZSTD, 5)
    assert index.find(ObjectKind.RECIPE, recipe) == (PACK, 16, 3, 3, Codec.RAW, 0)
    assert index.find(ObjectKind.CHUNK, B) == (PACK, 22, 4, 4, Codec.RAW, 0)


@pytest.mark.parametrize(
    ("stored", "length", "codec"),
    [
        (b"", 0, Codec.RAW),
        (b"", 5, Codec.ZSTD),
        (b"x", 2, Codec.RAW),
        (b"x", 0, Codec.ZSTD),
        (b"x", (32 << 20) + 1, Codec.ZSTD),
    ],
)
def test_impossible_objects_are_not_added(stored: bytes, length: int, codec: Codec) -> None:
    with pytest.raises(ValueError, match="can't hold"):
        PackBuilder().add(ObjectKind.CHUNK, A, codec, stored, length)


@pytest.mark.parametrize(
    "wrong",
    [
        {"stored": [1, 2]},
        {"stored": [0, 4]},
        {"lengths": [1, 4]},
        {"lengths": [0, 3]},
        {"lengths": [(32 << 20) + 1, 3]},
    ],
)
def test_nor_are_impossible_ones_among_many(wrong: dict[str, list[int]]) -> None:
    packed = columns((ChunkId(A), Codec.ZSTD, 9, b"x"), (ChunkId(B), Codec.RAW, 3, b"xyz"))
    builder = PackBuilder()
    with pytest.raises(ValueError, match="can't hold"):
        builder.add_all(packed._replace(**wrong))
    assert builder.rows == 0
    assert builder.add_all(packed) == [8, 9]


def test_a_pack_has_an_end_and_something_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="at least one"):
        PackBuilder().finish()
    monkeypatch.setattr(pack, "PACK_MAX", 300)
    builder = PackBuilder()
    builder.add(ObjectKind.CHUNK, A, Codec.RAW, b"x" * 100, 100)
    with pytest.raises(ValueError, match="full"):
        builder.add(ObjectKind.CHUNK, B, Codec.RAW, b"x" * 100, 100)


def test_an_id_of_another_length_is_not_packed() -> None:
    builder = PackBuilder()
    builder.add(ObjectKind.CHUNK, ChunkId(b"short"), Codec.RAW, b"x", 1)
    with pytest.raises(ValueError, match="32 bytes"):
        builder.finish()
