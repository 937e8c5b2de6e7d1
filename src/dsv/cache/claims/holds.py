"""Holds: claims that people take, with an end (`dsv cache --hold`) or without one (`dsv hold`), and end by themselves.

A hold with an end is a lease that nobody renews. The file of one that `dsv hold` took is called `pin-<id>`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable

import msgspec

from dsv.cache.claims import intents
from dsv.cache.claims.claims import LEASE, PIN, Claims, LeaseRecord, PinRecord, list_claims, read_claims
from dsv.cache.claims.leases import visible_identity
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.fs.files import list_names
from dsv.fs.process import user_name


class Hold(msgspec.Struct, frozen=True):
    """A claim on a place, most often a person's. Its id is 32 hex digits, never used twice."""

    place: Place
    claim: LeaseRecord | PinRecord

    @property
    def id(self) -> str:
        return self.claim.owner.id if isinstance(self.claim, LeaseRecord) else self.claim.id

    @property
    def user(self) -> str:
        return self.claim.owner.user if isinstance(self.claim, LeaseRecord) else self.claim.user

    @property
    def host(self) -> str:
        return self.claim.owner.host if isinstance(self.claim, LeaseRecord) else self.claim.host

    @property
    def job(self) -> str | None:
        """The batch job in which it was taken."""
        return self.claim.job if isinstance(self.claim, LeaseRecord) else None

    @property
    def is_a_persons(self) -> bool:
        """False for the lease of a run or of a command at work."""
        return isinstance(self.claim, PinRecord) or self.claim.purpose == "hold"


def hold(root: CacheRoot, place: Place, *, why: str = "", seconds: float | None = None) -> PinRecord | None:
    """Hold the commit, for ever or for so many seconds; None if it is not cached.

    The hold is taken as a lease is: its file first, then every evictor's intent is ended. Raises `OSError`.
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
    intents.void_all(root, place, list_claims(root, place, [path.name]))
    if visible_identity(root, place) is None:
        path.unlink(missing_ok=True)
        return None
    return record


def find_holds(
    root: CacheRoot, places: Iterable[Place], *, job: str | None = None, everyone: bool = False
) -> list[Hold]:
    """Find the caller's holds of these places, oldest first.

    Those that have expired are left out, and so are the leases of runs and of commands at work. Raises `OSError`.

    job: only those that were taken in this batch job.
    everyone: with those that others took by `dsv hold`.
    """
    found = []
    for place in places:
        held = _all_of(place, read_claims(root, place, known=()))
        if not held:
            continue
        now = root.now(root.claims(place))
        found += [
            one
            for one in held
            if one.is_a_persons
            and one.claim.valid(now)
            and (one.user == user_name() or (everyone and isinstance(one.claim, PinRecord)))
            and job in (None, one.job)
        ]
    return sorted(found, key=lambda one: (one.claim.since, one.id))


def find_claims(root: CacheRoot, places: Iterable[Place], start: str) -> list[Hold]:
    """Find the leases and holds, of any kind and any user, whose ids begin with `start`. Raises `OSError`."""
    found = []
    for place in places:
        names = list_names(root.claims(place))
        if any(name.startswith((f"{LEASE}{start}", f"{PIN}{start}")) for name in names):
            found += [one for one in _all_of(place, read_claims(root, place)) if one.id.startswith(start)]
    return found


def _all_of(place: Place, claims: Claims) -> list[Hold]:
    return [*(Hold(place, lease) for lease in claims.leases), *(Hold(place, pin) for pin in claims.pins)]


def end_hold(root: CacheRoot, one: Hold) -> None:
    """End one lease or hold and no other. One that has gone already is fine. Raises `OSError`."""
    for name in list_claims(root, one.place, ()):
        if name.startswith(f"{LEASE}{one.id}.") or name == f"{PIN}{one.id}":
            (root.claims(one.place) / name).unlink(missing_ok=True)
