from __future__ import annotations

import os
import threading

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError
from dsv.format.codec import Codec, Compressor, carried, carrying, compress, unpack, unpack_frame

TEXT = b"a training set is a sequential read; " * 30_000
NOISE = os.urandom(1 << 20)


@given(
    st.binary(max_size=2000)
    | st.builds(lambda one, count: one * count, st.binary(max_size=40), st.integers(0, 99))
)
def test_round_trip(data: bytes) -> None:
    codec, stored = Compressor().pack(data)
    assert unpack(codec, stored, len(data)) == data
    assert unpack(codec, memoryview(stored), len(data)) == data
    if codec is Codec.ZSTD:
        assert len(stored) * 10 <= len(data) * 9


@given(st.binary(max_size=3000), st.binary(min_size=1, max_size=3000))
def test_a_frame_carries_other_data_and_unpacks_to_the_same(data: bytes, other: bytes) -> None:
    frame = carrying(compress(data), other)
    assert unpack_frame(frame, 0, len(data)) == data
    assert carried(frame, len(other)) == other
    assert carried(frame, len(other) - 1) is None  # more than the reader allows
    assert carried(compress(data), len(other)) is None
    assert carried(frame[:12], len(other)) is None and carried(b"", 1) is None


def test_text_is_compressed_and_noise_is_not() -> None:
    pack = Compressor().pack
    codec, stored = pack(TEXT)
    assert codec is Codec.ZSTD and len(stored) < len(TEXT) // 10
    codec, stored = pack(NOISE)
    assert codec is Codec.RAW and stored is NOISE  # not even copied


def test_what_begins_with_noise_is_not_judged_by_its_beginning() -> None:
    assert Compressor().pack(NOISE[: 100 << 10] + bytes(900 << 10))[0] is Codec.ZSTD


def test_less_than_a_tenth_is_not_worth_it() -> None:
    data = NOISE[:60_000] + bytes(3_000)
    assert Compressor().pack(data)[0] is Codec.RAW


def test_after_many_in_vain_few_are_tried_until_one_shrinks() -> None:
    compressor = Compressor()
    text = [b"all alike " * 100] * 3
    noise = [NOISE[at * 100 : at * 100 + 100] for at in range(200)]
    assert [compressor.pack_next(data)[0] for data in [*noise, *noise]] == [Codec.RAW] * 400
    codecs = [compressor.pack_next(data)[0] for data in text * 3]
    assert codecs.count(Codec.RAW) <= 3 and set(codecs[3:]) == {Codec.ZSTD}
    few = [compressor.pack_next(data)[0] for data in [*noise[:50], *text, *noise[:50], *text]]
    assert few.count(Codec.ZSTD) == 6  # a mixture is tried one by one
    assert compressor.pack(text[0])[0] is Codec.ZSTD


def bomb(size: int) -> bytes:
    """A small frame of zeros that says truthfully how large it is."""
    writer = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    block = bytes(1 << 20)
    return b"".join([*(writer.compress(block) for _ in range(size >> 20)), writer.flush()])


def test_a_frame_that_unpacks_to_more_than_it_may_is_refused_unread() -> None:
    frame = bomb(1 << 30)
    assert len(frame) < 100_000
    with pytest.raises(IntegrityError, match="says that it has 1073741824 bytes, not 100"):
        unpack(Codec.ZSTD, frame, 100)
    with pytest.raises(IntegrityError, match="at most 5000"):
        unpack_frame(frame, 0, 5000)


def lying(frame: bytes, says: int) -> bytes:
    """The frame with another content size in its header, which has eight bytes for it."""
    assert frame[4] >> 6 == 3 and frame[4] & 0x20 == 0
    return frame[:6] + says.to_bytes(8, "little") + frame[14:]


def wide_header(data: bytes) -> bytes:
    """A frame whose header has an eight-byte content size and a window descriptor, as for 100 GB."""
    plain = compress(data)
    header = zstandard.frame_header_size(plain)
    checksum = plain[4] & 0x04
    return plain[:4] + bytes([0xC0 | checksum, 0x58]) + len(data).to_bytes(8, "little") + plain[header:]


def test_a_frame_that_says_100_gb_is_refused_before_memory_is_taken() -> None:
    frame = wide_header(TEXT)
    assert unpack(Codec.ZSTD, frame, len(TEXT)) == TEXT
    with pytest.raises(IntegrityError, match="says that it has 100000000000 bytes"):
        unpack(Codec.ZSTD, lying(frame, 100_000_000_000), len(TEXT))


@pytest.mark.parametrize("says", [100, len(TEXT) - 1])
def test_a_frame_that_has_more_than_it_says_is_refused(says: int) -> None:
    with pytest.raises(IntegrityError, match="zstd frame"):
        unpack(Codec.ZSTD, lying(wide_header(TEXT), says), says)


def test_a_frame_that_has_less_than_it_says_is_refused() -> None:
    with pytest.raises(IntegrityError, match="zstd frame"):
        unpack(Codec.ZSTD, lying(wide_header(TEXT), len(TEXT) + 1), len(TEXT) + 1)


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    frame = bytearray(wide_header(TEXT))
    frame[5] = 0xF8  # 2^41 bytes
    with pytest.raises(IntegrityError, match="zstd frame"):
        unpack(Codec.ZSTD, frame, len(TEXT))


@pytest.mark.parametrize(
    "stored",
    [
        b"", b"\x28\xb5\x2f\xfd", b"no frame at all", compress(TEXT)[:-1], compress(TEXT) + b"x",
        compress(TEXT) + compress(b""), b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
        zstandard.ZstdCompressor(write_content_size=False).compress(TEXT),
    ],
)  # fmt: skip
def test_what_is_no_single_frame_is_refused(stored: bytes) -> None:
    with pytest.raises(IntegrityError, match="zstd frame"):
        unpack(Codec.ZSTD, stored, len(TEXT))


@pytest.mark.parametrize("length", [0, 4, 6])
def test_bytes_stored_as_they_are_have_the_right_number(length: int) -> None:
    with pytest.raises(IntegrityError, match="5 bytes"):
        unpack(Codec.RAW, b"12345", length)


def test_unpacking_works_in_threads() -> None:
    frames = [(compress(bytes([at]) * 50_000), bytes([at]) * 50_000) for at in range(8)]
    failures: list[int] = []

    def work() -> None:
        for at in range(80):
            frame, data = frames[at % 8]
            if unpack(Codec.ZSTD, frame, len(data)) != data:
                failures.append(at)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
