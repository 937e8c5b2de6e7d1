"""Evict commits, or make room for a fill: announce an intent, check claims, rename a commit away, delete it.

docs/internals/cache-protocol.md has the rules, E1 to E7 and C1 to C4, and says why they hold.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from dsv.cache.account import inherit
from dsv.cache.claims import INTENT, Claims, Intent, read_claims
from dsv.cache.cleanup import Sweeper, Trash, remove_empty
from dsv.cache.fill import reservations
from dsv.cache.fill.reservations import NoRoomBeside
from dsv.cache.inventory import Inventory, Remembered, take_inventory
from dsv.cache.leases import visible_identity
from dsv.cache.names import hide_tags, show_tag
from dsv.cache.policy import CachedCommit, DiskSpace, EvictionPlanner, EvictionRequest, Need
from dsv.cache.record import USED, Extent, account, add_share, last_used, record_path
from dsv.cache.removal import Removed, Remover
from dsv.cache.root import CachePlace, CacheRoot, explain, explaining, nearest_folder
from dsv.cache.settings import CacheSettings, check_writable, load_settings
from dsv.errors import DsvError
from dsv.values.names import TagName
from dsv.values.units import format_bytes, format_count


class EvictionResult(msgspec.Struct):
    """The result of an eviction. `exit_code` is the first error's, or 7 if a limit is still exceeded."""

    evicted: list[CachedCommit] = msgspec.field(default_factory=list)
    """In order."""
    kept: list[CachedCommit] = msgspec.field(default_factory=list)
    """With reasons."""
    failed: list[CachedCommit] = msgspec.field(default_factory=list)
    """With their errors."""
    exceeded: list[str] = msgspec.field(default_factory=list)
    """Limits that are still exceeded."""
    leftovers: Extent = msgspec.field(default_factory=Extent)
    """Room freed from killed evictors and abandoned fills."""
    stuck: list[Trash] = msgspec.field(default_factory=list)
    """Remains of an earlier eviction in the trash that still can't be deleted."""

    @property
    def freed(self) -> Extent:
        return sum((one.freed for one in self.evicted + self.failed), self.leftovers)

    @property
    def freed_bytes(self) -> int:
        return self.freed.bytes

    @property
    def errors(self) -> list[DsvError]:
        failed = [one.error for one in self.failed if one.error is not None]
        return [*failed, *(one.error for one in self.stuck if one.error is not None)]

    @property
    def exit_code(self) -> int:
        return self.errors[0].exit_code if self.errors else 7 if self.exceeded else 0


def evict(
    root: CacheRoot,
    settings: CacheSettings,
    request: EvictionRequest,
    *,
    on_evicted: Callable[[CachedCommit], None] = lambda _: None,
) -> EvictionResult:
    """Evict what the settings and the request ask for. Several evictions at once, on any hosts, are safe.

    Raises `Unsupported` for a cache of a newer dsv, `Denied`, `Unreachable`.
    """
    if not root.exists():
        return EvictionResult()
    remembered = remember(root)
    leftovers, stuck = sweep(root, settings, request, remembered)
    result = evict_from(root, settings, request, look(root, remembered), on_evicted)
    result.leftovers, result.stuck = leftovers, stuck
    return result


def remember(root: CacheRoot) -> Remembered:
    """Load the facts that earlier evictions recorded. Raises `Denied`, `Unreachable`."""
    with explaining(root.path, "clean up"):
        return Remembered.load(root, root.now())


def sweep(
    root: CacheRoot, settings: CacheSettings, request: EvictionRequest, remembered: Remembered
) -> tuple[Extent, list[Trash]]:
    """Delete what killed evictors left, and fills that no process continues. Raises as `evict`."""
    check_writable(root, settings)
    with explaining(root.path, "clean up"):
        return Sweeper(root, settings, request, remembered).run()


def look(root: CacheRoot, remembered: Remembered) -> Inventory:
    """List the cached commits, and record the facts for the next eviction. Raises as `remember`."""
    inventory = take_inventory(root, remembered)
    remembered.save(item.place for item in inventory.items)
    return inventory


def planner_of(
    root: CacheRoot, settings: CacheSettings, request: EvictionRequest, inventory: Inventory
) -> EvictionPlanner:
    """Return a planner for the disk as it is now. The inventory may be old: evicting checks each commit."""
    disk = disk_now(root, None if request.need is None else request.need.place)
    return EvictionPlanner(inventory.visible, settings, disk, inventory.now, request)


def evict_from(
    root: CacheRoot,
    settings: CacheSettings,
    request: EvictionRequest,
    inventory: Inventory,
    on_evicted: Callable[[CachedCommit], None] = lambda _: None,
) -> EvictionResult:
    """Do what `evict` does without the sweep, from a given inventory."""
    executor = _Executor(root)

    def act(due: CachedCommit, _: Iterable[CachedCommit]) -> CachedCommit | str | None:
        try:
            outcome = executor.evict(due)
        except OSError as error:
            return _failed(due, error)
        if isinstance(outcome, CachedCommit) and outcome.error is None:
            on_evicted(outcome)
        return outcome

    return EvictionResult(*planner_of(root, settings, request, inventory).run(act))


def preview(
    root: CacheRoot,
    settings: CacheSettings,
    request: EvictionRequest,
    inventory: Inventory | None = None,
    *,
    exact: bool = True,
) -> EvictionResult:
    """Return what `evict` would do now, and change nothing.

    exact: look at every file, because only its link count says what is freed; otherwise use the records.
    """
    if not root.exists():
        return EvictionResult()
    remover = Remover(dry=True)

    def measure(due: CachedCommit, others: Iterable[CachedCommit]) -> CachedCommit:
        if not exact:
            return replace(due, freed=due.room)
        try:
            removed = remover.remove(root.visible(due.place))
            heirs = inherit(root, due, removed, others)
            return _evicted(due, removed, *((place, rest) for place, _, rest in heirs))
        except OSError as error:
            return _failed(due, error)

    inventory = inventory or take_inventory(root)
    return EvictionResult(*planner_of(root, settings, request, inventory).run(measure))


def _failed(due: CachedCommit, error: OSError) -> CachedCommit:
    return replace(due, error=explain(error, str(due.place), "evict"))


def disk_now(root: CacheRoot, without: CachePlace | None = None) -> DiskSpace:
    """Return the file system's figures, what fills have written, and what all but `without` still will."""
    with explaining(root.path, "read"):
        disk = os.statvfs(nearest_folder(root.path))
        fills = reservations.reservations(root)
    return DiskSpace(
        free=disk.f_bavail * disk.f_frsize,
        total=disk.f_blocks * disk.f_frsize,
        filling=sum((fill.written for fill in fills), Extent()),
        reserved=sum((fill.left for fill in fills if fill.place != without), Extent()),
        free_files=disk.f_favail if disk.f_files else None,  # Btrfs and some file servers say 0 of 0
    )


class _Executor:
    def __init__(self, root: CacheRoot) -> None:
        self._root = root
        self._remover = Remover()
        self._links: dict[str, dict[str, str]] = {}

    def evict(self, due: CachedCommit) -> CachedCommit | str | None:
        """Return the evicted commit; why it stays; None if another evictor was faster. Raises `OSError`."""
        root, place = self._root, due.place
        intent = Intent.declare(root, place, root.now(root.claims(place)))
        tags: list[TagName] = []
        try:
            claims = read_claims(root, place, known=(intent.file.name, *due.claims.names))
            reason = self._objection(due, claims)
            if reason is None:
                tags += hide_tags(root, place, self._links)
            gone = reason is None and intent.rename_to_trash(root.visible(place))
        except BaseException:
            with contextlib.suppress(OSError):
                intent.withdraw()
            with contextlib.suppress(OSError):
                self._show(tags, place)
            raise
        if not gone:
            try:
                intent.withdraw()
            finally:
                visible = self._show(tags, place)
            if not visible:
                remove_empty(root, place)
                return None
            return reason or "taken into use at this moment"
        if due.record is not None:  # others may have passed something on to it since the inventory
            due = replace(due, room=account(root, place, due.record, claims.names))
        forget(root, place, claims)
        try:
            removed = self._remover.remove(intent.folder / place.name)
        except OSError as error:  # the intent stays, so that the next evict finds the rest
            failure = _half_removed(place, error)
            return replace(due, freed=self._remover.removed.room, error=failure, half_removed=True)
        evicted = _evicted(due, removed, *self._pass_on(due, removed))
        intent.withdraw()
        remove_empty(root, place)
        return evicted

    def _show(self, tags: list[TagName], place: CachePlace) -> bool:
        """Bring back hidden tags, unless the commit is gone. Return whether it is there."""
        visible = visible_identity(self._root, place) is not None
        for tag in tags if visible else ():
            with contextlib.suppress(OSError):
                show_tag(self._root, place, tag)
        return visible

    def _objection(self, candidate: CachedCommit, claims: Claims) -> str | None:
        """Return a reason to keep it that arose after the plan was made, or None."""
        root, place = self._root, candidate.place
        reason = claims.protecting(root.now(root.claims(place)))
        if reason is not None:
            return reason
        if (last_used(root, place) or 0.0) > candidate.last_use:
            return "in use right now"
        record = candidate.record
        if record is not None and record_path(root, place, record.fill).name not in claims.names:
            return "being cached again"
        return None

    def _pass_on(self, due: CachedCommit, removed: Removed) -> Iterator[tuple[CachePlace, Extent]]:
        """Add what stays in use to the accounts of those that link it."""
        for place, fill, rest in inherit(self._root, due, removed):
            with contextlib.suppress(OSError):
                add_share(self._root, place, fill, rest)
            yield place, rest


def _half_removed(place: CachePlace, error: OSError) -> DsvError:
    cause = explain(error, str(place), "delete all of")
    return type(cause)(
        f"{cause.message}; it is half removed; the next evict deletes the rest from the trash",
        subject=cause.subject,
        hint=cause.hint,
    )


def forget(root: CacheRoot, place: CachePlace, claims: Claims) -> None:
    """Remove the records and claims of an evicted commit: exactly the names that were seen under the intent.

    These names are never used again, so a new fill of the same commit keeps its own. The exception is `used`,
    whose loss does no harm. Raises `OSError`.
    """
    for name in claims.names:
        if not name.startswith(INTENT):
            (root.claims(place) / name).unlink(missing_ok=True)
    (root.claims(place) / USED).unlink(missing_ok=True)


def _evicted(due: CachedCommit, removed: Removed, *passed_on: tuple[CachePlace, Extent]) -> CachedCommit:
    return replace(
        due,
        freed=removed.room,
        passed_on=passed_on,
        foreign=removed.foreign,
        foreign_paths=tuple(removed.foreign_paths),
    )


_REST = 100  # reading all commits takes at most one part in so many of the time


class RoomMaker:
    """Makes room for one fill, each time that it asks.

    A fill asks every few seconds, and reading all commits of a large cache takes time. They are read if the
    free space and the reservations do not show that there is room, and, if the owner limits how much may be
    cached, the first time and once in a while. The limits are read each time, because they may change.
    """

    def __init__(self, root: CacheRoot, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._inventory: Inventory | None = None  # of the last time that there was enough room
        self._until = 0.0  # the time of the clock at which it is too old

    def __call__(self, need: Need, /) -> None:
        """Make room by evicting. Raises `NoRoomBeside` if that is not enough."""
        root, settings, request = self._root, load_settings(self._root), EvictionRequest(need=need)
        if not settings.limits_content(need.place.dataset_name):
            known: Inventory | None = Inventory(0.0, (), ())
        else:  # it may be old: a fill that has ended since then had counted this one before it began
            known = self._inventory if self._clock() < self._until else None
        if known is not None and not planner_of(root, settings, request, known).exceeded():
            return
        self._inventory = None
        began = self._clock()
        remembered = remember(root)
        inventory = look(root, remembered)
        if planner_of(root, settings, request, inventory).exceeded():
            evict_for(root, settings, need, remembered)
        else:
            now = self._clock()
            self._inventory, self._until = inventory, now + _REST * (now - began)


def evict_for(root: CacheRoot, settings: CacheSettings, need: Need, remembered: Remembered) -> EvictionResult:
    """Evict to meet a need. Raises `NoRoomBeside` if that is not enough."""
    request = EvictionRequest(need=need)
    leftovers, _ = sweep(root, settings, request, remembered)
    inventory = take_inventory(root, remembered)
    # Exact, because by the records a commit would free all that it wrote, even if others that stay link it.
    foreseen = preview(root, settings, request, inventory)
    if foreseen.exceeded:
        raise _no_room(settings, need, foreseen)
    result = evict_from(root, settings, request, inventory)
    if result.exceeded:
        raise _no_room(settings, need, result)
    result.leftovers = leftovers
    return result


def _no_room(settings: CacheSettings, need: Need, result: EvictionResult) -> NoRoomBeside:
    kept = result.kept
    stays = [item for item in kept if item.kept_by]
    used = f"; in use or held: {format_count(len(stays), 'cached commit')}" if stays else ""
    refusal = NoRoomBeside(
        f"no room for {need.place}, which needs {format_bytes(need.bytes)} and {format_count(need.files, 'file')}: "
        f"{result.exceeded[0]}{used}",
        subject=str(need.place),
        hint="dsv cached shows who uses what; dsv evict --dry-run what can be evicted",
    )
    wanted = [item for item in kept if item.place in need.keep and item.place != need.place]
    free = [item for item in wanted if item.kept_by is None and not settings.is_protected(item.dataset)]
    refusal.spare = tuple(item.place for item in sorted(free, key=lambda item: (item.last_use, item.place)))
    return refusal
