"""The cache from outside: making commits appear, claiming them, letting them go."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv.api.cache_stage import CacheItem, NoLease, Stager, cache
from dsv.api.cached import CachedReport, cached
from dsv.api.context import Context
from dsv.api.holds import HoldItem, hold, opened_cache, release
from dsv.cache.disk import explain
from dsv.cache.evict import evict as _evict
from dsv.cache.evict.cleanup import Stuck
from dsv.cache.evict.policy import Due, EvictionRequest
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.cache.settings import Amount, Limits, check_writable, load_settings
from dsv.errors import Conflict, DsvError, NotFound, UsageError
from dsv.fs.errors import about
from dsv.fs.files import replace_link
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target
from dsv.values.units import format_bytes, format_count


def check_link(link: Path) -> None:
    """Whether a symlink can be made there, before anything is fetched for it. Raises `Conflict`, `NotFound`."""
    if not link.parent.is_dir():
        raise NotFound(
            f"there is no folder {link.parent} for the link",
            subject=str(link),
            hint=f"mkdir -p {shlex.quote(str(link.parent))}",
        )
    if link.exists() and not link.is_symlink():
        raise _taken(link)


def make_link(link: Path, target: Path) -> None:
    """Makes the symlink, or replaces the one that is there in one step. Raises `Conflict` for anything else there."""
    with about(link):
        try:
            replace_link(link, str(target))
        except FileExistsError:
            raise _taken(link) from None


def _taken(link: Path) -> Conflict:
    return Conflict(
        f"{link} is there and no symlink, so it stays",
        subject=str(link),
        hint=f"mv {shlex.quote(str(link))} {shlex.quote(f'{link}.old')}, or name another",
    )


@dataclass(frozen=True, slots=True)
class EvictedItem:
    """A commit that was evicted, or would be. bytes, files: of its content. freed_bytes: room that is free now.

    foreign: files in it that no fill had put there; foreign_paths: some of them.
    """

    path: Path
    dataset: DatasetName
    commit: CommitId
    bytes: int
    files: int
    freed_bytes: int
    reason: str
    foreign: int = 0
    foreign_paths: tuple[str, ...] = ()


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
class StuckItem:
    """What an earlier eviction left in the trash, and this one could not delete either. of: its commit;
    None if that isn't known. bytes, files: room on disk that it takes.
    """

    path: Path
    of: str | None
    bytes: int
    files: int
    error: DsvError


@dataclass(frozen=True, slots=True)
class EvictionReport:
    """exceeded: the limits that do not hold even now; `exit_code` is 7 then, and that of the first error if
    something failed. freed_bytes: with what killed processes had left."""

    evicted: tuple[EvictedItem, ...]
    kept: tuple[KeptItem, ...]
    freed_bytes: int
    exceeded: tuple[str, ...]
    dry_run: bool
    failed: tuple[FailedItem, ...] = ()
    stuck: tuple[StuckItem, ...] = ()

    @property
    def exit_code(self) -> int:
        errors = [failed.error for failed in self.failed] + [stuck.error for stuck in self.stuck]
        if errors:
            return errors[0].exit_code
        return 7 if self.exceeded else 0


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
    that is not cached, `Conflict` for one that somebody uses or holds (nothing goes then).
    """
    if targets and (
        everything or any(one is not None for one in (unused_for, max_size, max_files, min_free))
    ):
        raise UsageError("name targets or limits, not both", hint="dsv evict --dry-run shows what would go")
    free = () if min_free is None else (Amount.parse(min_free),)
    limits = Limits(unused_for=unused_for, max_size=max_size, max_files=max_files, min_free=free)
    with opened_cache(context, folder) as (root, finder):
        settings = load_settings(root).tightened(limits)
        request = EvictionRequest(everything=everything)
        if targets:
            check_writable(root, settings)
            request = EvictionRequest(
                only=frozenset(place for target in targets for place in finder.find_cached(target))
            )
            _refuse(root, _evict.preview(root, settings, request, exact=False).kept)
        if dry_run:
            result = _evict.preview(root, settings, request)
        else:
            result = _evict.evict(
                root, settings, request, on_evicted=lambda one: on_evicted(_evicted(root, one))
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
            FailedItem(
                root.visible(place), _dataset(place), place.commit, error, place in result.half_removed
            )
            for place, error in result.failures.items()
        ),
        stuck=tuple(_stuck(one) for one in result.stuck),
    )


def _refuse(root: CacheRoot, kept: Sequence[Due]) -> None:
    """Refuses targets that must stay, before anything is evicted."""
    if kept:
        place = kept[0].candidate.place
        raise Conflict(
            f"{place} stays in {root.path}: {kept[0].reason}",
            subject=str(place),
            hint="dsv cached shows who uses it; dsv release ends your holds",
        )


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
        foreign=one.foreign,
        foreign_paths=one.foreign_paths,
    )


def _stuck(one: Stuck) -> StuckItem:
    of = None if one.place is None else str(one.place)
    cause = explain(one.error, one.path, "delete")
    size = f"{format_bytes(one.room.bytes)} in {format_count(one.room.files, 'file')}"
    earlier = f"an earlier eviction of {of}" if of else "an earlier eviction"
    error = type(cause)(
        f"{cause.message}; {earlier} left it, {size}",
        subject=str(one.path),
        hint=f"see what keeps it (lsattr -R {one.path}, or who owns it), then: dsv evict",
    )
    return StuckItem(one.path, of, one.room.bytes, one.room.files, error)


def _kept(root: CacheRoot, due: Due) -> KeptItem:
    place = due.candidate.place
    return KeptItem(root.visible(place), _dataset(place), place.commit, due.reason)


def _dataset(place: Place) -> DatasetName:
    return place.dataset_name


__all__ = [
    "CacheItem",
    "CachedReport",
    "EvictedItem",
    "EvictionReport",
    "FailedItem",
    "HoldItem",
    "KeptItem",
    "NoLease",
    "Stager",
    "cache",
    "cached",
    "evict",
    "hold",
    "release",
]
