"""Evict cached commits: free room in a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv.api.context import Context
from dsv.api.holds import opened_cache
from dsv.cache import evict as _evict
from dsv.cache.cleanup import Stuck
from dsv.cache.policy import Due, EvictionRequest
from dsv.cache.root import CacheRoot, Place, explain
from dsv.cache.settings import Amount, Limits, check_writable, load_settings
from dsv.errors import Conflict, DsvError, UsageError
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target
from dsv.values.units import format_bytes, format_count


@dataclass(frozen=True, slots=True)
class EvictionItem:
    """A commit that was or would be evicted, that stays, or that could not be evicted."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    reason: str = ""
    bytes: int = 0
    """Of its content, as `files`."""
    files: int = 0
    freed_bytes: int = 0
    """Room that is free now."""
    foreign: int = 0
    """Files in it that dsv had not put there."""
    foreign_paths: tuple[str, ...] = ()
    """Some of these."""
    error: DsvError | None = None
    """The reason why it could not be evicted."""
    half_removed: bool = False
    """It is out of sight, and the rest goes with the next evict."""


@dataclass(frozen=True, slots=True)
class StuckItem:
    """A folder that an earlier eviction left in the trash, and this one could not delete either."""

    path: Path
    of: str | None
    """Its commit; None if that isn't known."""
    bytes: int
    """Room on disk that it takes, as `files`."""
    files: int
    error: DsvError


@dataclass(frozen=True, slots=True)
class EvictionReport:
    """The result of an eviction. `exit_code` is that of the first error, or 7 if a limit is still exceeded."""

    evicted: tuple[EvictionItem, ...]
    kept: tuple[EvictionItem, ...]
    freed_bytes: int
    """With what killed processes had left."""
    exceeded: tuple[str, ...]
    """The limits that do not hold even now."""
    dry_run: bool
    failed: tuple[EvictionItem, ...] = ()
    """Each with its error."""
    stuck: tuple[StuckItem, ...] = ()

    @property
    def errors(self) -> list[DsvError]:
        failed = [each.error for each in self.failed if each.error is not None]
        return [*failed, *(each.error for each in self.stuck)]

    @property
    def exit_code(self) -> int:
        return self.errors[0].exit_code if self.errors else 7 if self.exceeded else 0


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
    on_evicted: Callable[[EvictionItem], None] = lambda _: None,
) -> EvictionReport:
    """Evict these targets, or what the owner's limits say, made stricter by what is given here.

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
    failed = [
        _item(root, place, error=error, half_removed=place in result.half_removed)
        for place, error in result.failures.items()
    ]
    return EvictionReport(
        evicted=tuple(_evicted(root, one) for one in result.evicted),
        kept=tuple(_item(root, due.candidate.place, reason=due.reason) for due in result.kept),
        freed_bytes=result.freed.bytes,
        exceeded=tuple(result.exceeded),
        dry_run=dry_run,
        failed=tuple(failed),
        stuck=tuple(_stuck(one) for one in result.stuck),
    )


def _refuse(root: CacheRoot, kept: Sequence[Due]) -> None:
    """Refuse targets that must stay, before anything is evicted."""
    if kept:
        place = kept[0].candidate.place
        raise Conflict(
            f"{place} stays in {root.path}: {kept[0].reason}",
            subject=str(place),
            hint="dsv cached shows who uses it; dsv release ends your holds",
        )


def _item(root: CacheRoot, place: Place, **more: Any) -> EvictionItem:
    return EvictionItem(root.visible(place), place.dataset_name, place.commit, **more)


def _evicted(root: CacheRoot, one: _evict.Evicted) -> EvictionItem:
    return _item(
        root,
        one.candidate.place,
        reason=one.reason,
        bytes=one.candidate.bytes,
        files=one.candidate.files,
        freed_bytes=one.freed.bytes,
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
