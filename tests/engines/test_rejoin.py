"""Continuing to read a log where its reading had ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.run.engines.output import Rejoin

TAIL = 8


def taken(rejoin: Rejoin, log: bytes, size: int) -> bytes:
    return b"".join(rejoin.take(log[at : at + size]) for at in range(0, len(log), size))


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(1, 20))
def test_no_byte_is_lost_and_none_comes_twice(log: bytes, seen: int, size: int) -> None:
    seen = min(seen, len(log))
    rejoin = Rejoin(seen, log[:seen][-TAIL:])
    assert taken(rejoin, log, size) == log[seen:]
    assert rejoin.fits


@given(st.text("ab\n", max_size=30), st.text("ab\n", max_size=30), st.integers(1, 20))
@pytest.mark.parametrize(
    "message",
    ["error during connect: EOF\n", "Error response from daemon: gone\n", "error waiting for container: x\n"],
)
def test_a_message_of_the_program_is_not_looked_for_in_the_log(
    message: str, seen: str, more: str, size: int
) -> None:
    delivered = (seen + message).encode()
    rejoin = Rejoin(len(delivered), delivered[-4096:])
    assert taken(rejoin, (seen + more).encode(), size) == more.encode()
    assert rejoin.fits


@given(st.integers(1, 50))
def test_a_log_with_another_beginning_is_not_taken(size: int) -> None:
    """Its first part was thrown away, or bytes in it were replaced."""
    rejoin = Rejoin(40, b"0123456789"[-TAIL:])
    assert taken(rejoin, b"x" * 100, size) == b""
    assert not rejoin.fits
