"""Columns of fixed-width values after a header line: the encoding of segments, nodes, recipes and locators.

All integers are little-endian. The reader checks every count against the bytes left before it allocates.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable

from dsv.format.envelope import Buffer, damaged, header, strip_header

_WIDTHS = {"I": 4, "Q": 8}
_SWAP = sys.byteorder == "big"
_DIGITS = bytes(range(256))
assert all(array(code).itemsize == width for code, width in _WIDTHS.items())


class ColumnWriter:
    def __init__(self, kind: str) -> None:
        self._parts: list[Buffer] = [header(kind)]

    def u32(self, value: int) -> None:
        self._parts.append(struct.pack("<I", value))

    def raw(self, data: Buffer) -> None:
        self._parts.append(data)

    def numbers(self, values: array[int]) -> None:
        """An array of type code I (u32) or Q (u64)."""
        self._parts.append(little(values))

    def finish(self) -> bytes:
        return b"".join(self._parts)


class ColumnReader:
    """Reads columns from the front. Every method raises `IntegrityError` if the bytes end too soon."""

    def __init__(self, kind: str, data: Buffer) -> None:
        self._kind = kind
        self._rest = strip_header(data, kind)

    def u32(self, limit: int, what: str) -> int:
        """Return a count of at most `limit`."""
        value: int = struct.unpack("<I", self.raw(4))[0]
        if value > limit:
            raise damaged(self._kind, f"it has {value} {what}, over the limit of {limit}")
        return value

    def raw(self, length: int) -> memoryview:
        if length > len(self._rest):
            raise damaged(self._kind, "it is cut short")
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def numbers(self, code: str, count: int) -> array[int]:
        return from_little(code, self.raw(count * _WIDTHS[code]))

    def rest(self) -> memoryview:
        taken, self._rest = self._rest, self._rest[:0]
        return taken

    def end(self) -> None:
        """Raises `IntegrityError` if bytes are left."""
        if self._rest:
            raise damaged(self._kind, f"{len(self._rest)} bytes follow its end")


def little(values: array[int]) -> bytes:
    """Return the array's numbers, little-endian."""
    if _SWAP:
        values = values[:]
        values.byteswap()
    return values.tobytes()


def from_little(code: str, data: Buffer) -> array[int]:
    values = array(code)
    values.frombytes(data)
    if _SWAP:
        values.byteswap()
    return values


def u32s(values: Iterable[int]) -> array[int]:
    """Raises `OverflowError` for what does not fit 32 bits."""
    return array("I", values)


def u64s(values: Iterable[int]) -> array[int]:
    """Raises `OverflowError` for what does not fit 64 bits."""
    return array("Q", values)


def cut(data: bytes, width: int) -> list[bytes]:
    """Return a column of `width`-byte values as a list."""
    return [data[at : at + width] for at in range(0, len(data), width)]


def surely_below(column: array[int], limit: int) -> bool:
    """Return True if the numbers are surely below `limit`, and False if that is unknown.

    It compares one base-256 digit of all numbers at a time, ten times as fast as `max`, which makes Python objects.
    """
    raw, size = little(column), column.itemsize
    for place in range(size - 1, -1, -1):
        digits, digit = raw[place::size], limit >> 8 * place
        if digit:
            return not digits.translate(None, _DIGITS[:digit])
        if digits != bytes(len(digits)):
            return False
    return not column


def any_above(column: array[int], limit: int) -> bool:
    return not surely_below(column, limit + 1) and max(column) > limit


def count_zeros(column: array[int]) -> int:
    """Return how many numbers are zero. The usual case, none, takes a fifth of the time of counting."""
    words = array("I", column.tobytes())
    if column.itemsize > words.itemsize:
        words = words[:: column.itemsize // words.itemsize]  # every word of a zero is zero
    return column.count(0) if bytes(words.itemsize) in words.tobytes() else 0


def first_seen(values: array[int], count: int) -> bool:
    """Return whether exactly the numbers below `count` occur, their first occurrences in ascending order: a
    table of `count` entries, all used."""
    if count > len(_DIGITS) or not surely_below(values, len(_DIGITS)):
        return list(dict.fromkeys(values)) == list(range(count))
    digits = little(values)[:: values.itemsize]
    found = [digits.find(number) for number in range(count)]
    return not digits.translate(None, _DIGITS[:count]) and -1 not in found and found == sorted(found)
