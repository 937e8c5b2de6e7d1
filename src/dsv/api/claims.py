"""Claims on cached commits that people make and end: pins, and the end of holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsv.api.cache_targets import Targets
from dsv.api.context import Context
from dsv.cache.claims import pins as _pins
from dsv.cache.claims.claims import at
from dsv.cache.claims.user_leases import Hold, end_lease, find_leases, own_holds
from dsv.cache.disk import explain
from dsv.cache.evict.inventory import find_all
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot, refuse_symlinks
from dsv.errors import Conflict, NotFound, UsageError
from dsv.fs.process import user_name
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target

_ID = re.compile(r"[0-9a-f]{8,32}")


@dataclass(frozen=True, slots=True)
class ClaimItem:
    """Claims on one commit, or one part of it, that were made or ended, by their `ids`. until: seconds since 1970."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    ids: tuple[str, ...]
    until: float | None = None
    why: str = ""


def release(
    context: Context,
    folder: Path,
    targets: Sequence[Target] = (),
    *,
    ids: Sequence[str] = (),
    job: str | None = None,
    every: bool = False,
) -> list[ClaimItem]:
    """Ends holds of this user: those of these ids, or the only one of each target.

    job: those that were taken in this batch job. every: all of a target's, or all in the cache without a target.
    Nothing is ended unless all of it can be. Raises `NotFound` if there is none, `Conflict` if a target has several
    or an id is not one of this user's holds.
    """
    if targets and ids:
        raise UsageError("name targets or ids, not both", hint="dsv release --id ID")
    if ids and every:
        raise UsageError("name ids or --all, not both", hint="dsv release --id ID")
    if not (targets or ids or every or job is not None):
        raise UsageError("no hold given", hint="dsv release TARGET, or dsv release --id ID")
    chosen: dict[str, Hold] = {}
    with opened_cache(context, folder) as (root, finder):
        for start in ids:
            chosen |= _by_id(_the_hold(root, start))
        for target in targets:
            found = own_holds(root, finder.find_cached(target), job=job)
            if not found:
                raise _holds_nothing(root, str(target))
            if len(found) > 1 and job is None and not every:
                raise _several(root, target, found)
            chosen |= _by_id(*found)
        if not (targets or ids):
            chosen |= _by_id(*own_holds(root, _claimed(root), job=job))
            if not chosen:
                raise _holds_nothing(root, "what is cached")
        for hold in chosen.values():
            end_lease(root, hold)
        return _by_place(root, chosen.values())


def pin(
    context: Context,
    folder: Path,
    targets: Sequence[Target],
    *,
    why: str = "",
    seconds: float | None = None,
) -> list[ClaimItem]:
    """Keeps cached commits from eviction, for ever or for so long. A target without a path means the whole commit,
    and not the parts of it that are cached beside it. Raises `NotFound` for what is not cached.
    """
    found: list[ClaimItem] = []
    with opened_cache(context, folder) as (root, finder):
        for place, target in [(finder.find_exactly(target), target) for target in targets]:
            record = _pins.pin(root, place, why=why, seconds=seconds)
            if record is None:
                raise NotFound(
                    f"{place} was just evicted from {root.path}",
                    subject=str(place),
                    hint=f"dsv cache {target}",
                )
            found.append(_claim(root, place, [record.id], record.until, why))
    return found


def unpin(
    context: Context, folder: Path, targets: Sequence[Target], *, everyone: bool = False
) -> list[ClaimItem]:
    """Ends this user's pins of the targets, or everyone's; without a path those of its parts, too.

    Raises `NotFound` if there is none, `Conflict` if only others have pinned it.
    """
    found: list[ClaimItem] = []
    with opened_cache(context, folder) as (root, finder):
        for target in targets:
            ended = [
                (place, *_pins.unpin(root, place, everyone=everyone)) for place in finder.find_cached(target)
            ]
            if not any(gone for _, gone, _ in ended):
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
            found.extend(_claim(root, place, gone) for place, gone, _ in ended if gone)
    return found


@contextmanager
def opened_cache(context: Context, folder: Path) -> Iterator[tuple[CacheRoot, Targets]]:
    """A cache, and what finds targets in it. Raises `Conflict` for one that leads elsewhere."""
    root = CacheRoot(folder)
    refuse_symlinks(root)
    try:
        with Targets(context, root) as finder:
            yield root, finder
    except OSError as error:
        raise explain(error, root.path) from error


def _the_hold(root: CacheRoot, start: str) -> Hold:
    """This user's hold whose id begins so."""
    if not _ID.fullmatch(start):
        raise UsageError(
            f"{start!r} is not the id of a hold, or 8 or more of its first digits",
            subject=start,
            hint="dsv cached --json has the ids, and so has what dsv cache --hold --json printed",
        )
    found = find_leases(root, _claimed(root), start)
    if not found:
        raise NotFound(
            f"there is no hold {start} in {root.path}: it was released, or it has expired",
            subject=start,
            hint="dsv cached shows all holds",
        )
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} claims in {root.path} have ids that begin with {start}",
            subject=start,
            hint="give more digits: dsv cached --json has whole ids",
        )
    lease = found[0].lease
    if lease.purpose != "hold":
        raise Conflict(
            f"{found[0].place} is {lease.describe()}: that is not a hold, and ends by itself", subject=start
        )
    if lease.owner.user != user_name():
        raise Conflict(f"hold {start} is {lease.owner.user}'s, not yours", subject=start, hint="dsv cached")
    return found[0]


def _claimed(root: CacheRoot) -> list[Place]:
    return find_all(root.dot / "claims")


def _holds_nothing(root: CacheRoot, what: str) -> NotFound:
    return NotFound(f"you have no hold of {what} in {root.path}", subject=what, hint="dsv cached")


def _several(root: CacheRoot, target: Target, holds: Sequence[Hold]) -> Conflict:
    """By a target alone nobody can tell which of them the caller took."""
    lines = [
        f"you have {len(holds)} holds of {target} in {root.path}, and others of your jobs may need them:"
    ]
    for hold in holds:
        part = " (a part of it)" if hold.place.selection else ""
        job = f", in job {hold.lease.job}" if hold.lease.job else ""
        lease = hold.lease
        lines.append(
            f"  {hold.id[:12]}{part}, taken {at(lease.since)} on {lease.owner.host}{job}, until {at(lease.until)}"
        )
    return Conflict(
        "\n".join(lines),
        subject=str(target),
        hint=f"dsv release --id {holds[-1].id[:12]} ends one; dsv release --all {target} ends all",
    )


def _by_id(*holds: Hold) -> dict[str, Hold]:
    return {hold.id: hold for hold in holds}


def _by_place(root: CacheRoot, holds: Iterable[Hold]) -> list[ClaimItem]:
    ended: dict[Place, list[str]] = {}
    for hold in holds:
        ended.setdefault(hold.place, []).append(hold.id)
    return [_claim(root, place, ids) for place, ids in ended.items()]


def _claim(
    root: CacheRoot, place: Place, ids: Sequence[str], until: float | None = None, why: str = ""
) -> ClaimItem:
    return ClaimItem(
        path=root.visible(place),
        dataset=place.dataset_name,
        commit=place.commit,
        ids=tuple(ids),
        until=until,
        why=why,
    )
