"""Clearing away what the killed have left: trash, intents, dead claims, fills that nobody goes on with,
drafts.

Everybody may do it at any time, beside everybody else: names are random and never used twice, and what has
fired or was renamed away can't come back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dsv.cache import usage
from dsv.cache.claims import intents
from dsv.cache.claims.claims import Claims, LeaseName, read_claims
from dsv.cache.claims.leases import visible_identity
from dsv.cache.disk import list_names
from dsv.cache.eviction.inventory import find_all
from dsv.cache.eviction.policy import Wish
from dsv.cache.filling import site
from dsv.cache.filling.publish import bury
from dsv.cache.filling.workers import read_workers
from dsv.cache.filling.writer import FILE_TIME
from dsv.cache.layout import CacheRoot, Place
from dsv.cache.record import PREFIX as ENTRY
from dsv.cache.removal import Remover
from dsv.cache.settings import DEFAULT_UNUSED_FOR, CacheSettings
from dsv.cache.usage import Extent
from dsv.fs.attributes import PROBE

# Seconds after which what one process should long have finished is anybody's to finish.
ABANDONED = 600.0
_OLD_DRAFT = 86400.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Stuck:
    """What lies in the trash and could not be deleted. place: what it was a part of, None where that isn't known."""

    path: Path
    place: Place | None
    room: Extent
    error: OSError


class Sweeper:
    """One clearing up. freed: what that left free; stuck: what it could not delete of the trash."""

    def __init__(self, root: CacheRoot, settings: CacheSettings, wish: Wish) -> None:
        self.freed = Extent()
        self.stuck: list[Stuck] = []
        self._root = root
        self._settings = settings
        self._wish = wish
        self._hurry = wish.everything or wish.need is not None
        self._remover = Remover(FILE_TIME * 10**9)
        self._busy: set[str] = set()
        self._now = 0.0

    def run(self) -> None:
        """Raises `OSError` where the cache can't be written at all; what can't be cleared stays."""
        self._now = self._root.now()
        for place in find_all(self._root.dot / "fill"):
            if self._wish.only is None and place not in self._wish.keep:
                self._quietly(self._fill, place)
        for place in find_all(self._root.dot / "claims"):
            self._quietly(self._claims, place)
        for name in list_names(self._root.trash):
            self._quietly(self._trash, name)
        self._drafts()
        self._probes()

    def _quietly(self, clear: Callable[[_T], None], what: _T) -> None:
        with contextlib.suppress(OSError):
            clear(what)

    def _fill(self, place: Place) -> None:
        """Gives up a fill that nobody has worked on for as long as a commit may stay unused."""
        found = site.join(self._root, place)
        if found is None:
            home = self._root.fill(place)
            home.rmdir()
            home.parent.rmdir()
            return
        workers = read_workers(found.workers)
        if any(not worker.gone(self._now) for worker in workers.values()):
            return
        beats = [worker.beat for worker in workers.values()]
        last = max(beats, default=found.folder.stat().st_ctime)
        allowed = self._settings.unused_for(place.dataset_name) or DEFAULT_UNUSED_FOR
        if not found.tree.is_dir():
            if self._now - last > ABANDONED:
                bury(found)
        elif (self._hurry or self._now - last > allowed) and site.give_up(found):
            written = (Extent(worker.written, worker.made) for worker in workers.values())
            self.freed += sum(written, Extent())

    def _claims(self, place: Place) -> None:
        """Ends intents of the dead, and removes what protects nobody any more."""
        claims = read_claims(self._root, place)
        for name in claims.intents:
            if self._is_dead(place, name):
                self._end_intent(place, name)
            else:
                self._busy.add(name.removeprefix(intents.PREFIX))
        self._expired(place, claims)
        visible = self._root.visible(place).is_dir()
        if not visible and visible_identity(self._root, place) is None:
            # Who publishes makes it visible first and records then: what these names tell of has gone.
            for name in claims.names:
                if name.startswith((ENTRY, usage.SHARE)):
                    self._unlink(place, name)
        if not visible:
            if self._hurry or not _recent(self._root.claims(place), self._now):
                self._unlink(place, usage.USED)
            remove_empty(self._root, place)

    def _expired(self, place: Place, claims: Claims) -> None:
        for lease in claims.leases:
            if lease.valid(self._now):
                continue
            if lease.purpose == "run":
                usage.used_until(self._root, place, lease.renewed)
            for name in claims.names:
                found = LeaseName.parse(name)
                if found is not None and found.holder == lease.owner.id:
                    self._unlink(place, name)
        for pin in claims.pins:
            if not pin.valid(self._now):
                self._unlink(place, f"pin-{pin.id}")
        for unknown in claims.unknown:
            if not unknown.valid(self._now):
                self._unlink(place, unknown.name)

    def _is_dead(self, place: Place, name: str) -> bool:
        record = intents.read_intent(self._root, place, name)
        if record is not None:
            return record.owner.surely_dead() or self._now - record.at > ABANDONED
        with contextlib.suppress(FileNotFoundError):
            return self._now - (self._root.claims(place) / name).lstat().st_ctime > ABANDONED
        return False

    def _end_intent(self, place: Place, name: str) -> None:
        if not intents.void(self._root, place, name):
            self._remove(self._root.trash / name.removeprefix(intents.PREFIX), place)
            self._unlink(place, name)

    def _trash(self, name: str) -> None:
        """Removes what lies in the trash, but for the folder of an evictor who has not come to it yet."""
        folder = self._root.trash / name
        if folder == self._root.spare_folder:
            return
        if folder.is_symlink() or not folder.is_dir():  # what a check has moved out of the way
            folder.unlink()
            return
        empty = next(folder.iterdir(), None) is None
        young = _recent(folder, self._now)
        if young and (empty or not self._hurry or name in self._busy):
            return
        if folder not in {one.path for one in self.stuck}:  # which is told with its place
            self._remove(folder, None)

    def _remove(self, folder: Path, place: Place | None) -> None:
        try:
            self._remover.remove(folder)
        except OSError as error:
            rest = Remover(FILE_TIME * 10**9, dry=True)
            with contextlib.suppress(OSError):  # then what could be looked at is counted
                rest.remove(folder)
            self.stuck.append(Stuck(folder, place, rest.removed.room, error))
            raise
        finally:
            self.freed += self._remover.removed.room

    def _drafts(self) -> None:
        for path in self._root.temporary.iterdir():
            with contextlib.suppress(OSError):
                if self._now - path.lstat().st_ctime > _OLD_DRAFT:
                    if path.is_dir() and not path.is_symlink():
                        self._remover.remove(path)
                    else:
                        path.unlink()

    def _probes(self) -> None:
        """What somebody left who died while asking for the time; it would keep a dataset's folders for ever."""
        root = self._root
        self._quietly(self._remove_probes, root.path)
        self._quietly(self._remove_probes, root.room)
        for dataset in list_names(root.dot / "datasets"):
            for above in (root.path, root.dot / "fill", root.dot / "claims"):
                self._quietly(self._remove_probes, above / dataset)

    def _remove_probes(self, folder: Path) -> None:
        found = [path for path in folder.iterdir() if path.name.startswith(PROBE)]
        for path in found:
            if not _recent(path, self._now):
                path.unlink(missing_ok=True)
        if found and folder not in (self._root.path, self._root.room):
            folder.rmdir()  # where nothing else is in it

    def _unlink(self, place: Place, name: str) -> None:
        (self._root.claims(place) / name).unlink(missing_ok=True)


def remove_empty(root: CacheRoot, place: Place) -> None:
    """Removes the folders of a place, and of its dataset, that hold nothing now. Who comes back makes them
    anew.
    """
    claims = root.claims(place)
    with contextlib.suppress(OSError):
        for path in claims.iterdir():
            if path.name.startswith((PROBE, ".dsv-")):  # of who died while asking for the time
                path.rmdir() if path.is_dir() else path.unlink()
    for folder in (claims, claims.parent, root.visible(place).parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _recent(path: Path, now: float) -> bool:
    return now - path.lstat().st_ctime < ABANDONED
