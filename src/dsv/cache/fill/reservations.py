"""Room that fills have reserved, visible to all other fills and evictors: rules R1 and R4 of the protocol.

A fill writes its own reservation, then reads the others': of two fills at least one sees the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from dsv.cache.claims import LeaseOwner, read_claims
from dsv.cache.fill.directory import PREFIX
from dsv.cache.fill.parts import FillPlan
from dsv.cache.fill.workers import read_workers
from dsv.cache.policy import Need
from dsv.cache.record import Extent
from dsv.cache.root import CachePlace, CacheRoot, free_room
from dsv.errors import NoRoom
from dsv.files.small_files import list_names, read_json
from dsv.values.units import format_bytes, format_count

_BEGINS_WITHIN = 900.0
"""Seconds for which a reservation counts in any case before its fill begins. Evicting millions of files from a
file server takes longer; then it counts while the command's lease on the place is renewed."""


class NoRoomBeside(NoRoom):
    """There is not enough room unless commits that the caller wants to keep are evicted."""

    spare: tuple[CachePlace, ...] = ()
    """Those that could be evicted, the least recently used first."""


EnsureRoom = Callable[[Need], None]
"""Make sure that the need fits the disk and the owner's limits, by evicting if that helps.

Every other fill's reservation counts (see `reservations`), but not that of `need.place`. Raises `NoRoom`;
`NoRoomBeside` if it could help to keep less.
"""


def need_of(place: CachePlace, plan: FillPlan, size: int, files: int) -> Need:
    """Return the need of the rest of a fill; the commits that it takes files from must stay."""
    keep = frozenset(CachePlace(reference.dataset, reference.name) for reference in plan.references)
    return Need(place, size, files, keep)


class _Record(msgspec.Struct, frozen=True):
    dataset: str
    name: str
    bytes: int
    files: int
    owner: LeaseOwner
    time: float


_RECORD = msgspec.json.Decoder(_Record)


class Reservation(msgspec.Struct, frozen=True):
    place: CachePlace
    fill: str
    whole: Extent
    written: Extent
    left: Extent
    """Room still to come; none if no process works on it."""
    live: bool
    """True if a process works on it."""


def reserve(root: CacheRoot, place: CachePlace, fill: str, need_bytes: int, need_files: int) -> None:
    """Reserve room, which the caller then makes. An existing reservation stays. Raises `OSError`."""
    record = _Record(place.dataset, place.name, need_bytes, need_files, LeaseOwner.new(), root.now(root.room))
    root.write_once(root.room / fill, msgspec.json.encode(record))


def refusal(root: CacheRoot, place: CachePlace, error: OSError, left_bytes: int, left_files: int) -> NoRoom:
    """Return the error for a disk that stays full, with what is still to come."""
    return NoRoom(
        f"no room for {place} in {root.path}: {error.strerror}; {free_room(root.path)}, "
        f"{format_bytes(left_bytes)} still to come in {format_count(left_files, 'file')}",
        subject=str(place),
        hint="dsv cached shows who uses what; dsv evict --dry-run what can be evicted",
    )


def release(root: CacheRoot, fill: str) -> None:
    (root.room / fill).unlink(missing_ok=True)


def reservations(root: CacheRoot) -> list[Reservation]:
    """Return all that count; remove those of fills that ended or never began. Raises `OSError`."""
    valid: list[Reservation] = []
    if not list_names(root.room):
        return valid
    now = root.now(root.room)
    for fill in list_names(root.room):
        record = read_json(root.room / fill, _RECORD)
        if record is None:
            continue
        reservation = _standing(root, fill, record, now)
        if reservation is None:
            with contextlib.suppress(OSError):
                release(root, fill)
        else:
            valid.append(reservation)
    return valid


def _standing(root: CacheRoot, fill: str, record: _Record, now: float) -> Reservation | None:
    place = CachePlace(record.dataset, record.name)
    folder = root.fill(place) / f"{PREFIX}{fill}"
    workers = read_workers(folder / "workers")
    if workers:
        live = any(not worker.gone(now) for worker in workers.values())
    else:  # not begun yet, or just begun: it counts as long as the process that made it may be alive
        late = now - record.time > _BEGINS_WITHIN
        live = not record.owner.surely_dead()
        live = live and (not late or _is_at_work(root, place, record.owner, now))
        if not live and not folder.is_dir():
            return None
    whole = Extent(record.bytes, record.files)
    written = sum((Extent(one.written, one.made) for one in workers.values()), Extent())
    left = Extent(max(0, whole.bytes - written.bytes), max(0, whole.files - written.files))
    return Reservation(place, fill, whole, written, left if live else Extent(), live)


def _is_at_work(root: CacheRoot, place: CachePlace, owner: LeaseOwner, now: float) -> bool:
    """Return whether the owner's process has a lease on the place, which shows any host that it lives."""
    leases = read_claims(root, place).leases
    return any(
        lease.purpose != "hold" and lease.owner.same_process(owner) and lease.valid(now) for lease in leases
    )
