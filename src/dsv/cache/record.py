"""Records of cached commits: their content, their last use, and the disk space attributed to them.

Records are small files beside the commit, so a hit costs the same for one file and for a million. A publisher
renames, then records; an evictor renames, removes the record, then withdraws its intent. A record has the
space that its own fill took; shares (rule E6 of the cache protocol) make the sum right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from dsv.cache.root import CachePlace, CacheRoot, own_folder
from dsv.errors import DsvError
from dsv.files.process import user_name
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names, read_json, read_small
from dsv.format.envelope import RECORD_MAX
from dsv.format.records import CommitRecord
from dsv.repo.objects.metadata import MetadataCache
from dsv.values.ids import CommitId, StoreId
from dsv.values.paths import PathSet

USED = "used"
SHARE = "share-"
_OFTEN_ENOUGH = 60.0


class UsedRecord(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    at: float
    """Seconds since 1970 by the file server's clock."""
    user: str = ""


_USED = msgspec.json.Decoder(UsedRecord)


class ShareRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Room taken over from an evicted commit. It counts only together with the fill of this id."""

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


def mark_used(root: CacheRoot, place: CachePlace) -> None:
    """Record that the commit was used now, at most once a minute. Raises `OSError`."""
    folder = root.claims(place)
    if not folder.is_dir():
        return
    now = root.now(folder)
    last = last_used(root, place)
    if last is None or not 0 <= now - last < _OFTEN_ENOUGH:
        root.replace(folder / USED, msgspec.json.encode(UsedRecord(at=now, user=user_name())))


def used_until(root: CacheRoot, place: CachePlace, moment: float) -> None:
    """Record a use that ended at `moment`, unless a later one is known. Raises `OSError`."""
    if (last_used(root, place) or 0.0) < moment:
        root.replace(root.claims(place) / USED, msgspec.json.encode(UsedRecord(at=moment, user=user_name())))


def last_used(root: CacheRoot, place: CachePlace) -> float | None:
    """Return seconds since 1970 by the file server's clock; None if no use was recorded. Raises `OSError`."""
    record = read_json(root.claims(place) / USED, _USED)
    return None if record is None else record.at


def add_share(
    root: CacheRoot, place: CachePlace, fill: str, extent: Extent, known: Iterable[str] | None = None
) -> None:
    """Add the room that is left of an evicted commit to this commit's account. Raises `OSError`.

    known: the names of claims from which a correction was worked out. Of several of the same, one counts.
    """
    seen = None if known is None else "".join(sorted(name for name in known if name.startswith(SHARE)))
    unique = os.urandom(8).hex() if seen is None else blake3(seen.encode()).hexdigest(length=8)
    path = root.claims(place) / f"{SHARE}{fill[:16]}-{unique}"
    root.write_once(path, msgspec.json.encode(ShareRecord(fill=fill, bytes=extent.bytes, files=extent.files)))


def account(root: CacheRoot, place: CachePlace, record: Filled, names: tuple[str, ...]) -> Extent:
    """Return what a fill pays for, with what it took over; `names` lists the claims folder. Raises `OSError`."""
    total = Extent(record.own_bytes, record.own_files)
    for name in names:
        share = read_json(root.claims(place) / name, _SHARE) if name.startswith(SHARE) else None
        if share is not None and share.fill == record.fill:
            total += Extent(share.bytes, share.files)
    return total


ENTRY = "entry-"
_VERSION = 1


class Filled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One fill of a cached commit. A newer version may add fields, but never changes the meaning of these.

    The ids are hex. `files`, `bytes` and `entries` are of the commit or selection; `host` and `user` of the process
    that made it visible.
    """

    version: int = _VERSION
    fill: str
    """Random, new for each fill; the same for all that share the fill."""
    store: str
    commit: str
    files: int
    bytes: int
    entries: int
    own_files: int = 0
    """Inodes that this fill added, without those of linked files."""
    own_bytes: int = 0
    """Disk blocks that it added, in bytes, with those of folders."""
    counted: bool = False
    """Both were counted when the files were written. Older versions estimated them."""
    selection: tuple[str, ...] = ()
    """The selected paths; empty for a whole commit."""
    linked: tuple[str, ...] = ()
    """Places (`<dataset component>/<name>`) that files were taken from."""
    host: str = ""
    user: str = ""
    time: float = 0.0
    """Seconds since 1970, the file server's clock."""

    @property
    def paths(self) -> PathSet:
        return PathSet.of(path.encode() for path in self.selection)


_FILLED = msgspec.json.Decoder(Filled)


def record_path(root: CacheRoot, place: CachePlace, fill: str) -> SharedPath:
    return root.claims(place) / f"{ENTRY}{fill}"


def write_record(root: CacheRoot, place: CachePlace, record: Filled) -> bool:
    """Record that the visible folder is whole, right after the rename; False if it was recorded before."""
    return root.write_once(record_path(root, place, record.fill), msgspec.json.encode(record))


def read_record(root: CacheRoot, place: CachePlace, names: Iterable[str] | None = None) -> Filled | None:
    """Return the readable record of a place, visible or not. names: those of its claims. Raises `OSError`."""
    folder = root.claims(place)
    chosen = list_names(folder) if names is None else names
    records = [read_json(folder / name, _FILLED) for name in chosen if name.startswith(ENTRY)]
    return max(filter(None, records), key=lambda record: record.time, default=None)


class Cached(msgspec.Struct, frozen=True):
    """A visible, whole commit, and what one call did to make it visible."""

    path: Path
    record: Filled
    fetched_bytes: int = 0
    """Read from the store, by helper processes too."""
    linked_files: int = 0
    """Taken from other cached commits."""
    hit: bool = True
    """True if it was cached before."""


def lookup(root: CacheRoot, place: CachePlace, *, fresh: bool = False) -> Cached | None:
    """Return the visible, whole commit, or None. Raises `OSError`, and `Conflict` for a symlink in its place.

    fresh: make an NFS client ask its server, because it may answer from memory for up to a minute. This needs
    the right to write.
    """
    if fresh:
        root.reach(root.visible(place).parent)
        root.reach(root.claims(place))
    path = root.visible(place)
    record = read_record(root, place) if own_folder(path.parent) and own_folder(path) else None
    return None if record is None else Cached(path.path, record)


def local_commit(root: CacheRoot, place: CachePlace) -> CommitRecord | None:
    """Return the commit of a cached place from the cache's metadata; None if it has no valid copy."""
    with suppress(OSError, DsvError):
        record = read_record(root, place)
        if record is not None:
            metadata = MetadataCache(root.metadata(StoreId.parse(record.store)))
            data = metadata.get("commit", str(place.commit), RECORD_MAX)
            if data is not None and CommitId.hash(data) == place.commit:
                return CommitRecord.decode(data)
    return None


def erasures_folder(root: CacheRoot, store: StoreId) -> SharedPath:
    """Return the folder that records which of a store's erasures the cache has obeyed."""
    return root.store(store) / "erasures"


def erased_count(root: CacheRoot, place: CachePlace, store: StoreId) -> SharedPath:
    """Return the file that has the number of erased files that a cached commit lacks."""
    return erasures_folder(root, store) / "files" / f"{place.dataset}-{place.name}"


def erased_files(root: CacheRoot, place: CachePlace, store: StoreId) -> int:
    """Return how many erased files a cached commit lacks. Raises `OSError`."""
    found = read_small(erased_count(root, place, store)) or b"0"
    return int(found) if found.isdigit() else 0
