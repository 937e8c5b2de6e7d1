"""Evict commits, or make room for a fill: announce an intent, check the claims, rename the commit away, delete it.

docs/internals/cache-protocol.md has the rules, E1 to E7 and C1 to C4, and says why they hold.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dsv.cache.claims import INTENT, Claims, Fired, Intent, read_claims
from dsv.cache.cleanup import Stuck, Sweeper, Swept, remove_empty
from dsv.cache.fill import reservations
from dsv.cache.fill.reservations import Need, NoRoomBeside
from dsv.cache.inventory import Inventory, Item, Remembered, take_inventory
from dsv.cache.leases import visible_identity
from dsv.cache.names import TagLinks, show_tag
from dsv.cache.policy import Candidate, Disk, Due, EvictionRequest, Planner
from dsv.cache.record import USED, Extent, add_share, last_used, record_path
from dsv.cache.removal import Removed, Remover
from dsv.cache.root import CacheRoot, Place, explain, explaining, nearest_folder
from dsv.cache.settings import CacheSettings, check_writable, load_settings
from dsv.errors import DsvError
from dsv.fs.files import list_names
from dsv.values.units import format_bytes, format_count


class Evicted(msgspec.Struct, frozen=True):
    """One commit that was evicted, or would be."""

    candidate: Candidate
    reason: str
    freed: Extent  # room that is free now
    foreign: int = 0  # files in it that no fill put there
    foreign_paths: tuple[str, ...] = ()  # some of these


class HalfRemoved(msgspec.Struct, frozen=True):
    """A commit that is out of sight, but was only deleted in part."""

    freed: Extent  # what was deleted
    error: DsvError


class EvictionResult(msgspec.Struct):
    """The result of an eviction."""

    evicted: list[Evicted] = msgspec.field(default_factory=list)  # in order
    kept: list[Due] = msgspec.field(default_factory=list)  # with reasons
    exceeded: list[str] = msgspec.field(default_factory=list)  # limits that still do not hold
    failures: dict[Place, DsvError] = msgspec.field(default_factory=dict)
    half_removed: set[Place] = msgspec.field(default_factory=set)
    """Failures of which the rest is in the trash; the others stay."""
    leftovers: Extent = msgspec.field(default_factory=Extent)
    """Room freed from killed evictors, abandoned fills and `half_removed`."""
    stuck: list[Stuck] = msgspec.field(default_factory=list)
    """Remains of an earlier eviction in the trash that still can't be deleted."""

    @property
    def freed(self) -> Extent:
        return sum((one.freed for one in self.evicted), self.leftovers)


def evict(
    root: CacheRoot,
    settings: CacheSettings,
    request: EvictionRequest,
    *,
    on_evicted: Callable[[Evicted], None] = lambda _: None,
) -> EvictionResult:
    """Evict what the settings and the request say. Several at once, on any hosts, are safe.

    Raises `Unsupported` for a cache of a newer dsv, `Denied`, `Unreachable`.
    """
    if not root.exists():
        return EvictionResult()
    remembered = remember(root)
    swept = sweep(root, settings, request, remembered)
    stock = take_stock(root, request, remembered)
    remembered.save(item.place for item in stock.inventory.items)
    result = evict_from(root, settings, request, stock, on_evicted)
    result.leftovers += swept.freed
    result.stuck = swept.stuck
    return result


def remember(root: CacheRoot) -> Remembered:
    """Load the facts that earlier evictions recorded. Raise `Denied` or `Unreachable` if the cache can't be read."""
    with explaining(root.path, "clean up"):
        return Remembered.load(root, root.now())


def sweep(
    root: CacheRoot, settings: CacheSettings, request: EvictionRequest, remembered: Remembered
) -> Swept:
    """Delete what killed evictors left, and fills that nobody continues. Raises as `evict`."""
    check_writable(root, settings)
    with explaining(root.path, "clean up"):
        return Sweeper(root, settings, request, remembered).run()


class Stock(msgspec.Struct, frozen=True):
    """The cached commits and the state of the disk, from which an eviction is planned.

    Both may be out of date, so each commit is checked again before it is evicted.
    """

    inventory: Inventory
    disk: Disk

    def planner(self, settings: CacheSettings, request: EvictionRequest) -> Planner:
        now = self.inventory.now
        candidates = [item.candidate(now) for item in self.inventory.visible]
        return Planner(candidates, settings, self.disk, now, request)


def take_stock(root: CacheRoot, request: EvictionRequest, remembered: Remembered | None = None) -> Stock:
    """List the cached commits and measure the disk. Raise `Denied` or `Unreachable` if the cache can't be read."""
    inventory = take_inventory(root, remembered)
    return Stock(inventory, disk_now(root, request.place if request.need is not None else None))


def evict_from(
    root: CacheRoot,
    settings: CacheSettings,
    request: EvictionRequest,
    stock: Stock,
    on_evicted: Callable[[Evicted], None] = lambda _: None,
) -> EvictionResult:
    """`evict` without the sweep, by what is known already."""
    planner = stock.planner(settings, request)
    executor = _Executor(root, {item.place: item for item in stock.inventory.visible})
    return _carry_out(planner, lambda due: executor.evict(due, planner.new_owner()), on_evicted)


def preview(
    root: CacheRoot, settings: CacheSettings, request: EvictionRequest, *, exact: bool = True
) -> EvictionResult:
    """Return what `evict` would do now; nothing is touched.

    exact: look at every file that would go, as only its link count says what is freed; otherwise use the records.
    """
    if not root.exists():
        return EvictionResult()
    return preview_from(root, settings, request, take_stock(root, request), exact=exact)


def preview_from(
    root: CacheRoot, settings: CacheSettings, request: EvictionRequest, stock: Stock, *, exact: bool = True
) -> EvictionResult:
    """`preview` by what is known already."""
    remover = Remover(dry=True)

    def measure(due: Due) -> Evicted:
        if not exact:
            return Evicted(due.candidate, due.reason, due.candidate.room)
        return _evicted(due, remover.remove(root.visible(due.candidate.place)))

    return _carry_out(stock.planner(settings, request), measure, lambda _: None)


def _carry_out(
    planner: Planner,
    act: Callable[[Due], Evicted | HalfRemoved | str | None],
    on_evicted: Callable[[Evicted], None],
) -> EvictionResult:
    """`act` returns what was evicted, why it stays after all, or None if another evictor was faster."""
    result = EvictionResult()
    while (due := planner.next()) is not None:
        try:
            outcome = act(due)
        except OSError as error:
            result.failures[due.candidate.place] = failure = explain(error, str(due.candidate.place), "evict")
            outcome = failure.message
        if isinstance(outcome, str):
            planner.kept(outcome)
        elif outcome is None:
            planner.gone()
        elif isinstance(outcome, HalfRemoved):
            planner.evicted(outcome.freed)
            result.failures[due.candidate.place] = outcome.error
            result.half_removed.add(due.candidate.place)
            result.leftovers += outcome.freed
        else:
            planner.evicted(outcome.freed, planner.new_owner())
            result.evicted.append(outcome)
            on_evicted(outcome)
    result.kept, result.exceeded = planner.finish()
    return result


def disk_now(root: CacheRoot, without: Place | None = None) -> Disk:
    """Return the file system's figures, and what fills have written and still will, less the one of `without`."""
    with explaining(root.path, "read"):
        found = os.statvfs(nearest_folder(root.path))
        fills = reservations.reservations(root)
    return Disk(
        free=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        filling=sum((one.written for one in fills), Extent()),
        reserved=sum((one.left for one in fills if one.place != without), Extent()),
        free_files=found.f_favail if found.f_files else None,  # Btrfs and some file servers say 0 of 0
    )


class _Executor:
    """Evicts one commit at a time."""

    def __init__(self, root: CacheRoot, items: dict[Place, Item]) -> None:
        self._root = root
        self._items = items
        self._remover = Remover()
        self._links = TagLinks(root)

    def evict(self, due: Due, new_owner: Place | None) -> Evicted | HalfRemoved | str | None:
        """Return what was evicted; why it stays after all; None if another evictor was faster. Raises `OSError`."""
        root, place = self._root, due.candidate.place
        intent = Intent.declare(root, place, root.now(root.claims(place)))
        try:
            known = (intent.file.name, *self._items[place].claims.names)
            claims = read_claims(root, place, known=known)
            reason = self._objection(due.candidate, claims)
            tags = [] if reason else self._links.hide(place)
            fired = Fired.VOIDED if reason else intent.fire(root.visible(place))
        except BaseException:
            with contextlib.suppress(OSError):
                intent.withdraw()
            raise
        if fired is not Fired.DONE:
            intent.withdraw()
            if fired is Fired.GONE or visible_identity(root, place) is None:
                remove_empty(root, place)
                return None
            for tag in tags:
                with contextlib.suppress(OSError):
                    show_tag(root, place, tag)
            return reason or "taken into use at this moment"
        forget(root, place, claims)
        try:
            removed = self._remover.remove(intent.folder / place.name)
        except OSError as error:  # the intent stays, so that the next evict finds the rest
            return HalfRemoved(self._remover.removed.room, _half_removed(place, error))
        self._pass_on(due.candidate.room - removed.room, new_owner)
        intent.withdraw()
        remove_empty(root, place)
        return _evicted(due, removed)

    def _objection(self, candidate: Candidate, claims: Claims) -> str | None:
        """Return why it must stay, if that has changed since the plan was made."""
        root, place = self._root, candidate.place
        reason = claims.protecting(root.now(root.claims(place)))
        if reason is not None:
            return reason
        if (last_used(root, place) or 0.0) > candidate.last_use:
            return "used at this moment"
        record = self._items[place].record
        if record is not None and record_path(root, place, record.fill).name not in claims.names:
            return "cached anew at this moment"
        return None

    def _pass_on(self, rest: Extent, new_owner: Place | None) -> None:
        """Room that stays in use, as others link the files, counts for another commit from now on."""
        item = None if new_owner is None else self._items.get(new_owner)
        if item is not None and item.record is not None and rest != Extent():
            with contextlib.suppress(OSError):
                add_share(self._root, item.place, item.record.fill, rest)


def _half_removed(place: Place, error: OSError) -> DsvError:
    cause = explain(error, str(place), "delete all of")
    return type(cause)(
        f"{cause.message}; it is half removed; the next evict deletes the rest from the trash",
        subject=cause.subject,
        hint=cause.hint,
    )


def forget(root: CacheRoot, place: Place, claims: Claims) -> None:
    """Remove what was known and claimed of a commit that has gone: exactly the names that were seen under the intent.

    No such name is ever used again, so a new fill of the same commit keeps all of its own; `used` alone
    is, and losing it does no harm. Raises `OSError`.
    """
    for name in claims.names:
        if not name.startswith(INTENT):
            (root.claims(place) / name).unlink(missing_ok=True)
    (root.claims(place) / USED).unlink(missing_ok=True)


def _evicted(due: Due, removed: Removed) -> Evicted:
    return Evicted(due.candidate, due.reason, removed.room, removed.foreign, tuple(removed.foreign_paths))


_MOST = 10_000  # files that are counted, so that `dsv cached` takes no time for a large commit that is being deleted


class Trash(msgspec.Struct, frozen=True):
    """A folder in the trash."""

    path: Path
    room: Extent
    counted: bool
    """`room` is the space of the whole folder."""


def find_trash(root: CacheRoot) -> list[Trash]:
    """List and measure the folders in the trash. Raise `OSError` if that fails."""
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
    """Count the room that a folder takes, up to some files; None for an empty folder, or none. Raises `OSError`."""
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
    """The cached commits when a fill last had enough room."""

    stock: Stock
    until: float  # when it is too old, by the clock


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
        """Make room by evicting. Raise `NoRoomBeside` if that is not enough."""
        settings = load_settings(self._root)
        request = request_of(self._dataset, need)
        if self._has_room_at_a_glance(settings, request):
            return
        self._known = None
        began = self._clock()
        remembered = remember(self._root)
        stock = take_stock(self._root, request, remembered)
        remembered.save(item.place for item in stock.inventory.items)
        if stock.planner(settings, request).exceeded():
            evict_for(self._root, settings, request, need, remembered)
        else:
            now = self._clock()
            self._known = _Known(stock, now + _REST * (now - began))

    def _has_room_at_a_glance(self, settings: CacheSettings, request: EvictionRequest) -> bool:
        """Go by what was cached a while ago: a fill that ended since had counted this one before it began."""
        disk = disk_now(self._root, request.place)
        if not settings.limits_content(self._dataset):
            return not Planner((), settings, disk, 0.0, request).exceeded()
        known = self._known
        if known is None or self._clock() >= known.until:
            return False
        return not replace(known.stock, disk=disk).planner(settings, request).exceeded()


def evict_for(
    root: CacheRoot, settings: CacheSettings, request: EvictionRequest, need: Need, remembered: Remembered
) -> EvictionResult:
    swept = sweep(root, settings, request, remembered)
    stock = take_stock(root, request, remembered)
    # Exactly: the records alone would have a commit free all that it wrote, even if others that stay link it.
    foreseen = preview_from(root, settings, request, stock)
    if foreseen.exceeded:
        raise _no_room(settings, need, foreseen)
    result = evict_from(root, settings, request, stock)
    if result.exceeded:
        raise _no_room(settings, need, result)
    result.leftovers += swept.freed
    return result


def request_of(dataset: str, need: Need) -> EvictionRequest:
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
    used = f"; in use or held: {format_count(len(stays), 'cached commit')}" if stays else ""
    refusal = NoRoomBeside(
        f"no room for {need.place}, which needs {format_bytes(need.bytes)} and {format_count(need.files, 'file')}: "
        f"{result.exceeded[0]}{used}",
        subject=str(need.place),
        hint="dsv cached shows who uses what; dsv evict --dry-run what may go",
    )
    wanted = [one for one in kept if one.place in need.keep and one.place != need.place]
    free = [one for one in wanted if one.claim is None and not settings.is_protected(one.dataset)]
    refusal.spare = tuple(one.place for one in sorted(free, key=lambda one: (one.last_use, one.place)))
    return refusal
