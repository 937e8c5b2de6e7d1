"""Chunks of large files (cut with FastCDC), and recipes: the lists of a file's chunks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from xxhash import xxh3_64_intdigest

from dsv.errors import Unsupported
from dsv.format.columns import ColumnReader, ColumnWriter, cut, u32s, u64s
from dsv.format.envelope import Buffer, damaged
from dsv.values.ids import ChunkId, Id, RecipeId

if TYPE_CHECKING:
    from pyfastcdc import FastCDC


ALGORITHM = "fastcdc-2020"
SINGLE_CHUNK_MAX = 1 << 20  # bytes; a file up to this is one chunk whose id is the file id
MIN_CHUNK = 256 << 10
AVERAGE_CHUNK = 1 << 20
MAX_CHUNK = 4 << 20
NORMALIZATION: Literal[1] = 1
_BUFFER = 3 * MAX_CHUNK


def _chunker() -> FastCDC:
    """Return a new chunker: it is not thread-safe, and takes only a microsecond to make."""
    from pyfastcdc import FastCDC  # not at import: most commands cut nothing

    if FastCDC.__module__ != "pyfastcdc.cy.fastcdc":
        raise Unsupported(
            "pyfastcdc came without its compiled part and would cut files 200 times slower",
            subject="pyfastcdc",
            hint="pip install --force-reinstall --only-binary :all: pyfastcdc",
        )
    return FastCDC(
        AVERAGE_CHUNK, min_size=MIN_CHUNK, max_size=MAX_CHUNK, normalized_chunking=NORMALIZATION, seed=0
    )


def cut_points(data: bytes | bytearray | memoryview) -> list[int]:
    """Return the lengths of the chunks of a file's bytes; an empty list for an empty file."""
    return [chunk.length for chunk in _chunker().cut_buf(memoryview(data).toreadonly())]


class FileCutter:
    """Cuts files that are read into its own buffer. Only the bytes after the last cut are copied."""

    def __init__(self) -> None:
        self._chunker = _chunker()
        self._buffer = memoryview(bytearray(_BUFFER))

    def chunks(self, readinto: Callable[[memoryview], int]) -> Iterator[memoryview]:
        """Yield the chunks of one file. `readinto` fills a buffer, at least partly; it returns 0 at the end.

        A chunk is valid until the next one is requested.
        """
        buffer = self._buffer
        start = end = 0
        ended = False
        while not ended or start < end:
            while end < len(buffer) and not ended:
                got = readinto(buffer[end:])
                end += got
                ended = not got
            cuts = self._chunker.cut_buf(buffer[start:end].toreadonly())
            # Nearer to the end of the bytes read, a cut may depend on bytes that were not read yet.
            while end - start >= MAX_CHUNK or (ended and start < end):
                chunk = next(cuts)
                yield chunk.data
                start += chunk.length
            buffer[: end - start] = buffer[start:end]
            start, end = 0, end - start


MAX_ROWS = 65_536
MIN_ROWS = 16_384  # of a recipe below another one, except the last
MAX_LEVEL = 4
_SIZE_LIMIT = 1 << 63


class Recipe(msgspec.Struct, frozen=True):
    """The rows of a recipe: chunks at level 0, recipes of level n at level n+1."""

    level: int
    ids: bytes
    """32 bytes for each row."""
    lengths: array[int]
    """Bytes of content in each row; u32 at level 0, else u64."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def size(self) -> int:
        """Bytes of the content of this recipe."""
        return sum(self.lengths)

    def children(self) -> Iterator[Id]:
        """`ChunkId`s at level 0, else `RecipeId`s."""
        kind: type[Id] = RecipeId if self.level else ChunkId
        return map(kind, cut(self.ids, 32))

    def rows(self) -> Iterator[tuple[Id, int]]:
        """Yield each child and its number of bytes."""
        return zip(self.children(), self.lengths, strict=True)

    def encode(self) -> bytes:
        """Raises `ValueError` for what `decode` would refuse."""
        fault = self._fault()
        if fault is not None:
            raise ValueError(f"a recipe can't hold this: {fault}")
        out = ColumnWriter("recipe")
        out.u32(self.level)
        out.u32(len(self.lengths))
        out.raw(self.ids)
        out.numbers(self.lengths)
        return out.finish()

    @classmethod
    def decode(cls, data: Buffer) -> Recipe:
        """Raises `IntegrityError`, or `Unsupported` for a newer version."""
        read = ColumnReader("recipe", data)
        level = read.u32(MAX_LEVEL, "levels")
        count = read.u32(MAX_ROWS, "rows")
        ids = bytes(read.raw(32 * count))
        recipe = cls(level, ids, read.numbers("Q" if level else "I", count))
        read.end()
        fault = recipe._fault()
        if fault is not None:
            raise damaged("recipe", fault)
        return recipe

    def _fault(self) -> str | None:
        if not 0 <= self.level <= MAX_LEVEL:
            return f"it has level {self.level}"
        if not 0 < len(self.lengths) <= MAX_ROWS:
            return f"it has {len(self.lengths)} rows"
        if len(self.ids) != 32 * len(self.lengths) or self.lengths.typecode != ("Q" if self.level else "I"):
            return "its columns differ in length or width"
        if min(self.lengths) < 1 or (not self.level and max(self.lengths) > MAX_CHUNK):
            return "it has a row of an impossible length"
        if self.size >= _SIZE_LIMIT:
            return "its file is too large"
        return None


def build_recipe(chunk_ids: bytes, lengths: Sequence[int]) -> list[tuple[RecipeId, Recipe]]:
    """Return the recipes of a file with these chunks, lower levels first; the last one is the file's.

    Up to `MAX_ROWS` chunks are one recipe. Ids decide where more are split: an insertion changes few recipes.
    """
    made: list[tuple[RecipeId, Recipe]] = []
    level, ids, sizes = 0, chunk_ids, lengths
    while True:
        above_ids, above_sizes = bytearray(), list[int]()
        for start, end in _groups(ids, len(sizes)):
            column = u64s(sizes[start:end]) if level else u32s(sizes[start:end])
            recipe = Recipe(level, bytes(ids[32 * start : 32 * end]), column)
            recipe_id = RecipeId.hash(recipe.encode())
            made.append((recipe_id, recipe))
            above_ids += recipe_id
            above_sizes.append(recipe.size)
        if len(above_sizes) == 1:
            return made
        level, ids, sizes = level + 1, bytes(above_ids), above_sizes


def _groups(ids: bytes, count: int) -> Iterator[tuple[int, int]]:
    if count <= MAX_ROWS:
        yield 0, count
        return
    start = 0
    for end in range(1, count + 1):
        long_enough = end - start >= MIN_ROWS
        if (
            (long_enough and xxh3_64_intdigest(ids[32 * end - 32 : 32 * end]) % MIN_ROWS == 0)
            or end - start == MAX_ROWS
            or end == count
        ):
            yield start, end
            start = end
