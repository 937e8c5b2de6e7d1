"""The download pipeline: files wanted in, verified bytes out, in the order asked for.

Chunks that lie close together are read as one range, and ranges are read ahead by several connections, so a directory
of small files is a sequential read. Nothing is handed out before it is checked against its id.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from dsv.errors import IntegrityError
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.format.recipe import Recipe
from dsv.format.tree import Entry
from dsv.repo.errors import NOT_OURS
from dsv.repo.objects.objects import Objects, checked
from dsv.repo.objects.ranges import RangeReader, spans
from dsv.values.ids import ChunkId, FileId, RecipeId
from dsv.values.names import DatasetName
from dsv.values.paths import show

# The weight of one ranged read, and so the most bytes that it asks for (a single larger chunk aside).
SPAN = 8 << 20
# What is read before it is used may weigh as much.
READ_AHEAD = 64 << 20


class Donor(msgspec.Struct, frozen=True):
    """An older version of a file on local disk, and where in it known chunks lie: id -> (offset, length).

    It is only a hint: what is read from it is verified like everything else.
    """

    path: Path
    chunks: Mapping[ChunkId, tuple[int, int]]


class Wanted(msgspec.Struct, frozen=True):
    """A file to fetch; `location` is where its segment's locator says its chunk or recipe lies, if it says."""

    entry: Entry
    location: Location | None = None
    donor: Donor | None = None


class _Piece(msgspec.Struct, frozen=True):
    """One chunk of a file that is wanted. `last` marks a file's end; a file without pieces has one with no id."""

    wanted: Wanted
    chunk: ChunkId | None
    length: int
    first: bool
    last: bool


class Fetcher:
    """Fetches files of one store. Used from one thread; the reads happen in others."""

    def __init__(
        self,
        objects: Objects,
        dataset: DatasetName | None = None,
        *,
        connections: int = 8,
        budget: int = READ_AHEAD,
    ) -> None:
        """dataset: of the files, for messages. budget: the weight of what is read ahead or waits to be used, about its
        bytes in memory.
        """
        self._objects = objects
        self._dataset = dataset
        self._connections = connections
        self._budget = budget
        self._readers: list[RangeReader] = []
        self._read_singly = 0

    @property
    def fetched_bytes(self) -> int:
        """Bytes of packs read so far, gaps between chunks included."""
        return self._read_singly + sum(reader.fetched_bytes for reader in self._readers)

    def files(self, wanted: Iterable[Wanted]) -> Iterator[tuple[Wanted, Iterator[bytes]]]:
        """Yield each file with its content in pieces, to be consumed before the next file is asked for.

        Raises `IntegrityError` in place of a piece that can't be had, and at the end of a large file whose pieces do
        not make up its id.
        """
        pieces = self._pieces(wanted)
        for piece, data in pieces:
            if piece.last:
                yield piece.wanted, iter((data,) if data else ())
            else:
                content = _LargeFile(piece, data, pieces)
                yield piece.wanted, content.read()
                content.drain()

    def _pieces(self, wanted: Iterable[Wanted]) -> Iterator[tuple[_Piece, bytes]]:
        """Yield all pieces in order with their bytes; those that need no request wait in `plan` for their turn."""
        plan: deque[_Piece] = deque()
        objects = self._objects
        reader = RangeReader(
            objects.store, objects.threads, connections=self._connections, budget=self._budget
        )
        self._readers.append(reader)
        span = min(SPAN, self._budget // 2)
        for where, piece, stored in reader.read(spans(self._remote(wanted, plan), span), self._elsewhere):
            while plan[0] is not piece:
                yield self._local(plan.popleft())
            plan.popleft()
            yield piece, self._verified(piece, where, stored)
        while plan:
            yield self._local(plan.popleft())

    def _elsewhere(self, tried: Location, piece: _Piece) -> Location | None:
        assert piece.chunk is not None
        return self._objects.elsewhere(ObjectKind.CHUNK, tried, piece.chunk)

    def _remote(self, wanted: Iterable[Wanted], plan: deque[_Piece]) -> Iterator[tuple[Location, _Piece]]:
        for file in wanted if self._objects.copy_of is None else map(self._with_copy, wanted):
            try:
                for piece, where in self._expand(file):
                    plan.append(piece)
                    if piece.chunk is not None and (
                        file.donor is None or piece.chunk not in file.donor.chunks
                    ):
                        yield where or self._objects.find(ObjectKind.CHUNK, piece.chunk), piece
            except IntegrityError as error:
                raise self._of_file(file.entry, error) from error

    def _with_copy(self, file: Wanted) -> Wanted:
        """Return the same, with a donor that has all of it, for a store that is not asked."""
        entry, copy_of = file.entry, self._objects.copy_of
        if copy_of is None or not entry.size or entry.file_id is None:
            return file
        chunks = {ChunkId(entry.file_id): (0, entry.size)}
        if entry.recipe_id is not None:
            chunks = donor_chunks(self._objects, entry.recipe_id, file.location)
        return replace(file, donor=Donor(copy_of(entry), chunks))

    def _expand(self, file: Wanted) -> Iterator[tuple[_Piece, Location | None]]:
        entry = file.entry
        if not entry.size or entry.file_id is None:
            yield _Piece(file, None, 0, True, True), None
        elif entry.recipe_id is None:
            yield _Piece(file, ChunkId(entry.file_id), entry.size, True, True), file.location
        else:
            total = 0
            first = True
            for chunk, length, where in self._chunks(entry.recipe_id, file.location):
                total += length
                if total > entry.size:
                    raise _not_its_file(entry)
                yield _Piece(file, chunk, length, first, total >= entry.size), where
                first = False
            if total != entry.size:
                raise _not_its_file(entry)

    def _chunks(
        self, recipe_id: RecipeId, where: Location | None, said: tuple[int, int] | None = None
    ) -> Iterator[tuple[ChunkId, int, Location | None]]:
        recipe, locator = self._objects.recipe(recipe_id, where, said)
        for row, (child, length) in enumerate(recipe.rows()):
            place = _row(locator, row)
            if recipe.level == 0:
                yield ChunkId(child), length, place
            else:
                yield from self._chunks(RecipeId(child), place, (recipe.level - 1, length))

    def _verified(self, piece: _Piece, where: Location, stored: memoryview | None) -> bytes:
        assert piece.chunk is not None
        if stored is not None and where.length == piece.length:
            with suppress(IntegrityError):
                return checked(ObjectKind.CHUNK, piece.chunk, where, stored[: where.stored])
        found = self._read(piece, where)
        if len(found) != piece.length:
            raise _not_its_file(piece.wanted.entry)
        return found

    def _read(self, piece: _Piece, tried: Location | None = None) -> bytes:
        """Return a chunk by the index. tried: where it was not, or was damaged."""
        assert piece.chunk is not None
        try:
            found, _ = self._objects.read_by_index(ObjectKind.CHUNK, piece.chunk, tried)
        except IntegrityError as error:
            raise self._of_file(piece.wanted.entry, error) from error
        self._read_singly += len(found)
        return found

    def _of_file(self, entry: Entry, error: IntegrityError) -> IntegrityError:
        """Return the error with the name of the file that it is about."""
        name = entry.path.decode(errors="backslashreplace")
        if error.subject == name:
            return error
        name = name if self._dataset is None else f"{self._dataset}:{name}"
        return IntegrityError(f"{name} can't be read: {error.message}", subject=name, hint=error.hint)

    def _local(self, piece: _Piece) -> tuple[_Piece, bytes]:
        if piece.chunk is None:
            return piece, b""
        data = _read_donor(piece)
        if data is None or ChunkId.hash(data) != piece.chunk:  # the donor is not what it was
            if self._objects.copy_of is not None:
                raise _damaged_copy(piece.wanted)
            data = self._read(piece)
        return piece, data


class _LargeFile:
    """Passes on the pieces of one file and checks that together they are it."""

    def __init__(self, first: _Piece, data: bytes, following: Iterator[tuple[_Piece, bytes]]) -> None:
        self._entry = first.wanted.entry
        self._source = following
        self._next: tuple[_Piece, bytes] | None = (first, data)
        self._hash = blake3()

    def read(self) -> Iterator[bytes]:
        while self._next is not None:
            piece, data = self._next
            self._hash.update(data)
            self._next = None if piece.last else next(self._source)
            if self._next is None and FileId(self._hash.digest()) != self._entry.file_id:
                raise _not_its_file(self._entry)
            yield data

    def drain(self) -> None:
        """Skip what the caller did not consume."""
        while self._next is not None:
            self._next = None if self._next[0].last else next(self._source)


def _read_donor(piece: _Piece) -> bytes | None:
    """Return what the donor has in the chunk's place; None if it can't be read."""
    donor = piece.wanted.donor
    assert donor is not None and piece.chunk is not None
    offset, length = donor.chunks[piece.chunk]
    try:
        with open(donor.path, "rb", buffering=0, opener=_at_once) as file:
            file.seek(offset)
            return file.read(length)
    except OSError:
        return None


def _at_once(path: str, flags: int) -> int:
    """Open a donor, which may lie where others write: opening what is no file must not hang."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def donor_chunks(
    objects: Objects, recipe_id: RecipeId, where: Location | None = None
) -> dict[ChunkId, tuple[int, int]]:
    """Return where each chunk lies in a file with this recipe: id -> (offset, length), for a `Donor`."""
    found: dict[ChunkId, tuple[int, int]] = {}
    offset = 0
    for chunk, length, _ in Fetcher(objects)._chunks(recipe_id, where):
        found.setdefault(chunk, (offset, length))
        offset += length
    return found


def _row(locator: Locator | None, row: int) -> Location | None:
    return locator.get(row) if locator is not None and row < len(locator) else None


def _damaged_copy(wanted: Wanted) -> IntegrityError:
    path = "" if wanted.donor is None else str(wanted.donor.path)
    return IntegrityError(
        f"{path} does not hold what its commit has at {show(wanted.entry.path)}",
        subject=path,
        hint="without --offline the store is asked, and dsv cached --check repairs damaged copies",
    )


def _not_its_file(entry: Entry) -> IntegrityError:
    what = "chunk" if entry.recipe_id is None else "recipe"
    return IntegrityError(
        f"the {what} of {show(entry.path)} is not its file {entry.file_id}",
        subject=entry.path.decode(errors="backslashreplace"),
        hint=NOT_OURS,
    )


__all__ = ["Donor", "Fetcher", "Recipe", "Wanted", "donor_chunks"]
