"""Evict cached commits to free room in a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dsv.api.context import Context
from dsv.api.holds import opened_cache
from dsv.cache import evict as _evict
from dsv.cache.evict import EvictionResult
from dsv.cache.policy import CachedCommit, EvictionRequest
from dsv.cache.root import CacheRoot
from dsv.cache.settings import Amount, CacheLimits, check_writable, load_settings
from dsv.errors import Conflict, UsageError
from dsv.repo.objects.trim import trim
from dsv.values.names import Target
from dsv.values.units import format_duration


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
    on_evicted: Callable[[CachedCommit], None] = lambda _: None,
) -> EvictionResult:
    """Evict these targets, or as much as the owner's limits, tightened by those given here, require.

    unused_for in seconds, max_size in bytes, min_free as `10%` or `100G`. Raises `NotFound` for a target that
    is not cached, and `Conflict`, with nothing evicted, for a target in use or held.
    """
    limited = any(limit is not None for limit in (unused_for, max_size, max_files, min_free))
    if targets and (everything or limited):
        raise UsageError(
            "name targets or limits, not both", hint="dsv evict --dry-run shows what would be evicted"
        )
    free = () if min_free is None else (Amount.parse(min_free),)
    limits = CacheLimits(unused_for=unused_for, max_size=max_size, max_files=max_files, min_free=free)
    copy_limits = context.copy_limits
    with opened_cache(context, folder) as (root, finder):
        owners = load_settings(root)
        settings = owners.tightened(limits)
        _note_tighter(context, root, owners.limits.unused_for, unused_for)
        request = EvictionRequest(everything=everything)
        if targets:
            check_writable(root, settings)
            only = frozenset(place for target in targets for place in finder.find_cached(target))
            request = EvictionRequest(only=only)
            _refuse(root, _evict.preview(root, settings, request, exact=False).kept)
        if dry_run:
            result = _evict.preview(root, settings, request)
        else:
            result = _evict.evict(root, settings, request, on_evicted=on_evicted)
            for stores in context.copies_beside(root.dot):
                trim(stores, copy_limits, pause=3600.0)
        if targets and not result.evicted and not result.failed:
            _refuse(root, result.kept)
    return result


def _note_tighter(context: Context, root: CacheRoot, owners: float | None, asked: float | None) -> None:
    if asked is not None and owners is not None and owners < asked:
        context.progress.note(
            f"the owner's unused_for of {format_duration(owners)} in {root.settings_file} applies, as it is shorter "
            f"than {format_duration(asked)}"
        )


def _refuse(root: CacheRoot, kept: Sequence[CachedCommit]) -> None:
    """Raises `Conflict` for targets that must stay, before anything is evicted."""
    if kept:
        place = kept[0].place
        raise Conflict(
            f"{place} stays in {root.path}: {kept[0].reason}",
            subject=str(place),
            hint="dsv cached shows who uses it; dsv release ends your holds",
        )
