from __future__ import annotations

import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError, Unsupported
from dsv.format.codec import Codec, compress
from dsv.format.locator import Location, Locator
from dsv.values.ids import PackId
from tests.format.strategies import locations, mutations

PACKS = [PackId(bytes([at]) * 16) for at in range(4)]
ROWS = st.lists(locations(PACKS), max_size=20)


@given(ROWS)
def test_round_trip(rows: list[Location]) -> None:
    locator = Locator.of(rows)
    encoded = locator.encode()
    decoded = Locator.decode(encoded)
    assert decoded == locator
    assert list(decoded.locations()) == rows == [decoded.get(at) for at in range(len(rows))]
    assert zstandard.frame_content_size(encoded) == decoded.encoded_length == locator.encoded_length
    with pytest.raises(IndexError):
        decoded.get(len(rows))


@given(ROWS, st.data())
def test_what_is_decoded_is_what_would_be_encoded(rows: list[Location], data: st.DataObject) -> None:
    body = zstandard.decompress(Locator.of(rows).encode())
    changed = data.draw(mutations(body))
    try:
        decoded = Locator.decode(compress(changed))
    except (IntegrityError, Unsupported):
        return
    assert zstandard.decompress(decoded.encode()) == changed


def body(
    packs: bytes = PACKS[0] + PACKS[1],
    places: tuple[int, ...] = (0, 1),
    stored: tuple[int, ...] = (5, 6),
    codecs: bytes = b"\0\1",
    counts: tuple[int, int] = (2, 2),
) -> bytes:
    numbers = (*places, 8, 13, *stored, 5, 60, 0, 7)
    return (
        b"dsv locator 1\n"
        + struct.pack("<II", *counts)
        + packs
        + struct.pack(f"<{len(numbers)}I", *numbers)
        + codecs
    )


def test_the_layout() -> None:
    rows = [Location(PACKS[0], 8, 5, 5, Codec.RAW), Location(PACKS[1], 13, 6, 60, Codec.ZSTD, 7)]
    assert zstandard.decompress(Locator.of(rows).encode()) == body()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (body(places=(0, 2)), "packs"),
        (body(places=(1, 0)), "packs"),
        (body(places=(0, 0)), "packs"),
        (body(packs=PACKS[0] * 2), "packs"),
        (body(stored=(5, 0)), "impossible length"),
        (body(stored=(5, 128 << 20)), "beyond the end of any pack"),
        (body(codecs=b"\0\2"), "unknown codec"),
        (body(counts=(3, 2)), "more packs than rows"),
        (body(counts=(2, 3)), "cut short"),
        (body(counts=(2, 1 << 22)), "cut short"),
        (body(counts=(2, (1 << 22) + 1)), "over the limit"),
        (body() + b"\0", "follow its end"),
        (body()[:-1], "cut short"),
    ],
)
def test_damage_is_found(changed: bytes, message: str) -> None:
    with pytest.raises(IntegrityError, match=f"locator is damaged.*{message}"):
        Locator.decode(compress(changed))


def test_it_is_one_frame_of_a_limited_size() -> None:
    for data in (b"", body(), compress(b""), compress(bytes(1 << 28))):
        with pytest.raises(IntegrityError):
            Locator.decode(data)


@pytest.mark.parametrize("offset", [8, (96 << 20) - 1, 96 << 20, (128 << 20) - 24, (1 << 32) - 1])
@pytest.mark.parametrize("stored", [1, (16 << 20) - 1, 16 << 20, 32 << 20])
@pytest.mark.parametrize("tail", [0, 23, (16 << 20) - 1, 16 << 20])
def test_a_place_is_within_the_largest_pack(offset: int, stored: int, tail: int) -> None:
    rows = [
        Location(PACKS[0], 8, 5, 5, Codec.RAW),
        Location(PACKS[0], offset, stored, 32 << 20, Codec.ZSTD, tail),
    ]
    encoded = Locator.of(rows).encode()
    if offset + stored + tail <= 128 << 20:
        assert list(Locator.decode(encoded).locations()) == rows
    else:
        with pytest.raises(IntegrityError, match="beyond the end of any pack"):
            Locator.decode(encoded)


@pytest.mark.parametrize("length", [1, (32 << 20) - 1, 32 << 20, (32 << 20) + 1, (1 << 32) - 1])
def test_an_object_has_a_length_that_is_possible(length: int) -> None:
    rows = [Location(PACKS[0], 8, 5, 5, Codec.RAW), Location(PACKS[0], 13, 5, length, Codec.ZSTD)]
    encoded = Locator.of(rows).encode()
    if length <= 32 << 20:
        assert list(Locator.decode(encoded).locations()) == rows
    else:
        with pytest.raises(IntegrityError, match="impossible length"):
            Locator.decode(encoded)
