"""Removal of what killed processes left: trash, intents, expired claims, abandoned fills, drafts.

Several processes may do it at any time: names are random and never used twice, and what was renamed away stays away.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dsv.cache.account import recount
from dsv.cache.claims import INTENT, Claims, LeaseRecord, cancel_intent, read_intent
from dsv.cache.fill import directory
from dsv.cache.fill.directory import finalize
from dsv.cache.fill.workers import read_workers
from dsv.cache.inventory import THREADS, Remembered, find_all, find_visible
from dsv.cache.leases import visible_identity
from dsv.cache.names import remove_dangling
from dsv.cache.policy import EvictionRequest
from dsv.cache.record import ENTRY, SHARE, USED, Extent, used_until
from dsv.cache.removal import Remover
from dsv.cache.root import CachePlace, CacheRoot, explain, remove_probes
from dsv.cache.settings import DEFAULT_UNUSED_FOR, CacheSettings
from dsv.errors import DsvError, Unsupported
from dsv.files.attributes import PROBE, unless_gone
from dsv.files.folders import open_folder
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names
from dsv.values.units import format_bytes, format_count

ABANDONED = 600.0
"""Seconds after which any process may finish what another one should have finished long ago."""
_OLD_DRAFT = 86400.0
_MOST = 10_000  # files that are counted, so that `dsv cached` is fast while a large commit is being deleted
_T = TypeVar("_T")


class Trash(msgspec.Struct, frozen=True):
    """A folder in the trash, with its room on disk."""

    path: Path
    bytes: int = 0
    files: int = 0
    counted: bool = True
    """False if that is not the room of the whole folder."""
    of: str | None = None
    """The place that was evicted, if that is known."""
    error: DsvError | None = None
    """Why it can't be deleted."""

    @property
    def problem(self) -> str | None:
        return None if self.error is None else self.error.message


def find_trash(root: CacheRoot) -> list[Trash]:
    """List and measure the folders in the trash. Raises `OSError` if that fails."""
    folders = (root.trash / name for name in list_names(root.trash))
    measured = [measure(folder) for folder in folders if folder != root.spare_folder and folder.is_dir()]
    return [trash for trash in measured if trash is not None]


def measure(folder: SharedPath) -> Trash | None:
    """Measure the room of a folder, up to `_MOST` files; None if it is empty or missing. Raises `OSError`."""
    room, seen = Extent(), 0
    links: set[tuple[int, int]] = set()
    left, empty, counted = [folder], True, True
    while left:
        try:
            found, folders = _inside(left[-1])
        except PermissionError:  # another user's
            found, folders, empty, counted = [], [], False, False
        left[-1:] = folders
        empty = empty and not found and not folders
        for status in found:
            seen += 1
            if seen > _MOST:
                return Trash(folder.path, room.bytes, room.files, counted=False)
            if (status.st_dev, status.st_ino) not in links:
                links.add((status.st_dev, status.st_ino))
                room += Extent(status.st_blocks * 512, 1)
    return None if empty else Trash(folder.path, room.bytes, room.files, counted=counted)


def _inside(folder: SharedPath) -> tuple[list[os.stat_result], list[SharedPath]]:
    """Return the attributes of a folder's files, and its folders. Without what was just deleted."""
    files: list[os.stat_result] = []
    folders: list[SharedPath] = []
    with unless_gone(), open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(folder / entry.name)
            else:
                with unless_gone():
                    files.append(entry.stat(follow_symlinks=False))
    return files, folders


def _stuck(folder: SharedPath, place: CachePlace | None, error: OSError) -> Trash:
    """Return a folder in the trash that neither an earlier eviction nor this one could delete."""
    trash = Trash(folder.path)
    with contextlib.suppress(OSError):
        trash = measure(folder) or trash
    cause = explain(error, folder, "delete")
    earlier = "an earlier eviction" + (f" of {place}" if place else "")
    size = f"{format_bytes(trash.bytes)} in {format_count(trash.files, 'file')}"
    failure = type(cause)(
        f"{cause.message}; {earlier} left it, {size}",
        subject=str(folder),
        hint=f"see what keeps it (lsattr -R {folder}, or who owns it), then: dsv evict",
    )
    return replace(trash, of=str(place) if place else None, error=failure)


class Sweeper:
    """Clears up once. Several threads visit the places: over NFS each visit takes some round trips."""

    def __init__(
        self, root: CacheRoot, settings: CacheSettings, request: EvictionRequest, remembered: Remembered
    ) -> None:
        self._root = root
        self._remembered = remembered
        self._settings = settings
        self._request = request
        self._hurry = request.everything or request.need is not None
        # Only one remover at a time can tell which name of a file was the last.
        self._deleting = threading.Lock()
        self._lock = threading.Lock()  # for the next three
        self._freed = Extent()
        self._stuck: list[Trash] = []
        self._busy: set[str] = set()
        self._killed = False  # if an evictor was: what it had to pass on to other accounts is not known
        self._now = remembered.now
        self._visible: frozenset[CachePlace] = frozenset()

    def run(self) -> tuple[Extent, list[Trash]]:
        """Return the freed room, and what can't be deleted. Raises `OSError` if the cache is not writable."""
        root, request = self._root, self._request
        seen = find_visible(root)
        self._visible = frozenset(seen.places)
        fills = find_all(root.dot / "fill") if request.only is None else []
        with ThreadPoolExecutor(THREADS, thread_name_prefix="dsv-sweep") as pool:
            self._visit(pool, self._fill, [place for place in fills if place not in request.kept])
            self._visit(pool, self._claims, find_all(root.dot / "claims"))
            self._visit(pool, self._trash, list_names(root.trash))
            self._visit(pool, self._draft, list(root.temporary.iterdir()))
            self._visit(pool, lambda link: remove_dangling(root, *link), seen.links)
            self._visit(pool, self._remove_probes, self._folders_of_probes())
        with contextlib.suppress(DsvError):
            if self._killed:
                recount(root, mend=True)
        return self._freed, self._stuck

    def _visit(
        self, pool: ThreadPoolExecutor, clear: Callable[[_T], None], all_of_them: Iterable[_T]
    ) -> None:
        def ignoring_errors(one: _T) -> None:
            with contextlib.suppress(OSError):
                clear(one)

        for _ in pool.map(ignoring_errors, all_of_them):
            pass  # raises anything but an `OSError`

    def _free(self, room: Extent) -> None:
        with self._lock:
            self._freed += room

    def _fill(self, place: CachePlace) -> None:
        """Give up a fill on which no process has worked for as long as a commit may stay unused."""
        try:
            found = directory.join(self._root, place)
        except Unsupported:  # a newer dsv fills, or will clear up what it left
            return
        if found is None:
            home = self._root.fill(place)
            home.rmdir()
            home.parent.rmdir()
            return
        workers = read_workers(found.workers)
        if any(not worker.gone(self._now) for worker in workers.values()):
            return
        last = max((worker.last_beat for worker in workers.values()), default=found.folder.stat().st_ctime)
        allowed = self._settings.unused_for(place.dataset_name) or DEFAULT_UNUSED_FOR
        if not found.tree.is_dir():
            if self._now - last > ABANDONED:
                finalize(found)
        elif (self._hurry or self._now - last > allowed) and directory.give_up(found):
            self._free(sum((Extent(worker.written, worker.made) for worker in workers.values()), Extent()))

    def _claims(self, place: CachePlace) -> None:
        """End the intents of dead evictors, and remove claims that have expired."""
        facts = self._remembered.read(place)
        claims = facts.claims
        for name in claims.intents:
            if self._is_dead(place, name):
                self._killed = True
                if not cancel_intent(self._root, place, name):
                    self._remove(self._root.trash / name.removeprefix(INTENT), place)
                    self._unlink(place, name)
            else:
                with self._lock:
                    self._busy.add(name.removeprefix(INTENT))
        expired = [claim for claim in claims.every if not claim.valid(self._now)]
        for claim in expired:
            if isinstance(claim, LeaseRecord) and claim.purpose == "run":
                used_until(self._root, place, claim.renewed)
            for name in filter(claim.owns, claims.names):
                self._unlink(place, name)
        if place not in self._visible:
            self._clear_invisible(place, claims)
        elif not claims.intents and not expired:
            self._remembered.trust(place, facts)

    def _clear_invisible(self, place: CachePlace, claims: Claims) -> None:
        if self._root.visible(place).is_dir():
            return
        if visible_identity(self._root, place) is None and not self._root.fill(place).is_dir():
            # A commit is visible before it is recorded, so the recorded one was deleted. A fill keeps its shares.
            for name in claims.names:
                if name.startswith((ENTRY, SHARE)):
                    self._unlink(place, name)
        if self._hurry or not _recent(self._root.claims(place), self._now):
            self._unlink(place, USED)
        remove_empty(self._root, place)

    def _is_dead(self, place: CachePlace, name: str) -> bool:
        record = read_intent(self._root, place, name)
        if record is not None:
            return record.owner.surely_dead() or self._now - record.at > ABANDONED
        with contextlib.suppress(FileNotFoundError):
            return self._now - (self._root.claims(place) / name).stat().st_ctime > ABANDONED
        return False

    def _trash(self, name: str) -> None:
        """Remove a name from the trash, except the folder of an evictor that has not used it yet."""
        folder = self._root.trash / name
        if folder == self._root.spare_folder:
            return
        if not folder.is_dir():  # moved here by a check
            folder.unlink()
            return
        empty = not folder.entries()
        if _recent(folder, self._now) and (empty or not self._hurry or name in self._busy):
            return
        if folder.path not in {one.path for one in self._stuck}:  # already reported with its place
            self._remove(folder, None)

    def _remove(self, folder: SharedPath, place: CachePlace | None) -> None:
        remover = Remover()
        try:
            with self._deleting:
                remover.remove(folder)
        except OSError as error:
            stuck = _stuck(folder, place, error)
            with self._lock:
                self._stuck.append(stuck)
            raise
        finally:
            self._free(remover.removed.room)

    def _draft(self, path: SharedPath) -> None:
        if self._now - path.stat().st_ctime > _OLD_DRAFT:
            if path.is_dir():
                Remover().remove(path)
            else:
                path.unlink()

    def _folders_of_probes(self) -> list[SharedPath]:
        root = self._root
        above = (root.top, root.dot / "fill", root.dot / "claims")
        datasets = list_names(root.dot / "datasets")
        return [root.top, root.room, *(folder / dataset for dataset in datasets for folder in above)]

    def _remove_probes(self, folder: SharedPath) -> None:
        """Remove probes of processes that died while asking for the time: they keep a dataset's folders."""
        found = [path for path in folder.iterdir() if path.name.startswith(PROBE)]
        for path in found:
            if not _recent(path, self._now):
                path.unlink(missing_ok=True)
        if found and folder not in (self._root.top, self._root.room):
            folder.rmdir()  # if nothing else is in it

    def _unlink(self, place: CachePlace, name: str) -> None:
        (self._root.claims(place) / name).unlink(missing_ok=True)


def remove_empty(root: CacheRoot, place: CachePlace) -> None:
    """Remove the empty folders of a place and of its dataset. A process that needs them makes them again."""
    claims = root.claims(place)
    remove_probes(claims)
    for folder in (claims, claims.parent, root.visible(place).parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _recent(path: SharedPath, now: float) -> bool:
    return now - path.stat().st_ctime < ABANDONED
