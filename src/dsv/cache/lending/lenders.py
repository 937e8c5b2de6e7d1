"""What the caches of this machine have of a dataset, for a workspace to copy before the store is asked.

Nothing is written to a cache, and nothing is claimed: an evictor may take a commit away at any time, and what is gone,
damaged or out of reach is fetched from the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from dsv.cache.lending.lent_files import Away, LentFiles, Ways
from dsv.cache.lending.shelf import Lender, Shelf
from dsv.cache.root import CacheRoot
from dsv.format.tree import Entry
from dsv.fs.timeout_thread import Patient
from dsv.repo.local_store import LocalStore
from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName

FIND_SECONDS = 5.0
"""How long a cache may take to say what it has."""
LOOK_SECONDS = 30.0
"""How long it may take to compare a few thousand paths, for which metadata is read from it."""
_REMOTE_THREADS = 16

T = TypeVar("T")


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
