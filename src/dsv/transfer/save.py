"""From files to a tree: contents are read, hashed, cut into chunks and stored, in the order of their paths.

All commits of files use this: `dsv sync`, `dsv put`, `dsv import`, and the code and the output of a run. Each
gives its paths in tree order, and adds the results to a `TreeWriter`.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import compress, repeat
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from dsv.files.descent import Descent, join, split
from dsv.files.errors import about
from dsv.files.process import processors
from dsv.format.columns import cut
from dsv.format.external import ExternalSource
from dsv.format.locator import ObjectKind
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.repo.objects.erasures import naming_file
from dsv.repo.tree.writer import TreeChange
from dsv.transfer.prefetch import FolderItem, Readers, Run, suitable
from dsv.transfer.stable_read import OPEN_FLAGS, ROW, Problem, read_stable, row_of
from dsv.transfer.upload import ContentHasher, StoredContent, Uploader
from dsv.values.ids import FileId
from dsv.values.paths import show
from dsv.values.progress import Progress

ReadInto = Callable[[memoryview], int]
"""Fills a buffer and returns the number of bytes, 0 at the end."""
T = TypeVar("T", bound=FolderItem)

# Progress is reported for several small files at a time: a report costs much, compared with one of them.
_REPORT_FILES, _REPORT_BYTES = 16, 1 << 20
# What SQLite keeps beside a database, and what is in no database without it. The third, x-shm, is made anew from these.
JOURNALS = (b"-wal", b"-journal")
_HDF5 = (b".h5", b".hdf5", b".he5", b".h5ad", b".nc", b".nc4")


class Saved(NamedTuple):
    """A file whose content is stored."""

    stored: StoredContent
    row: bytes = b""
    """Its stat before and after it was read, by `row_of`; empty if it was not read."""
    device: int = 0
    """Its `st_dev`."""
    no_writer: bool = False
    """The answer of `has_no_writer`."""


class FileSaver(AbstractContextManager["FileSaver[T]"], Generic[T]):
    """Stores the files of a folder, read by processes if they are many. A context manager, which ends these.

    files: the largest number of files to expect. jobs: processes for small files; None for a suitable number.
    """

    def __init__(
        self, uploader: Uploader, root: Path, files: int, progress: Progress, jobs: int | None = None
    ) -> None:
        self._uploader = uploader
        self._progress = progress
        self._descent, self._ahead = Descent(root), Descent(root)
        self._begun: dict[bytes, int] = {}
        """Folders of items, with their mtime before the first of them was read."""
        self._hdf5: list[bytes] = []
        self._readers = Readers[T](root, suitable(files, processors()) if jobs is None else jobs - 1)

    def __exit__(self, *_: object) -> None:
        self._readers.__exit__()
        self._ahead.close()
        self._descent.close()

    def save(self, items: Iterable[T]) -> Iterator[tuple[T, Saved | Problem | None]]:
        """Yield each item with its content stored, or None if it has no content. Call it once."""
        files = size = 0
        for run in self._readers.over(self._noting(items)):
            stored = self._store_all(run)
            for item, at in zip(run.items, run.at, strict=True):
                saved = (stored[at] if stored and at >= 0 else None) or self._save(item)
                yield item, saved
                if saved is not None or item.known is not None:
                    files, size = files + 1, size + item.size
                if files == _REPORT_FILES or size >= _REPORT_BYTES:
                    self._progress.advance(files=files, bytes=size)
                    files = size = 0
            self._progress.advance(files=files, bytes=size)
            files = size = 0

    def _noting(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            folder = split(item.path)[0]
            if item.path.endswith(_HDF5):
                self._hdf5.append(item.path)
            if folder not in self._begun:
                with suppress(OSError):  # whoever reads a file there says what is wrong
                    self._begun[folder] = os.fstat(self._ahead.at(folder)).st_mtime_ns
            yield item

    def check_together(
        self, rows_in: Callable[[bytes], Mapping[bytes, bytes]], *, complete: bool = False
    ) -> list[Problem]:
        """Return files that were read at another moment than those that belong to them: a rename has replaced one
        of several with the same beginning, or several, as writers of pairs do it, or they are a SQLite database
        or its journal, and have changed.

        Call it when everything is read. rows_in: returns the files of a folder by name, with the `row_of` of
        what was read, or is known since the folder was listed; empty rows are not compared. complete: it has
        all names that the folder had.
        """
        found: list[Problem] = []
        for folder, begun in self._begun.items():
            with suppress(FileNotFoundError, NotADirectoryError):
                found += self._torn(folder, self._descent.at(folder), begun, rows_in(folder), complete)
        for path in self._hdf5:
            self._note_open_hdf5(path)
        return found

    def _note_open_hdf5(self, path: bytes) -> None:
        folder, name = split(path)
        with suppress(OSError), os.fdopen(os.open(name, OPEN_FLAGS, dir_fd=self._descent.at(folder))) as file:
            start = os.read(file.fileno(), 24).ljust(24, b"\0")  # 1 marks a writer, 4 one of SWMR
            if start[:8] == b"\x89HDF\r\n\x1a\n" and start[20 if start[8] < 2 else 11] & 5:
                self._progress.note(
                    f"{show(path)} is open for writing, or was not closed, and may lack data: close it and run this "
                    f"again; if its program has ended, h5clear -s {show(path)} ends this note"
                )

    def _torn(
        self, folder: bytes, at: int, begun: int, rows: Mapping[bytes, bytes], complete: bool
    ) -> list[Problem]:
        renamed = os.fstat(at).st_mtime_ns != begun
        names = rows.keys() | set(map(os.fsencode, os.listdir(at)))
        found = (name for name in names if name.endswith(JOURNALS))
        journals = {name: base for name in found if rows.get(base := name.rpartition(b"-")[0])}
        grouped = {*journals, *journals.values()}
        torn, replaced = list[bytes](), list[bytes]()
        for name in sorted(grouped | rows.keys() if renamed else grouped):
            row, now = rows.get(name), b""
            with suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=at, follow_symlinks=False)
                now = row_of(info)
                if name in journals and info.st_size:
                    self._progress.note(
                        f"{show(join(folder, name))} is not empty: a program uses the database, or has not closed "
                        f"it. sqlite3 {show(journals[name])} \"VACUUM INTO 'copy.db'\" makes one whole file"
                    )
            if name not in grouped and not (now and row and now[:8] != row[:8]):
                continue  # not replaced; some file systems give inodes new numbers
            came = row is None and now and (renamed or complete)
            if came or (row and now[8:] != row[8:]):
                (torn if name in grouped else replaced).append(name)
        stems = Counter(name.partition(b".")[0] for name in names)
        if len(replaced) > 1 or any(stems[name.partition(b".")[0]] > 1 for name in replaced):
            torn += replaced  # one alone was read whole
        why = "it changed while what belongs to it was read"
        return [Problem(join(folder, name), why, True) for name in torn]

    def _store_all(self, run: Run[T]) -> list[Saved | None]:
        batch = run.batch
        if batch is None or run.memory is None or not any(batch.read):
            return []
        packed = batch.packed(run.sizes, run.memory)
        if erasures := self._uploader.erasures:
            for path, one in zip(compress(run.paths, batch.read), packed.ids, strict=True):
                with naming_file(path):
                    erasures.check_new(ObjectKind.CHUNK, one)
        places = self._uploader.add_all(packed)
        stored = map(StoredContent, packed.lengths, map(FileId, packed.ids), repeat(None), places)
        columns = zip(
            batch.read, cut(batch.rows, ROW.size), array("Q", batch.devices), batch.no_writer, strict=True
        )
        return [
            Saved(next(stored), row, device, bool(no_writer)) if read else None
            for read, row, device, no_writer in columns
        ]

    def _save(self, item: T) -> Saved | Problem | None:
        """Store one item. Read it only if the store may lack its content."""
        if not item.is_file:
            return None
        known = item.known
        if known is not None and known.file_id is not None:
            stored = self._uploader.find(known.size, known.file_id, known.recipe_id)
            if stored is not None:
                return Saved(stored)
        return save_file(self._uploader, self._descent, item.path)


def save_file(uploader: ContentHasher, descent: Descent, path: bytes) -> Saved | Problem:

    def upload(descriptor: int, size: int) -> tuple[StoredContent, int]:
        if size > SINGLE_CHUNK_MAX:
            stored = uploader.add_stream(lambda buffer: os.readv(descriptor, [buffer]))
            return stored, stored.size
        # One byte more is requested, so that exactly `size` bytes are the whole file without another call.
        data = os.read(descriptor, size + 1)
        while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
            data += more
        if len(data) > SINGLE_CHUNK_MAX:  # it has just grown, and is read again
            return StoredContent(size, FileId.hash(data), None, None), len(data)
        return uploader.add_bytes(data), len(data)

    with naming_file(path):
        found = read_stable(descent, path, upload)
    if isinstance(found, Problem):
        return found
    return Saved(found.value, row_of(found.stat), found.stat.st_dev, found.no_writer)


@dataclass(slots=True, eq=False)
class NewContent:
    """The future content of a path of a tree: a file yet to be stored, a symlink, or an empty folder."""

    kind: Kind
    """As it was found; updated when the file is read."""
    size: int = 0
    root: Path | None = None
    """The folder on this machine that has the file."""
    path: bytes = b""
    """The path in that folder. No symlink is on the way to it."""
    target: bytes | None = None
    open: Callable[[], ReadInto] | None = None
    """Opens, from its start, a content that is not a file of this machine."""
    order: int = 0
    """The position in an archive, which is read from start to end."""
    stored: StoredContent | None = None
    """The content, once it is stored; perhaps by an attempt that lost a race, or by an earlier import."""
    reference: Callable[[], ExternalSource] | None = None
    """Returns the reference to record instead of storing the content. Called after some of it was read."""

    @property
    def is_file(self) -> bool:
        return self.kind in (Kind.FILE, Kind.EXECUTABLE)

    @property
    def known(self) -> Entry | None:
        return None if self.stored is None else self.entry(self.path)

    def entry(self, path: bytes) -> Entry | None:
        """Return the entry for a path of a tree; None for a file that could not be stored."""
        if not self.is_file:
            return Entry(path, self.kind, target=self.target)
        if self.stored is None:
            return None
        return Entry(path, self.kind, self.stored.size, self.stored.file_id, self.stored.recipe_id)

    def change(self, path: bytes) -> TreeChange | None:
        """Return the change that puts this at a path; None for a file that could not be stored."""
        entry = self.entry(path)
        if entry is None:
            return None
        return TreeChange(path, entry, None if self.stored is None else self.stored.location)


OnStored = Callable[[Uploader, NewContent, StoredContent], None]
"""Called for each content that was opened and stored, but is not yet durable."""


def save_sources(
    uploader: Uploader,
    sources: Iterable[NewContent],
    progress: Progress,
    on_stored: OnStored = lambda *_: None,
) -> list[Problem]:
    """Store the contents that are not stored yet; return the files that could not be read.

    Files of one folder should follow each other in the order of their paths.
    """
    problems: list[Problem] = []
    rest = [source for source in sources if source.is_file and not _is_stored(uploader, source)]
    rest.sort(key=lambda source: source.order)
    progress.start(len(rest), sum(source.size for source in rest))
    start = 0
    while start < len(rest):
        root, end = rest[start].root, start + 1
        while end < len(rest) and rest[end].root == root and root is not None:
            end += 1
        if root is None:
            source = rest[start]
            if not _is_stored(uploader, source):  # by an earlier one with the same content
                _save_opened(uploader, source, on_stored)
            progress.advance(files=1, bytes=source.size)
        else:
            problems += _save_folder(uploader, root, rest[start:end], progress)
        start = end
    progress.finish()
    return problems


def _is_stored(uploader: Uploader, source: NewContent) -> bool:
    """Return whether the content was stored before, and the store still has all of it."""
    if source.stored is None:
        return False
    known, outside = source.stored, source.reference is not None
    stored = uploader.find(known.size, known.file_id, known.recipe_id, outside=outside)
    source.stored = stored or source.stored
    return stored is not None


def _save_opened(uploader: Uploader, source: NewContent, on_stored: OnStored) -> None:
    assert source.open is not None
    uploader.source = source.reference
    try:
        with naming_file(source.path):
            stored = uploader.add_unsized(source.open())
    finally:
        uploader.source = None
    source.stored, source.size = stored, stored.size
    on_stored(uploader, source, stored)


def _save_folder(
    uploader: Uploader, root: Path, sources: list[NewContent], progress: Progress
) -> list[Problem]:
    problems: list[Problem] = []
    rows: dict[bytes, dict[bytes, bytes]] = {}
    with about(root), FileSaver[NewContent](uploader, root, len(sources), progress) as saver:
        for source, saved in saver.save(sources):
            if isinstance(saved, Problem):
                problems.append(saved)
            elif saved is not None:
                source.stored, source.size = saved.stored, saved.stored.size
                if saved.row:
                    source.kind = Kind.EXECUTABLE if ROW.unpack(saved.row)[4] & 0o100 else Kind.FILE
                    folder, name = split(source.path)
                    rows.setdefault(folder, {})[name] = saved.row
        torn = {one.path: one for one in saver.check_together(lambda folder: rows.get(folder, {}))}
        for source in sources:
            if source.path in torn:
                source.stored = None
    return [*problems, *torn.values()]
