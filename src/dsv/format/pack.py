"""A pack: stored objects one after the other, a table of them, a fixed footer with the hash of all before.

    magic, 8 bytes | objects | kinds | codecs | ids | offsets | stored | lengths | footer, 56 bytes

The objects fill the space between magic and table without gaps, in the order of the table.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import NamedTuple

from blake3 import blake3

from dsv.format.codec import Codec
from dsv.format.columns import little
from dsv.format.envelope import Buffer
from dsv.format.locator import OBJECT_MAX, PACK_MAX, ObjectKind
from dsv.values.ids import ChunkId, Id

MAGIC = b"dsvpack1"
PACK_TARGET = 32 << 20  # bytes at which a writer starts the next pack
MAX_ROWS = 1 << 20
ROW_SIZE = 1 + 1 + 32 + 3 * 4
FOOTER_SIZE = 8 + 4 + 4 + 32 + 8
_GROWTH = 8 << 20  # bytes by which a builder's memory grows at most, beyond what is needed
CODECS = tuple(Codec)
"""By their number."""


class Packed(NamedTuple):
    """Contents that are already hashed and compressed, in columns."""

    ids: Sequence[ChunkId]
    codecs: bytes
    lengths: Sequence[int]
    """Unpacked sizes."""
    stored: Sequence[int]
    """Sizes in `data`."""
    data: memoryview
    """The stored bytes of all contents."""


class PackBuilder:
    """Appends objects; `finish` returns the pack's bytes without copying them again.

    `memory` is that of an earlier pack, for reuse: new memory costs a page fault for every 4 KiB, which adds up to more
    than copying the bytes into it.
    """

    def __init__(self, memory: bytearray | None = None) -> None:
        self._data = bytearray(1 << 16) if memory is None else memory
        self._data[: len(MAGIC)] = MAGIC
        self._end = len(MAGIC)
        self._kinds = bytearray()
        self._codecs = bytearray()
        self._ids = bytearray()
        self._offsets, self._stored, self._lengths = array("I"), array("I"), array("I")

    @property
    def rows(self) -> int:
        return len(self._kinds)

    @property
    def size(self) -> int:
        """Bytes of the pack if it were finished now."""
        return self._end + ROW_SIZE * len(self._kinds) + FOOTER_SIZE

    def add(self, kind: ObjectKind, object_id: Id, codec: Codec, stored: Buffer, length: int) -> int:
        """Append an object and return its offset. `length` is the object's when unpacked.

        A locator is added directly behind the object it belongs to, under that one's id.
        """
        offset, size = self._end, len(stored)
        if not size or not 0 < length <= OBJECT_MAX or (codec is Codec.RAW and size != length):
            raise ValueError(f"a pack can't hold an object of {length} bytes, stored as {size}")
        rows = len(self._kinds)
        if offset + size + ROW_SIZE * (rows + 1) + FOOTER_SIZE > PACK_MAX or rows == MAX_ROWS:
            raise ValueError("the pack is full")
        self._append(stored, size)
        self._kinds.append(kind)
        self._codecs.append(codec)
        self._ids += object_id
        self._offsets.append(offset)
        self._stored.append(size)
        self._lengths.append(length)
        return offset

    def has_room(self, packed: Packed, limit: int) -> bool:
        """Return whether the pack would have at most `limit` bytes with these."""
        rows = len(self._kinds) + len(packed.ids)
        return self._end + len(packed.data) + ROW_SIZE * rows + FOOTER_SIZE <= limit and rows <= MAX_ROWS

    def add_all(self, packed: Packed) -> list[int]:
        """`add` of many chunks at once, for which there is room; their offsets. The data is copied."""
        codecs, lengths, stored = packed.codecs, packed.lengths, packed.stored
        *offsets, end = accumulate(stored, initial=self._end)
        raw = [not codec for codec in codecs]
        if (
            end - self._end != len(packed.data)
            or not min(stored)
            or not 0 < min(lengths) <= max(lengths) <= OBJECT_MAX
            or list(compress(stored, raw)) != list(compress(lengths, raw))
        ):
            raise ValueError("a pack can't hold objects of these lengths")
        self._append(packed.data, len(packed.data))
        self._kinds += bytes((ObjectKind.CHUNK,)) * len(codecs)
        self._codecs += codecs
        self._ids += b"".join(packed.ids)
        self._offsets.extend(offsets)
        self._stored.extend(stored)
        self._lengths.extend(lengths)
        return offsets

    def finish(self) -> memoryview:
        """Return the whole pack. The builder is spent. Raises `ValueError` for a pack without objects."""
        if not self._kinds:
            raise ValueError("a pack holds at least one object")
        if len(self._ids) != 32 * len(self._kinds):
            raise ValueError("an object's id has 32 bytes")
        table = self._end
        numbers = [little(column) for column in (self._offsets, self._stored, self._lengths)]
        tail: list[Buffer] = [self._kinds, self._codecs, self._ids, *numbers]
        for column in tail:
            self._append(column, len(column))
        self._append(struct.pack("<QI4x", table, len(self._kinds)), 16)
        with memoryview(self._data) as view, view[: self._end] as hashed:
            digest = blake3(hashed).digest()
        self._append(digest + MAGIC, 40)
        return memoryview(self._data)[: self._end].toreadonly()

    def _append(self, data: Buffer, size: int) -> None:
        end = self._end + size
        lacking = end - len(self._data)
        if lacking > 0:
            self._data.extend(bytes(max(lacking, min(len(self._data), _GROWTH))))
        self._data[self._end : end] = data
        self._end = end
