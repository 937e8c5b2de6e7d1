"""The download pipeline: verified contents of the wanted files, in the order asked for.

Chunks that are close together are read as one range, and several connections read ranges ahead, so a
directory of small files is a sequential read. Nothing is returned before it is checked against its id. Of a
part of a file only its chunks are read.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import cast

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from dsv.errors import IntegrityError
from dsv.files.shared_path import AnyPath, open_at
from dsv.format.codec import Codec
from dsv.format.locator import Location, ObjectKind, place_at
from dsv.format.tree import Entry
from dsv.repo.errors import NOT_OURS
from dsv.repo.objects.checks import checked, is_object, is_possible
from dsv.repo.objects.erasures import erased_error
from dsv.repo.objects.objects import Objects
from dsv.repo.objects.ranges import RangeReader, spans
from dsv.values.ids import ChunkId, FileId, RecipeId
from dsv.values.names import DatasetName
from dsv.values.paths import show

# The weight of one ranged read, and so the most bytes that it requests (except for a single larger chunk).
SPAN = 8 << 20
# The weight of what may be read before it is used.
READ_AHEAD = 64 << 20
_RECIPES = 64
"""The most files whose recipes are read together."""


class NotItsFile(IntegrityError):
    """The bytes of a file are not those of its id."""


class ReferenceCopy(msgspec.Struct, frozen=True):
    """An older version of a file on local disk, and where known chunks are in it: id -> (offset, length).

    It is only a hint: what is read from it is verified like everything else.
    """

    path: AnyPath
    chunks: Mapping[ChunkId, tuple[int, int]]


class FileChunk(msgspec.Struct, frozen=True):
    """A chunk of a file, with its position in the file."""

    start: int
    length: int
    chunk: ChunkId
    location: Location | None
    """Its location by a locator, if known."""


class Layout:
    """The chunks of a file. The recipes of a large file are read when a range needs them."""

    def __init__(self, objects: Objects, entry: Entry, location: Location | None = None) -> None:
        """location: as in `WantedFile`. Raises `IntegrityError` for a recipe that is not the file's; `Erased`."""
        if (erased := objects.erasures.of(entry)) is not None:
            raise erased_error(show(entry.path), erased)
        self.entry = entry
        self.location = location
        self._rows = None if entry.recipe_id is None else _Rows(objects, entry.recipe_id, location)
        if self._rows is not None and self._rows.size != entry.size:
            raise _not_its_file(entry)

    def parts(self, start: int, stop: int) -> Iterator[FileChunk]:
        """Yield the chunks that have any of the bytes from `start` up to `stop`, in order."""
        stop = min(stop, self.entry.size)
        if start >= stop or self.entry.file_id is None:
            return
        if self._rows is None:
            yield FileChunk(0, self.entry.size, ChunkId(self.entry.file_id), self.location)
        else:
            yield from self._rows.parts(start, stop)


class _Rows:
    """A recipe with the locations of its rows, and the recipe below it that was used last."""

    def __init__(
        self,
        objects: Objects,
        recipe_id: RecipeId,
        where: Location | None,
        said: tuple[int, int] | None = None,
    ) -> None:
        self._objects = objects
        self._recipe, self._locator = objects.recipe(recipe_id, where, said)
        self._ends = list(accumulate(self._recipe.lengths))
        self._below: tuple[int, _Rows] | None = None

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def parts(
        self, start: int, stop: int, at: int = 0, seen: set[bytes] | None = None
    ) -> Iterator[FileChunk]:
        """Do what `Layout.parts` does; `at` is where this recipe's content begins in the file. seen: recipes
        to leave out, to which those opened are added."""
        row = bisect_right(self._ends, start - at)
        while row < len(self._ends):
            first = at + (self._ends[row - 1] if row else 0)
            if first >= stop:
                return
            child, length = self._recipe.ids[32 * row : 32 * row + 32], at + self._ends[row] - first
            if self._recipe.level == 0:
                yield FileChunk(first, length, ChunkId(child), place_at(self._locator, row))
            elif seen is None or child not in seen:
                if seen is not None:
                    seen.add(child)
                yield from self._at(row, RecipeId(child), length).parts(start, stop, first, seen)
            row += 1

    def _at(self, row: int, child: RecipeId, length: int) -> _Rows:
        below = self._below
        if below is None or below[0] != row:
            where, said = place_at(self._locator, row), (self._recipe.level - 1, length)
            below = self._below = row, _Rows(self._objects, child, where, said)
        return below[1]


class WantedFile(msgspec.Struct, frozen=True):
    """A file to fetch; `location` is that of its chunk or recipe by its segment's locator, if known."""

    entry: Entry
    location: Location | None = None
    reference: ReferenceCopy | None = None
    parts: Sequence[FileChunk] | None = None
    """The chunks of it that are wanted, in order; None for the whole file."""


class _Piece(msgspec.Struct):
    """One wanted chunk of a file. `last` marks a file's end; a file without chunks has a piece with no id.

    fault: why the file has no further pieces, although it is not at its end. is_checked: what was read for it is the
    chunk as it is, without compression.
    """

    wanted: WantedFile
    chunk: ChunkId | None = None
    length: int = 0
    last: bool = True
    fault: IntegrityError | None = None
    is_checked: bool = False

    @property
    def is_file(self) -> bool:
        """Whether its chunk is the whole file."""
        entry = self.wanted.entry
        return entry.recipe_id is None or self.chunk is None or FileId(self.chunk) == entry.file_id


_Read = bytes | IntegrityError
"""The bytes of a piece, or why there are none."""


class Fetcher:
    """Fetches files of one store. For one thread; other threads do the reads."""

    def __init__(
        self,
        objects: Objects,
        dataset: DatasetName | None = None,
        *,
        connections: int = 8,
        budget: int = READ_AHEAD,
        span: int = SPAN,
        views: bool = False,
        by_file: bool = False,
    ) -> None:
        """dataset: of the files, for messages. budget: the weight of what is read ahead or waits to be used,
        about its bytes in memory. span: the weight of one ranged read. views: large pieces are `memoryview`s of
        what was read, for a caller that writes them and keeps none: each holds a whole range in memory. by_file: of
        large files only the whole is checked, after its last piece, for a caller that shows nobody the pieces before.
        It asks again without this for a file that raises `NotItsFile`: there may be another copy of the bad chunk."""
        self._objects = objects
        self._dataset = dataset
        self._connections = connections
        self._budget = budget
        self._span = min(span, budget // 2)
        self._views = views
        self._by_file = by_file
        self._readers: list[RangeReader] = []
        self._read_singly = 0
        self._given_up: WantedFile | None = None

    @property
    def fetched_bytes(self) -> int:
        """Bytes of packs read so far, including gaps between chunks."""
        return self._read_singly + sum(reader.fetched_bytes for reader in self._readers)

    def files(self, wanted: Iterable[WantedFile]) -> Iterator[tuple[WantedFile, Iterator[bytes]]]:
        """Yield each file with its content in pieces, to be consumed before the next file is asked for.

        A content raises `IntegrityError` in place of a piece that is not available, and at the end of a large
        file whose pieces do not match its id. The next file can be asked for after that.
        """
        pieces = self._pieces(wanted)
        for piece, data in pieces:
            if piece.last and piece.is_file and not isinstance(data, IntegrityError):
                yield piece.wanted, iter((data,) if data else ())
            else:
                content = _LargeFile(piece, data, pieces)
                yield piece.wanted, content.read()
                self._given_up = piece.wanted
                content.drain()

    def _pieces(self, wanted: Iterable[WantedFile]) -> Iterator[tuple[_Piece, _Read]]:
        """Yield all pieces in order with their bytes; those that need no request wait in `plan`."""
        plan: deque[_Piece] = deque()
        objects = self._objects
        reader = RangeReader(
            objects.store,
            objects.threads,
            objects.externals,
            connections=self._connections,
            budget=self._budget,
            arrived=partial(_check, self._by_file),  # a method would make a cycle
        )
        self._readers.append(reader)
        asked = spans(self._remote(wanted, plan), self._span)
        for where, piece, stored in reader.read(asked, self._elsewhere):
            while plan[0] is not piece:
                yield self._local(plan.popleft())
            plan.popleft()
            yield piece, self._verified(piece, where, stored)
        while plan:
            yield self._local(plan.popleft())

    def _elsewhere(self, tried: Location, piece: _Piece) -> Location | None:
        assert piece.chunk is not None
        with suppress(IntegrityError):  # of an index file: reported as this piece's
            return self._objects.elsewhere(ObjectKind.CHUNK, tried, piece.chunk)
        return None

    def _remote(self, wanted: Iterable[WantedFile], plan: deque[_Piece]) -> Iterator[tuple[Location, _Piece]]:
        erased = self._objects.erasures
        for wanted_file in self._with_recipes(wanted):
            if (erasure := erased.of(wanted_file.entry)) is not None:
                raise erased_error(self._name(wanted_file.entry), erasure)
            file = self._with_copy(wanted_file)
            try:
                for piece, where in self._expand(file):
                    if file is self._given_up:  # it may have far more pieces
                        plan.append(_Piece(file))
                        break
                    if erased and piece.chunk is not None:
                        self._check_part(file.entry, piece.chunk)
                    place: Location | None = None
                    if piece.chunk is not None and (
                        file.reference is None or piece.chunk not in file.reference.chunks
                    ):
                        place = where
                        if place is None or place.pack.is_external:  # it may be in the store now
                            place = self._objects.find(ObjectKind.CHUNK, piece.chunk)
                    plan.append(piece)
                    if place is not None:
                        yield place, piece
            except IntegrityError as error:
                plan.append(_Piece(file, fault=self._of_file(file.entry, error)))

    def _with_recipes(self, wanted: Iterable[WantedFile]) -> Iterator[WantedFile]:
        """Yield the files. The recipes of neighbours are read together, not one by one."""
        source, erased = iter(wanted), self._objects.erasures
        for first in source:
            if first.entry.recipe_id is None:
                yield first
                continue
            files, size = [first], first.entry.size
            while size < self._budget and len(files) < _RECIPES and (file := next(source, None)) is not None:
                files.append(file)
                size += file.entry.size
            asked = [
                (file.entry.recipe_id, file.location)
                for file in files
                if file.entry.recipe_id is not None and file.parts is None and erased.of(file.entry) is None
            ]
            held = []  # while these are in use, nobody reads them again
            with suppress(IntegrityError):  # reported as its file's
                held = list(self._objects.recipes(asked)) if len(asked) > 1 else []
            yield from files
            held.clear()

    def _check_part(self, entry: Entry, chunk: ChunkId) -> None:
        """Raises `Erased` for a file with a part of an erased one, which was stored while that was erased."""
        found = self._objects.erasures.objects.get((ObjectKind.CHUNK, chunk))
        if found is not None:
            raise erased_error(f"a part of {self._name(entry)}", found)

    def _with_copy(self, file: WantedFile) -> WantedFile:
        """Return the same, with a reference that has all of it, for a store that may not be asked."""
        entry, copy_of = file.entry, self._objects.access.copy_of
        if copy_of is None or not entry.size or entry.file_id is None:
            return file
        chunks = {ChunkId(entry.file_id): (0, entry.size)}
        if entry.recipe_id is not None:
            chunks = reference_chunks(self._objects, entry.recipe_id, file.location)
        return replace(file, reference=ReferenceCopy(copy_of(entry), chunks))

    def _expand(self, file: WantedFile) -> Iterator[tuple[_Piece, Location | None]]:
        entry = file.entry
        if not entry.size or file.parts == ():
            yield _Piece(file), None
            return
        if entry.recipe_id is None and entry.file_id is not None and file.parts is None:
            # One chunk, like most files.
            yield _Piece(file, ChunkId(entry.file_id), entry.size), file.location
            return
        parts = file.parts or Layout(self._objects, entry, file.location).parts(0, entry.size)
        end = entry.size if file.parts is None else file.parts[-1].start + file.parts[-1].length
        for part in parts:
            yield _Piece(file, part.chunk, part.length, part.start + part.length >= end), part.location

    def _verified(self, piece: _Piece, where: Location, stored: memoryview | None) -> _Read:
        assert piece.chunk is not None
        if piece.wanted is self._given_up:
            return b""
        if stored is not None and where.length == piece.length:
            if piece.is_checked:
                data = stored[: where.stored]
                return cast("bytes", data) if self._views else bytes(data)
            with suppress(IntegrityError):
                return checked(ObjectKind.CHUNK, piece.chunk, where, stored[: where.stored])
        return self._read(piece, where)

    def _read(self, piece: _Piece, tried: Location | None = None) -> _Read:
        """Return a chunk by the index. tried: a location without it, or where it was damaged."""
        assert piece.chunk is not None
        try:
            found, _ = self._objects.read_by_index(ObjectKind.CHUNK, piece.chunk, tried)
        except IntegrityError as error:
            return self._of_file(piece.wanted.entry, error)
        self._read_singly += len(found)
        return found if len(found) == piece.length else _not_its_file(piece.wanted.entry)

    def _of_file(self, entry: Entry, error: IntegrityError) -> IntegrityError:
        """Return the error with the name of its file."""
        if error.subject == entry.path.decode(errors="backslashreplace"):
            return error
        name = self._name(entry)
        found = IntegrityError(f"{name} can't be read: {error.message}", subject=name, hint=error.hint)
        found.__cause__ = error
        return found

    def _name(self, entry: Entry) -> str:
        name = entry.path.decode(errors="backslashreplace")
        return name if self._dataset is None else f"{self._dataset}:{name}"

    def _local(self, piece: _Piece) -> tuple[_Piece, _Read]:
        if piece.chunk is None:
            return piece, piece.fault or b""
        data = _read_reference(piece)
        if data is not None and len(data) == piece.length and ChunkId.hash(data) == piece.chunk:
            return piece, data
        offline = self._objects.access.copy_of is not None  # then the reference was changed
        return piece, _damaged_copy(piece.wanted) if offline else self._read(piece)


class _LargeFile:
    """Passes on the pieces of one file, and checks that together they match its id."""

    def __init__(self, first: _Piece, data: _Read, following: Iterator[tuple[_Piece, _Read]]) -> None:
        self._entry = first.wanted.entry
        self._is_whole = first.wanted.parts is None
        self._source = following
        self._next: tuple[_Piece, _Read] | None = (first, data)
        self._hash = blake3()

    def read(self) -> Iterator[bytes]:
        while self._next is not None:
            piece, data = self._next
            if isinstance(data, IntegrityError):
                raise data
            if self._is_whole:
                self._hash.update(data)
            self._next = None if piece.last else next(self._source)
            if self._next is None and self._is_whole and FileId(self._hash.digest()) != self._entry.file_id:
                raise _not_its_file(self._entry)
            yield data

    def drain(self) -> None:
        """Skip what the caller did not consume."""
        while self._next is not None:
            self._next = None if self._next[0].last else next(self._source)


def _check(by_file: bool, where: Location, piece: _Piece, stored: memoryview) -> None:
    """Check a chunk that is stored as it is, in the thread that has read it. Others would grow in memory."""
    kind, is_raw = ObjectKind.CHUNK, where.codec is Codec.RAW and is_possible(ObjectKind.CHUNK, where)
    if is_raw and len(stored) == where.length == piece.length:
        in_store = not where.pack.is_external  # of a file elsewhere, what can't be read is zeros
        later = by_file and in_store and piece.wanted.parts is None and not piece.is_file
        piece.is_checked = later or is_object(kind, piece.chunk or b"", stored)


def _read_reference(piece: _Piece) -> bytes | None:
    """Return the bytes where the reference has the chunk; None if they can't be read."""
    reference = piece.wanted.reference
    assert reference is not None and piece.chunk is not None
    offset, length = reference.chunks[piece.chunk]
    try:  # at once: where others write, opening anything but a file must not hang
        with os.fdopen(open_at(reference.path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # says nothing about the reference
            raise
        return None


def reference_chunks(
    objects: Objects, recipe_id: RecipeId, where: Location | None = None
) -> dict[ChunkId, tuple[int, int]]:
    """Return where each chunk is in a file with this recipe: id -> (offset, length), for a `ReferenceCopy`."""
    rows = _Rows(objects, recipe_id, where)
    found: dict[ChunkId, tuple[int, int]] = {}
    for part in rows.parts(0, rows.size, seen=set()):
        found.setdefault(part.chunk, (part.start, part.length))
    return found


_WIDE = 128 << 20
"""Like `SPAN`, for more than four spans: each pack is read with one request, several at the same time."""


def read_ranges(
    objects: Objects, asked: Sequence[tuple[Layout, int, int]], dataset: DatasetName | None = None
) -> list[bytes]:
    """Return the bytes from a start up to a stop, both within the file, of each file that is asked for.

    Each chunk is read once, and close ones with one request, in any order of the questions. Raises `IntegrityError`.
    """
    files: dict[FileId, tuple[Layout, dict[int, FileChunk]]] = {}
    for layout, start, stop in asked:
        for part in layout.parts(start, stop):
            assert layout.entry.file_id is not None
            files.setdefault(layout.entry.file_id, (layout, {}))[1][part.start] = part
    wanted: list[WantedFile] = []
    for layout, needed in files.values():
        parts = tuple(needed[start] for start in sorted(needed))
        whole = sum(part.length for part in parts) == layout.entry.size
        wanted.append(WantedFile(layout.entry, layout.location, None, None if whole else parts))
    wanted.sort(key=_order)
    total = sum(part.length for _, needed in files.values() for part in needed.values())
    fetcher = Fetcher(objects, dataset, span=SPAN if total <= 4 * SPAN else _WIDE, budget=2 * _WIDE)
    found: dict[FileId, dict[int, bytes]] = {}
    for file, pieces in fetcher.files(wanted):
        assert file.entry.file_id is not None
        found[file.entry.file_id] = dict(zip(sorted(files[file.entry.file_id][1]), pieces, strict=True))
    return [_cut(layout, start, stop, found) for layout, start, stop in asked]


def _cut(layout: Layout, start: int, stop: int, found: Mapping[FileId, Mapping[int, bytes]]) -> bytes:
    taken: list[bytes | memoryview] = []
    for part in layout.parts(start, stop):
        assert layout.entry.file_id is not None
        piece = found[layout.entry.file_id][part.start]
        first, last = max(0, start - part.start), min(part.length, stop - part.start)
        taken.append(piece if last - first == part.length else memoryview(piece)[first:last])
    return taken[0] if len(taken) == 1 and isinstance(taken[0], bytes) else b"".join(taken)


def _order(file: WantedFile) -> tuple[bool, bytes, int]:
    where = file.parts[0].location if file.parts else file.location
    return (True, b"", 0) if where is None else (False, bytes(where.pack), where.offset)


def _damaged_copy(wanted: WantedFile) -> IntegrityError:
    path = "" if wanted.reference is None else str(wanted.reference.path)
    return IntegrityError(
        f"{path} does not hold what its commit has at {show(wanted.entry.path)}",
        subject=path,
        hint="without --offline the store is asked, and dsv cached --check repairs damaged copies",
    )


def _not_its_file(entry: Entry) -> NotItsFile:
    what = "chunk" if entry.recipe_id is None else "recipe"
    return NotItsFile(
        f"the {what} of {show(entry.path)} is not its file {entry.file_id}",
        subject=entry.path.decode(errors="backslashreplace"),
        hint=NOT_OURS,
    )
