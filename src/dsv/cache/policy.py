"""Choice and order of the cached commits to evict. A pure function, without clock or disk.

Each commit is evicted, or with `--dry-run` measured, before the next is chosen, so no more are evicted than
the limits require.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dsv.cache.claims import Claims
from dsv.cache.record import Extent, Filled
from dsv.cache.root import CachePlace
from dsv.cache.settings import CacheSettings
from dsv.errors import DsvError
from dsv.values.ids import CommitId
from dsv.values.units import format_bytes, format_count, format_duration

_NOTHING = Extent()
_OWN_FILES = 64  # inodes that a fill needs beside its commit's files and folders: its claims, its own folders


class CachedCommit(msgspec.Struct, frozen=True):
    """One cached commit, or a selection of one. `bytes` and `files` are those of its content."""

    place: CachePlace
    dataset: str
    bytes: int
    files: int
    room: Extent
    """On disk, without what it shares with older ones."""
    last_use: float
    """Seconds since 1970, by the file server's clock."""
    kept_by: str | None = None
    path: Path = Path()
    record: Filled | None = None
    """None if the process that filled it died before it wrote one, or if it can't be read."""
    claims: Claims = Claims()
    visible: bool = True
    """If False, it has only claims or a fill in progress."""

    # The result of an eviction:
    reason: str = ""
    """Why it is evicted, or stays."""
    freed: Extent = _NOTHING
    passed_on: tuple[tuple[CachePlace, Extent], ...] = ()
    """Room that stays in use, because others link its files, and who pays for it from now on."""
    foreign: int = 0
    """Files in it that no fill wrote; `foreign_paths` are some of them."""
    foreign_paths: tuple[str, ...] = ()
    error: DsvError | None = None
    """Why it could not be evicted, or not be deleted."""
    half_removed: bool = False
    """It is in the trash, and the next eviction deletes the rest."""

    @property
    def commit(self) -> CommitId:
        return self.place.commit

    @property
    def freed_bytes(self) -> int:
        return self.freed.bytes

    @property
    def problem(self) -> str | None:
        return None if self.error is None else self.error.message


class DiskSpace(msgspec.Struct, frozen=True):
    """The bytes of a file system, and its free inodes: None if there is no limit, or none is known."""

    free: int
    total: int
    filling: Extent = _NOTHING
    """What the current fills have written."""
    reserved: Extent = _NOTHING
    """What is reserved for the rest of them."""
    free_files: int | None = None

    def freed(self, room: Extent) -> DiskSpace:
        files = None if self.free_files is None else self.free_files + room.files
        return replace(self, free=self.free + room.bytes, free_files=files)


class Need(msgspec.Struct, frozen=True):
    """Room that a fill needs, beyond what it has written: bytes of disk, files counted as whole blocks, and inodes."""

    place: CachePlace
    bytes: int
    files: int
    keep: frozenset[CachePlace] = frozenset()
    """Cached commits that must stay, besides the place: the fill takes files from them."""
    folders: int = 0
    """Further inodes, which the owner's limits do not count."""


class EvictionRequest(msgspec.Struct, frozen=True):
    """The purpose of an eviction. If room is needed, neither age nor another dataset's max_size counts."""

    only: frozenset[CachePlace] | None = None
    """These and nothing else."""
    everything: bool = False
    need: Need | None = None
    """Room that must be left afterwards."""

    @property
    def kept(self) -> frozenset[CachePlace]:
        """The commits that must stay for the need."""
        return frozenset() if self.need is None else self.need.keep | {self.need.place}


_ORDINARY = EvictionRequest()


class EvictionPlanner:
    """Chooses the commits to evict, each after the one before it was evicted."""

    def __init__(
        self,
        candidates: Iterable[CachedCommit],
        settings: CacheSettings,
        disk: DiskSpace,
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
        self._total = Extent()
        self._datasets: dict[str, Extent] = {}
        for one in self._waiting:
            self._account(one, one.room)
        self._kept: list[CachedCommit] = []

    def run(
        self, act: Callable[[CachedCommit, Iterable[CachedCommit]], CachedCommit | str | None]
    ) -> tuple[list[CachedCommit], list[CachedCommit], list[CachedCommit], list[str]]:
        """Have `act` evict what is due, the least recently used first; return what was evicted, what stays,
        what failed, and the limits that are still exceeded.

        act: also gets the other commits. Returns what was evicted or has failed, why it stays after all, or None if
        another evictor was faster.
        """
        evicted: list[CachedCommit] = []
        failed: list[CachedCommit] = []
        while (due := self._next()) is not None:
            one = replace(due, room=self._there.pop(due.place).room)  # with what was added to its account
            outcome = act(one, self._there.values())
            if isinstance(outcome, CachedCommit) and outcome.error is not None:
                failed.append(outcome)
                outcome = outcome if outcome.half_removed else outcome.error.message
            if isinstance(outcome, str):
                self._there[one.place] = one
                self._kept.append(replace(one, reason=outcome))
                continue
            self._account(one, Extent() - one.room)
            if outcome is not None:
                self._disk = self._disk.freed(outcome.freed)
                if outcome.error is None:
                    evicted.append(outcome)
                    for place, rest in outcome.passed_on:
                        if (heir := self._there.get(place)) is not None:
                            self._there[place] = replace(heir, room=heir.room + rest)
                            self._account(heir, rest)
        for one in self._waiting:
            if self._request.only is None or one.place in self._request.only:
                used = format_duration(max(0.0, self._now - one.last_use))
                self._kept.append(replace(one, reason=self._kept_by(one) or f"used {used} ago"))
        return evicted, self._kept, failed, self.exceeded() if self._request.only is None else []

    def _next(self) -> CachedCommit | None:
        limit = next(iter(self._exceeded()), None)
        over = self._datasets_over()
        staying = []
        for position, one in enumerate(self._waiting):
            reason = self._reason(one, limit, over)
            kept_by = None if reason is None else self._kept_by(one)
            if reason is None:
                staying.append(one)
            elif kept_by is not None:
                self._kept.append(replace(one, reason=kept_by))
            else:
                self._waiting = staying + self._waiting[position + 1 :]
                return replace(one, reason=reason)
        self._waiting = staying
        return None

    def _account(self, one: CachedCommit, room: Extent) -> None:
        self._total += room
        self._datasets[one.dataset] = self._datasets.get(one.dataset, Extent()) + room

    def exceeded(self) -> list[str]:
        """Return each exceeded limit in a sentence."""
        return [*self._exceeded(), *self._datasets_over().values()]

    def _kept_by(self, one: CachedCommit) -> str | None:
        if one.place in self._request.kept:
            return "needed by what is being cached"
        if self._settings.is_protected(one.dataset):
            return "protected by the cache's owner"
        return one.kept_by

    def _reason(self, one: CachedCommit, limit: str | None, over: Mapping[str, str]) -> str | None:
        """Return why it is due now, or None."""
        if self._request.only is not None:
            return "named" if one.place in self._request.only else None
        if self._request.everything:
            return "requested by --all"
        age = self._settings.unused_for(one.dataset)
        if self._request.need is None and age is not None and self._now - one.last_use > age:
            return f"unused for {format_duration(self._now - one.last_use)}"
        return over.get(one.dataset, limit)

    def _coming(self, dataset: str | None = None) -> Extent:
        """Return the room that this eviction must make; without `dataset`, also what other fills reserved."""
        need = self._request.need
        room = Extent() if need is None else Extent(need.bytes, need.files)
        if dataset is not None:
            return room if dataset == self._wanted else Extent()
        return self._disk.reserved + room

    def _datasets_over(self) -> dict[str, str]:
        """Return each dataset above its own max_size, with a sentence that says so.

        If room is made for a commit, only its dataset counts: another one's excess takes no room from it.
        """
        rooms = self._datasets
        found = {}
        for name in rooms if self._wanted is None else [self._wanted]:
            most = self._settings.rule(name).max_size
            size = rooms.get(name, _NOTHING).bytes + self._coming(name).bytes
            if most is not None and size > most:
                found[name] = f"{name} takes {format_bytes(size)}, its max_size is {format_bytes(most)}"
        return found

    def _exceeded(self) -> list[str]:
        """Return each exceeded limit of the whole cache in a sentence."""
        limits, coming = self._settings.limits, self._coming()
        planned = self._total + self._disk.filling + coming
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
