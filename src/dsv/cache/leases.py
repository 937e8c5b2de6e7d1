"""Take, renew and end leases and holds: rules L1 to L10 and L13, proved in docs/internals/cache-protocol.md.

A hold is a claim that a person takes and ends. `dsv cache --hold` takes one with an end: a lease that is not
renewed. The file of a hold that `dsv hold` took is called `pin-<id>`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import stat
import threading
import time
from collections.abc import Collection, Iterable
from typing import Literal, Self

import msgspec

from dsv.cache.claims import (
    LEASE,
    PIN,
    Claims,
    LeaseName,
    LeaseOwner,
    LeaseRecord,
    PinRecord,
    cancel_intents,
    list_claims,
    read_claims,
)
from dsv.cache.record import ENTRY, mark_used
from dsv.cache.root import CachePlace, CacheRoot, own_folder
from dsv.errors import Conflict, DsvError
from dsv.files.attributes import ignoring
from dsv.files.process import user_name
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import FULL, list_names
from dsv.periodic import NEVER, Periodic

TTL = 900.0
"""Seconds that a lease is valid after a renewal: a host may be cut off for so long without consequences."""
_RENEWALS = 5  # per TTL
_RETRY = 10.0
SILENCE = 40.0
"""Seconds from the last renewal until others may end the lease of a silent process that fills (rule L13)."""


class Lease:
    """A claim on one place, valid from the moment it was taken, whether the commit is cached yet or not.

    `take` makes it; after that no evictor can miss it. `confirm` returns whether the commit is visible and
    stays so; from then on the renewing thread watches the commit. `lost` is set, with `reason`, if the commit
    was evicted while this host could not renew. A failed renewal alone sets nothing: when the host is back it
    takes the lease again if the commit is still the same.
    """

    def __init__(self, root: CacheRoot, place: CachePlace, record: LeaseRecord) -> None:
        self.root = root
        self.place = place
        self.record = record
        self.lost = threading.Event()
        self.reason = ""
        self._name = LeaseName(record.owner.id, 0, record.renewed)
        self._older: SharedPath | None = None
        self._tried = 0  # the number of the last name that was requested, successfully or not
        self._strays = False  # whether a name may exist although its request failed
        self._identity: tuple[int, int] | None = None
        self._entries: frozenset[str] = frozenset()
        self._sure_until = 0.0
        self._renewed_at = 0.0
        self._released = False
        self._renewal = Periodic("dsv-lease", self._renew_in_time, first=record.ttl / _RENEWALS)
        self._held = False
        self._turn = threading.Lock()

    @classmethod
    def take(
        cls,
        root: CacheRoot,
        place: CachePlace,
        purpose: Literal["stage", "run", "hold"],
        *,
        ttl: float = TTL,
        run: str | None = None,
        job: str | None = None,
        process: int | None = None,
        program: str = "",
    ) -> Lease:
        """Take a lease. Raises `OSError` if that fails; then no claim is left."""
        started = boot_clock()
        now = root.now(root.claims(place))
        record = LeaseRecord(
            owner=LeaseOwner.new(),
            purpose=purpose,
            run=None if run is None else str(run),  # a plain str: a subclass may not be encodable
            job=job,
            process=process,
            program=program,
            since=now,
            renewed=now,
            ttl=ttl,
        )
        lease = cls(root, place, record)
        root.write_once(lease._path, msgspec.json.encode(record))
        lease._counts_from(started)
        try:
            lease._void_intents()
        except BaseException:
            lease.release()
            raise
        return lease

    @property
    def secure(self) -> bool:
        """True if every evictor still respects it, by a clock that runs on while the machine sleeps."""
        return not self.lost.is_set() and boot_clock() < self._sure_until

    def confirm(self) -> bool:
        """Return whether the whole commit is visible and stays so while the lease lasts. Raises `OSError`.

        Renew first if others may have ended the lease (rule L13).
        """
        while True:
            if not self._recently_renewed():
                self.renew()
            names = list_claims(self.root, self.place, [str(self._name)])
            self._entries = frozenset(name for name in names if name.startswith(ENTRY))
            self._identity = visible_identity(self.root, self.place)
            if self._recently_renewed():
                return self._identity is not None

    def renew(self) -> None:
        """Renew once, and check that the commit is still the one that was confirmed. Raises `OSError`."""
        with self._turn:
            started = boot_clock()
            now = self.root.now(self.root.claims(self.place))
            self._tried += 1
            name = LeaseName(self._name.holder, self._tried, max(now, self._name.renewed))
            self._name, self._older = name, self._rename(self.root.claims(self.place) / str(name))
            if self._released:  # while the rename hung
                self._remove()
                return
            self._void_intents()
            if not self._unchanged():
                self.reason = (
                    f"{self.place} was evicted from {self.root.path} while its hold could not be renewed"
                )
                self.lost.set()
            self._counts_from(started)  # only now is it known what the lease protects

    def hold(self) -> Self:
        """Start the thread that renews until `release`."""
        if not self._held:
            self._held = True
            self._renewal.start()
        return self

    def release(self) -> None:
        """End the claim and record the use. Raises no error of the cache: a claim that can't be removed expires."""
        self._released = True
        self._renewal.stop(timeout=5.0)  # it may hang in the kernel while the server is away
        with contextlib.suppress(OSError, DsvError):
            if self._identity is not None and not self.lost.is_set():
                mark_used(self.root, self.place)
        with contextlib.suppress(OSError):
            self._remove()
            # If nothing was cached; otherwise the commit's entry is in the folder.
            self.root.claims(self.place).rmdir()

    def __enter__(self) -> Self:
        return self.hold()

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def _path(self) -> SharedPath:
        return self.root.claims(self.place) / str(self._name)

    def _rename(self, new: SharedPath) -> SharedPath | None:
        """Give the lease this name; return its other name. After an `OSError` the names are unchanged."""
        older, current = self._older, self._path
        try:
            with ignoring(FULL):
                self._put(older, current, new)
                return current
            current.rename(new)
            return older
        except OSError as error:
            self._strays |= error.errno not in FULL  # a server may still do later what failed here
            raise

    def _put(self, older: SharedPath | None, current: SharedPath, new: SharedPath) -> None:
        """Add the new name; write the file again if an evictor, or a person, has removed the old names."""
        try:
            if older is None:
                new.hardlink_to(current)
            else:
                older.rename(new)
        except FileExistsError:
            pass  # a LINK sent again after its answer was lost
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            self.root.write_once(new, msgspec.json.encode(self.record))

    def _counts_from(self, started: float) -> None:
        # For others it is valid until the server's `renewed + ttl`, which is after this: `started` was read
        # first, and a twentieth is more than two clocks drift apart in that time.
        self._sure_until = started + self.record.ttl * 0.95
        self._renewed_at = started

    def _recently_renewed(self) -> bool:
        """Return whether others can't have ended it (rule L13), by this host's clock, with room for drift."""
        return boot_clock() < self._renewed_at + SILENCE * 0.9

    def _remove(self) -> None:
        for path in (self._path, self._older):
            if path is not None:
                path.unlink(missing_ok=True)
        if self._strays:
            claims = self.root.claims(self.place)
            for name in list_names(claims):
                if name.startswith(f"{LEASE}{self.record.owner.id}."):
                    (claims / name).unlink(missing_ok=True)

    def _void_intents(self) -> None:
        cancel_intents(self.root, self.place, list_claims(self.root, self.place, [str(self._name)]))

    def _unchanged(self) -> bool:
        """Compare the folder with the confirmed one. An inode number may be used again, a record's never."""
        if self._identity is None:
            return True
        claims = self.root.claims(self.place)
        same = not self._entries or any((claims / name).exists() for name in self._entries)
        return same and visible_identity(self.root, self.place) == self._identity

    def _renew_in_time(self) -> float:
        """Renew, and return the seconds until the next time."""
        interval = self.record.ttl / _RENEWALS
        if self.lost.is_set():
            return NEVER
        try:
            self.renew()
        except (OSError, DsvError):  # cut off, or no room for a file: `secure` says when that matters
            return min(interval, _RETRY)
        return interval if self.secure else 0.0  # it hung for so long that the renewal is too old


def end_leases_of(root: CacheRoot, place: CachePlace, gone: LeaseOwner, silent_at: float) -> None:
    """End the `stage` leases of a process whose part was taken over: rule L13 of the cache protocol.

    silent_at: the server's time at which the process was found silent, and the fill not done. Names that were
    renewed less than `SILENCE` before that stay. Raises `OSError`.
    """
    for lease in read_claims(root, place).leases:
        if lease.purpose != "stage" or not gone.kernel or not lease.owner.same_process(gone):
            continue
        for name in list_names(root.claims(place)):
            found = LeaseName.parse(name)
            if found is None or found.holder != lease.owner.id:
                continue
            if found.renewed < silent_at - SILENCE or lease.owner.surely_dead():
                (root.claims(place) / name).unlink(missing_ok=True)


def end_leases_of_runs(root: CacheRoot, places: Iterable[CachePlace], runs: Collection[str]) -> None:
    """End the leases of runs whose records are whole, if their processes are surely dead. Raises `OSError`."""
    for one in find_by_id(root, places, ""):
        lease = one.claim
        if isinstance(lease, LeaseRecord) and lease.run in runs and lease.owner.surely_dead():
            end_hold(root, one)


def visible_identity(root: CacheRoot, place: CachePlace) -> tuple[int, int] | None:
    """Return device and inode of the visible folder by the file server, not by this host's memory.

    None if it is absent, or if it or the dataset's folder is a symlink. A change by this process in a folder
    makes an NFS client ask again. Raises `OSError`.
    """
    path = root.visible(place)
    try:
        if not own_folder(path.parent):
            root.now(root.top)
        if own_folder(path.parent):
            root.now(path.parent)
        found = path.stat()
    except (Conflict, FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def boot_clock() -> float:
    """Return seconds by a clock that runs on while the machine sleeps, if the system has one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class HoldInfo(msgspec.Struct, frozen=True):
    """A claim on a place, most often a person's."""

    place: CachePlace
    claim: LeaseRecord | PinRecord


def hold(
    root: CacheRoot, place: CachePlace, *, why: str = "", seconds: float | None = None
) -> PinRecord | None:
    """Hold the commit, permanently or for some seconds; None if it is not cached. As with a lease, its file
    is created first, then every evictor's intent is ended. Raises `OSError`.
    """
    now = root.now(root.claims(place))
    record = PinRecord(
        id=os.urandom(16).hex(),
        user=user_name(),
        host=platform.node(),
        why=why,
        since=now,
        until=None if seconds is None else now + seconds,
    )
    path = root.claims(place) / f"{PIN}{record.id}"
    root.write_once(path, msgspec.json.encode(record))
    cached = False
    try:
        cancel_intents(root, place, list_claims(root, place, [path.name]))
        cached = visible_identity(root, place) is not None
    finally:
        if not cached:
            path.unlink(missing_ok=True)
    return record if cached else None


def find_holds(
    root: CacheRoot, places: Iterable[CachePlace], *, job: str | None = None, everyone: bool = False
) -> list[HoldInfo]:
    """Return the user's valid holds of these places, oldest first; no leases of runs or running commands.

    job: only those taken in this batch job. everyone: also those that others took by `dsv hold`. Raises `OSError`.
    """
    holds = []
    for place in places:
        held = _all_of(place, read_claims(root, place, known=()))
        if not held:
            continue
        now = root.now(root.claims(place))
        holds += [
            info
            for info in held
            if info.claim.is_hold
            and info.claim.valid(now)
            and (info.claim.user == user_name() or (everyone and isinstance(info.claim, PinRecord)))
            and job in (None, info.claim.job)
        ]
    return sorted(holds, key=lambda info: (info.claim.since, info.claim.id))


def find_by_id(root: CacheRoot, places: Iterable[CachePlace], start: str) -> list[HoldInfo]:
    """Return all leases and holds, of any kind and user, whose ids begin with `start`. Raises `OSError`."""
    holds = []
    for place in places:
        names = list_names(root.claims(place))
        if any(name.startswith((f"{LEASE}{start}", f"{PIN}{start}")) for name in names):
            holds += [
                info for info in _all_of(place, read_claims(root, place)) if info.claim.id.startswith(start)
            ]
    return holds


def _all_of(place: CachePlace, claims: Claims) -> list[HoldInfo]:
    of_both_kinds: list[LeaseRecord | PinRecord] = [*claims.leases, *claims.pins]
    return [HoldInfo(place, claim) for claim in of_both_kinds]


def end_hold(root: CacheRoot, one: HoldInfo) -> None:
    """End one lease or hold and no other. Do nothing if it is gone already. Raises `OSError`."""
    for name in list_claims(root, one.place, ()):
        if one.claim.owns(name):
            (root.claims(one.place) / name).unlink(missing_ok=True)
