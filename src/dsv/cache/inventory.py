"""List what is cached, from the small records and the claims of every commit. No tree is walked.

An inventory reads three files for each commit, six requests on a file server, and most commits have not
changed since the last one. `.dsv/inventory` is a copy of what was read, which anybody may delete at any time:
rule E8 of docs/internals/cache-protocol.md.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dsv.cache.claims import Claims, read_claims
from dsv.cache.names import PREFIX, is_tag_link
from dsv.cache.policy import CachedCommit
from dsv.cache.record import USED, Extent, Filled, account, last_used, read_record
from dsv.cache.root import (
    SETTINGS_FILE,
    CachePlace,
    CacheRoot,
    explaining,
    folder_name,
    is_dataset,
    own_folder,
    places_in,
)
from dsv.files.attributes import ignoring, refresh
from dsv.files.shared_path import ListedName, SharedPath
from dsv.files.small_files import GONE, list_names, read_json
from dsv.values.names import DatasetName

STABLE_SECONDS = 10.0
"""Seconds. Some file systems store whole seconds, so a younger folder may change and keep its mtime."""
WORTH_KEEPING = 64  # folders read; for fewer, writing the file costs more than it saves
_VERSION = 1
_LONGEST = 256 << 20  # bytes


class PlaceFacts(msgspec.Struct, frozen=True, array_like=True):
    """The content of one place's claims folder."""

    changed: int
    """Its mtime before it was read, in ns; 0 if it was missing."""
    claims: Claims
    record: Filled | None
    used: float
    """The last recorded use, in seconds since 1970; 0 for none."""
    room: Extent
    """Disk space on the commit's account."""


class _File(msgspec.Struct, frozen=True):
    version: int
    places: dict[str, dict[str, PlaceFacts]]


_FILE = msgspec.json.Decoder(_File)


class Remembered:
    """Facts about cached commits from earlier inventories and from this one. Threads may share it."""

    def __init__(self, root: CacheRoot, now: float, known: dict[CachePlace, PlaceFacts]) -> None:
        self.now = now
        """The start of this inventory by the file server's clock."""
        self._root = root
        self._known = known
        self._anew: dict[CachePlace, PlaceFacts] = {}
        self._trusted: dict[CachePlace, PlaceFacts] = {}

    @classmethod
    def load(cls, root: CacheRoot, now: float) -> Remembered:
        """Read the file; know nothing if it is missing or can't be decoded. Raises `OSError`."""
        file = read_json(root.inventory, _FILE, _LONGEST)
        if file is None or file.version != _VERSION:
            return cls(root, now, {})
        known = {
            CachePlace(dataset, name): facts
            for dataset, places in file.places.items()
            for name, facts in places.items()
        }
        return cls(root, now, known)

    def read(self, place: CachePlace) -> PlaceFacts:
        """Read a place's claims folder, with one request if it has not changed. Raises `OSError`."""
        if place in self._trusted:
            return self._trusted[place]
        changed = 0
        with ignoring(GONE):
            changed = refresh(self._root.claims(place))
        known = self._known.get(place)
        if known is not None and known.changed == changed:
            return known
        facts = read_facts(self._root, place, changed)
        self._anew[place] = facts
        return facts

    def trust(self, place: CachePlace, facts: PlaceFacts) -> None:
        """Have `read` return these facts without a request. Only a plan may rely on that."""
        self._trusted[place] = facts

    def save(self, places: Iterable[CachePlace]) -> None:
        """Save what is known of these places, if enough was read. An error in writing is ignored."""
        stable = {place: facts for place, facts in self._anew.items() if self._is_stable(facts)}
        if len(stable) < WORTH_KEEPING:
            return
        self._known |= stable
        file = _File(_VERSION, {})
        for place in places:
            if place in self._known:
                file.places.setdefault(place.dataset, {})[place.name] = self._known[place]
        with contextlib.suppress(OSError):
            self._root.replace(self._root.inventory, msgspec.json.encode(file))

    def _is_stable(self, facts: PlaceFacts) -> bool:
        """Return whether any later change would give the folder another mtime."""
        if facts.record is None or facts.claims.unknown:
            return False
        return facts.changed < (self.now - STABLE_SECONDS) * 1e9


def read_facts(root: CacheRoot, place: CachePlace, changed: int) -> PlaceFacts:
    """Read a place's claims folder; `changed` is its mtime, asked for just now. Raises `OSError`."""
    claims = read_claims(root, place, asked=True)
    record = read_record(root, place, claims.names)
    used, room = 0.0, Extent()
    if USED in claims.names:
        used = last_used(root, place) or 0.0
    if record is not None:
        room = account(root, place, record, claims.names)
    return PlaceFacts(changed, claims, record, used, room)


THREADS = 16  # reads in flight: over NFS each is a round trip


class Inventory(msgspec.Struct, frozen=True):
    now: float
    """When it began, in seconds since 1970."""
    items: tuple[CachedCommit, ...]
    foreign: tuple[str, ...]
    """Names at the top and among the commits that are not dsv's."""

    @property
    def visible(self) -> list[CachedCommit]:
        return [item for item in self.items if item.visible]


def take_inventory(root: CacheRoot, remembered: Remembered | None = None) -> Inventory:
    """List the content of a cache; one that does not exist is empty. Raises `Denied`, `Unreachable`.

    remembered: earlier facts; None to load those that the cache kept.
    """
    with explaining(root.path, "read"):
        known = remembered or Remembered.load(root, server_now(root))
        seen = find_visible(root)
        places = sorted(seen.places | set(find_all(root.dot / "claims")))

        def look(place: CachePlace) -> CachedCommit:
            facts = known.read(place)
            closed = place.dataset in seen.closed and facts.record is not None
            return _candidate(root, place, facts, known.now, visible=place in seen.places, closed=closed)

        with ThreadPoolExecutor(THREADS, thread_name_prefix="dsv-inventory") as pool:
            return Inventory(known.now, tuple(pool.map(look, places)), tuple(seen.foreign))


def _candidate(
    root: CacheRoot, place: CachePlace, facts: PlaceFacts, now: float, *, visible: bool, closed: bool
) -> CachedCommit:
    """closed: it is in a folder that this user may not read, so only its record is known."""
    record, leases, path = facts.record, facts.claims.leases, root.visible(place)
    uses = [facts.used]
    uses += [lease.renewed for lease in leases if lease.purpose != "hold"]
    uses += [lease.since for lease in leases]
    uses += [record.time] if record is not None else [_changed(path)]
    return CachedCommit(
        place=place,
        dataset=place.dataset_name,
        bytes=record.bytes if record else 0,
        files=record.files if record else 0,
        room=facts.room,
        last_use=max(uses),
        kept_by=facts.claims.protecting(now) or ("in a folder that this user can't read" if closed else None),
        path=path.path,
        record=record,
        claims=facts.claims,
        visible=visible or closed,
    )


def server_now(root: CacheRoot) -> float:
    """Return the file server's time, or this host's for a user who may only read. Raises `OSError`."""
    with ignoring((errno.EACCES, errno.EPERM, errno.EROFS)):
        if root.exists():
            return root.now()
    return time.time()


def find_places(root: CacheRoot, dataset: DatasetName) -> list[CachePlace]:
    """Return the visible places of a dataset. Raises `OSError`, and `Conflict` if its folder is a symlink."""
    if not root.exists():
        return []
    with contextlib.suppress(FileNotFoundError):
        refresh(root.top)  # the dataset's folder may be new
    folder = folder_name(dataset)
    return places_in(root.top / folder) if own_folder(root.top / folder) else []


class Visible(msgspec.Struct, frozen=True):
    places: set[CachePlace]
    closed: set[str]
    """Datasets whose folders this user may not read."""
    foreign: list[str]
    links: list[tuple[str, str]]
    """The datasets' folders and the names in them that are links of tags."""


def find_visible(root: CacheRoot) -> Visible:
    """List the folders of the datasets, without looking into any commit. Raises `OSError`."""
    places: set[CachePlace] = set()
    closed: set[str] = set()
    foreign: list[str] = []
    links: list[tuple[str, str]] = []
    for folder in _entries(root.top):
        if folder.name == SETTINGS_FILE or folder.name.startswith("."):
            continue
        if not folder.is_dir or not is_dataset(folder.name):
            foreign.append(folder.name)
            continue
        ours = root.binding(folder.name).exists()
        try:
            inside = _entries(root.top / folder.name)
        except PermissionError:  # its owner does not want it read
            inside = []
            if ours:
                closed.add(folder.name)
        if not ours and all(CachePlace.parse(folder.name, one.name) is None for one in inside):
            foreign.append(folder.name)
            continue
        for one in inside:
            place = CachePlace.parse(folder.name, one.name)
            if place is not None and one.is_dir:
                places.add(place)
            elif one.name.startswith(PREFIX) and is_tag_link(root.top / folder.name / one.name):
                links.append((folder.name, one.name))
            elif not one.name.startswith("."):
                foreign.append(f"{folder.name}/{one.name}")
    return Visible(places, closed, sorted(foreign), links)


def find_all(folder: SharedPath) -> list[CachePlace]:
    """Return the places with a folder below `folder`, one of the dot folder's. Raises `OSError`."""
    datasets = [dataset for dataset in list_names(folder) if is_dataset(dataset)]
    return [place for dataset in datasets for place in places_in(folder / dataset)]


def _entries(folder: SharedPath) -> list[ListedName]:
    """List a folder as the file server has it now, with what another host has just cached."""
    with ignoring(GONE):
        refresh(folder)
        return folder.entries()
    return []


def _changed(path: SharedPath) -> float:
    try:
        return path.stat().st_ctime
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return 0.0
