"""An external pack: a list of chunks outside the store, and of the files that have them.

    magic, 8 bytes | one zstd frame with the columns | BLAKE3 of all before, 32 bytes | magic

Its chunks have offsets like those in any pack, as if the pack held them one after the other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

import msgspec
from blake3 import blake3

from dsv.format.codec import Codec, compress, unpack_frame
from dsv.format.columns import ColumnReader, ColumnWriter, first_seen, u32s, u64s
from dsv.format.envelope import Buffer, check_hash, check_magic, damaged, header
from dsv.format.locator import PACK_MAX, Location, ObjectKind
from dsv.format.recipe import MAX_CHUNK
from dsv.values.ids import ChunkId, Id, PackId

MAGIC = b"dsvpack2"
MAX_ROWS = 1 << 16
MAX_TEXTS = 16 << 20
"""Maximum bytes of all texts."""
MAX_TEXT = 8192
"""Maximum bytes of one text."""
_ROW = 32 + 4 + 8 + 4
_FIXED = len(header("external")) + 12
_LARGEST = _FIXED + MAX_TEXTS + MAX_ROWS * (_ROW + 8)
EXTERNAL_MAX = _LARGEST + (1 << 16)
"""Maximum size of an external pack in a store, in bytes."""


class ExternalSource(msgspec.Struct, frozen=True):
    """One version of a file that dsv does not manage."""

    url: str
    """`s3://BUCKET/KEY`, `http(s)://…`, or `file://` and an absolute path; dsv escapes nothing in it."""
    endpoint: str
    """The S3 server; empty for Amazon's, and for other URLs."""
    version: str
    """The version id to read, if the server keeps versions; else empty."""
    tag: str
    """A value that changes with the content: an entity tag without quotes, the time of the last change, or
    the mtime of a local file in nanoseconds. Empty if the server gives neither."""
    size: int

    def is_at(self, found: ExternalSource) -> bool:
        """Return whether the file that was found is still this version."""
        return self.size == found.size and (
            self.version == found.version if self.version else self.tag == found.tag
        )

    def texts(self) -> tuple[str, str, str, str]:
        return self.url, self.endpoint, self.version, self.tag


class Builder:
    def __init__(self) -> None:
        self.pack = PackId.external()
        self._rows: list[tuple[ChunkId, ExternalSource, int, int]] = []
        self._sources: set[ExternalSource] = set()
        self._texts = self._end = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Return whether another row may not fit."""
        most = MAX_TEXTS - 4 * (MAX_TEXT + 1)
        return len(self) >= MAX_ROWS or self._texts > most or self._end > PACK_MAX - MAX_CHUNK

    def add(self, chunk: ChunkId, source: ExternalSource, start: int, length: int) -> Location:
        """Add a chunk, which begins at byte `start` of the source. Return its location."""
        if source not in self._sources:
            self._sources.add(source)
            self._texts += sum(len(text.encode()) + 1 for text in source.texts())
        self._rows.append((chunk, source, start, length))
        self._end += length
        return Location(self.pack, self._end - length, length, length, Codec.RAW)

    def finish(self) -> ExternalPack:
        numbers = {one: at for at, one in enumerate(dict.fromkeys(row[1] for row in self._rows))}
        lengths = u32s(row[3] for row in self._rows)
        return ExternalPack(
            tuple(numbers),
            b"".join(row[0] for row in self._rows),
            u32s(numbers[row[1]] for row in self._rows),
            u64s(row[2] for row in self._rows),
            lengths,
            list(accumulate(lengths)),
        )


class ExternalRow(NamedTuple):
    id: ChunkId
    source: ExternalSource
    start: int
    """Its first byte in the file."""
    offset: int
    """Its offset in the pack."""
    length: int


class ExternalPack(msgspec.Struct, frozen=True):
    """The content of an external pack. `ends[i]` is the end of chunk i in the pack."""

    sources: tuple[ExternalSource, ...]
    ids: bytes
    places: array[int]
    starts: array[int]
    lengths: array[int]
    ends: list[int]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def kinds(self) -> bytes:
        """`kinds`, `offsets` and `stored` are columns like those of a `PackTable`."""
        return bytes([ObjectKind.CHUNK]) * len(self)

    @property
    def offsets(self) -> array[int]:
        return u32s(end - length for end, length in zip(self.ends, self.lengths, strict=True))

    @property
    def stored(self) -> array[int]:
        return self.lengths

    def row(self, at: int) -> ExternalRow:
        length = self.lengths[at]
        source = self.sources[self.places[at]]
        one = ChunkId(self.ids[32 * at : 32 * at + 32])
        return ExternalRow(one, source, self.starts[at], self.ends[at] - length, length)

    def find(self, offset: int, length: int) -> ExternalRow | None:
        """Return the chunk at an offset; None if no chunk of that length begins there."""
        at = bisect_left(self.ends, offset + length)
        found = self.row(at) if at < len(self) else None
        return found if found is not None and (found.offset, found.length) == (offset, length) else None

    def indexed(self, pack: PackId) -> list[tuple[ObjectKind, Id, Location]]:
        """Return the rows of an index for this pack."""
        rows = map(self.row, range(len(self)))
        return [
            (ObjectKind.CHUNK, row.id, Location(pack, row.offset, row.length, row.length, Codec.RAW))
            for row in rows
        ]

    def encode(self) -> bytes:
        """Raises `ValueError` for content that does not fit one pack."""
        texts = b"".join(text.encode() + b"\0" for source in self.sources for text in source.texts())
        if fault := self._fault(texts):
            raise ValueError(fault)
        out = ColumnWriter("external")
        out.u32(len(self.sources))
        out.u32(len(self))
        out.u32(len(texts))
        out.raw(texts)
        out.numbers(u64s(source.size for source in self.sources))
        out.raw(self.ids)
        for column in (self.places, self.starts, self.lengths):
            out.numbers(column)
        body = MAGIC + compress(out.finish())
        return body + blake3(body).digest() + MAGIC

    @classmethod
    def decode(cls, data: Buffer) -> ExternalPack:
        """Raises `IntegrityError`, or `Unsupported` for a newer version."""
        view, what, end = memoryview(data), "external pack", len(MAGIC) + 32
        if len(view) < len(MAGIC) + end:
            raise damaged(what, "it is cut short")
        for magic in (view[: len(MAGIC)], view[-len(MAGIC) :]):
            check_magic(bytes(magic), MAGIC, what)
        check_hash(view[: -len(MAGIC)], what)
        read = ColumnReader("external", unpack_frame(view[len(MAGIC) : -end], _FIXED, _LARGEST))
        count, rows = read.u32(MAX_ROWS, "sources"), read.u32(MAX_ROWS, "rows")
        column = bytes(read.raw(read.u32(MAX_TEXTS, "bytes of text")))
        sizes = read.numbers("Q", count)
        ids = bytes(read.raw(32 * rows))
        places, starts, lengths = read.numbers("I", rows), read.numbers("Q", rows), read.numbers("I", rows)
        read.end()
        texts = column.split(b"\0")
        if texts.pop() or len(texts) != 4 * count:
            raise damaged(what, f"it does not have {count} sources")
        try:
            read_texts = [text.decode() for text in texts]
        except UnicodeDecodeError:
            raise damaged(what, "a text of it is not UTF-8") from None
        columns = (read_texts[at::4] for at in range(4))
        sources = tuple(ExternalSource(*values) for values in zip(*columns, sizes, strict=True))
        pack = cls(sources, ids, places, starts, lengths, list(accumulate(lengths)))
        if fault := pack._fault(column):
            raise damaged(what, fault)
        return pack

    def _fault(self, texts: bytes) -> str | None:
        if not 0 < len(self) <= MAX_ROWS or len(texts) > MAX_TEXTS or len(self.ids) != 32 * len(self):
            return "it has no chunk, or too much"
        if len(set(self.sources)) != len(self.sources) or not first_seen(self.places, len(self.sources)):
            return "its sources are not those of its rows"
        if any(len(text.encode()) > MAX_TEXT or "\0" in text for one in self.sources for text in one.texts()):
            return "a text of it is too long, or has a NUL"
        if not min(self.lengths) or max(self.lengths) > MAX_CHUNK or self.ends[-1] > PACK_MAX:
            return "it has a chunk of an impossible length"
        rows = zip(self.places, self.starts, self.lengths, strict=True)
        if any(start + length > self.sources[place].size for place, start, length in rows):
            return "a chunk ends behind the end of its file"
        return None
