"""When a cached commit was last used, and how much of the cache's room it stands for.

A fill's record says what that fill wrote. If a commit is evicted whose files others still link, the rest on disk has to
count for one of these: the evictor writes a share into that commit's claims folder, so that the sum over all commits is
what the cache takes.
"""

from __future__ import annotations

import os

import msgspec

from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.fs.files import read_json
from dsv.fs.process import user_name

USED = "used"
SHARE = "share-"
_OFTEN_ENOUGH = 60.0


class UsedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """at: the file server's clock."""

    version: int = 1
    at: float
    user: str = ""


_USED = msgspec.json.Decoder(UsedRecord)


class ShareRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Room taken over from an evicted commit; counts only beside the fill of this id."""

    version: int = 1
    fill: str
    bytes: int
    files: int


_SHARE = msgspec.json.Decoder(ShareRecord)


class Extent(msgspec.Struct, frozen=True):
    """Room on disk: blocks in bytes, and inodes."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.bytes + other.bytes, self.files + other.files)

    def __sub__(self, other: Extent) -> Extent:
        return Extent(self.bytes - other.bytes, self.files - other.files)


def mark_used(root: CacheRoot, place: Place) -> None:
    """Records that the commit was used now; not more often than once a minute. Raises `OSError`."""
    folder = root.claims(place)
    if not folder.is_dir():
        return
    now = root.now(folder)
    last = last_used(root, place)
    if last is None or not 0 <= now - last < _OFTEN_ENOUGH:
        root.replace(folder / USED, msgspec.json.encode(UsedRecord(at=now, user=user_name())))


def used_until(root: CacheRoot, place: Place, moment: float) -> None:
    """Records a use that ended at `moment`, unless a later one is known. Raises `OSError`."""
    if (last_used(root, place) or 0.0) < moment:
        record = UsedRecord(at=moment, user=user_name())
        root.replace(root.claims(place) / USED, msgspec.json.encode(record))


def last_used(root: CacheRoot, place: Place) -> float | None:
    """Seconds since 1970 by the file server's clock; None if no use was recorded. Raises `OSError`."""
    record = read_json(root.claims(place) / USED, _USED)
    return None if record is None else record.at


def add_share(root: CacheRoot, place: Place, fill: str, extent: Extent) -> None:
    """Makes the rest of an evicted commit count for this one. Raises `OSError`."""
    path = root.claims(place) / f"{SHARE}{fill[:16]}-{os.urandom(8).hex()}"
    root.write_once(path, msgspec.json.encode(ShareRecord(fill=fill, bytes=extent.bytes, files=extent.files)))


def shares(root: CacheRoot, place: Place, fill: str, names: tuple[str, ...]) -> Extent:
    """The sum of what was taken over by this fill; `names` lists the claims folder. Raises `OSError`."""
    total = Extent()
    for name in names:
        share = read_json(root.claims(place) / name, _SHARE) if name.startswith(SHARE) else None
        if share is not None and share.fill == fill:
            total += Extent(share.bytes, share.files)
    return total
