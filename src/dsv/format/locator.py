"""Locations of objects, and locators: the locations of all objects that an object lists."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import NamedTuple

import msgspec

from dsv.format.codec import Codec, compress, unpack_frame
from dsv.format.columns import (
    ColumnReader,
    ColumnWriter,
    any_above,
    count_zeros,
    cut,
    first_seen,
    surely_below,
    u32s,
)
from dsv.format.envelope import Buffer, damaged, header
from dsv.values.ids import PackId

OBJECT_MAX = 32 << 20  # bytes of one object, unpacked
PACK_MAX = 128 << 20  # bytes of a pack; larger packs, and locations beyond this size, are refused


class ObjectKind(enum.IntEnum):
    """The kinds of objects in a pack. Each kind makes its ids in its own way."""

    CHUNK = 1
    RECIPE = 2
    SEGMENT = 3
    NODE = 4
    LOCATOR = 5


class Location(NamedTuple):
    """The location of an object in a pack. A named tuple: millions are made, 4 times as fast as
    dataclasses."""

    pack: PackId
    offset: int
    """The start of the stored bytes."""
    stored: int
    """The number of stored bytes."""
    length: int
    """Bytes of the object when unpacked."""
    codec: Codec
    tail: int = 0
    """Stored bytes of the object's own locator, which follows it directly; 0 without one."""


MAX_ROWS = 1 << 22
_ROW = 4 * 5 + 1
_FIXED = len(header("locator")) + 8
# A locator names each object once, so it hardly shrinks. A larger ratio is an attempt to exhaust memory.
MAX_RATIO = 128
FREE_BYTES = 4 << 20
_CODECS = tuple(Codec)


def largest(rows: int) -> int:
    """Return the maximum unpacked size in bytes of a locator with so many rows."""
    return _FIXED + rows * (_ROW + 16)


class Locator(msgspec.Struct, frozen=True):
    """The columns of a locator: `places[i]` is the position of row i's pack in `packs`."""

    packs: tuple[PackId, ...]
    places: array[int]
    offsets: array[int]
    stored: array[int]
    lengths: array[int]
    tails: array[int]
    codecs: bytes

    @classmethod
    def of(cls, locations: Iterable[Location]) -> Locator:
        """Raises `ValueError` for more than `MAX_ROWS`."""
        rows = list(locations)
        if len(rows) > MAX_ROWS:
            raise ValueError(f"a locator has at most {MAX_ROWS} rows, not {len(rows)}")
        if not rows:
            return cls((), u32s(()), u32s(()), u32s(()), u32s(()), u32s(()), b"")
        pack, offset, stored, length, codec, tail = zip(*rows, strict=True)
        number = {one: at for at, one in enumerate(dict.fromkeys(pack))}
        places = u32s(map(number.__getitem__, pack))
        return cls(tuple(number), places, u32s(offset), u32s(stored), u32s(length), u32s(tail), bytes(codec))

    def __len__(self) -> int:
        return len(self.places)

    def get(self, at: int) -> Location:
        """Return the location in a row, counted from 0. Raises `IndexError`."""
        return Location(
            self.packs[self.places[at]],
            self.offsets[at],
            self.stored[at],
            self.lengths[at],
            _CODECS[self.codecs[at]],
            self.tails[at],
        )

    def locations(self) -> Iterator[Location]:
        return map(
            Location,
            map(self.packs.__getitem__, self.places),
            self.offsets,
            self.stored,
            self.lengths,
            map(_CODECS.__getitem__, self.codecs),
            self.tails,
        )

    @property
    def encoded_length(self) -> int:
        """Bytes of the encoding before compression, which the table of a pack has as its length."""
        return _FIXED + 16 * len(self.packs) + _ROW * len(self)

    def encode(self) -> bytes:
        out = ColumnWriter("locator")
        out.u32(len(self.packs))
        out.u32(len(self))
        out.raw(b"".join(self.packs))
        for column in (self.places, self.offsets, self.stored, self.lengths, self.tails):
            out.numbers(column)
        out.raw(self.codecs)
        return compress(out.finish())

    @classmethod
    def decode(cls, data: Buffer, max_rows: int = MAX_ROWS) -> Locator:
        """Raises `IntegrityError`, or `Unsupported` for a newer version.

        max_rows: the most rows that the locator's owner allows.
        """
        unpacked = min(largest(max_rows), FREE_BYTES + MAX_RATIO * len(data))
        read = ColumnReader("locator", unpack_frame(data, _FIXED, unpacked))
        packs = read.u32(max_rows, "packs")
        rows = read.u32(max_rows, "rows")
        if packs > rows:
            raise damaged("locator", "it has more packs than rows")
        table = tuple(map(PackId, cut(bytes(read.raw(16 * packs)), 16)))
        places, offsets, stored, lengths, tails = (read.numbers("I", rows) for _ in range(5))
        codecs = bytes(read.raw(rows))
        read.end()
        if len(set(table)) != packs or not first_seen(places, packs):
            raise damaged("locator", "its packs are not those of its rows")
        if codecs.translate(None, bytes(_CODECS)):
            raise damaged("locator", "it has an unknown codec")
        if count_zeros(stored) or count_zeros(lengths) or any_above(lengths, OBJECT_MAX):
            raise damaged("locator", "it has an object of an impossible length")
        if not _surely_in_a_pack(offsets, stored, tails) and any(
            sum(row) > PACK_MAX for row in zip(offsets, stored, tails, strict=True)
        ):
            raise damaged("locator", "it has a place beyond the end of any pack")
        return cls(table, places, offsets, stored, lengths, tails, codecs)


def _surely_in_a_pack(offsets: array[int], stored: array[int], tails: array[int]) -> bool:
    """Return True if no location can end beyond `PACK_MAX`. False means unknown: few packs are so large."""
    part = PACK_MAX // 8
    small = surely_below(stored, part) and surely_below(tails, part)
    return small and surely_below(offsets, PACK_MAX - 2 * part)


def place_at(locator: Locator | None, row: int) -> Location | None:
    """Return the location in a row from 0; None if there is no such row, or no locator."""
    return locator.get(row) if locator is not None and row < len(locator) else None


def places_of(locator: Locator | None) -> Iterator[Location | None]:
    """Yield the location of every row, and then None forever."""
    return repeat(None) if locator is None else chain(locator.locations(), repeat(None))


class LocatorBuilder:
    """Collects rows, singly or as slices of other locators."""

    __slots__ = ("_codecs", "_columns", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[PackId, int] = {}
        self._columns = tuple(array("I") for _ in range(5))
        self._codecs = bytearray()

    def add(self, location: Location) -> None:
        pack, offset, stored, length, codec, tail = location
        numbers = self._numbers.setdefault(pack, len(self._numbers)), offset, stored, length, tail
        for column, number in zip(self._columns, numbers, strict=True):
            column.append(number)
        self._codecs.append(codec)

    def extend(self, source: Locator, start: int, stop: int) -> None:
        """Add the rows of `source` from `start` to `stop` (exclusive)."""
        rows = slice(start, stop)
        places, offsets, stored, lengths, tails = self._columns
        theirs = source.places[rows]
        numbers = {
            one: self._numbers.setdefault(source.packs[one], len(self._numbers))
            for one in dict.fromkeys(theirs)
        }
        places.extend(map(numbers.__getitem__, theirs))
        offsets += source.offsets[rows]
        stored += source.stored[rows]
        lengths += source.lengths[rows]
        tails += source.tails[rows]
        self._codecs += source.codecs[rows]

    def finish(self) -> Locator:
        """Return the locator and end the builder. Raises `ValueError` for more than `MAX_ROWS` rows."""
        if len(self._codecs) > MAX_ROWS:
            raise ValueError(f"a locator has at most {MAX_ROWS} rows, not {len(self._codecs)}")
        places, offsets, stored, lengths, tails = self._columns
        return Locator(tuple(self._numbers), places, offsets, stored, lengths, tails, bytes(self._codecs))
