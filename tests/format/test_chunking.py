from __future__ import annotations

import io
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import Unsupported
from dsv.format import recipe
from dsv.format.recipe import MAX_CHUNK, MIN_CHUNK, FileCutter, cut_points

DATA = random.Random(1).randbytes(13 << 20)


CUTTER = FileCutter()


def streamed(data: bytes, size: int) -> list[bytes]:
    file = io.BytesIO(data)
    return [bytes(chunk) for chunk in CUTTER.chunks(lambda room: file.readinto(room[:size]))]


@given(st.lists(st.integers(1 << 17, 13 << 20), min_size=1, max_size=5), st.integers(0, len(DATA)))
@settings(max_examples=12, deadline=None)
def test_a_file_is_cut_like_a_buffer(sizes: list[int], length: int) -> None:
    """However few bytes a read gives at a time, and with the cutter used for one file after the other."""
    at, turn = 0, 0

    def readinto(room: memoryview) -> int:
        nonlocal at, turn
        got = DATA[at : min(length, at + min(len(room), sizes[turn % len(sizes)]))]
        room[: len(got)] = got
        at, turn = at + len(got), turn + 1
        return len(got)

    chunks = [bytes(chunk) for chunk in CUTTER.chunks(readinto)]
    assert b"".join(chunks) == DATA[:length]
    assert [len(chunk) for chunk in chunks] == cut_points(DATA[:length])


@pytest.mark.parametrize("length", [0, 1, MIN_CHUNK, MIN_CHUNK + 1, MAX_CHUNK, MAX_CHUNK + 1, 2 * MAX_CHUNK])
def test_chunks_keep_their_limits(length: int) -> None:
    for data in (DATA[:length], bytes(length)):
        lengths = cut_points(data)
        assert sum(lengths) == length
        assert all(MIN_CHUNK <= one <= MAX_CHUNK for one in lengths[:-1])
        assert all(0 < one <= MAX_CHUNK for one in lengths)
        assert [len(chunk) for chunk in streamed(data, 1 << 20)] == lengths


def test_zeros_are_cut_at_the_largest_size() -> None:
    assert cut_points(bytes(9 << 20)) == [MAX_CHUNK, MAX_CHUNK, 1 << 20]


def test_an_insertion_moves_no_later_cut() -> None:
    shifted = DATA[: 1 << 20] + b"a row more\n" + DATA[1 << 20 :]
    before, after = set(streamed(DATA, 8 << 20)), streamed(shifted, 8 << 20)
    assert sum(chunk not in before for chunk in after) <= 2


def test_without_the_compiled_part_nothing_is_cut_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyfastcdc.py import FastCDC

    monkeypatch.setattr(sys.modules["pyfastcdc"], "FastCDC", FastCDC)
    with pytest.raises(Unsupported, match="compiled part"):
        recipe.cut_points(b"x")
    with pytest.raises(Unsupported):
        FileCutter()


def test_the_plain_python_twin_cuts_alike() -> None:
    """The compiled code against the library's own readable one, which docs/internals/format-writing.md describes."""
    from pyfastcdc.py import FastCDC

    plain = FastCDC(1 << 20, min_size=256 << 10, max_size=4 << 20, normalized_chunking=1, seed=0)
    data = DATA[: 3 << 20]
    assert [chunk.length for chunk in plain.cut_buf(data)] == cut_points(data)
