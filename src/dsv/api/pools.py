"""What the pools have now: for `dsv pools`, and for choosing the one that a run goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv.api.cache_stage import Stager
from dsv.api.cache_targets import Found
from dsv.api.cached import RoomItem, cached
from dsv.api.context import Context
from dsv.api.pool_settings import cache_folder
from dsv.cache.record import lookup
from dsv.cache.root import CacheRoot
from dsv.engines.base import Engine, NoEngine
from dsv.engines.limits import check_given
from dsv.errors import DsvError, Unreachable, UsageError
from dsv.model.capacity import Capacity
from dsv.model.names import Target
from dsv.model.pool import Pool
from dsv.model.resources import Resources
from dsv.model.units import format_bytes
from dsv.runs.engines import check_image_for, choose, engine_of
from dsv.runs.pools.choice import PoolFacts
from dsv.runs.pools.facts import ANSWERS_WITHIN, ask_all


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job asks of a pool. image: False if it is not known whether it needs one. data: with the size of each."""

    resources: Resources = field(default_factory=Resources)
    image: str | bool | None = False
    data: tuple[tuple[Found, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PoolReport:
    """cache: its folder, if this machine can tell; room: of that, if it can be read here. engine: its name. problem:
    why it is not known what the pool has."""

    pool: Pool
    engine: str | None
    facts: PoolFacts
    cache: Path | None = None
    room: RoomItem | None = None
    problem: DsvError | None = None


def report_pools(
    context: Context,
    environ: Mapping[str, str],
    pools: Sequence[Pool],
    wanted: Wanted,
    seconds: float = ANSWERS_WITHIN,
) -> list[PoolReport]:
    """All pools, asked at the same time."""
    by_name = {pool.name: pool for pool in pools}
    found: dict[str, PoolReport] = {}

    def ask(name: str) -> PoolFacts:
        try:
            found[name] = _report(context, environ, by_name[name], wanted)
        except DsvError as error:
            found[name] = unknown(by_name[name], error)
        return found[name].facts

    facts = ask_all(list(by_name), ask, seconds)
    return [
        found[each.pool] if each.pool in found and found[each.pool].facts is each
        else unknown(by_name[each.pool], _unreachable(each.pool, each.unreachable or ""))
        for each in facts
    ]  # fmt: skip


def locate(context: Context, cache: Path, targets: Sequence[Target], *, offline: bool = False) -> Wanted:
    """The data of a job: which commits, and how large. Raises what `Stager.locate` raises."""
    with Stager(context, CacheRoot(cache), offline=offline) as stager:
        found = []
        for target in targets:
            place = stager.targets.find(target)
            found.append((place, stager.locate(target).bytes))
        return Wanted(data=tuple(found))


def _report(context: Context, environ: Mapping[str, str], pool: Pool, wanted: Wanted) -> PoolReport:
    refused = _refusal(pool, wanted)
    engine = _engine(environ, pool, wanted)
    answer = engine.capacity(wanted.resources)
    if isinstance(answer, NoEngine):
        return unknown(pool, answer.error or _unreachable(pool.name, answer.reason))
    folder = cache_folder(context.settings, pool)
    there, room, no_room = None, None, None
    if folder is not None and folder.is_dir():
        there = all(lookup(CacheRoot(folder), one.place) is not None for one, _ in wanted.data)
        room, no_room = _room(folder, wanted)
    elif folder is not None and not engine.queues:
        there = False  # it will be made by the first run
    facts = PoolFacts(
        pool=pool.name,
        refused=refused,
        capacity=answer,
        cached=there if wanted.data else None,
        no_room=no_room,
    )
    return PoolReport(pool, engine.name, facts, folder, room)


def unknown(pool: Pool, problem: DsvError) -> PoolReport:
    """A pool that can't tell what it has."""
    facts = PoolFacts(pool=pool.name, unreachable=problem.message)
    return PoolReport(pool, pool.engine, facts, problem=problem)


def _unreachable(pool: str, reason: str) -> Unreachable:
    return Unreachable(reason, hint=f"dsv config shows the settings of pools.{pool}")


def _refusal(pool: Pool, wanted: Wanted) -> str | None:
    """Why the engine of a pool can't run this at all."""
    if pool.engine is None:
        return None
    engine = engine_of(pool)
    try:
        if not isinstance(wanted.image, bool):
            check_image_for(engine, wanted.image)
        check_given(engine, wanted.resources)
    except UsageError as error:
        return error.message
    return None


def _engine(environ: Mapping[str, str], pool: Pool, wanted: Wanted) -> Engine:
    if pool.engine is not None:
        return engine_of(pool)(environ, pool.options)
    image = None if isinstance(wanted.image, bool) else wanted.image
    return choose(environ, None, image).engine


def _room(folder: Path, wanted: Wanted) -> tuple[RoomItem | None, str | None]:
    """The room of a cache, and why what is missing of the data has none. A cache that can't be read tells nothing."""
    try:
        report = cached(folder)
    except (DsvError, OSError):
        return None, None
    root, room = CacheRoot(folder), report.room
    needed = sum(size for one, size in wanted.data if lookup(root, one.place) is None)
    kept = [each for each in report.items if each.leases or each.pins or each.protected]
    evictable = sum(each.own_bytes for each in report.items) - sum(each.own_bytes for each in kept)
    free = room.free_bytes
    if room.max_size is not None:
        free = min(free, room.max_size - room.used_bytes)
    most = max(0, free - room.reserved_bytes + evictable)
    if needed <= most:
        return room, None
    return room, f"{format_bytes(needed)} are needed, and {format_bytes(most)} can be made free"


__all__ = ["Capacity", "PoolReport", "Wanted", "locate", "report_pools", "unknown"]
