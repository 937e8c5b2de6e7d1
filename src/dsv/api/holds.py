"""Hold cached commits, and release holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsv.api.cache_targets import Targets
from dsv.api.context import Context
from dsv.cache.claims import PinRecord
from dsv.cache.inventory import find_all
from dsv.cache.leases import HoldInfo, end_hold, find_by_id, find_holds
from dsv.cache.leases import hold as take_hold
from dsv.cache.root import CachePlace, CacheRoot, explaining, refuse_symlinks
from dsv.cache.settings import check_writable, load_settings
from dsv.errors import Conflict, DsvError, NotFound, UsageError
from dsv.files.process import user_name
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target
from dsv.values.units import format_lines, format_time

_ID = re.compile(r"[0-9a-f]{8,32}")


@dataclass(frozen=True, slots=True)
class HoldItem:
    """Holds of a commit, or of a part of it, that were taken or released."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    ids: tuple[str, ...]
    until: float | None = None
    """Seconds since 1970; None for a hold without an end, and for released holds."""
    why: str = ""


def release(
    context: Context,
    folder: Path,
    targets: Sequence[Target] = (),
    *,
    ids: Sequence[str] = (),
    job: str | None = None,
    every: bool = False,
    everyone: bool = False,
) -> list[HoldItem]:
    """Release holds of this user: those with these ids, or the only hold of each target.

    Nothing is released unless all can be. job: only holds of this batch job. every: all holds of a target, or
    without a target all in the cache. everyone: also holds that other users took with `hold`; needs a target
    or an id. Raises `NotFound`, and `Conflict` if a target has several or an id is of another user.
    """
    if targets and ids:
        raise UsageError("name targets or ids, not both", hint="dsv release --id ID")
    if ids and every:
        raise UsageError("name ids or --all, not both", hint="dsv release --id ID")
    if everyone and not (targets or ids):
        raise UsageError("--everyone needs a target or an id", hint="dsv release --everyone TARGET")
    if not (targets or ids or every or job is not None):
        raise UsageError("no hold given", hint="dsv release TARGET, or dsv release --id ID")
    chosen: dict[str, HoldInfo] = {}
    with opened_cache(context, folder) as (root, finder):
        check_writable(root, load_settings(root))
        for start in ids:
            chosen |= _by_id(_the_hold(root, start, everyone=everyone))
        for target in targets:
            places = finder.find_cached(target)
            holds = find_holds(root, places, job=job, everyone=everyone)
            if not holds:
                raise _no_hold(root, target, places)
            if len(holds) > 1 and job is None and not (every or everyone):
                raise _several(root, target, holds)
            chosen |= _by_id(*holds)
        if not (targets or ids):
            chosen |= _by_id(*find_holds(root, find_all(root.dot / "claims"), job=job))
            if not chosen:
                raise _holds_nothing(root, "what is cached")
        ended: dict[CachePlace, list[str]] = {}
        for info in chosen.values():
            end_hold(root, info)
            ended.setdefault(info.place, []).append(info.claim.id)
        return [_item(root, place, ids) for place, ids in ended.items()]


def hold(
    context: Context, folder: Path, targets: Sequence[Target], *, why: str = "", seconds: float | None = None
) -> list[HoldItem]:
    """Hold cached commits until they are released or for some seconds. Raises `NotFound` if not cached.

    A target without a path means the whole commit, not its separately cached parts.
    """
    if seconds is not None and seconds <= 0:
        raise UsageError("the hold must be longer than 0 seconds", hint="--for 3d")
    found: list[HoldItem] = []
    with opened_cache(context, folder) as (root, finder):
        check_writable(root, load_settings(root))
        for place, target in [(finder.find_exactly(target), target) for target in targets]:
            record = take_hold(root, place, why=why, seconds=seconds)
            if record is None:
                raise NotFound(
                    f"{place} was just evicted from {root.path}",
                    subject=str(place),
                    hint=f"dsv cache {target}",
                )
            found.append(_item(root, place, [record.id], record.until, why))
    return found


@contextmanager
def opened_cache(context: Context, folder: Path) -> Iterator[tuple[CacheRoot, Targets]]:
    """Open a cache and its target finder. Raises `Conflict` if a symlink leads out of the cache."""
    root = CacheRoot(folder)
    refuse_symlinks(root)
    with explaining(root.path), Targets(context, root) as finder:
        yield root, finder


def _the_hold(root: CacheRoot, start: str, *, everyone: bool) -> HoldInfo:
    """Return this user's hold (with `everyone` also another's) whose id begins with `start`."""
    if not _ID.fullmatch(start):
        raise UsageError(
            f"{start!r} is not the id of a hold, or 8 or more of its first digits",
            subject=start,
            hint="dsv cached --json has the ids, and so has what dsv cache --hold --json printed",
        )
    holds = find_by_id(root, find_all(root.dot / "claims"), start)
    if not holds:
        raise NotFound(
            f"there is no hold {start} in {root.path}: it was released, or it has expired",
            subject=start,
            hint="dsv cached shows all holds",
        )
    if len(holds) > 1:
        raise UsageError(
            f"{len(holds)} ids in {root.path} begin with {start}",
            subject=start,
            hint="give more digits: dsv cached --json has whole ids",
        )
    info = holds[0]
    if not info.claim.is_hold:
        raise Conflict(
            f"{info.place} is {info.claim.describe()}: that is not a hold, and ends by itself", subject=start
        )
    if info.claim.user != user_name() and not (everyone and isinstance(info.claim, PinRecord)):
        hint = f"dsv release --everyone --id {start}" if isinstance(info.claim, PinRecord) else "dsv cached"
        raise Conflict(f"hold {start} is {info.claim.user}'s, not yours", subject=start, hint=hint)
    return info


def _no_hold(root: CacheRoot, target: Target, places: Sequence[CachePlace]) -> DsvError:
    others = sorted({one.claim.user for one in find_holds(root, places, everyone=True)} - {user_name()})
    if not others:
        return _holds_nothing(root, str(target), places)
    return Conflict(
        f"{target} is held by {', '.join(others)}, not by you",
        subject=str(target),
        hint=f"dsv release --everyone {target}",
    )


def _holds_nothing(root: CacheRoot, what: str, places: Sequence[CachePlace] = ()) -> NotFound:
    claims = (one.claim for one in find_by_id(root, places, ""))
    whose = next((f"; it is {claim.describe()}" for claim in claims if claim.valid(root.now(root.top))), "")
    return NotFound(f"you have no hold of {what} in {root.path}{whose}", subject=what, hint="dsv cached")


def _several(root: CacheRoot, target: Target, holds: Sequence[HoldInfo]) -> Conflict:
    """Return the error for a target of which the caller has several holds, oldest first: an id must be given."""
    lines = []
    for one in reversed(holds):
        part = " (a part of it)" if one.place.selection else ""
        job = f", in job {one.claim.job}" if one.claim.job else ""
        end = "" if one.claim.until is None else f", until {format_time(1000 * one.claim.until)}"
        taken = f"taken {format_time(1000 * one.claim.since)} on {one.claim.host}"
        lines.append(f"{one.claim.id[:12]}{part}, {taken}{job}{end}")
    return Conflict(
        f"you have {len(holds)} holds of {target} in {root.path}, and others of your jobs may need them; name one "
        f"with --id, or release them with --all:{format_lines(lines, most=5)}",
        subject=str(target),
        hint=f"dsv release --id {holds[-1].claim.id[:12]} ends one; dsv release --all {target} ends all",
    )


def _by_id(*holds: HoldInfo) -> dict[str, HoldInfo]:
    return {one.claim.id: one for one in holds}


def _item(
    root: CacheRoot, place: CachePlace, ids: Sequence[str], until: float | None = None, why: str = ""
) -> HoldItem:
    return HoldItem(root.visible(place).path, place.dataset_name, place.commit, tuple(ids), until, why)
