"""A pack: stored objects, a table of them, and a footer of fixed size with the hash of all bytes before.

    magic, 8 bytes | objects | kinds | codecs | ids | offsets | stored | lengths | footer, 56 bytes

The objects fill the space between magic and table without gaps, in the order of the table.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress
from typing import NamedTuple

import msgspec
from blake3 import blake3

from dsv.errors import UPGRADE, Unsupported
from dsv.format.codec import Codec
from dsv.format.columns import from_little, little
from dsv.format.envelope import Buffer, check_magic, damaged
from dsv.format.locator import OBJECT_MAX, PACK_MAX, Location, ObjectKind
from dsv.values.ids import ChunkId, Id, NodeId, PackId, RecipeId, SegmentId

MAGIC = b"dsvpack1"
PACK_TARGET = 32 << 20  # bytes at which a writer starts the next pack
MAX_ROWS = 1 << 20
ROW_SIZE = 1 + 1 + 32 + 3 * 4
FOOTER_SIZE = 8 + 4 + 4 + 32 + 8
_GROWTH = 8 << 20  # maximum bytes by which a builder's memory grows beyond what is needed
CODECS = tuple(Codec)


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

    `memory` is the memory of an earlier pack, to reuse: new memory costs a page fault for every 4 KiB, which
    takes longer than copying the bytes into it.
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
        """Append an object and return its offset. `length` is the unpacked size.

        A locator must directly follow its object, and has the object's id.
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
        """Return whether the pack would have at most `limit` bytes with these contents."""
        rows = len(self._kinds) + len(packed.ids)
        return self._end + len(packed.data) + ROW_SIZE * rows + FOOTER_SIZE <= limit and rows <= MAX_ROWS

    def add_all(self, packed: Packed) -> list[int]:
        """Add many chunks, which must fit, and return their offsets. The data is copied."""
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
        """Return the whole pack and end the builder. Raises `ValueError` for a pack without objects."""
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
        with memoryview(self._data) as view:  # a bytearray would copy the data first
            view[self._end : end] = data
        self._end = end


_FOOTER = struct.Struct("<QII32s8s")
_KINDS = bytes(ObjectKind)
_ID_TYPES: dict[int, type[Id]] = {
    ObjectKind.CHUNK: ChunkId,
    ObjectKind.RECIPE: RecipeId,
    ObjectKind.SEGMENT: SegmentId,
    ObjectKind.NODE: NodeId,
    ObjectKind.LOCATOR: Id,
}


class Footer(NamedTuple):
    """The footer: where the table begins, how many objects it has, the BLAKE3 of all bytes before the hash,
    and the cipher, which is 0 because no dsv encrypts packs yet."""

    table_offset: int
    rows: int
    hash: bytes
    cipher: int = 0


class PackRow(NamedTuple):
    """One object of a pack. A locator has the id of its object."""

    kind: ObjectKind
    id: Id
    codec: Codec
    offset: int
    stored: int
    length: int


class PackTable(msgspec.Struct, frozen=True):
    """The columns of a pack's table, in the order of the offsets."""

    kinds: bytes
    codecs: bytes
    ids: bytes
    offsets: array[int]
    stored: array[int]
    lengths: array[int]

    def __len__(self) -> int:
        return len(self.kinds)

    def row(self, at: int) -> PackRow:
        kind = ObjectKind(self.kinds[at])
        return PackRow(
            kind,
            _ID_TYPES[kind](self.ids[32 * at : 32 * at + 32]),
            CODECS[self.codecs[at]],
            self.offsets[at],
            self.stored[at],
            self.lengths[at],
        )

    def __iter__(self) -> Iterator[PackRow]:
        return map(self.row, range(len(self)))

    def indexed(self, pack: PackId) -> Iterator[tuple[ObjectKind, Id, Location]]:
        """Yield the index rows of this pack: every object except the locators, which become tails."""
        for at in range(len(self)):
            kind, object_id, codec, offset, stored, length = self.row(at)
            if kind is not ObjectKind.LOCATOR:
                own = at + 1 < len(self) and self.kinds[at + 1] == ObjectKind.LOCATOR
                tail = self.stored[at + 1] if own else 0
                yield kind, object_id, Location(pack, offset, stored, length, codec, tail)


def parse_footer(data: Buffer) -> Footer:
    """Return the footer in the last `FOOTER_SIZE` bytes. Raises `IntegrityError`, `Unsupported` if newer."""
    if len(data) < FOOTER_SIZE:
        raise damaged("pack", "it is cut short")
    table, rows, cipher, digest, magic = _FOOTER.unpack(memoryview(data)[-FOOTER_SIZE:])
    check_magic(magic, MAGIC, "pack")
    if not 0 < rows <= MAX_ROWS or table < len(MAGIC) + rows:
        raise damaged("pack", "its footer is impossible")
    return Footer(table, rows, digest, cipher)


def parse_table(data: Buffer, footer: Footer, pack_size: int) -> PackTable:
    """Return the table in the bytes between `footer.table_offset` and the footer. Raises `IntegrityError`."""
    rows = footer.rows
    if footer.cipher:
        raise Unsupported("a pack is encrypted, which this dsv cannot read", hint=UPGRADE)
    if pack_size > PACK_MAX or footer.table_offset + rows * ROW_SIZE + FOOTER_SIZE != pack_size:
        raise damaged("pack", f"its table does not fit into its {pack_size} bytes")
    if len(data) != rows * ROW_SIZE:
        raise damaged("pack", "its table is cut short")
    view, at = memoryview(data), 0
    columns: list[memoryview] = []
    for width in (1, 1, 32, 4, 4, 4):
        columns.append(view[at : at + width * rows])
        at += width * rows
    offsets, stored, lengths = (from_little("I", column) for column in columns[3:])
    table = PackTable(bytes(columns[0]), bytes(columns[1]), bytes(columns[2]), offsets, stored, lengths)
    _check_table(table, footer)
    return table


def verify(data: Buffer) -> PackTable:
    """Check the hash of a whole pack, and return its table. Unpacks no objects. Raises `IntegrityError`."""
    view = memoryview(data)
    if len(view) <= PACK_MAX and blake3(view[: -32 - len(MAGIC)]).digest() != parse_footer(view).hash:
        check_magic(bytes(view[: len(MAGIC)]), MAGIC, "pack")
        raise damaged("pack", "its bytes are not those its footer was written for")
    return read_table(view)


def read_table(view: memoryview) -> PackTable:
    """Do as `verify`, without checking the hash."""
    if len(view) > PACK_MAX:
        raise damaged("pack", f"it has {len(view)} bytes, over the limit of {PACK_MAX}")
    footer = parse_footer(view[-FOOTER_SIZE:])
    check_magic(bytes(view[: len(MAGIC)]), MAGIC, "pack")
    return parse_table(view[footer.table_offset : -FOOTER_SIZE], footer, len(view))


def _check_table(table: PackTable, footer: Footer) -> None:
    if table.kinds.translate(None, _KINDS) or table.codecs.translate(None, bytes(CODECS)):
        raise damaged("pack", "its table has an unknown kind or codec")
    ends = [offset + size for offset, size in zip(table.offsets, table.stored, strict=True)]
    if (
        table.offsets[0] != len(MAGIC)
        or ends[-1] != footer.table_offset
        or ends[:-1] != table.offsets[1:].tolist()
    ):
        raise damaged("pack", "its objects do not lie one after the other between magic and table")
    if not min(table.stored) or not min(table.lengths) or max(table.lengths) > OBJECT_MAX:
        raise damaged("pack", "it has an object of an impossible length")
    for at in range(len(table)):
        if not table.codecs[at] and table.stored[at] != table.lengths[at]:
            raise damaged("pack", "an object stored as it is has two lengths")
        if table.kinds[at] == ObjectKind.LOCATOR:
            _check_locator(table, at)


def _check_locator(table: PackTable, at: int) -> None:
    owner = table.kinds[at - 1] if at else 0
    if owner not in (ObjectKind.RECIPE, ObjectKind.SEGMENT, ObjectKind.NODE) or (
        table.ids[32 * at - 32 : 32 * at] != table.ids[32 * at : 32 * at + 32]
    ):
        raise damaged("pack", "a locator does not lie behind its object")
    if table.codecs[at] != Codec.ZSTD:
        raise damaged("pack", "a locator is not compressed")
