"""Lend files of cached commits to a workspace, which copies them before it asks the store.

A shelf is what one cache has of a dataset. Its files are copied by shared blocks, else by their bytes, and each is
proven against its id. They are opened, and small ones read, ahead of their turn and by other threads: on a file server
each is several round trips, and a server that is away must hold nobody up.
"""

from __future__ import annotations

import bisect
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from blake3 import blake3

from dsv.cache.fill.donors import newest, of_dataset
from dsv.cache.layout import folder_name
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError
from dsv.format.columns import cut
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Kind
from dsv.fs import system
from dsv.fs.timeout_thread import Patient
from dsv.repo.local_store import LocalStore
from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId, SegmentId, StoreId
from dsv.values.names import DatasetName
from dsv.values.paths import PathSet, sort_key

OpenTree = Callable[[CommitId], TreeReader]
"""The tree of a commit, by local copies of its metadata. Raises `DsvError` if one is missing."""

_OTHERS = 5
"""Commits that are compared, besides the one that is wanted."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Lender(msgspec.Struct):
    """A cached commit, or a part of one. top: descriptor of its folder, so that what is read stays this commit's, or
    is gone. tree: None until it is compared with another commit's.
    """

    commit: CommitId
    selection: PathSet
    top: int
    tree: TreeReader | None = None
    _last: list[bytes] = msgspec.field(default_factory=list)
    _read: dict[SegmentId, dict[bytes, bytes]] = msgspec.field(default_factory=dict)

    def has(self, wanted: CommitId, entries: Sequence[Entry], open_tree: OpenTree) -> list[bool]:
        """Which of these files of the wanted commit, in tree order, it has at the same path. Raises `DsvError`."""
        if self.commit == wanted:
            return [entry.path in self.selection for entry in entries]
        known = self._known(entries, open_tree)
        return [known.get(entry.path) == entry.file_id and entry.path in self.selection for entry in entries]

    def _known(self, entries: Sequence[Entry], open_tree: OpenTree) -> dict[bytes, bytes]:
        """Path -> id of every file in the segments that may have one of these paths."""
        if self.tree is None:
            self.tree = open_tree(self.commit)
            self._last = [sort_key(leaf.child.last) for leaf in self.tree.leaves()]
        leaves, last = self.tree.leaves(), self._last
        places = dict.fromkeys(bisect.bisect_left(last, sort_key(entry.path)) for entry in entries)
        chosen = [leaves[at] for at in places if at < len(leaves)]
        before, self._read = self._read, {}
        missing = [leaf for leaf in chosen if leaf.id not in before]
        for leaf, located in zip(missing, self.tree.segments(missing), strict=True):
            before[leaf.id] = _files(located.segment)
        self._read = {leaf.id: before[leaf.id] for leaf in chosen[-1:]}  # the next entries may begin in it
        return {path: file_id for leaf in chosen for path, file_id in before[leaf.id].items()}


def _files(segment: Segment) -> dict[bytes, bytes]:
    kinds = zip(segment.paths, segment.kinds, strict=True)
    paths = (path for path, kind in kinds if kind <= Kind.EXECUTABLE)
    return dict(zip(paths, cut(segment.file_ids, 32), strict=True))


class Shelf(msgspec.Struct):
    """One cache: its commits of one dataset, those that the next file is looked for in first. remote: on a file server.

    Whoever calls this may hang in the kernel.
    """

    root: CacheRoot
    remote: bool
    lenders: list[Lender]

    @classmethod
    def open(cls, root: CacheRoot, store: StoreId, dataset: DatasetName) -> Shelf | None:
        """None if this cache has nothing of the dataset, or may not be read."""
        lenders: list[Lender] = []
        try:
            for one in newest(list(of_dataset(root, folder_name(dataset), store))):
                with suppress(OSError):  # evicted, or not for this user
                    top = os.open(root.visible(one.place), _FOLDER)
                    lenders.append(Lender(one.place.commit, one.selection, top))
            return cls(root, system.kind_of(root.path).remote, lenders) if lenders else None
        except (OSError, DsvError):
            return None

    def find(self, wanted: CommitId, entries: Sequence[Entry], open_tree: OpenTree) -> list[Lender | None]:
        """Who has each of these files of the wanted commit, as far as local copies of metadata tell."""
        found: list[Lender | None] = [None] * len(entries)
        open_ = list(range(len(entries)))
        for lender in self._order(wanted):
            if not open_:
                break
            try:
                has = lender.has(wanted, [entries[at] for at in open_], open_tree)
            except (DsvError, OSError):  # its tree is not known here
                self.lenders.remove(lender)
                continue
            for at, there in zip(open_, has, strict=True):
                found[at] = lender if there else None
            open_ = [at for at in open_ if found[at] is None]
        return found

    def _order(self, wanted: CommitId) -> list[Lender]:
        itself = [lender for lender in self.lenders if lender.commit == wanted]
        itself.sort(key=lambda lender: not lender.selection.whole)
        return itself + [lender for lender in self.lenders if lender.commit != wanted][:_OTHERS]

    def close(self) -> None:
        for lender in self.lenders:
            os.close(lender.top)


READ_SECONDS = 30.0
"""How long a read of a few MiB may take before its cache counts as away."""
SMALL = 256 << 10
"""Bytes of the largest file that is read in one piece."""
_PIECE = 4 << 20
_BATCH_FILES = 64
_BATCH_BYTES = 4 << 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_SOURCE_LOST = (errno.EIO, errno.ESTALE)

T = TypeVar("T")
Opened = bytes | int | None
"""A small file's proven content, or a descriptor, or nothing that could be used."""


class Away(Exception):
    """The cache did not answer in time."""


class Ways(msgspec.Struct):
    """clones: whether blocks can be shared between this cache and the workspace, as far as is known."""

    clones: bool = True


class LentFiles:
    """The files that one cache lends for one run of paths, in their order."""

    def __init__(
        self, files: Sequence[tuple[Lender, Entry]], patient: Patient, ahead: int, ways: Ways
    ) -> None:
        """ahead: how many batches are read in advance."""
        self._patient = patient
        self._ahead = ahead
        self._ways = ways
        self._batches = _batches(files)
        self._answers: list[Future[list[Opened]]] = []
        self._place = [
            (number, row) for number, batch in enumerate(self._batches) for row in range(len(batch))
        ]

    def take(self, at: int, target: int) -> bool:
        """Fills `target`, an empty file open for reading and writing, with file number `at`; each is taken once.

        False if it can't be had as it should be; the target is empty then. Raises `Away`, and `OSError` of the target.
        """
        number, row = self._place[at]
        while len(self._answers) < min(number + 1 + self._ahead, len(self._batches)):
            batch = self._batches[len(self._answers)]
            self._answers.append(self._patient.ask(partial(_open_all, batch, self._ways.clones)))
        opened = self._wait(self._answers[number])
        found, opened[row] = opened[row], None
        if found is None:
            return False
        if isinstance(found, bytes):
            _write(target, found)
            return True
        try:
            return self._copy(found, target, self._batches[number][row][1])
        finally:
            os.close(found)

    def close(self) -> None:
        """Closes what was opened and not taken."""
        for answer in self._answers:
            answer.add_done_callback(_close_all)

    def _copy(self, source: int, target: int, entry: Entry) -> bool:
        if self._ways.clones:
            cloned = _clone(source, target)
            if (
                cloned and _hash(target) == entry.file_id
            ):  # of the clone: what the workspace gets is what is proven
                return True
            os.ftruncate(target, 0)
            if cloned is None or cloned:
                return False
            self._ways.clones = False
        proof, size = blake3(), 0
        while data := self._read(source, size):
            proof.update(data)
            size += len(data)
            _write(target, data)
        if size == entry.size and proof.digest() == entry.file_id:
            return True
        os.ftruncate(target, 0)
        os.lseek(target, 0, os.SEEK_SET)
        return False

    def _read(self, source: int, offset: int) -> bytes:
        """The next piece; nothing at the end, or if it can't be read."""
        try:
            return self._wait(self._patient.ask(partial(os.pread, source, _PIECE, offset)))
        except OSError:
            return b""

    def _wait(self, future: Future[T]) -> T:
        try:
            return future.result(READ_SECONDS)
        except TimeoutError:
            raise Away from None


def _batches(files: Sequence[tuple[Lender, Entry]]) -> list[list[tuple[Lender, Entry]]]:
    found: list[list[tuple[Lender, Entry]]] = []
    room = 0
    for file in files:
        size = file[1].size if file[1].size <= SMALL else 0
        if not found or len(found[-1]) == _BATCH_FILES or size > room:
            found.append([])
            room = _BATCH_BYTES
        found[-1].append(file)
        room -= size
    return found


def _open_all(batch: Sequence[tuple[Lender, Entry]], clones: bool) -> list[Opened]:
    return [_open(lender.top, entry, clones) for lender, entry in batch]


def _open(top: int, entry: Entry, clones: bool) -> Opened:
    try:
        descriptor = os.open(entry.path, _OPEN, dir_fd=top)
    except OSError:  # evicted, or not for this user
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
    """None if the source can't be read. Raises `OSError` if there is no room."""
    try:
        return system.clone(source, target)
    except OSError as error:
        if error.errno in _SOURCE_LOST:
            return None
        raise


def _hash(descriptor: int) -> bytes:
    proof, size = blake3(), 0
    while data := os.pread(descriptor, _PIECE, size):
        proof.update(data)
        size += len(data)
    return proof.digest()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _close_all(answer: Future[list[Opened]]) -> None:
    if answer.exception() is None:
        for each in answer.result():
            if isinstance(each, int):
                os.close(each)


FIND_SECONDS = 5.0
"""How long a cache may take to say what it has."""
LOOK_SECONDS = 30.0
"""How long it may take to compare a few thousand paths, for which metadata is read from it."""
_REMOTE_THREADS = 16


class _Open(msgspec.Struct):
    """A cache that has answered. looking: one thread, which compares; reading: those that open and read files."""

    shelf: Shelf
    looking: Patient
    reading: Patient
    ahead: int
    ways: Ways
    open_tree: Callable[[CommitId], TreeReader]
    away: bool = False


class Lenders:
    """Looks into the caches when first asked. A cache that does not answer in time is not asked again."""

    def __init__(
        self,
        roots: Sequence[Path],
        store: StoreId,
        dataset: DatasetName,
        own: Path,
        note: Callable[[str], None],
    ) -> None:
        """own: the folder of one's own local copies of the store's metadata. note: tells a person that a cache is left
        out.
        """
        self._roots = roots
        self._store = store
        self._dataset = dataset
        self._own = own
        self._note = note
        self._found: list[_Open] | None = None

    def lend(self, commit: CommitId, entries: Sequence[Entry]) -> Loan | None:
        """What there is of these files of the commit, in tree order; None if no cache has anything of the dataset."""
        loans: list[tuple[_Open, LentFiles]] = []
        places: list[tuple[int, int] | None] = [None] * len(entries)
        rest = list(range(len(entries)))
        for one in list(self._caches()):
            if not rest:
                break
            asked = [entries[at] for at in rest]
            look = partial(one.shelf.find, commit, asked, one.open_tree)
            found = self._answer(one, one.looking.ask(look), LOOK_SECONDS)
            files: list[tuple[Lender, Entry]] = []
            for at, lender in zip(rest, found or (), strict=bool(found)):
                if lender is not None:
                    places[at] = len(loans), len(files)
                    files.append((lender, entries[at]))
            if files:
                loans.append((one, LentFiles(files, one.reading, one.ahead, one.ways)))
            rest = [at for at in rest if places[at] is None]
        return Loan(self, loans, places) if self._caches() else None

    def copies(self) -> MetadataCache:
        """The caches' copies of metadata, for what has no copy of one's own."""
        return _LentMetadata(self)

    def read_metadata(self, kind: str, name: str, limit: int) -> bytes | None:
        for one in list(self._caches()):
            behind = one.shelf.root.metadata(self._store)
            if behind == self._own:
                continue
            copies = MetadataCache(behind)
            data = self._answer(one, one.looking.ask(partial(copies.get, kind, name, limit)), LOOK_SECONDS)
            if data is not None:
                return data
        return None

    def leave_out(self, one: _Open) -> None:
        """The cache is not asked again."""
        if self._found is not None and one in self._found:
            self._found.remove(one)
            one.away = True
            self._note(f"the cache {one.shelf.root.path} does not answer, so the store is used")

    def close(self) -> None:
        for one in self._found or ():
            one.shelf.close()
            one.looking.close()
            one.reading.close()

    def _answer(self, one: _Open, future: Future[T], seconds: float) -> T | None:
        try:
            return future.result(seconds)
        except TimeoutError:
            self.leave_out(one)
            return None

    def _caches(self) -> list[_Open]:
        if self._found is None:
            self._found = []
            asked = [(path, Patient("dsv-look")) for path in self._roots]
            opening = [
                (path, patient, patient.ask(partial(Shelf.open, CacheRoot(path), self._store, self._dataset)))
                for path, patient in asked
            ]
            end = time.monotonic() + FIND_SECONDS
            for path, patient, future in opening:
                try:
                    shelf = future.result(max(0.0, end - time.monotonic()))
                except TimeoutError:
                    self._note(f"the cache {path} does not answer, so it is not used")
                    continue
                if shelf is None:
                    patient.close()
                else:
                    self._found.append(self._opened(shelf, patient))
        return self._found

    def _opened(self, shelf: Shelf, looking: Patient) -> _Open:
        threads = _REMOTE_THREADS if shelf.remote else 1
        metadata = MetadataCache(self._own, MetadataCache(shelf.root.metadata(self._store)))
        objects = Objects(LocalStore(str(shelf.root.path), metadata), metadata)
        reading = Patient("dsv-lend", threads)
        return _Open(shelf, looking, reading, threads + 1, Ways(), partial(TreeReader, objects))


class Loan:
    """Files that caches lend, by their number in what was asked for."""

    def __init__(
        self,
        lenders: Lenders,
        loans: Sequence[tuple[_Open, LentFiles]],
        places: Sequence[tuple[int, int] | None],
    ) -> None:
        self._lenders = lenders
        self._loans = loans
        self._places = places

    def has(self, at: int) -> bool:
        return self._places[at] is not None

    def take(self, at: int, target: int) -> bool:
        """As `LentFiles.take`, but a cache that does not answer has nothing."""
        place = self._places[at]
        if place is None:
            return False
        one, files = self._loans[place[0]]
        if one.away:
            return False
        try:
            return files.take(place[1], target)
        except Away:
            self._lenders.leave_out(one)
            os.ftruncate(target, 0)
            os.lseek(target, 0, os.SEEK_SET)
            return False

    def close(self) -> None:
        for _, files in self._loans:
            files.close()


class _LentMetadata(MetadataCache):
    """Copies in caches that may be away."""

    def __init__(self, lenders: Lenders) -> None:
        super().__init__(None)
        self._lenders = lenders

    def get(self, kind: str, name: str, limit: int) -> bytes | None:
        return self._lenders.read_metadata(kind, name, limit)
