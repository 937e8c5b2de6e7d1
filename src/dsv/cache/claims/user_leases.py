"""The leases that people hold by `--hold`: found by whose they are or by their ids, and ended one by one."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dsv.cache.claims.claims import LEASE, LeaseRecord, list_claims, read_claims
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.fs.files import list_names
from dsv.fs.process import user_name


class Hold(msgspec.Struct, frozen=True):
    """A lease on a place, most often a person's. Its identity is the owner's id: 32 hex digits, never used twice."""

    place: Place
    lease: LeaseRecord

    @property
    def id(self) -> str:
        return self.lease.owner.id


def own_holds(
    root: CacheRoot, places: Iterable[Place], *, user: str | None = None, job: str | None = None
) -> list[Hold]:
    """A person's holds of these places, oldest first; only those of `job` if one is given.

    Leases of runs and of commands at work are not among them, nor what has expired by itself. `user` None is the
    caller. Raises `OSError`.
    """
    who = user or user_name()
    found = []
    for place in places:
        claims = read_claims(root, place)
        if not claims.leases:
            continue
        now = root.now(root.claims(place))
        found += [
            Hold(place, lease)
            for lease in claims.leases
            if lease.purpose == "hold"
            and lease.valid(now)
            and lease.owner.user == who
            and job in (None, lease.job)
        ]
    return sorted(found, key=lambda one: (one.lease.since, one.id))


def find_leases(root: CacheRoot, places: Iterable[Place], start: str) -> list[Hold]:
    """Every lease, of any kind and any user, whose id begins with `start`. Raises `OSError`."""
    found = []
    for place in places:
        if any(name.startswith(f"{LEASE}{start}") for name in list_names(root.claims(place))):
            leases = read_claims(root, place).leases
            found += [Hold(place, lease) for lease in leases if lease.owner.id.startswith(start)]
    return found


def end_lease(root: CacheRoot, hold: Hold) -> None:
    """Ends one lease and no other. That it has gone already is fine. Raises `OSError`."""
    folder = root.claims(hold.place)
    for name in list_claims(root, hold.place, ()):
        if name.startswith(f"{LEASE}{hold.id}."):
            (folder / name).unlink(missing_ok=True)
