"""Leases and pins, which keep a place, and intents to evict it: the content of the place's claims folder.

The random id of an `LeaseOwner` decides who holds a claim. Its other fields let a process on the same kernel, which
alone can know that the holder has died, skip the wait for expiry. Rules L1 to L3 and E1 to E3 of
docs/internals/cache-protocol.md say why a taker that removes an evictor's empty folder has stopped it permanently.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Collection, Iterable
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from dsv.cache.root import CachePlace, CacheRoot
from dsv.files import system
from dsv.files.attributes import GONE, ignoring, unless_gone
from dsv.files.folders import TAKEN
from dsv.files.process import Fate, Process, host_name, user_name
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import FULL, list_names, read_json, read_small
from dsv.values.units import format_time


class LeaseOwner(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One holder of claims. Two are the same only if their `id` is.

    `host` and `user` are for people to read; `kernel`, `pid` and `start` are those of `files.process.Process`.
    """

    id: str
    host: str = ""
    user: str = ""
    kernel: str = ""
    pid: int = 0
    start: int = 0

    @classmethod
    def new(cls) -> LeaseOwner:
        """Return a new owner in this process. Each claim and each worker needs its own, also after a fork."""
        here = Process.here()
        return cls(os.urandom(16).hex(), host_name(), user_name(), here.kernel, here.pid, here.start)

    def same_process(self, other: LeaseOwner) -> bool:
        """Return False only if the claims are known to be of two processes."""
        return self._process == other._process

    def surely_dead(self) -> bool:
        """Return True only if this kernel knows that the process has ended."""
        return self._process.fate() is Fate.DEAD

    @property
    def _process(self) -> Process:
        return Process(self.kernel, self.pid, self.start)


INTENT = "intent-"


class IntentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An evictor's intent to remove a cached commit."""

    version: int = 1
    owner: LeaseOwner
    """Its `id` names the trash folder."""
    at: float
    """Seconds since 1970 by the file server's clock."""


_INTENT = msgspec.json.Decoder(IntentRecord)


class Intent(msgspec.Struct, frozen=True):
    """This process's intent on one place."""

    root: CacheRoot
    place: CachePlace
    owner: LeaseOwner

    @classmethod
    def declare(cls, root: CacheRoot, place: CachePlace, now: float) -> Intent:
        """Make a trash folder, then the intent: later listings show all earlier takers. Raises `OSError`."""
        intent = cls(root, place, LeaseOwner.new())
        intent._make_folder()
        try:
            intent._tell(IntentRecord(owner=intent.owner, at=now))
        except BaseException:
            intent.withdraw()
            raise
        return intent

    @property
    def folder(self) -> SharedPath:
        return self.root.trash / self.owner.id

    @property
    def file(self) -> SharedPath:
        return self.root.claims(self.place) / f"{INTENT}{self.owner.id}"

    def _make_folder(self) -> None:
        with ignoring(FULL):
            self.root.make_directory(self.folder)
            return
        # The next `prepare` on a disk with room makes a new one.
        self.root.spare_folder.rename(self.folder)

    def _tell(self, record: IntentRecord) -> None:
        with ignoring(FULL):
            self.root.write_once(self.file, msgspec.json.encode(record))
            return
        self.root.put_name(self.file)  # the name alone is enough

    def rename_to_trash(self, source: SharedPath) -> bool:
        """Rename `source` into the trash; False if a taker or other evictor was faster. Raises `OSError`."""
        with unless_gone():
            source.rename(self.folder / source.name)
            return True
        try:  # which of the two folders is missing? rmdir asks the server, this host's memory may be old
            self.folder.rmdir()
        except OSError as error:
            if error.errno in TAKEN:  # a RENAME sent again after its answer was lost
                return True
            if error.errno not in GONE:
                raise
        return False

    def withdraw(self) -> None:
        """Take the intent back; first its trash folder, without which it is void. Raises `OSError`."""
        _remove_folder(self.folder)
        self.file.unlink(missing_ok=True)


def cancel_intent(root: CacheRoot, place: CachePlace, name: str) -> bool:
    """Make sure that this intent can no longer `fire`; return False if it already has. Raises `OSError`."""
    if not _remove_folder(root.trash / name.removeprefix(INTENT)):
        return False
    (root.claims(place) / name).unlink(missing_ok=True)
    return True


def cancel_intents(root: CacheRoot, place: CachePlace, names: Iterable[str]) -> None:
    """End every intent among these names of claims. Raises `OSError`."""
    for name in names:
        if name.startswith(INTENT):
            cancel_intent(root, place, name)


def read_intent(root: CacheRoot, place: CachePlace, name: str) -> IntentRecord | None:
    """Return an intent, or None if it was withdrawn or can't be decoded. Raises `OSError`."""
    return read_json(root.claims(place) / name, _INTENT)


def _remove_folder(folder: SharedPath) -> bool:
    """Return False if it is not empty. A missing one was removed by its evictor or by another taker."""
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno in TAKEN:
            return False
        if error.errno not in GONE:
            raise
    return True


LEASE = "lease-"
PIN = "pin-"
_LEASE_NAME = re.compile(r"lease-([0-9a-f]{32})\.([0-9]{1,9})\.([0-9]{1,15})")
UNKNOWN_COUNTS = 86400.0
"""A claim that this version can't read counts for this many seconds after it was written."""
_LISTING_LIMIT = 20.0
"""Seconds. A slower listing may have missed a lease that was renewed while it ran (see leases.py)."""
_TRIES = 10


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An expiring claim. Moments are seconds since 1970 by the file server's clock; `ttl` is seconds."""

    version: int = 1
    owner: LeaseOwner
    purpose: Literal["stage", "run", "hold"]
    """`stage` for a running command, `run` for a job, `hold` for a person."""
    run: str | None = None
    job: str | None = None
    """The batch job in which the claim was taken."""
    process: int | None = None
    """The claim lasts as long as this process. Every dsv respects its purpose, `run`, until it expires."""
    program: str = ""
    """The command of `process`, for people to read."""
    since: float
    renewed: float
    """In the file, when the claim was taken; `read_claims` replaces it by the time in the file's name."""
    ttl: float

    @property
    def id(self) -> str:
        return self.owner.id

    @property
    def user(self) -> str:
        return self.owner.user

    @property
    def host(self) -> str:
        return self.owner.host

    @property
    def is_hold(self) -> bool:
        """True if it is a person's, not that of a run or a running command."""
        return self.purpose == "hold"

    @property
    def until(self) -> float:
        return self.renewed + self.ttl

    def valid(self, now: float) -> bool:
        """Return whether it protects. Only `stage` ends with its process: containers may outlive dsv."""
        return now <= self.until and not (self.purpose == "stage" and self.owner.surely_dead())

    def owns(self, name: str) -> bool:
        """Return whether this is the name of a file of the claim, in the claims folder."""
        return name.startswith(f"{LEASE}{self.id}.")

    def describe(self) -> str:
        who = self.user or "somebody"
        where = f" on {self.host}" if self.host else ""
        if self.is_hold:
            return f"held by {who} until {format_time(1000 * self.until)}"
        if self.process is not None and self.run is None:
            return f"in use by {self.program or 'a program'} (process {self.process}) of {who}{where}"
        if self.purpose == "run":
            return f"in use by run {self.run or '?'} of {who}{where}"
        return f"being used by {who}{where}"


_LEASE_RECORD = msgspec.json.Decoder(LeaseRecord)


class PinRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A hold that `dsv hold` took: it stays until it is released, or until `until`. Times are seconds since 1970."""

    version: int = 1
    id: str
    user: str
    host: str = ""
    why: str = ""
    since: float
    until: float | None = None
    job: ClassVar[None] = None
    is_hold: ClassVar[bool] = True

    def valid(self, now: float) -> bool:
        return self.until is None or now <= self.until

    def owns(self, name: str) -> bool:
        return name == f"{PIN}{self.id}"

    def describe(self) -> str:
        why = f": {self.why}" if self.why else ""
        end = "" if self.until is None else f" until {format_time(1000 * self.until)}"
        return f"held by {self.user or 'somebody'}{end}{why}"


_PIN_RECORD = msgspec.json.Decoder(PinRecord)


class Unknown(msgspec.Struct, frozen=True):
    """A lease or pin that this version can't read. `written`: seconds since 1970 by the file server's clock."""

    name: str
    written: float

    def valid(self, now: float) -> bool:
        return now <= self.written + UNKNOWN_COUNTS

    def owns(self, name: str) -> bool:
        return name == self.name

    def describe(self) -> str:
        return f"held in a way that this dsv does not understand ({self.name})"


class Claims(msgspec.Struct, frozen=True):
    """All claims on a place, including expired ones. `names` is the listing that they were read from."""

    leases: tuple[LeaseRecord, ...] = ()
    pins: tuple[PinRecord, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def intents(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name.startswith(INTENT))

    @property
    def every(self) -> tuple[PinRecord | LeaseRecord | Unknown, ...]:
        return (*self.pins, *self.leases, *self.unknown)

    def protecting(self, now: float) -> str | None:
        """Return why the place may not be evicted, or None."""
        return next((claim.describe() for claim in self.every if claim.valid(now)), None)


def read_claims(
    root: CacheRoot, place: CachePlace, *, asked: bool = False, known: Collection[str] | None = None
) -> Claims:
    """Read all claims on a place. Raises `OSError`.

    Over NFS this is up to date only if this process has just changed the folder. A caller that decides by it
    passes `known`, see `list_claims`; without it a file server may leave names out. asked: the caller has
    just refreshed the folder.
    """
    folder = root.claims(place)
    for attempt in range(_TRIES):
        start = time.monotonic()
        names = (
            list_names(folder, asked=asked and not attempt)
            if known is None
            else list_claims(root, place, known)
        )
        claims = _read(folder, names)
        if claims is not None and time.monotonic() - start < _LISTING_LIMIT:
            return claims
    # Names changed faster than they could be read, so the place is in use.
    return Claims(unknown=(Unknown("names that keep changing", float("inf")),), names=tuple(names))


def list_claims(root: CacheRoot, place: CachePlace, known: Collection[str]) -> list[str]:
    """List the claims folder of a place for a decision: rule T6 of docs/internals/cache-protocol.md.

    While other hosts change a folder, a file server may leave out names that are there all the time. So a
    listing counts only if it has all `known` names, except those that were removed. On a file server two such
    listings are combined, each after a change by this process in the folder; the caller makes the first
    change. So a returned name may be gone already. Raises `OSError`.
    """
    folder = root.claims(place)
    wanted = 2 if system.kind_of(root.path).remote else 1
    seen: set[str] = set()
    for attempt in range(_TRIES):
        if attempt:
            root.time_in(folder)
        names = list_names(folder)
        seen.update(names)
        wanted -= all(name in names or not (folder / name).exists() for name in known)
        if not wanted:
            return sorted(seen)
    raise OSError(errno.EAGAIN, "the file server leaves out names", str(folder))


def _read(folder: SharedPath, names: list[str]) -> Claims | None:
    """Read these claims. None if a lease has vanished, released or renewed: the caller lists again."""
    latest: dict[str, LeaseName] = {}
    pins: list[PinRecord] = []
    unknown: list[Unknown] = []
    for name in names:
        lease = LeaseName.parse(name)
        if lease is not None:
            if lease.holder not in latest or latest[lease.holder].number < lease.number:
                latest[lease.holder] = lease
        elif name.startswith((LEASE, PIN)):
            data = read_small(folder / name)
            try:
                pins.append(_PIN_RECORD.decode(data or b""))
            except (msgspec.DecodeError, RecursionError):
                with contextlib.suppress(FileNotFoundError):
                    unknown.append(Unknown(name, (folder / name).stat().st_mtime))
    leases: list[LeaseRecord] = []
    for one in latest.values():
        data = read_small(folder / str(one))
        if data is None and not (folder / str(one)).exists():
            return None
        try:
            leases.append(replace(_LEASE_RECORD.decode(data or b""), renewed=one.renewed))
        except (msgspec.DecodeError, RecursionError):
            unknown.append(Unknown(str(one), one.renewed))
    return Claims(tuple(leases), tuple(pins), tuple(unknown), tuple(names))


class LeaseName(msgspec.Struct, frozen=True):
    """`lease-<holder>.<number>.<renewed>`; the name has the time of the renewal in whole milliseconds."""

    holder: str
    number: int
    renewed: float

    @classmethod
    def parse(cls, name: str) -> LeaseName | None:
        match = _LEASE_NAME.fullmatch(name)
        return None if match is None else cls(match[1], int(match[2]), int(match[3]) / 1000)

    def __str__(self) -> str:
        return f"{LEASE}{self.holder}.{self.number}.{round(self.renewed * 1000)}"
