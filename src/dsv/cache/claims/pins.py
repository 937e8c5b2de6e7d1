"""Claims that do not expire: people who want a commit to stay, and why."""

from __future__ import annotations

import os
import platform

import msgspec

from dsv.cache.claims import intents
from dsv.cache.claims.claims import PIN, PinRecord, list_claims, read_claims
from dsv.cache.claims.leases import visible_identity
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.fs.process import user_name


def pin(root: CacheRoot, place: Place, *, why: str = "", seconds: float | None = None) -> PinRecord | None:
    """Pins the commit, for ever or for so many seconds; None if it is not cached.

    A pin is taken as a lease is: told first, then settled with every evictor. Raises `OSError`.
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


def unpin(root: CacheRoot, place: Place, *, everyone: bool = False) -> tuple[list[str], list[PinRecord]]:
    """Removes the caller's pins, or everyone's: the ids of those that went, and those that stay.

    Raises `OSError`.
    """
    gone: list[str] = []
    kept: list[PinRecord] = []
    for record in read_claims(root, place, known=()).pins:
        if everyone or record.user == user_name():
            (root.claims(place) / f"{PIN}{record.id}").unlink(missing_ok=True)
            gone.append(record.id)
        else:
            kept.append(record)
    return gone, kept
