"""The list of chunks that make up a large file, in levels where it is a long one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from dsv.model.chunking import MAX_CHUNK
from dsv.model.columns import ColumnReader, ColumnWriter, cut, u32s, u64s
from dsv.model.ids import ChunkId, Id, RecipeId
from dsv.model.wire import Buffer, damaged

MAX_ROWS = 65_536
MIN_ROWS = 16_384  # of a recipe below another, the last one aside
MAX_LEVEL = 4
_SIZE_LIMIT = 1 << 63


class Recipe(msgspec.Struct, frozen=True):
    """Level 0 lists chunks, level n+1 lists recipes of level n.

    ids: 32 bytes for each row. lengths: the bytes of content that a row stands for; u32 at level 0, else u64.
    """

    level: int
    ids: bytes
    lengths: array[int]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def size(self) -> int:
        """Bytes of the content that this recipe makes up."""
        return sum(self.lengths)

    def children(self) -> Iterator[Id]:
        """`ChunkId`s at level 0, else `RecipeId`s."""
        kind: type[Id] = RecipeId if self.level else ChunkId
        return map(kind, cut(self.ids, 32))

    def rows(self) -> Iterator[tuple[Id, int]]:
        """Each child with the bytes it stands for."""
        return zip(self.children(), self.lengths, strict=True)

    def chunks(self) -> Iterator[tuple[ChunkId, int]]:
        """Each chunk with its length. Raises `ValueError` above level 0."""
        if self.level:
            raise ValueError(f"a recipe of level {self.level} lists no chunks")
        return zip(map(ChunkId, cut(self.ids, 32)), self.lengths, strict=True)

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
    """The recipes of a file with these chunks, those below before those above; the last is the file's.

    Up to `MAX_ROWS` chunks are one recipe. More are cut where their ids say, so an insertion changes few.
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
