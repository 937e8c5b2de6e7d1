"""CRCs that the standard library can't compute, by numpy: S3 states them of the objects that it stores."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

_ROW: Final = 128
"""Bytes. The rows of a piece are hashed side by side, and their sums joined by twos."""


@cache
def _tables(polynomial: int, width: int) -> tuple[Any, Any]:
    """Return the register after any two bytes, and, for each byte of a register and its value, that after a row
    of zeros."""
    kind = np.dtype(f"<u{width}")
    table: Any = np.arange(1 << 16, dtype=kind)
    for _ in range(16):
        table = (table >> 1) ^ (table & 1) * kind.type(polynomial)
    moved: Any = np.arange(256, dtype=kind) << np.arange(0, 8 * width, 8, dtype=kind)[:, None]
    for _ in range(_ROW // 2):
        moved = _after(table, moved, 0)
    return table, moved


class Crc:
    """A reflected CRC of so many bytes, whose register begins with ones and is inverted at the end."""

    def __init__(self, polynomial: int, width: int) -> None:
        self._table, self._moved = _tables(polynomial, width)
        self._width, self._ones = width, (1 << 8 * width) - 1
        self._sum = self._ones

    def update(self, data: bytes) -> None:
        head = min(len(data), self._width)
        rows = 1 << ((len(data) - 1) // _ROW).bit_length()
        padded = np.zeros(rows * _ROW, np.uint8)  # zeros before the first byte change nothing
        own = padded[len(padded) - len(data) :]
        own[:] = np.frombuffer(data, np.uint8)
        own[:head] ^= np.frombuffer(self._sum.to_bytes(self._width, "little"), np.uint8)[:head]
        sums: Any = np.zeros(rows, self._table.dtype)
        for column in padded.view("<u2").reshape(rows, -1).T:
            sums = _after(self._table, sums, column)
        moved = self._moved
        while len(sums) > 1:
            sums = _move(moved, sums[::2]) ^ sums[1::2]
            moved = _move(moved, moved)
        self._sum = int(sums[0]) ^ (self._sum >> 8 * head)

    def digest(self) -> bytes:
        return (self._sum ^ self._ones).to_bytes(self._width, "big")


def _after(table: Any, sums: Any, pairs: Any) -> Any:
    """Return the registers after two more bytes of each row."""
    return table[(sums ^ pairs).astype(np.uint16)] ^ (sums >> 16)


def _move(moved: Any, sums: Any) -> Any:
    return np.bitwise_xor.reduce([table[(sums >> 8 * at).astype(np.uint8)] for at, table in enumerate(moved)])
