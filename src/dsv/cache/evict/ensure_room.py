"""Making room for a fill, within the disk and the owner's limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dsv.cache.evict.evict import (
    EvictionResult,
    Stock,
    disk_now,
    evict_from,
    keep,
    preview_from,
    remember,
    sweep,
    take_stock,
)
from dsv.cache.evict.policy import EvictionRequest, Planner
from dsv.cache.evict.remembered_claims import Remembered
from dsv.cache.fill.reservations import Need, NoRoomBeside
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheSettings, load_settings
from dsv.cache.usage import Extent
from dsv.fs.files import list_names
from dsv.values.units import format_bytes

_MOST = 10_000  # files that are counted, so that `dsv cached` takes no time for a large commit that is being deleted


class Trash(msgspec.Struct, frozen=True):
    """room: what it takes on disk; counted: whether that is all of it."""

    path: Path
    room: Extent
    counted: bool


def find_trash(root: CacheRoot) -> list[Trash]:
    """Raises `OSError`."""
    found = []
    for name in list_names(root.trash):
        folder = root.trash / name
        if folder == root.spare_folder or folder.is_symlink() or not folder.is_dir():
            continue
        trash = measure(folder)
        if trash is not None:
            found.append(trash)
    return found


def measure(folder: Path) -> Trash | None:
    """Counts the room that a folder takes, up to some files; None for an empty folder, or none. Raises `OSError`."""
    room, seen = Extent(), 0
    links: set[tuple[int, int]] = set()
    empty = True
    for below, folders, files in os.walk(folder):
        empty = empty and not folders and not files
        for name in files:
            seen += 1
            if seen > _MOST:
                return Trash(folder, room, counted=False)
            try:
                status = (Path(below) / name).lstat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            if (status.st_dev, status.st_ino) not in links:
                links.add((status.st_dev, status.st_ino))
                room += Extent(status.st_blocks * 512, 1)
    return None if empty else Trash(folder, room, counted=True)


_REST = 100  # all commits are looked at again once this takes at most so small a part of the time


class _Known(msgspec.Struct, frozen=True):
    """What was cached when there was room for the fill. until: when it is too old, by the clock."""

    stock: Stock
    until: float


class RoomMaker:
    """Makes room for one fill, each time that it asks.

    A fill asks every few seconds, and a look at all commits of a large cache takes time. Mostly the free space and the
    reservations show that there is room. All commits are looked at if not, and also, if the owner limits how much
    may be cached, the first time and once in a while. The limits are read each time, as they may change.
    """

    def __init__(self, root: CacheRoot, dataset: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._dataset = dataset
        self._clock = clock
        self._known: _Known | None = None

    def __call__(self, need: Need, /) -> None:
        """Raises `NoRoomBeside` with the figures."""
        settings = load_settings(self._root)
        request = _request(self._dataset, need)
        if self._has_room_at_a_glance(settings, request):
            return
        self._known = None
        began = self._clock()
        remembered = remember(self._root)
        stock = take_stock(self._root, request, remembered)
        keep(self._root, remembered, stock)
        if stock.planner(settings, request).exceeded():
            _evict_for(self._root, settings, request, need, remembered)
        else:
            now = self._clock()
            self._known = _Known(stock, now + _REST * (now - began))

    def _has_room_at_a_glance(self, settings: CacheSettings, request: EvictionRequest) -> bool:
        """By what was cached a while ago: a fill that has ended since then had counted this one before it began."""
        disk = disk_now(self._root, request.place)
        if not settings.limits_content(self._dataset):
            return not Planner((), settings, disk, 0.0, request).exceeded()
        known = self._known
        if known is None or self._clock() >= known.until:
            return False
        return not replace(known.stock, disk=disk).planner(settings, request).exceeded()


def ensure_room(root: CacheRoot, settings: CacheSettings, dataset: str, need: Need) -> EvictionResult:
    """Returns when the need fits the disk and the owner's limits beside all other fills.

    Evicts for that, unless it would not help enough. dataset: of what is to be cached. Raises `NoRoomBeside` with the
    figures.
    """
    request = _request(dataset, need)
    remembered = remember(root)
    if not take_stock(root, request, remembered).planner(settings, request).exceeded():
        return EvictionResult()
    return _evict_for(root, settings, request, need, remembered)


def _evict_for(
    root: CacheRoot, settings: CacheSettings, request: EvictionRequest, need: Need, remembered: Remembered
) -> EvictionResult:
    swept = sweep(root, settings, request, remembered)
    stock = take_stock(root, request, remembered, swept.facts)
    # Exactly: the records alone would have a commit free all that it wrote, even if others that stay link it.
    foreseen = preview_from(root, settings, request, stock)
    if foreseen.exceeded:
        raise _no_room(settings, need, foreseen)
    result = evict_from(root, settings, request, stock)
    if result.exceeded:
        raise _no_room(settings, need, result)
    result.leftovers += swept.freed
    return result


def _request(dataset: str, need: Need) -> EvictionRequest:
    return EvictionRequest(
        need=Extent(need.bytes, need.files),
        dataset=dataset,
        place=need.place,
        keep=need.keep | {need.place},
        folders=need.folders,
    )


def _no_room(settings: CacheSettings, need: Need, result: EvictionResult) -> NoRoomBeside:
    kept = [due.candidate for due in result.kept]
    stays = [one for one in kept if one.claim]
    used = f"; {len(stays)} cached commits are in use or held" if stays else ""
    refusal = NoRoomBeside(
        f"no room for {need.place}, which needs {format_bytes(need.bytes)} and {need.files} files: "
        f"{result.exceeded[0]}{used}",
        subject=str(need.place),
        hint="dsv cached shows who uses what; dsv evict --dry-run what may go",
    )
    wanted = [one for one in kept if one.place in need.keep and one.place != need.place]
    free = [one for one in wanted if one.claim is None and not settings.is_protected(one.dataset)]
    refusal.spare = tuple(one.place for one in sorted(free, key=lambda one: (one.last_use, one.place)))
    return refusal
