"""The cache from outside: making commits appear, claiming them, letting them go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv.api.cache_stage import CacheItem, NoLease, Stager, cache
from dsv.api.cache_targets import Targets
from dsv.api.cached import CachedReport, cached
from dsv.api.context import Context
from dsv.cache.claims import pins as _pins
from dsv.cache.claims.leases import end_holds
from dsv.cache.disk import explain
from dsv.cache.eviction import evict as _evict
from dsv.cache.eviction.policy import Due, Wish
from dsv.cache.layout import CacheRoot, Place
from dsv.cache.settings import Amount, Limits, check_writable, load_settings
from dsv.cache.symlinks import refuse_symlinks
from dsv.errors import Conflict, DsvError, NotFound, UsageError
from dsv.model.ids import CommitId
from dsv.model.names import DatasetName, Target

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ClaimItem:
    """A claim that was made or ended. count: how many of the caller's were ended. until: seconds since
    1970.
    """

    path: Path
    dataset: DatasetName
    commit: CommitId
    count: int = 1
    until: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class EvictedItem:
    """A commit that went, or would go. bytes, files: of its content. freed_bytes: what its going left free.

    aliens: files in it that no fill had put there; alien_paths: some of them.
    """

    path: Path
    dataset: DatasetName
    commit: CommitId
    bytes: int
    files: int
    freed_bytes: int
    reason: str
    aliens: int = 0
    alien_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptItem:
    path: Path
    dataset: DatasetName
    commit: CommitId
    reason: str


@dataclass(frozen=True, slots=True)
class FailedItem:
    """A commit that was to go. half_removed: it is out of sight, and the rest goes with the next evict."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    error: DsvError
    half_removed: bool


@dataclass(frozen=True, slots=True)
class EvictionReport:
    """exceeded: the limits that do not hold even now; `exit_code` is 7 then, and that of the first error where
    something failed. freed_bytes: leftovers of what was killed included."""

    evicted: tuple[EvictedItem, ...]
    kept: tuple[KeptItem, ...]
    freed_bytes: int
    exceeded: tuple[str, ...]
    dry_run: bool
    failed: tuple[FailedItem, ...] = ()

    @property
    def exit_code(self) -> int:
        if self.failed:
            return self.failed[0].error.exit_code
        return 7 if self.exceeded else 0


def release(
    context: Context, folder: Path, targets: Sequence[Target], *, job: str | None = None
) -> list[ClaimItem]:
    """Ends this user's holds of the targets, only those of `job` where one is given. Raises `NotFound` for
    none.
    """
    found: list[ClaimItem] = []
    with _opened(context, folder) as (root, finder):
        for target in targets:
            counts = [(place, end_holds(root, place, job=job)) for place in finder.find_cached(target)]
            if not any(count for _, count in counts):
                raise NotFound(
                    f"you hold nothing of {target} in {root.path}", subject=str(target), hint="dsv cached"
                )
            found.extend(_claim(root, place, count) for place, count in counts if count)
    return found


def pin(
    context: Context,
    folder: Path,
    targets: Sequence[Target],
    *,
    why: str = "",
    seconds: float | None = None,
) -> list[ClaimItem]:
    """Keeps cached commits from eviction, for ever or for so long. Raises `NotFound` for what is not
    cached.
    """
    found: list[ClaimItem] = []
    with _opened(context, folder) as (root, finder):
        for target in targets:
            for place in finder.find_cached(target):
                record = _pins.pin(root, place, why=why, seconds=seconds)
                if record is None:
                    raise NotFound(
                        f"{place} has just gone from {root.path}",
                        subject=str(place),
                        hint=f"dsv cache {target}",
                    )
                found.append(_claim(root, place, 1, record.until, why))
    return found


def unpin(
    context: Context, folder: Path, targets: Sequence[Target], *, everyone: bool = False
) -> list[ClaimItem]:
    """Ends this user's pins of the targets, or everyone's.

    Raises `NotFound` where there is none, `Conflict` where only others have pinned it.
    """
    found: list[ClaimItem] = []
    with _opened(context, folder) as (root, finder):
        for target in targets:
            ended = [
                (place, *_pins.unpin(root, place, everyone=everyone)) for place in finder.find_cached(target)
            ]
            if not any(count for _, count, _ in ended):
                others = sorted({pin.user for _, _, kept in ended for pin in kept})
                if others:
                    raise Conflict(
                        f"{target} is pinned by {', '.join(others)}, not by you",
                        subject=str(target),
                        hint=f"dsv unpin --everyone {target}",
                    )
                raise NotFound(
                    f"{target} is not pinned in {root.path}", subject=str(target), hint="dsv cached"
                )
            found.extend(_claim(root, place, count) for place, count, _ in ended if count)
    return found


def evict(
    context: Context,
    folder: Path,
    targets: Sequence[Target] = (),
    *,
    unused_for: float | None = None,
    max_size: int | None = None,
    max_files: int | None = None,
    min_free: str | None = None,
    everything: bool = False,
    dry_run: bool = False,
    on_evicted: Callable[[EvictedItem], None] = lambda _: None,
) -> EvictionReport:
    """Frees room: these targets, or what the owner's limits say, made stricter by what is given here.

    unused_for in seconds, max_size in bytes, min_free as `10%` or `100G`. Raises `NotFound` for a target
    that is not cached, `Conflict` for one that somebody uses or has pinned (nothing goes then).
    """
    if targets and (
        everything or any(one is not None for one in (unused_for, max_size, max_files, min_free))
    ):
        raise UsageError("name targets or limits, not both", hint="dsv evict --dry-run shows what would go")
    free = () if min_free is None else (Amount.parse(min_free),)
    limits = Limits(unused_for=unused_for, max_size=max_size, max_files=max_files, min_free=free)
    with _opened(context, folder) as (root, finder):
        settings = load_settings(root).tightened(limits)
        wish = Wish(everything=everything)
        if targets:
            check_writable(root, settings)
            wish = Wish(only=frozenset(place for target in targets for place in finder.find_cached(target)))
            _refuse(root, _evict.preview(root, settings, wish, exact=False).kept)
        if dry_run:
            result = _evict.preview(root, settings, wish)
        else:
            result = _evict.evict(
                root, settings, wish, on_evicted=lambda one: on_evicted(_evicted(root, one))
            )
        if targets and not result.evicted and not result.failures:
            _refuse(root, result.kept)
    return EvictionReport(
        evicted=tuple(_evicted(root, one) for one in result.evicted),
        kept=tuple(_kept(root, due) for due in result.kept),
        freed_bytes=result.freed.bytes,
        exceeded=tuple(result.exceeded),
        dry_run=dry_run,
        failed=tuple(
            FailedItem(root.visible(place), _dataset(place), place.commit, error, place in result.halved)
            for place, error in result.failures.items()
        ),
    )


@contextmanager
def _opened(context: Context, folder: Path) -> Iterator[tuple[CacheRoot, Targets]]:
    root = CacheRoot(folder)
    refuse_symlinks(root)
    try:
        with Targets(context, root) as finder:
            yield root, finder
    except OSError as error:
        raise explain(error, root.path) from error


def _refuse(root: CacheRoot, kept: Sequence[Due]) -> None:
    """What was named and may not go is refused, before anything else goes."""
    if kept:
        place = kept[0].candidate.place
        raise Conflict(
            f"{place} stays in {root.path}: {kept[0].reason}",
            subject=str(place),
            hint="dsv cached shows who uses it; dsv release and dsv unpin end claims of yours",
        )


def _claim(root: CacheRoot, place: Place, count: int, until: float | None = None, why: str = "") -> ClaimItem:
    return ClaimItem(root.visible(place), _dataset(place), place.commit, count, until, why)


def _evicted(root: CacheRoot, one: _evict.Evicted) -> EvictedItem:
    place = one.candidate.place
    return EvictedItem(
        path=root.visible(place),
        dataset=_dataset(place),
        commit=place.commit,
        bytes=one.candidate.bytes,
        files=one.candidate.files,
        freed_bytes=one.freed.bytes,
        reason=one.reason,
        aliens=one.aliens,
        alien_paths=one.alien_paths,
    )


def _kept(root: CacheRoot, due: Due) -> KeptItem:
    place = due.candidate.place
    return KeptItem(root.visible(place), _dataset(place), place.commit, due.reason)


def _dataset(place: Place) -> DatasetName:
    return DatasetName.from_component(place.dataset)


__all__ = [
    "CacheItem",
    "CachedReport",
    "ClaimItem",
    "EvictedItem",
    "EvictionReport",
    "FailedItem",
    "KeptItem",
    "NoLease",
    "Stager",
    "cache",
    "cached",
    "evict",
    "pin",
    "release",
    "unpin",
]
