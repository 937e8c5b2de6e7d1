"""The filter of an index file: tells which of its rows to read for an id, without reading the others.

    magic | index id | packs, u32 | rows, u32 | pack ids | first ids, u32 | hashes of blocks | ends of ids | BLAKE3

A block is 256 rows. Of each row the last two bytes of its id are here, so of all ids that the index lacks one in 256
takes a read of a block for nothing (256 rows of 65,536 values); no id that it has is missed.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from blake3 import blake3

from dsv.errors import Unsupported
from dsv.model.columns import cut, from_little, little, u32s
from dsv.model.ids import Id, IndexId, PackId
from dsv.model.index import FIXED_SIZE, HASH_SIZE, MAX_ROWS, ROW_SIZE, Index, location_at
from dsv.model.location import Location, ObjectKind
from dsv.model.wire import Buffer, damaged

MAGIC = b"dsvfltr1"
FILTER_MAX = 1 << 27
"""Bytes of a filter in a store."""
BLOCK_ROWS = 256
_BLOCK_HASH = 16
_HEAD = struct.Struct("<8s16sII")


class IndexFilter:
    """Of one index file. What it says is compared with the file's rows before anybody relies on it."""

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
        if len(view) < _HEAD.size + HASH_SIZE:
            raise damaged(what, "it is cut short")
        magic, of, packs, rows = _HEAD.unpack(view[: _HEAD.size])
        if magic[:-1] == MAGIC[:-1] and magic[-1:].isdigit() and magic > MAGIC:
            raise Unsupported(f"the {what} has version {magic[-1:].decode()}, and this dsv knows version 1",
                              hint="install a newer dsv")  # fmt: skip
        if magic != MAGIC or of != index_id:
            raise damaged(what, "it does not begin as one")
        blocks = -(-rows // BLOCK_ROWS)
        sizes = (16 * packs, 4 * blocks, _BLOCK_HASH * blocks, 2 * rows)
        if not 0 < packs <= rows <= MAX_ROWS or len(view) != _HEAD.size + sum(sizes) + HASH_SIZE:
            raise damaged(what, f"it has {len(view)} bytes, which is not what its head says")
        if blake3(view[:-HASH_SIZE]).digest() != view[-HASH_SIZE:]:
            raise damaged(what, "its bytes are not those its hash was written for")
        columns, at = [], _HEAD.size
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
        """The blocks of rows that may have the id."""
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
        """Where the block lies in the index file: offset and length."""
        rows = min(BLOCK_ROWS, self._rows - block * BLOCK_ROWS)
        return FIXED_SIZE + 16 * len(self.packs) + block * BLOCK_ROWS * ROW_SIZE, rows * ROW_SIZE

    def is_block(self, block: int, rows: Buffer) -> bool:
        """Whether these are the rows that the filter was made from."""
        return (
            blake3(rows).digest(_BLOCK_HASH) == self._hashes[_BLOCK_HASH * block : _BLOCK_HASH * (block + 1)]
        )

    def find(self, rows: memoryview, kind: ObjectKind, object_id: Id) -> Location | None:
        """Where the object lies by the rows of a block. Raises as `Index.find`."""
        for at in range(0, len(rows), ROW_SIZE):
            if rows[at + 32] == kind and bytes(rows[at : at + 32]) == object_id:
                return location_at(rows, at, self.packs)
        return None


def encode_filter(index_id: IndexId, index: Index) -> bytes:
    """The filter of an index file, which has at least one row."""
    rows, count = index.row_bytes, len(index)
    if not count:
        raise ValueError("an index without rows has no filter")
    blocks = [rows[at : at + BLOCK_ROWS * ROW_SIZE] for at in range(0, len(rows), BLOCK_ROWS * ROW_SIZE)]
    ends = bytearray(2 * count)
    ends[0::2] = bytes(rows[30::ROW_SIZE])
    ends[1::2] = bytes(rows[31::ROW_SIZE])
    out = bytearray(_HEAD.pack(MAGIC, index_id, len(index.packs), count))
    out += b"".join(index.packs)
    out += little(u32s(int.from_bytes(block[:4], "big") for block in blocks))
    out += b"".join(blake3(block).digest(_BLOCK_HASH) for block in blocks)
    out += ends
    out += blake3(out).digest()
    return bytes(out)
