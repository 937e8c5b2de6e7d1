"""What is in a cache, who uses it, until when, and the room: the team's dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsv.api.cache_targets import tracked
from dsv.cache.claims.claims import LeaseRecord
from dsv.cache.evict.evict import Trash, disk_now, find_trash, measure
from dsv.cache.evict.inventory import Inventory, Item, take_inventory
from dsv.cache.evict.policy import Planner
from dsv.cache.fill import directory, reservations
from dsv.cache.fill.parts import estimated_room
from dsv.cache.fill.workers import read_workers
from dsv.cache.record import local_commit
from dsv.cache.root import CacheRoot, Place, explain, refuse_symlinks
from dsv.cache.settings import CacheSettings, load_settings
from dsv.errors import UsageError
from dsv.repo.tracking import Tracking
from dsv.run.record import tree_of_run
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName


@dataclass(frozen=True, slots=True)
class LeaseItem:
    """purpose: `run`, `hold` (a person's) or `stage` (a command at work). until: seconds since 1970."""

    id: str
    purpose: str
    user: str
    host: str
    run: str | None
    job: str | None
    process: int | None
    program: str
    until: float


@dataclass(frozen=True, slots=True)
class PinItem:
    """until: None for ever."""

    id: str
    user: str
    why: str
    since: float
    until: float | None


@dataclass(frozen=True, slots=True)
class CachedItem:
    """One cached commit, or a selection of one. Times are seconds since 1970, by the file server's clock.

    names: tags and branches that name it now, as far as this cache knows. made_for: `code of a run` or `output of
    run ID`; None for any other commit. own_bytes: of disk, not
    shared with other cached commits (from records; only an eviction measures it). complete: its record was
    found. may_go: when it may be evicted for not being used; None if a claim or the owner keeps it, or
    if nothing is evicted for its age.
    """

    path: Path
    dataset: DatasetName
    commit: CommitId
    selection: tuple[str, ...]
    names: tuple[str, ...]
    made_for: str | None
    files: int
    bytes: int
    own_bytes: int
    cached_by: str
    cached_on: str
    cached_at: float
    last_use: float
    leases: tuple[LeaseItem, ...]
    pins: tuple[PinItem, ...]
    protected: bool
    complete: bool
    may_go: float | None


@dataclass(frozen=True, slots=True)
class FillItem:
    """A fill under way or, if it is not live, one that was interrupted and will be continued. files: entries of the
    tree."""

    dataset: DatasetName
    commit: CommitId
    files: int
    files_done: int
    bytes: int
    bytes_done: int
    room_left: int
    workers: tuple[str, ...]
    live: bool


@dataclass(frozen=True, slots=True)
class RoomItem:
    """Room that the cache takes, what is reserved for fills, what the file system has, and the owner's limits.

    used_bytes: of cached commits, of fills, and of metadata.
    metadata_bytes: of what was fetched to know trees and names; no limit counts it.
    """

    used_bytes: int
    metadata_bytes: int
    used_files: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int
    max_size: int | None
    max_files: int | None
    min_free: tuple[str, ...]
    unused_for: float | None
    exceeded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CachedReport:
    """foreign: names in the cache that dsv did not put there; they are never touched. trash: what evictions have moved
    out of sight and not deleted."""

    folder: Path
    items: tuple[CachedItem, ...]
    fills: tuple[FillItem, ...]
    room: RoomItem
    foreign: tuple[str, ...]
    trash: tuple[Trash, ...] = ()


def cached(folder: Path) -> CachedReport:
    """Reads small records only, and asks no store. Raises `UsageError` (bad settings), `Denied`,
    `Unreachable`, `Conflict` for a cache that leads elsewhere.
    """
    root = CacheRoot(folder)
    settings = load_settings(root)
    refuse_symlinks(root)
    inventory = take_inventory(root)
    try:
        fills = _fills(root, inventory.now)
        names = _Names(root)
        made_for = {item.place: _made_for(root, item) for item in inventory.visible}
        own = _own_bytes(inventory.visible)
        items = tuple(
            _item(root, item, names.of(item), made_for[item.place], own[item.place], settings, inventory.now)
            for item in sorted(inventory.visible, key=lambda one: (one.place.dataset, -one.last_use))
        )
        return CachedReport(
            root.path,
            items,
            fills,
            _room(root, inventory, settings),
            inventory.foreign,
            tuple(find_trash(root)),
        )
    except OSError as error:
        raise explain(error, root.path, "read") from error


def _item(
    root: CacheRoot,
    item: Item,
    names: tuple[str, ...],
    made_for: str | None,
    own: int,
    settings: CacheSettings,
    now: float,
) -> CachedItem:
    record = item.record
    protected = settings.is_protected(item.dataset)
    unused_for = settings.unused_for(item.dataset)
    stays = protected or unused_for is None or item.claims.protecting(now) is not None
    return CachedItem(
        path=root.visible(item.place),
        dataset=item.dataset,
        commit=item.place.commit,
        selection=record.selection if record else (),
        names=names,
        made_for=made_for,
        files=record.files if record else 0,
        bytes=record.bytes if record else 0,
        own_bytes=own,
        cached_by=record.user if record else "",
        cached_on=record.host if record else "",
        cached_at=record.time if record else item.last_use,
        last_use=item.last_use,
        leases=tuple(_lease(one) for one in item.claims.leases if one.valid(now)),
        pins=tuple(
            PinItem(one.id, one.user, one.why, one.since, one.until)
            for one in item.claims.pins
            if one.valid(now)
        ),
        protected=protected,
        complete=record is not None,
        may_go=None if stays or unused_for is None else item.last_use + unused_for,
    )


def _made_for(root: CacheRoot, item: Item) -> str | None:
    """Return what a commit that no tag or branch names was made for, if that is a run."""
    commit = local_commit(root, item.place)
    return None if commit is None else tree_of_run(commit)


class _Names:
    """Tags and branches by commit, read once for each dataset."""

    def __init__(self, root: CacheRoot) -> None:
        self._root = root
        self._known: dict[tuple[str, str], dict[CommitId, list[str]]] = {}

    def of(self, item: Item) -> tuple[str, ...]:
        if item.record is None:
            return ()
        key = (item.record.store, item.place.dataset)
        if key not in self._known:
            try:
                found = tracked(self._root, StoreId.parse(item.record.store), item.dataset)
            except UsageError:
                found = Tracking()
            names = self._known.setdefault(key, {})
            for name, one in [*found.there("tags").items(), *found.there("branches").items()]:
                if one.commit_id is not None:
                    names.setdefault(one.commit_id, []).append(name)
        return tuple(self._known[key].get(item.place.commit, ()))


def _lease(one: LeaseRecord) -> LeaseItem:
    return LeaseItem(
        id=one.owner.id,
        purpose=one.purpose,
        user=one.owner.user,
        host=one.owner.host,
        run=one.run,
        job=one.job,
        process=one.process,
        program=one.program,
        until=one.until,
    )


def _own_bytes(items: list[Item]) -> dict[Place, int]:
    """Of each commit, its room less what the one that took most from it has by links."""
    taken: dict[str, int] = {}
    for item in items:
        if item.record is not None:
            linked = estimated_room(item.record.files, item.record.bytes) - item.record.own_bytes
            for donor in item.record.linked:
                taken[donor] = max(taken.get(donor, 0), linked)
    return {
        item.place: max(0, item.room.bytes - taken.get(f"{item.place.dataset}/{item.place.name}", 0))
        for item in items
    }


def _fills(root: CacheRoot, now: float) -> tuple[FillItem, ...]:
    found = []
    for one in reservations.reservations(root):
        under_way = directory.join(root, one.place)
        if under_way is None or under_way.fill != one.fill:
            continue
        workers = read_workers(under_way.workers).values()
        plan = under_way.plan
        found.append(
            FillItem(
                dataset=one.place.dataset_name,
                commit=one.place.commit,
                files=plan.entries,
                files_done=min(plan.entries, sum(worker.entries for worker in workers)),
                bytes=plan.bytes,
                bytes_done=min(plan.bytes, sum(worker.bytes for worker in workers)),
                room_left=one.left.bytes,
                workers=tuple(
                    sorted({f"{one.owner.user}@{one.owner.host}" for one in workers if not one.gone(now)})
                ),
                live=one.live,
            )
        )
    return tuple(found)


def _room(root: CacheRoot, inventory: Inventory, settings: CacheSettings) -> RoomItem:
    disk = disk_now(root)
    used = sum((item.room for item in inventory.visible), disk.filling)
    candidates = [item.candidate(inventory.now) for item in inventory.visible]
    limits = settings.limits
    metadata = measure(root.dot / "stores")
    metadata_bytes = 0 if metadata is None else metadata.room.bytes
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
        exceeded=tuple(Planner(candidates, settings, disk, inventory.now).exceeded()),
    )


__all__ = ["CachedItem", "CachedReport", "FillItem", "LeaseItem", "PinItem", "RoomItem", "cached"]
