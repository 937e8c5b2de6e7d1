"""Reading whole packs, which no command does: objects are read where an index or a locator says that they lie."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from blake3 import blake3

from dsv.errors import Unsupported
from dsv.format.codec import Codec
from dsv.format.columns import from_little
from dsv.format.envelope import Buffer, damaged
from dsv.format.locator import OBJECT_MAX, PACK_MAX, Location, ObjectKind
from dsv.format.pack import CODECS, FOOTER_SIZE, MAGIC, MAX_ROWS, ROW_SIZE
from dsv.values.ids import ChunkId, Id, NodeId, PackId, RecipeId, SegmentId

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
    """table_offset: where the table begins; rows: how many objects; hash: BLAKE3 of all bytes before it; cipher: 0, as
    no dsv encrypts packs yet."""

    table_offset: int
    rows: int
    hash: bytes
    cipher: int = 0


class PackRow(NamedTuple):
    """One object of a pack. A locator's id is that of the object it belongs to."""

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
        """Yield what an index says of this pack: every object but the locators, which are the tails of theirs."""
        for at in range(len(self)):
            kind, object_id, codec, offset, stored, length = self.row(at)
            if kind is not ObjectKind.LOCATOR:
                own = at + 1 < len(self) and self.kinds[at + 1] == ObjectKind.LOCATOR
                tail = self.stored[at + 1] if own else 0
                yield kind, object_id, Location(pack, offset, stored, length, codec, tail)


def parse_footer(data: Buffer) -> Footer:
    """Return the footer in a pack's last `FOOTER_SIZE` bytes. Raises `IntegrityError`, or `Unsupported` if newer."""
    if len(data) < FOOTER_SIZE:
        raise damaged("pack", "it is cut short")
    table, rows, cipher, digest, magic = _FOOTER.unpack(memoryview(data)[-FOOTER_SIZE:])
    _check_magic(magic)
    if not 0 < rows <= MAX_ROWS or table < len(MAGIC) + rows:
        raise damaged("pack", "its footer is impossible")
    return Footer(table, rows, digest, cipher)


def parse_table(data: Buffer, footer: Footer, pack_size: int) -> PackTable:
    """Return the table in the bytes between `footer.table_offset` and the footer. Raises `IntegrityError`."""
    rows = footer.rows
    if footer.cipher:
        raise Unsupported("a pack is encrypted, which this dsv cannot read", hint="install a newer dsv")
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
    """Return the table of a whole pack, whose hash is checked; objects are not unpacked. Raises `IntegrityError`."""
    view = memoryview(data)
    if len(view) > PACK_MAX:
        raise damaged("pack", f"it has {len(view)} bytes, over the limit of {PACK_MAX}")
    footer = parse_footer(view[-FOOTER_SIZE:])
    _check_magic(bytes(view[: len(MAGIC)]))
    if blake3(view[: -32 - len(MAGIC)]).digest() != footer.hash:
        raise damaged("pack", "its bytes are not those its footer was written for")
    return parse_table(view[footer.table_offset : -FOOTER_SIZE], footer, len(view))


def _check_magic(magic: bytes) -> None:
    if magic == MAGIC:
        return
    if magic[:-1] == MAGIC[:-1] and magic[-1:].isdigit() and magic > MAGIC:
        raise Unsupported(f"a pack has version {magic[-1:].decode()}, and this dsv knows version 1",
                          hint="install a newer dsv")  # fmt: skip
    raise damaged("pack", "it does not begin and end as one")


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
