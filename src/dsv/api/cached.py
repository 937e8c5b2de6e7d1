"""Report the contents, users, claims and room of a cache; and check cached bytes against their ids."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dsv.api.cache_targets import Targets, tracked
from dsv.cache.account import recount
from dsv.cache.claims import LeaseRecord, PinRecord
from dsv.cache.cleanup import Trash, find_trash, measure
from dsv.cache.evict import disk_now
from dsv.cache.fill import check as reading
from dsv.cache.fill import directory, reservations
from dsv.cache.fill.check import Checked
from dsv.cache.fill.workers import read_workers
from dsv.cache.inventory import Inventory, find_places, take_inventory
from dsv.cache.policy import CachedCommit, EvictionPlanner
from dsv.cache.record import Filled, local_commit, read_record
from dsv.cache.root import CachePlace, CacheRoot, explaining, refuse_symlinks
from dsv.cache.settings import CacheSettings, check_writable, load_settings
from dsv.errors import Conflict, UsageError
from dsv.files.shared_path import SharedPath
from dsv.run.record import tree_of_run
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName, Target

if TYPE_CHECKING:
    from dsv.api.context import Context

_TRIES = 10  # a tenth of a second apart, to wait for the record of a commit that has just become visible


@dataclass(frozen=True, slots=True)
class CachedItem:
    """A cached commit or selection of a commit. Times are seconds since 1970, by the file server's clock."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    selection: tuple[str, ...]
    names: tuple[str, ...]
    """Tags and branches that name it now, as far as this cache knows."""
    made_for: str | None
    """`code of a run` or `output of run ID`; None for any other commit."""
    files: int
    bytes: int
    own_bytes: int
    """Bytes on disk on its account. Of the commits that share a file, the one that was cached first has it."""
    cached_by: str
    cached_on: str
    cached_at: float
    last_use: float
    leases: tuple[LeaseRecord, ...]
    pins: tuple[PinRecord, ...]
    protected: bool
    complete: bool
    """Its record was found."""
    may_go: float | None
    """The time from which it may be evicted as unused; None if that never happens."""


@dataclass(frozen=True, slots=True)
class FillItem:
    """A running fill, or, if it is not live, an interrupted fill that will be continued."""

    dataset: DatasetName
    commit: CommitId
    files: int
    """Entries of the tree."""
    files_done: int
    bytes: int
    bytes_done: int
    room_left: int
    workers: tuple[str, ...]
    live: bool


@dataclass(frozen=True, slots=True)
class RoomItem:
    """Room that the cache uses, room reserved for fills, room of the file system, and the owner's limits."""

    used_bytes: int
    """Of cached commits, fills and metadata."""
    metadata_bytes: int
    """Of fetched trees and names; no limit counts it."""
    used_files: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int
    max_size: int | None
    max_files: int | None
    min_free: tuple[str, ...]
    unused_for: float | None
    """Seconds."""
    exceeded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CachedReport:
    cache: Path
    items: tuple[CachedItem, ...]
    fills: tuple[FillItem, ...]
    room: RoomItem
    foreign: tuple[str, ...]
    """Names in the cache that dsv did not create; it never touches them."""
    trash: tuple[Trash, ...] = ()
    """Folders that evictions have moved out of sight but not deleted."""


def cached(folder: Path, *, anew: bool = False) -> CachedReport:
    """Report on a cache from its small records, without asking a store.

    anew: first count what the commits take, and correct the accounts. Raises `UsageError`, `Denied`, `Unreachable`,
    and `Conflict` if a symlink leads out of the cache, or if the accounts can't be compared now.
    """
    root = CacheRoot(folder)
    settings = load_settings(root)
    refuse_symlinks(root)
    if anew:
        check_writable(root, settings)
        recount(root, mend=True)
    inventory = take_inventory(root)
    with explaining(root.path, "read"):
        names = _names(root, inventory.visible)
        items = tuple(
            _item(root, item, names.get(item.place, ()), settings, inventory.now)
            for item in sorted(inventory.visible, key=lambda one: (one.place.dataset, -one.last_use))
        )
        fills = _fills(root, inventory.now)
        room = _room(root, inventory, settings)
        return CachedReport(root.path, items, fills, room, inventory.foreign, tuple(find_trash(root)))


def _item(
    root: CacheRoot, item: CachedCommit, names: tuple[str, ...], settings: CacheSettings, now: float
) -> CachedItem:
    record = item.record
    commit = local_commit(root, item.place)
    protected = settings.is_protected(item.dataset)
    unused_for = settings.unused_for(item.dataset)
    stays = protected or unused_for is None or item.kept_by is not None
    return CachedItem(
        path=item.path,
        dataset=item.place.dataset_name,
        commit=item.place.commit,
        selection=record.selection if record else (),
        names=names,
        made_for=None if commit is None else tree_of_run(commit),
        files=item.files,
        bytes=item.bytes,
        own_bytes=item.room.bytes,
        cached_by=record.user if record else "",
        cached_on=record.host if record else "",
        cached_at=record.time if record else item.last_use,
        last_use=item.last_use,
        leases=tuple(one for one in item.claims.leases if one.valid(now)),
        pins=tuple(one for one in item.claims.pins if one.valid(now)),
        protected=protected,
        complete=record is not None,
        may_go=None if stays or unused_for is None else item.last_use + unused_for,
    )


def _names(root: CacheRoot, items: list[CachedCommit]) -> dict[CachePlace, tuple[str, ...]]:
    """Return the tags and branches that name each commit, read once per dataset."""

    @cache
    def by_commit(store: str, dataset: DatasetName) -> dict[CommitId, list[str]]:
        names: dict[CommitId, list[str]] = {}
        with suppress(UsageError):
            tracking = tracked(root, StoreId.parse(store), dataset)
            for name, record in [*tracking.there("tags").items(), *tracking.there("branches").items()]:
                if record.commit_id is not None:
                    names.setdefault(record.commit_id, []).append(name)
        return names

    return {
        item.place: tuple(by_commit(item.record.store, item.place.dataset_name).get(item.place.commit, ()))
        for item in items
        if item.record is not None
    }


def _fills(root: CacheRoot, now: float) -> tuple[FillItem, ...]:
    items = []
    for reservation in reservations.reservations(root):
        under_way = directory.join(root, reservation.place)
        if under_way is None or under_way.fill != reservation.fill:
            continue
        workers = read_workers(under_way.workers).values()
        owners = [worker.owner for worker in workers if not worker.gone(now)]
        plan = under_way.plan
        items.append(
            FillItem(
                dataset=reservation.place.dataset_name,
                commit=reservation.place.commit,
                files=plan.entries,
                files_done=min(plan.entries, sum(worker.entries for worker in workers)),
                bytes=plan.bytes,
                bytes_done=min(plan.bytes, sum(worker.bytes for worker in workers)),
                room_left=reservation.left.bytes,
                workers=tuple(sorted({f"{owner.user}@{owner.host}" for owner in owners})),
                live=reservation.live,
            )
        )
    return tuple(items)


def _room(root: CacheRoot, inventory: Inventory, settings: CacheSettings) -> RoomItem:
    disk = disk_now(root)
    used = sum((item.room for item in inventory.visible), disk.filling)
    limits = settings.limits
    metadata = measure(root.dot / "stores")
    metadata_bytes = 0 if metadata is None else metadata.bytes
    return RoomItem(
        used_bytes=used.bytes + metadata_bytes,
        metadata_bytes=metadata_bytes,
        used_files=used.files,
        reserved_bytes=disk.reserved.bytes,
        free_bytes=disk.free,
        total_bytes=disk.total,
        max_size=limits.max_size,
        max_files=limits.max_files,
        min_free=tuple(str(amount) for amount in limits.min_free),
        unused_for=limits.unused_for,
        exceeded=tuple(EvictionPlanner(inventory.visible, settings, disk, inventory.now).exceeded()),
    )


def check(
    context: Context,
    folder: Path,
    targets: Sequence[Target] = (),
    *,
    repair: bool = True,
    remove_foreign: bool = False,
) -> list[Checked]:
    """Read all cached data, or the targets, and replace wrong files with the store's.

    remove_foreign: also delete files that were never committed. Raises `NotFound` for a target that is not
    cached, `Unreachable` if the store does not answer, `Denied` if this user may not repair something.
    """
    root = CacheRoot(folder)
    refuse_symlinks(root)
    known: dict[object, SharedPath] = {}
    with explaining(root.path, "check"), Targets(context, root) as finder:
        if targets:
            places = [place for target in targets for place in finder.find_cached(target)]
        else:
            places = [item.place for item in take_inventory(root).visible]
        items = [
            _check(context, finder, place, known, repair=repair, remove_foreign=remove_foreign)
            for place in places
        ]
    return [item for item in items if item is not None]


def _check(
    context: Context,
    finder: Targets,
    place: CachePlace,
    known: dict[object, SharedPath],
    *,
    repair: bool,
    remove_foreign: bool,
) -> Checked | None:
    """Check one commit; return None if it was evicted while this ran."""
    from dsv.api.cache import take_lease

    root = finder.root
    record, there = _look(root, place)
    if record is None:
        problem = "its record is missing or unreadable, so it was not checked"
        return Checked(root.visible(place).path, place, problem=problem) if there else None
    _check_store(finder, place, record)
    context.progress.note(f"reading {place}")
    context.progress.start(record.entries, record.bytes)
    with take_lease(root, place, optional=True) as lease:
        if not lease.confirm():
            return None
        source = finder.source()
        result = reading.check(root, place, source.tree(place.commit), record.paths, context.progress)
        if repair and (result.wrong or result.foreign):
            reading.repair(root, place, source, result, known, remove_foreign=remove_foreign)
    result.expected.clear()  # it has every path of the commit: keep those of one commit at a time
    context.progress.finish()
    return result


def _look(root: CacheRoot, place: CachePlace) -> tuple[Filled | None, bool]:
    """Return the record of a cache entry, and whether the entry is visible.

    An entry becomes visible before it is recorded, and is moved away before its record is removed.
    """
    for attempt in range(_TRIES):
        record = read_record(root, place)
        there = record is not None or place in find_places(root, place.dataset_name)
        if record is not None or not there or attempt == _TRIES - 1:
            return record, there
        time.sleep(0.1)
    return None, False


def _check_store(finder: Targets, place: CachePlace, record: Filled) -> None:
    if StoreId.parse(record.store) != finder.repository.id:
        raise Conflict(
            f"{place} comes from another store than {finder.repository.store.url}",
            subject=str(place),
            hint="name its store: dsv cached --check --store URL TARGET",
        )
