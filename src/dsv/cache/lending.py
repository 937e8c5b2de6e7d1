"""Lend files of cached commits to a workspace, which copies them before it asks the store.

Files are copied by shared blocks, or else by their bytes, and each is checked against its id. Other threads
open files, and read small ones, in advance: on a file server each takes several round trips, and a server
that is away must not block the caller.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import msgspec
from blake3 import blake3

from dsv.cache.fill.plan import PathWindow, newest, of_dataset
from dsv.cache.root import CacheRoot, folder_name
from dsv.errors import DsvError
from dsv.files import system
from dsv.files.attributes import ignoring
from dsv.files.descriptors import Opened
from dsv.files.folders import FOLDER_FLAGS
from dsv.files.shared_path import AnyPath, descend
from dsv.files.small_files import write_sparse
from dsv.format.tree import Entry
from dsv.repo.objects.metadata import LocalStore, MetadataCache
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.stable_read import hash_content
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName
from dsv.values.paths import PathSet, sort_key

COMPARED = 5
"""Commits that are compared, besides the wanted one."""
FIND_SECONDS = 5.0
"""The timeout for listing what a cache has."""
LOOK_SECONDS = 30.0
"""The timeout for comparing a few thousand paths, which reads metadata from the cache."""
READ_SECONDS = 30.0
"""The timeout for reading a few MiB. After that the cache counts as unreachable."""
SMALL = 256 << 10
"""The size in bytes of the largest file that is read in one piece."""
_PIECE = 4 << 20
_BATCH_FILES = 64
_BATCH_BYTES = 4 << 20
_REMOTE_THREADS = 16
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_SOURCE_LOST = (errno.EIO, errno.ESTALE)

T = TypeVar("T")
OpenedFile = bytes | int | None
"""A small file's verified content, or a descriptor, or None if the file can't be used."""


class Lender(msgspec.Struct, eq=False):
    """A cached commit, or a part of one."""

    commit: CommitId
    selection: PathSet
    top: int
    """A descriptor of its folder, so everything that is read is this commit's, or missing."""
    tree: TreeReader | None = None
    """None until it is compared with another commit's tree."""

    def has(
        self, wanted: CommitId, entries: Sequence[Entry], open_tree: Callable[[CommitId], TreeReader]
    ) -> list[bool]:
        """Return which of these files of `wanted`, in tree order, it has at their path. Raises `DsvError`."""
        if self.commit == wanted:
            return [entry.path in self.selection for entry in entries]
        if self.tree is None:
            self.tree = open_tree(self.commit)
        leaves = self.tree.leaves()
        last = [sort_key(leaf.child.last) for leaf in leaves]
        places = dict.fromkeys(bisect.bisect_left(last, sort_key(entry.path)) for entry in entries)
        window = PathWindow(self.tree, self.selection, [leaves[at] for at in places if at < len(leaves)])
        known = window.between(entries[0].path, entries[-1].path)
        return [known.get(entry.path, b"")[1:] == entry.file_id for entry in entries]


class LendingCache(msgspec.Struct, eq=False):
    """One cache: its commits of one dataset. `open`, `find` and `copies.get` may hang in the kernel."""

    root: CacheRoot
    lenders: list[Lender]
    """The commits, newest first."""
    copies: MetadataCache
    """Its copies of the store's metadata."""
    open_tree: Callable[[CommitId], TreeReader]
    """Open a tree from local copies of its metadata. Raises `DsvError` if one is missing."""
    looking: TimeoutThreads
    """A thread that compares."""
    reading: TimeoutThreads
    """Threads that open and read files."""
    ahead: int
    """Batches of files to read in advance."""
    clones: bool = True
    """True if blocks can be shared between this cache and the workspace, as far as is known."""
    away: bool = False

    @classmethod
    def open(
        cls, root: CacheRoot, store: StoreId, dataset: DatasetName, own: AnyPath, looking: TimeoutThreads
    ) -> LendingCache | None:
        """Open a cache. Return None if it has nothing of the dataset, or may not be read."""
        lenders: list[Lender] = []
        try:
            for place, record in newest(of_dataset(root, folder_name(dataset), store)):
                with contextlib.suppress(OSError):  # evicted, or not readable by this user
                    lenders.append(
                        Lender(place.commit, record.paths, root.visible(place).descriptor(FOLDER_FLAGS))
                    )
            threads = _REMOTE_THREADS if system.kind_of(root.path).remote else 1
        except (OSError, DsvError):
            return None
        copies = MetadataCache(root.metadata(store))
        metadata = MetadataCache(own, copies)
        open_tree = partial(TreeReader, Objects(LocalStore(str(root.path), metadata), metadata))
        reading = TimeoutThreads("dsv-lend", threads)
        return cls(root, lenders, copies, open_tree, looking, reading, threads + 1) if lenders else None

    def find(self, wanted: CommitId, entries: Sequence[Entry]) -> list[Lender | None]:
        """Return a lender of each of these files of the wanted commit, as far as local metadata shows."""
        found: list[Lender | None] = [None] * len(entries)
        rest = list(range(len(entries)))
        itself = [lender for lender in self.lenders if lender.commit == wanted]
        itself.sort(key=lambda lender: not lender.selection.whole)
        for lender in itself + [lender for lender in self.lenders if lender.commit != wanted][:COMPARED]:
            if not rest:
                break
            try:
                has = lender.has(wanted, [entries[at] for at in rest], self.open_tree)
            except (DsvError, OSError):  # its tree is not on this machine
                self.lenders.remove(lender)
                continue
            for at, there in zip(rest, has, strict=True):
                found[at] = lender if there else None
            rest = [at for at in rest if found[at] is None]
        return found

    def close(self) -> None:
        for lender in self.lenders:
            os.close(lender.top)
        self.looking.close()
        self.reading.close()


class _Away(Exception):
    """The cache did not answer in time."""


class LentFiles:
    """The files that caches lend for one run of paths, by their index in the request."""

    def __init__(
        self, files: dict[int, tuple[LendingCache, Lender, Entry]], leave_out: Callable[[LendingCache], None]
    ) -> None:
        self._leave_out = leave_out
        numbers = sorted(files)
        self._batches = _batches([files[number] for number in numbers])
        self._answers: list[Future[list[OpenedFile]]] = []
        rows = ((number, row) for number, batch in enumerate(self._batches) for row in range(len(batch)))
        self._rows = dict(zip(numbers, rows, strict=True))

    def has(self, at: int) -> bool:
        return at in self._rows

    def take(self, at: int, target: int) -> bool:
        """Write file number `at` to `target`, an empty file open to read and write. Each is taken once.

        Return False, with the target empty, if there is no verified content. Raises `OSError` of the target.
        """
        number, row = self._rows[at]
        shelf, _, entry = self._batches[number][row]
        if shelf.away:
            return False
        try:
            return self._take(shelf, entry, number, row, target)
        except _Away:
            self._leave_out(shelf)
            _empty(target)
            return False

    def _take(self, shelf: LendingCache, entry: Entry, number: int, row: int, target: int) -> bool:
        while len(self._answers) < min(number + 1 + shelf.ahead, len(self._batches)):
            batch = self._batches[len(self._answers)]
            self._answers.append(batch[0][0].reading.ask(partial(_open_all, batch)))
        opened = _wait(self._answers[number])
        found, opened[row] = opened[row], None
        if found is None:
            return False
        if isinstance(found, bytes):
            write_sparse(target, (found,))
            return True
        with Opened(found):
            return self._copy(shelf, found, target, entry)

    def close(self) -> None:
        for answer in self._answers:
            answer.add_done_callback(_close_all)

    def _copy(self, shelf: LendingCache, source: int, target: int, entry: Entry) -> bool:
        if shelf.clones:
            cloned = _clone(source, target)
            # Check the clone, because that is what the workspace gets.
            if cloned and hash_content(target, entry.size) == (entry.file_id, entry.size):
                return True
            os.ftruncate(target, 0)
            if cloned is None or cloned:
                return False
            shelf.clones = False
        digest, size = blake3(), 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            while data := self._read(shelf, source, size):
                digest.update(data)
                size += len(data)
                yield data

        write_sparse(target, pieces())
        if size == entry.size and digest.digest() == entry.file_id:
            return True
        _empty(target)
        return False

    def _read(self, shelf: LendingCache, source: int, offset: int) -> bytes:
        """Return the next piece; nothing at the end or if it can't be read."""
        with contextlib.suppress(OSError):
            return _wait(shelf.reading.ask(partial(os.pread, source, _PIECE, offset)))
        return b""


class Lenders(MetadataCache):
    """Caches that lend files and metadata, opened when first asked, and not asked again after a timeout."""

    def __init__(
        self,
        roots: Sequence[Path],
        store: StoreId,
        dataset: DatasetName,
        own: AnyPath,
        note: Callable[[str], None],
    ) -> None:
        """own: the caller's folder of copies of the store's metadata. note: reports a cache left out."""
        super().__init__(None)
        self._roots = roots
        self._store = store
        self._dataset = dataset
        self._own = own
        self._note = note
        self._found: list[LendingCache] | None = None

    def lend(self, commit: CommitId, entries: Sequence[Entry]) -> LentFiles | None:
        """Return a loan of these files of the commit, in tree order; None if no cache has the dataset."""
        files: dict[int, tuple[LendingCache, Lender, Entry]] = {}
        rest = list(range(len(entries)))
        for shelf in list(self._shelves()):
            if not rest:
                break
            found = self._answer(shelf, partial(shelf.find, commit, [entries[at] for at in rest]))
            lenders = zip(rest, found or [None] * len(rest), strict=True)
            files |= {at: (shelf, lender, entries[at]) for at, lender in lenders if lender is not None}
            rest = [at for at in rest if at not in files]
        return LentFiles(files, self._leave_out) if self._shelves() else None

    def get(self, kind: str, name: str, limit: int) -> bytes | None:
        for shelf in list(self._shelves()):
            if str(shelf.root.metadata(self._store)) != str(self._own):
                data = self._answer(shelf, partial(shelf.copies.get, kind, name, limit))
                if data is not None:
                    return data
        return None

    def close(self) -> None:
        for shelf in self._found or ():
            shelf.close()

    def _answer(self, shelf: LendingCache, look: Callable[[], T]) -> T | None:
        try:
            return shelf.looking.ask(look).result(LOOK_SECONDS)
        except TimeoutError:
            self._leave_out(shelf)
            return None

    def _leave_out(self, shelf: LendingCache) -> None:
        if self._found is not None and shelf in self._found:
            self._found.remove(shelf)
            shelf.away = True
            self._note(f"the cache {shelf.root.path} does not answer, so the store is used")

    def _shelves(self) -> list[LendingCache]:
        if self._found is None:
            self._found = []
            opening: list[tuple[Path, TimeoutThreads, Future[LendingCache | None]]] = []
            for path in self._roots:
                looking = TimeoutThreads("dsv-look")
                open_ = partial(
                    LendingCache.open, CacheRoot(path), self._store, self._dataset, self._own, looking
                )
                opening.append((path, looking, looking.ask(open_)))
            end = time.monotonic() + FIND_SECONDS
            for path, looking, future in opening:
                try:
                    shelf = future.result(max(0.0, end - time.monotonic()))
                except TimeoutError:
                    self._note(f"the cache {path} does not answer, so it is not used")
                    continue
                if shelf is None:
                    looking.close()
                else:
                    self._found.append(shelf)
        return self._found


def _batches(
    files: Sequence[tuple[LendingCache, Lender, Entry]],
) -> list[list[tuple[LendingCache, Lender, Entry]]]:
    """Group neighbours of one cache, so that no batch needs much memory."""
    found: list[list[tuple[LendingCache, Lender, Entry]]] = []
    room = 0
    for file in files:
        size = file[2].size if file[2].size <= SMALL else 0
        most = max(1, min(_BATCH_FILES, os.sysconf("SC_OPEN_MAX") // (4 + 4 * file[0].ahead)))
        if not found or len(found[-1]) >= most or size > room or found[-1][0][0] is not file[0]:
            found.append([])
            room = _BATCH_BYTES
        found[-1].append(file)
        room -= size
    return found


def _open_all(batch: Sequence[tuple[LendingCache, Lender, Entry]]) -> list[OpenedFile]:
    """Open files, but none of a cache that was left out: those are not taken, and may be many batches."""
    return [None if shelf.away else _open(lender.top, entry, shelf.clones) for shelf, lender, entry in batch]


def _open(top: int, entry: Entry, clones: bool) -> OpenedFile:
    try:
        above, _, name = os.fsdecode(entry.path).rpartition("/")
        with Opened(descend(top, above or ".")) as folder:
            descriptor = os.open(name, _OPEN, dir_fd=folder)
    except OSError:  # evicted, or not readable by this user
        return None
    keep = False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return None
        if clones or entry.size > SMALL:
            keep = True
            return descriptor
        data = os.read(descriptor, entry.size + 1)
        return data if len(data) == entry.size and blake3(data).digest() == entry.file_id else None
    except OSError:
        return None
    finally:
        if not keep:
            os.close(descriptor)


def _clone(source: int, target: int) -> bool | None:
    """Share the blocks; return None if the source can't be read. Raises `OSError` if there is no room."""
    with ignoring(_SOURCE_LOST):
        return system.clone(source, target)
    return None


def _close_all(answer: Future[list[OpenedFile]]) -> None:
    if answer.exception() is None:
        for each in answer.result():
            if isinstance(each, int):
                os.close(each)


def _wait(future: Future[T]) -> T:
    try:
        return future.result(READ_SECONDS)
    except TimeoutError:
        raise _Away from None


def _empty(target: int) -> None:
    os.ftruncate(target, 0)
    os.lseek(target, 0, os.SEEK_SET)


class TimeoutThreads:
    """Makes calls in threads of its own, so that callers can wait with a timeout.

    A system call about a file server that is away can't be interrupted. It may continue after its caller's
    timeout, but its thread does not keep the process alive.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._most = threads
        self._started = 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call. For one thread. The future's result raises `TimeoutError` or the call's error."""
        future: Future[T] = Future()
        self._calls.put(lambda: _answer(future, call))
        if self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """End the threads after the queued calls, without waiting for them."""
        for _ in range(self._started):
            self._calls.put(None)
        self._started = self._most

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _answer(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 (the waiting caller gets it)
        future.set_exception(error)
