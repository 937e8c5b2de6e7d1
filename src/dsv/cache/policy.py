"""Choice and order of the cached commits to evict. A pure function, without clock or disk.

The planner yields one commit at a time and gets the room that this freed, so that no more commits are evicted than the
limits require. With `--dry-run` the caller measures the room; otherwise it deletes and counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dsv.cache.claims import Claims
from dsv.cache.record import Extent, Filled
from dsv.cache.root import Place
from dsv.cache.settings import CacheSettings
from dsv.errors import DsvError
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes, format_count, format_duration

_NOTHING = Extent()
_OWN_FILES = 64  # inodes that a fill needs beside its commit's files and folders: its claims, its own folders


class Candidate(msgspec.Struct, frozen=True):
    """One cached commit, or a selection of one. Times are the file server's."""

    place: Place
    dataset: str  # its name
    bytes: int  # of its content, as `files`
    files: int
    room: Extent  # on disk, without what it shares with older ones
    last_use: float  # seconds since 1970, by the file server's clock
    claim: str | None = None  # what keeps it
    path: Path = Path()  # its folder
    record: Filled | None = None
    """None if its filler died before it wrote one, or it can't be read."""
    claims: Claims = Claims()
    visible: bool = True
    """If not, only claims or a fill under way are there."""


class Disk(msgspec.Struct, frozen=True):
    """The file system."""

    free: int  # bytes
    total: int  # bytes
    filling: Extent = _NOTHING  # what fills under way have written
    reserved: Extent = _NOTHING  # what is reserved for the rest of them
    free_files: int | None = None  # inodes; None if there is no limit, or none is known

    def freed(self, room: Extent) -> Disk:
        files = None if self.free_files is None else self.free_files + room.files
        return replace(self, free=self.free + room.bytes, free_files=files)


class Need(msgspec.Struct, frozen=True):
    """Room that a fill needs, beyond what it has written."""

    place: Place
    bytes: int  # of disk, files counted as whole blocks
    files: int  # inodes
    keep: frozenset[Place] = frozenset()
    """Cached commits that must stay, beside itself: those that it takes files from."""
    folders: int = 0  # further inodes, which no limit of the owner's counts


class EvictionRequest(msgspec.Struct, frozen=True):
    """The purpose of an eviction.

    If room is needed, neither age nor another dataset's own max_size is a reason to evict.
    """

    only: frozenset[Place] | None = None  # these and nothing else
    everything: bool = False  # all that may go
    need: Need | None = None  # room that must be left afterwards

    @property
    def kept(self) -> frozenset[Place]:
        """What must stay for the need."""
        return frozenset() if self.need is None else self.need.keep | {self.need.place}


_ORDINARY = EvictionRequest()


class Eviction(msgspec.Struct, frozen=True):
    """A commit that is due, and what became of it: it was or would be evicted, it stays, or it can't be evicted."""

    candidate: Candidate
    reason: str  # why it goes, or stays
    freed: Extent = _NOTHING  # room that is free now
    foreign: int = 0  # files in it that no fill put there
    foreign_paths: tuple[str, ...] = ()  # some of these
    error: DsvError | None = None  # why it could not be evicted, or not be deleted
    half_removed: bool = False
    """It is out of sight, and the rest goes with the next eviction."""

    @property
    def path(self) -> Path:
        return self.candidate.path

    @property
    def dataset(self) -> DatasetName:
        return self.candidate.place.dataset_name

    @property
    def commit(self) -> CommitId:
        return self.candidate.place.commit

    @property
    def bytes(self) -> int:
        return self.candidate.bytes

    @property
    def freed_bytes(self) -> int:
        return self.freed.bytes

    @property
    def problem(self) -> str | None:
        return None if self.error is None else self.error.message


class Planner:
    """Call `next`, then `evicted`, `kept` or `gone` for the commit that it gave, and so on; at the end `finish`."""

    def __init__(
        self,
        candidates: Iterable[Candidate],
        settings: CacheSettings,
        disk: Disk,
        now: float,
        request: EvictionRequest = _ORDINARY,
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._now = now
        self._request = request
        self._wanted = None if request.need is None else request.need.place.dataset_name
        self._waiting = sorted(candidates, key=lambda one: (one.last_use, one.place))
        self._there = {one.place: one for one in self._waiting}
        self._room = _Accounts(self._waiting)
        self._given: Eviction | None = None
        self._kept: list[Eviction] = []

    def next(self) -> Eviction | None:
        """Return the next commit to go, oldest use first; None when nothing more is due."""
        assert self._given is None, "the last one was not answered"
        limit = next(iter(self._exceeded()), None)
        over = self._datasets_over()
        staying = []
        for position, one in enumerate(self._waiting):
            reason = self._reason(one, limit, over)
            claim = None if reason is None else self._claim(one)
            if reason is None:
                staying.append(one)
            elif claim is not None:
                self._kept.append(Eviction(one, claim))
            else:
                self._waiting = staying + self._waiting[position + 1 :]
                self._given = Eviction(one, reason)
                return self._given
        self._waiting = staying
        return None

    def evicted(self, freed: Extent, new_owner: Candidate | None = None) -> None:
        """Count what the commit freed. What it left behind is on the account of `new_owner` now."""
        due = self._answer()
        room = self._room.close(due.candidate)
        if new_owner is not None:
            self._room.add(new_owner, room - freed)
        self._disk = self._disk.freed(freed)

    def kept(self, reason: str) -> None:
        """Note that the commit stayed after all, as somebody took it into use."""
        due = self._answer()
        self._there[due.candidate.place] = due.candidate
        self._kept.append(Eviction(due.candidate, reason))

    def gone(self) -> None:
        """Note that another evicted it first."""
        self._room.close(self._answer().candidate)

    def new_owner(self) -> Candidate | None:
        """Return the commit that the rest of the given one counts for: the last used of its dataset, else of any."""
        assert self._given is not None
        mine = self._given.candidate
        others = [one for one in self._there.values() if one.place != mine.place]
        same = [one for one in others if one.dataset == mine.dataset]
        return max(same or others, key=lambda one: (one.last_use, one.place), default=None)

    def finish(self) -> tuple[list[Eviction], list[str]]:
        """Return what stays, with the reasons, and the limits that are exceeded all the same."""
        for one in self._waiting:
            if self._request.only is None or one.place in self._request.only:
                used = format_duration(max(0.0, self._now - one.last_use))
                self._kept.append(Eviction(one, self._claim(one) or f"used {used} ago"))
        self._waiting = []
        return self._kept, self.exceeded() if self._request.only is None else []

    def exceeded(self) -> list[str]:
        """Return each limit that does not hold now, in a sentence."""
        return [*self._exceeded(), *self._datasets_over().values()]

    def _answer(self) -> Eviction:
        assert self._given is not None, "nothing was asked"
        due, self._given = self._given, None
        del self._there[due.candidate.place]
        return due

    def _claim(self, one: Candidate) -> str | None:
        if one.place in self._request.kept:
            return "needed by what is being cached"
        if self._settings.is_protected(one.dataset):
            return "protected by the cache's owner"
        return one.claim

    def _reason(self, one: Candidate, limit: str | None, over: Mapping[str, str]) -> str | None:
        """Return why it is due at this moment, or None."""
        if self._request.only is not None:
            return "named" if one.place in self._request.only else None
        if self._request.everything:
            return "requested by --all"
        age = self._settings.unused_for(one.dataset)
        if self._request.need is None and age is not None and self._now - one.last_use > age:
            return f"unused for {format_duration(self._now - one.last_use)}"
        return over.get(one.dataset, limit)

    def _coming(self, dataset: str | None = None) -> Extent:
        """Return the room that this eviction is to make, and what other fills were promised."""
        need = self._request.need
        room = Extent() if need is None else Extent(need.bytes, need.files)
        if dataset is not None:
            return room if dataset == self._wanted else Extent()
        return self._disk.reserved + room

    def _datasets_over(self) -> dict[str, str]:
        """Return each dataset above its own max_size, with the sentence that says so.

        If room is made for a commit, only its dataset counts: what another has too much of takes no room that this one
        could have.
        """
        rooms = self._room.datasets
        found = {}
        for name in rooms if self._wanted is None else [self._wanted]:
            most = self._settings.rule(name).max_size
            size = rooms.get(name, _NOTHING).bytes + self._coming(name).bytes
            if most is not None and size > most:
                found[name] = f"{name} takes {format_bytes(size)}, its max_size is {format_bytes(most)}"
        return found

    def _exceeded(self) -> list[str]:
        """Return each limit of the whole cache that does not hold now."""
        limits, coming = self._settings.limits, self._coming()
        planned = self._room.total + self._disk.filling + coming
        with_it = f" with {format_bytes(coming.bytes)} still to come" if coming.bytes else ""
        found = []
        if limits.max_size is not None and planned.bytes > limits.max_size:
            size, most = format_bytes(planned.bytes), format_bytes(limits.max_size)
            found.append(f"the cache takes {size}{with_it}, max_size is {most}")
        if limits.max_files is not None and planned.files > limits.max_files:
            held = format_count(planned.files, "file")
            found.append(f"the cache holds {held}{with_it}, max_files is {limits.max_files}")
        free = self._disk.free - coming.bytes
        found.extend(
            f"{format_bytes(max(free, 0))} are free{with_it}, min_free is {amount}"
            for amount in limits.min_free
            if free < amount.of(self._disk.total)
        )
        if free < 0 and not found:
            found.append(f"{format_bytes(self._disk.free)} are free, {format_bytes(coming.bytes)} are needed")
        files, needed = self._disk.free_files, coming.files
        need = self._request.need
        if need is not None and (need.bytes or need.files):
            needed += _OWN_FILES + need.folders
        if files is not None and files < needed:
            found.append(f"{files} inodes are free, {needed} are needed")
        return found


class _Accounts:
    """Room by commit and by dataset, and its sum, kept up to date."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self.total = Extent()
        self.datasets: dict[str, Extent] = {}
        self._places: dict[Place, Extent] = {}
        for one in candidates:
            self.add(one, one.room)

    def add(self, one: Candidate, room: Extent) -> None:
        self.total += room
        self.datasets[one.dataset] = self.datasets.get(one.dataset, Extent()) + room
        self._places[one.place] = self._places.get(one.place, Extent()) + room

    def close(self, one: Candidate) -> Extent:
        room = self._places[one.place]
        self.add(one, Extent() - room)
        del self._places[one.place]
        return room
