"""Index files, which list the pack, offset and length of each object in sorted rows, and their filters."""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, count, islice
from operator import eq

from blake3 import blake3

from dsv.errors import NotFound
from dsv.format.codec import Codec
from dsv.format.columns import cut, from_little, little, u32s
from dsv.format.envelope import Buffer, check_hash, check_magic, damaged
from dsv.format.locator import OBJECT_MAX, PACK_MAX, Location, ObjectKind
from dsv.values.cached import cached
from dsv.values.ids import Id, IndexId, PackId

MAGIC = b"dsvindx1"
ROW_SIZE = 56
MAX_ROWS = 1 << 28
FILE_MAX = 1 << 28
"""Maximum size of an index file in a store, in bytes. Writers begin another file long before."""
HASH_SIZE = 32
_ROW = struct.Struct("<32sBBBxIIIII")
_PLACE = struct.Struct("<BBBxIIIII")  # a row without its id
_HEAD = struct.Struct("<8sII")
_FANOUT = 256 * 4
FIXED_SIZE = _HEAD.size + _FANOUT
"""Bytes of an index file before its pack ids."""
PREFIX_SIZE = 33
"""Bytes of the id and kind of a row, by which rows are sorted."""
_CODECS = tuple(Codec)
_KINDS = (ObjectKind.CHUNK, ObjectKind.RECIPE, ObjectKind.SEGMENT, ObjectKind.NODE)
IN_PACK, EXTERNAL, ERASED = 0, 1, 2  # values of a row's `where`


class IndexBuilder:
    """Collects rows in any order. Of two rows for an object, one in a stored pack counts, else the first."""

    def __init__(self) -> None:
        self._buckets: list[bytearray] = [bytearray() for _ in range(256)]
        self._packs: dict[PackId, int] = {}

    def add(self, kind: ObjectKind, object_id: Id, location: Location) -> None:
        """Raises `ValueError` for a locator (its object's tail finds it) or an id of wrong length."""
        pack, offset, stored, length, codec, tail = location
        if kind is ObjectKind.LOCATOR:
            raise ValueError("an index lists no locators")
        if len(object_id) != 32:
            raise ValueError(f"an object's id has 32 bytes, not {len(object_id)}")
        number = self._packs.setdefault(pack, len(self._packs))
        self._buckets[object_id[0]] += _ROW.pack(
            object_id,
            kind,
            EXTERNAL if pack.is_external else IN_PACK,
            codec,
            number,
            offset,
            stored,
            length,
            tail,
        )

    def finish(self) -> bytes:
        return _write(list(self._packs), self._buckets)


class Index:
    """One index file, in memory or in a mapped file. The buffer must not change."""

    def __init__(self, view: memoryview, packs: int, fanout: array[int]) -> None:
        """For `parse`; checks nothing."""
        self._view = view
        self._fanout = fanout
        self._start = FIXED_SIZE + 16 * packs
        # By bucket, loaded on first use: bytes 1 to 4 of each row's id, as numbers that C code can bisect.
        self._heads: list[array[int] | None] = [None] * 256

    @classmethod
    def parse(cls, buffer: Buffer, name: str = "", *, verify: bool = True) -> Index:
        """Check everything except whether the packs hold the objects; `name` is for messages.

        Without `verify`, only the head is checked, so that a large mapped file costs nothing. This is for a
        local copy that was checked when it was made; a fault then shows as a wrong location or a miss.
        Raises `IntegrityError`, or `Unsupported` for a newer version.
        """
        view = memoryview(buffer)
        what = f"index {name}".rstrip()
        packs, fanout, rows = _parse_head(view, what, verify)
        if verify:
            _check_rows(rows, packs, fanout, what)
        return cls(view, packs, fanout)

    def __len__(self) -> int:
        return self._fanout[255]

    @property
    def pack_ids(self) -> memoryview:
        """The ids of the packs as in the file, sorted."""
        return self._view[FIXED_SIZE : self._start]

    @cached
    def packs(self) -> list[PackId]:
        return list(map(PackId, cut(bytes(self.pack_ids), 16)))

    @property
    def row_bytes(self) -> memoryview:
        return self._view[self._start : self._start + len(self) * ROW_SIZE]

    def bucket(self, first: int) -> memoryview:
        """Return the rows of the ids that begin with this byte."""
        begin = self._fanout[first - 1] if first else 0
        return self.row_bytes[begin * ROW_SIZE : self._fanout[first] * ROW_SIZE]

    @property
    def bounds(self) -> tuple[int, int]:
        """The first 4 bytes of the first and of the last row's id, as numbers. There must be a row."""
        rows = self.row_bytes
        return int.from_bytes(rows[:4], "big"), int.from_bytes(rows[-ROW_SIZE : 4 - ROW_SIZE], "big")

    def find(self, kind: ObjectKind, object_id: Id) -> Location | None:
        """Return the location of an object; None if it is not listed. Raises `NotFound` if it was erased."""
        bucket = object_id[0]
        heads = self._heads[bucket]
        if heads is None:
            heads = self._heads[bucket] = self._load(bucket)
        head = int.from_bytes(object_id[1:5], "big")
        row = bisect_left(heads, head)
        while row < len(heads) and heads[row] == head:
            at = self._start + ROW_SIZE * (row + (self._fanout[bucket - 1] if bucket else 0))
            if self._view[at : at + 32].tobytes() == object_id and self._view[at + 32] == kind:
                return location_at(self._view, at, self.packs)
            row += 1
        return None

    def rows(self) -> Iterator[tuple[ObjectKind, Id, Location]]:
        """Yield every row with a location, in order of id and kind."""
        for at in range(self._start, self._start + len(self) * ROW_SIZE, ROW_SIZE):
            if self._view[at + 33] != ERASED:
                yield (
                    ObjectKind(self._view[at + 32]),
                    Id(self._view[at : at + 32]),
                    location_at(self._view, at, self.packs),
                )

    def erased(self) -> Iterator[tuple[ObjectKind, Id]]:
        """Yield every erased object, in order of id and kind."""
        where = bytes(self.row_bytes[33::ROW_SIZE])
        row = where.find(ERASED)
        while row >= 0:
            at = self._start + row * ROW_SIZE
            yield ObjectKind(self._view[at + 32]), Id(self._view[at : at + 32])
            row = where.find(ERASED, row + 1)

    def _load(self, bucket: int) -> array[int]:
        first, end = self._fanout[bucket - 1] if bucket else 0, self._fanout[bucket]
        start = self._start + 1  # after the byte that selects the bucket
        heads = array("I")
        if end > first:
            # Rows shifted by one byte: the last one ends in the bytes after it, which the buffer always has.
            rows = bytes(self._view[start + first * ROW_SIZE : start + end * ROW_SIZE])
            heads.frombytes(memoryview(rows).cast("I")[:: ROW_SIZE // 4].tobytes())
        if sys.byteorder == "little":
            heads.byteswap()
        return heads


def location_at(rows: memoryview, at: int, packs: list[PackId]) -> Location:
    """Return the location in the row at this offset. Raises `NotFound` if the object was erased."""
    _, where, codec, pack, offset, stored, length, tail = _PLACE.unpack_from(rows, at + 32)
    if where == ERASED:
        raise was_erased(Id(rows[at : at + 32]))
    try:
        return Location(packs[pack], offset, stored, length, _CODECS[codec], tail)
    except IndexError:  # only in a copy that was not verified
        raise damaged("index", "a row names a pack or codec that does not exist") from None


def was_erased(object_id: Id) -> NotFound:
    return NotFound(f"object {object_id} was erased from the store", subject=str(object_id))


def merge(indexes: Iterable[Index]) -> bytes:
    """Merge index files. Of the rows for an object an erased row counts, else a stored one, else the
    first."""
    packs: dict[PackId, int] = {}
    buckets = [bytearray() for _ in range(256)]
    for one in indexes:
        numbers = [packs.setdefault(pack, len(packs)) for pack in one.packs]
        rows = bytearray(one._view[one._start : one._start + len(one) * ROW_SIZE])
        renumber(rows, numbers)
        start = 0
        for bucket, end in zip(buckets, one._fanout, strict=True):
            bucket += rows[start * ROW_SIZE : end * ROW_SIZE]
            start = end
    return _write(list(packs), buckets)


def _write(packs: list[PackId], buckets: list[bytearray]) -> bytes:
    """Return the file with these rows, in buckets by the first byte of the id. Rows number `packs`."""
    return join(packs, ((_layers(bytes(bucket)) or [[]])[0] for bucket in buckets))


def join(packs: list[PackId], buckets: Iterable[list[bytes]]) -> bytes:
    """Return the file of 256 buckets of sorted rows, each kind and id once. Rows number `packs` as given."""
    body, fanout, total = bytearray(), array("I"), 0
    for rows in buckets:
        body += b"".join(rows)
        total += len(rows)
        fanout.append(total)
    if total > MAX_ROWS:
        raise ValueError(f"an index has at most {MAX_ROWS} rows, not {total}")
    used = sorted((packs[number], number) for number in set(_column(body, 9)) if total)
    positions = [0] * len(packs)
    for position, (_, number) in enumerate(used):
        positions[number] = position
    renumber(body, positions)
    out = bytearray(_HEAD.pack(MAGIC, len(used), total))
    out += little(fanout)
    for pack, _ in used:
        out += pack
    out += body
    out += blake3(out).digest()
    return bytes(out)


def _column(rows: Buffer, word: int) -> array[int]:
    """Return a 32-bit column of all rows (9: pack, 10: offset, 11: stored, 12: length, 13: tail)."""
    return from_little("I", memoryview(rows).cast("I")[word :: ROW_SIZE // 4].tobytes())


def renumber(rows: bytearray, numbers: list[int]) -> None:
    """Replace pack number n of each row by `numbers[n]`."""
    if rows:
        changed = u32s(map(numbers.__getitem__, _column(rows, 9)))
        if sys.byteorder == "big":
            changed.byteswap()
        memoryview(rows).cast("I")[9 :: ROW_SIZE // 4] = memoryview(changed)


def _parse_head(view: memoryview, name: str, verify: bool) -> tuple[int, array[int], memoryview]:
    """Check the head, and the hash if `verify`. Return the number of packs, the fanout and the rows'
    bytes."""
    if len(view) < FIXED_SIZE + HASH_SIZE:
        raise damaged(name, "it is cut short")
    magic, packs, rows = _HEAD.unpack(view[: _HEAD.size])
    check_magic(magic, MAGIC, name)
    start = FIXED_SIZE + 16 * packs
    if rows > MAX_ROWS or packs > rows or len(view) != start + rows * ROW_SIZE + HASH_SIZE:
        raise damaged(name, f"it has {len(view)} bytes, which is not what its head says")
    if verify:
        check_hash(view, name)
    table = cut(bytes(view[FIXED_SIZE:start]), 16)
    fanout = from_little("I", view[_HEAD.size : FIXED_SIZE])
    if fanout[255] != rows or sorted(fanout) != fanout.tolist():
        raise damaged(name, "its fanout contradicts its rows")
    if sorted(set(table)) != table:
        raise damaged(name, "its packs are not sorted")
    return packs, fanout, view[start : start + rows * ROW_SIZE]


def _check_rows(rows: memoryview, packs: int, fanout: array[int], name: str) -> None:
    """Check the rows by columns, without keeping a Python object for each row."""
    if not rows:
        return
    kinds, where, codecs = (set(bytes(rows[at::ROW_SIZE])) for at in (32, 33, 34))
    if not kinds <= set(_KINDS) or not where <= {IN_PACK, EXTERNAL, ERASED} or not codecs <= set(_CODECS):
        raise damaged(name, "a row has an unknown kind, place or codec")
    if any(bytes(rows[35::ROW_SIZE])):
        raise damaged(name, "a row's padding is not zero")
    if set(_column(rows, 9)) != set(range(packs)):
        raise damaged(name, "its packs are not those of its rows")
    offsets, stored, lengths, tails = (_column(rows, word) for word in (10, 11, 12, 13))
    if max(offsets) + max(stored) + max(tails) > PACK_MAX and any(
        sum(row) > PACK_MAX for row in zip(offsets, stored, tails, strict=True)
    ):
        raise damaged(name, "a row lies outside its pack")
    if ERASED not in where and (not min(stored) or not min(lengths) or max(lengths) > OBJECT_MAX):
        raise damaged(name, "a row has an impossible length")
    _check_order(rows, fanout, name)


def _check_order(rows: memoryview, fanout: array[int], name: str) -> None:
    heads = array("I", memoryview(rows).cast("I")[:: ROW_SIZE // 4].tobytes())
    if sys.byteorder == "little":
        heads.byteswap()
    numbers = heads.tolist()
    in_order = sorted(numbers) == numbers
    # Few rows have ids that begin alike; only those are compared whole.
    for at in compress(count(), map(eq, numbers, islice(numbers, 1, None))):
        first, second = (
            rows[row * ROW_SIZE : row * ROW_SIZE + PREFIX_SIZE].tobytes() for row in (at, at + 1)
        )
        in_order = in_order and first < second
    if not in_order:
        raise damaged(name, "its rows are not sorted")
    if any(bisect_left(numbers, (first + 1) << 24) != end for first, end in enumerate(fanout)):
        raise damaged(name, "its fanout contradicts its rows")


FILTER_MAGIC = b"dsvfltr1"
FILTER_MAX = 1 << 27
"""Maximum size of a filter in a store, in bytes."""
BLOCK_ROWS = 256
_BLOCK_HASH = 16
_FILTER_HEAD = struct.Struct("<8s16sII")


class IndexFilter:
    """The filter of an index file. Its answers are compared with the file's rows before they are used."""

    def __init__(
        self, packs: list[PackId], rows: int, firsts: array[int], hashes: bytes, ends: bytes
    ) -> None:
        """For `parse`; checks nothing."""
        self.packs = packs
        self._rows = rows
        self._firsts = firsts
        self._hashes = hashes
        self._ends = ends

    @classmethod
    def parse(cls, data: Buffer, index_id: IndexId) -> IndexFilter:
        """Raises `IntegrityError`, or `Unsupported` for a newer version."""
        view, what = memoryview(data), f"filter of index {index_id}"
        if len(view) < _FILTER_HEAD.size + HASH_SIZE:
            raise damaged(what, "it is cut short")
        magic, of, packs, rows = _FILTER_HEAD.unpack(view[: _FILTER_HEAD.size])
        check_magic(magic, FILTER_MAGIC, what)
        if of != index_id:
            raise damaged(what, "it is one of another index")
        blocks = -(-rows // BLOCK_ROWS)
        sizes = (16 * packs, 4 * blocks, _BLOCK_HASH * blocks, 2 * rows)
        if not 0 < packs <= rows <= MAX_ROWS or len(view) != _FILTER_HEAD.size + sum(sizes) + HASH_SIZE:
            raise damaged(what, f"it has {len(view)} bytes, which is not what its head says")
        check_hash(view, what)
        columns, at = [], _FILTER_HEAD.size
        for size in sizes:
            columns.append(bytes(view[at : at + size]))
            at += size
        firsts = from_little("I", columns[1])
        if sorted(firsts) != firsts.tolist():
            raise damaged(what, "its blocks are not sorted")
        return cls(list(map(PackId, cut(columns[0], 16))), rows, firsts, columns[2], columns[3])

    def __len__(self) -> int:
        return self._rows

    def blocks(self, object_id: Id) -> Iterator[int]:
        """Yield the blocks of rows that may have the id."""
        head, end = int.from_bytes(object_id[:4], "big"), object_id[-2:]
        first = max(bisect_left(self._firsts, head) - 1, 0)
        for block in range(first, bisect_right(self._firsts, head)):
            ends = self._ends[2 * BLOCK_ROWS * block : 2 * BLOCK_ROWS * (block + 1)]
            at = ends.find(end)
            while at % 2 == 1 and at != -1:
                at = ends.find(end, at + 1)
            if at != -1:
                yield block

    def span(self, block: int) -> tuple[int, int]:
        """Return where the block lies in the index file: offset and length."""
        rows = min(BLOCK_ROWS, self._rows - block * BLOCK_ROWS)
        return FIXED_SIZE + 16 * len(self.packs) + block * BLOCK_ROWS * ROW_SIZE, rows * ROW_SIZE

    def is_block(self, block: int, rows: Buffer) -> bool:
        """Return whether these are the rows that the filter was made from."""
        known = self._hashes[_BLOCK_HASH * block : _BLOCK_HASH * (block + 1)]
        return blake3(rows).digest(_BLOCK_HASH) == known

    def find(self, rows: memoryview, kind: ObjectKind, object_id: Id) -> Location | None:
        """Return the location of an object by the rows of a block. Raises as `Index.find`."""
        for at in range(0, len(rows), ROW_SIZE):
            if rows[at + 32] == kind and bytes(rows[at : at + 32]) == object_id:
                return location_at(rows, at, self.packs)
        return None


def encode_filter(index_id: IndexId, index: Index) -> bytes:
    """Return the filter of an index file, which has at least one row."""
    rows, count = index.row_bytes, len(index)
    if not count:
        raise ValueError("an index without rows has no filter")
    blocks = [rows[at : at + BLOCK_ROWS * ROW_SIZE] for at in range(0, len(rows), BLOCK_ROWS * ROW_SIZE)]
    ends = bytearray(2 * count)
    ends[0::2] = bytes(rows[30::ROW_SIZE])
    ends[1::2] = bytes(rows[31::ROW_SIZE])
    out = bytearray(_FILTER_HEAD.pack(FILTER_MAGIC, index_id, len(index.packs), count))
    out += b"".join(index.packs)
    out += little(u32s(int.from_bytes(block[:4], "big") for block in blocks))
    out += b"".join(blake3(block).digest(_BLOCK_HASH) for block in blocks)
    out += ends
    out += blake3(out).digest()
    return bytes(out)


def merge_all(indexes: Sequence[Index], rows_per_file: int) -> Iterator[bytes]:
    """Yield index files with all rows of `indexes`.

    An object with several locations has a row for each of them, in different files, because one of the packs
    may be lost. An erased row replaces all other rows of its object. A file has about `rows_per_file` rows at
    most: rows whose ids have the same first byte are not split.
    """
    packs: dict[PackId, int] = {}
    numbers = [[packs.setdefault(pack, len(packs)) for pack in one.packs] for one in indexes]
    files: list[list[list[bytes]]] = []  # one for each layer: the rows of each bucket
    for bucket in range(256):
        rows = bytearray()
        for one, numbered in zip(indexes, numbers, strict=True):
            mine = bytearray(one.bucket(bucket))
            renumber(mine, numbered)
            rows += mine
        for depth, layer in enumerate(_layers(bytes(rows))):
            if depth == len(files):
                files.append([[] for _ in range(256)])
            held = sum(map(len, files[depth]))
            if held and held + len(layer) > rows_per_file:
                yield join(list(packs), files[depth])
                files[depth] = [[] for _ in range(256)]
            files[depth][bucket] = layer
    yield from (join(list(packs), buckets) for buckets in files if any(buckets))


_RANK = {ERASED: 0, IN_PACK: 1, EXTERNAL: 2}
"""Of several rows for one object, the row with the lowest rank counts."""


def _layers(bucket: bytes) -> list[list[bytes]]:
    """Return the rows in sorted layers, each row once: first one row of each object, then the second
    locations, and so on. An erased object has one row."""
    first: dict[bytes, bytes] = {}
    more: dict[bytes, list[bytes]] = {}
    for row in cut(bucket, ROW_SIZE):
        had = first.setdefault(row[:PREFIX_SIZE], row)
        if had != row:
            places = more.setdefault(row[:PREFIX_SIZE], [had])
            if row not in places:
                places.append(row)
    for prefix, places in more.items():
        places.sort(key=lambda row: _RANK[row[PREFIX_SIZE]])
        first[prefix] = places[0]
        if places[0][PREFIX_SIZE] == ERASED:
            del places[1:]
    layers = [[first[prefix] for prefix in sorted(first)]] if first else []
    while level := [more[prefix][len(layers)] for prefix in sorted(more) if len(layers) < len(more[prefix])]:
        layers.append(level)
    return layers
