"""The configured pools: their present capacity, and the choice of a pool for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsv.api.cache import Stager
from dsv.api.cache_targets import CacheTarget
from dsv.api.context import Context
from dsv.api.settings import POOL_FIELDS, Setting, Settings, check_key, is_name, pool_names
from dsv.cache.record import lookup
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError, NotFound, Unreachable, Unsupported, UsageError
from dsv.run.engine_list import Engines, check_image_for, choose, engine_of
from dsv.run.engines.base import Engine, Task, check_given
from dsv.run.pools import ANSWERS_WITHIN, GaveUp, PoolFacts, Prefer, Stop, ask_all, choose_pool, waited
from dsv.run.resources import PassedOver, Pool, Resources, check_resources, fit
from dsv.run.spec import POOL_OPTIONS, JobSpec, on_pool
from dsv.values.names import HERE, Target
from dsv.values.units import format_bytes, format_duration

if TYPE_CHECKING:
    from dsv.api.run_staging import RunStaging


def all_pools(settings: Settings) -> dict[str, Pool]:
    """Return the readable pools, by name, without checks."""
    return {name: _read(settings, name) for name in settings.names("pools")}


def engines_of(environ: Mapping[str, str], settings: Settings) -> Engines:
    """Return a maker of engines for runs started earlier, perhaps by other users."""
    return Engines(environ, all_pools(settings))


def pools_to_try(settings: Settings, on: str | None) -> tuple[Pool, ...]:
    """Return the pools that a run may use, in order: those given, else those of the setting `pool`.

    An empty tuple means this machine. Raises `UsageError`, `NotFound`.
    """
    setting = Setting("pool", on, "--on") if on is not None else settings.get("pool")
    if setting is None:
        return ()
    return tuple(load_pool(settings, name, setting.origin) for name in pool_names(setting.value))


def load_pool(settings: Settings, name: str, origin: str) -> Pool:
    """Return one pool, checked. origin: the source of the request. Raises `UsageError`, `NotFound`."""
    if name == HERE:
        return Pool(name=HERE, engine=None)
    if name not in settings.names("pools"):
        known = ", ".join([*settings.names("pools"), HERE])
        raise NotFound(
            f"no pool named {name} is configured (requested by {origin})",
            subject=name,
            hint=f"dsv config pools.{name}.engine ENGINE, or one of {known}",
        )
    for _, key in settings.unknown():
        if key.startswith(f"pools.{name}."):
            check_key(key)
    pool = _read(settings, name)
    if pool.engine is None:
        raise UsageError(
            f"the pool {name} has no engine", subject=name, hint=f"dsv config pools.{name}.engine docker"
        )
    kind = engine_of(pool)
    for key in settings.table(f"pools.{name}."):
        table = key.partition(".")[0]
        if table not in (*POOL_FIELDS, pool.engine):
            raise UsageError(
                f"the pool {name} has the engine {pool.engine}, and settings of {table}",
                subject=f"pools.{name}.{table}",
                hint=f"dsv config --unset pools.{name}.{key}",
            )
    if pool.out is not None and not pool.out.startswith("/"):
        raise UsageError(
            f"pools.{name}.out is the relative folder {pool.out}",
            subject=f"pools.{name}.out",
            hint=f"dsv config pools.{name}.out /…/{pool.out}",
        )
    pool = replace(pool, run=_run_settings(settings, name))
    try:
        check_given(kind, on_pool(Task(gpus=1 if "gpu_type" in pool.run else None), pool))
    except UsageError as error:
        key = f"pools.{name}.{error.subject}"
        raise UsageError(f"{key}: {error.message}", subject=key, hint=f"dsv config --unset {key}") from None
    return pool


def _run_settings(settings: Settings, name: str) -> dict[str, Any]:
    """Return the run options in the settings of a pool. Raises `UsageError`."""
    found = {}
    for field_name, option in POOL_OPTIONS.items():
        setting = settings.get(key := f"pools.{name}.{option.flag}")
        try:
            if setting is not None:
                found[field_name] = option.parse(setting.value)
        except UsageError as error:
            hint = f"dsv config {key} VALUE"
            raise UsageError(f"{key}: {error.message}", subject=key, hint=hint) from None
    return found


def cache_folder(settings: Settings, pool: Pool) -> Path | None:
    """Return the folder of the pool's cache; None for a name that only its engine understands.

    It may exist only elsewhere. Raises `UsageError`, and `NotFound` for a name that is not configured.
    """
    if pool.cache is None:
        return settings.cache().path
    if is_name(pool.cache) and ":" not in pool.cache:
        return settings.cache_of(Setting("cache", pool.cache, f"pools.{pool.name}.cache")).path
    if pool.cache.startswith(("/", "~/")):
        return settings.home / pool.cache[2:] if pool.cache.startswith("~/") else Path(pool.cache)
    return None


def _read(settings: Settings, name: str) -> Pool:
    table = settings.table(f"pools.{name}.")
    plain = {field: str(table[field][0]) for field in ("engine", "cache", "out") if field in table}
    engine = plain.get("engine")
    prefix = f"{engine}."
    options = {key.removeprefix(prefix): value for key, (value, _) in table.items() if key.startswith(prefix)}
    return Pool(name=name, engine=engine, cache=plain.get("cache"), out=plain.get("out"), options=options)


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The needs of a job, to compare pools by."""

    resources: Resources = field(default_factory=Resources)
    image: str | bool | None = False
    """None if the job needs none; False if that is unknown."""
    data: tuple[tuple[CacheTarget, int], ...] = ()
    """Targets and their sizes."""


def report_pools(
    context: Context,
    environ: Mapping[str, str],
    pools: Sequence[Pool],
    wanted: JobNeeds,
    seconds: float = ANSWERS_WITHIN,
) -> list[PoolFacts]:
    """Ask all pools in parallel."""
    by_name = {pool.name: pool for pool in pools}
    return ask_all(
        list(by_name),
        lambda name: _report(context, environ, by_name[name], wanted),
        lambda name, error: unknown(by_name[name], error),
        seconds,
    )


def locate(context: Context, cache: Path, targets: Sequence[Target], *, offline: bool = False) -> JobNeeds:
    """Find the data of a job: which commits, and their sizes. Raises like `Stager.locate`."""
    with Stager(context, CacheRoot(cache), offline=offline) as stager:
        found = []
        for target in targets:
            place = stager.targets.find(target)
            found.append((place, stager.locate(target).bytes))
        return JobNeeds(data=tuple(found))


def _report(context: Context, environ: Mapping[str, str], pool: Pool, wanted: JobNeeds) -> PoolFacts:
    asked = on_pool(wanted.resources, pool)
    refused = _refusal(pool, asked, wanted.image)
    engine = _engine(environ, pool, wanted)
    answer = engine.capacity(asked)
    folder = cache_folder(context.settings, pool)
    there, free, no_room = None, None, None
    if folder is not None and folder.is_dir():
        there = all(lookup(CacheRoot(folder), one.place) is not None for one, _ in wanted.data)
        free, no_room = _room(folder, wanted)
    elif folder is not None and not engine.queues:
        there = False  # the first run will make it
    return PoolFacts(
        pool=pool.name,
        engine=engine.name,
        refused=refused,
        capacity=fit(asked, answer),
        cached=there if wanted.data else None,
        no_room=no_room,
        cache=pool.cache or (None if folder is None else str(folder)),
        free_bytes=free,
    )


def unknown(pool: Pool, problem: DsvError) -> PoolFacts:
    """Return the facts of a pool that can't report its capacity."""
    if isinstance(problem, Unreachable) and problem.hint is None:
        problem = Unreachable(problem.message, hint=f"dsv config shows the settings of pools.{pool.name}")
    return PoolFacts(pool=pool.name, engine=pool.engine, cache=pool.cache, error=problem)


def _refusal(pool: Pool, asked: Resources, image: str | bool | None) -> str | None:
    """Return the reason why the engine of a pool can never run this, if any."""
    if pool.engine is None:
        return None
    engine = engine_of(pool)
    try:
        if not isinstance(image, bool):
            check_image_for(engine, image)
        check_given(engine, asked)
        check_resources(asked)
    except UsageError as error:
        return error.message
    return None


def _engine(environ: Mapping[str, str], pool: Pool, wanted: JobNeeds) -> Engine:
    if pool.engine is not None:
        return engine_of(pool)(environ, pool.options)
    return choose(environ, None, None if isinstance(wanted.image, bool) else wanted.image).engine


def _room(folder: Path, wanted: JobNeeds) -> tuple[int | None, str | None]:
    """Return a cache's free bytes, and why missing data does not fit; None if the cache is unreadable."""
    from dsv.api.cached import cached

    try:
        report = cached(folder)
    except (DsvError, OSError):
        return None, None
    root, room = CacheRoot(folder), report.room
    needed = sum(size for data, size in wanted.data if lookup(root, data.place) is None)
    evictable = sum(
        item.own_bytes for item in report.items if not (item.leases or item.pins or item.protected)
    )
    free = room.free_bytes
    if room.max_size is not None:
        free = min(free, room.max_size - room.used_bytes)
    most = max(0, free - room.reserved_bytes + evictable)
    lacks = f"{format_bytes(needed)} are needed, and {format_bytes(most)} can be made free"
    return room.free_bytes, lacks if needed > most else None


_SHORTEST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 15.0


class Placed(NamedTuple):
    spec: JobSpec
    cache: Path
    reason: str | None = None
    """Why the run can't start there now; None if it can."""


@dataclass(frozen=True, slots=True)
class Placing:
    context: Context
    environ: Mapping[str, str]
    pools: Sequence[Pool]
    cache: Path
    """The cache of this machine."""
    prefer: Prefer = Prefer.CACHED
    offline: bool = False

    def choose(self, spec: JobSpec) -> Placed:
        """Ask all pools, and note which were passed over. Raises `LaunchError` if none can ever run it."""
        wanted = self._wanted(spec)
        choice = choose_pool(report_pools(self.context, self.environ, self.pools, wanted), self.prefer)
        for passed in choice.passed_over:
            self.context.progress.note(f"not on {passed.pool}: {passed.reason}")
        spec = replace(spec, passed_over=choice.passed_over)
        return self.placed(spec, choice.pool, choice.then, choice.reason)

    def caches_here(self) -> list[Path]:
        """Return the folders of the pools' caches that this machine sees under the same names as the jobs."""
        shared = [pool for pool in self.pools if pool.engine is None or engine_of(pool).shares_folders]
        folders = {cache_folder(self.context.settings, pool) for pool in shared}
        return [each for each in folders if each is not None and each.is_dir()]

    def wait_for(self, spec: JobSpec, pool: Pool, seconds: float | None, *, queues: bool) -> str | None:
        """Wait until the job may be submitted. Return why it will queue there; None if it can start. Raise
        `GaveUp`."""
        wanted = self._wanted(spec)
        deadline = None if seconds is None else monotonic() + seconds
        pause, reported = _SHORTEST_PAUSE, False
        while True:
            (facts,) = report_pools(self.context, self.environ, [pool], wanted)
            never, reason = facts.never, facts.not_now
            if facts.reachable and never is not None:
                raise GaveUp(never)
            if reason is None or (facts.reachable and queues):
                return reason
            if not reported:
                reported = True
                self.context.progress.note(f"waiting for {pool.name}{_at_most(seconds)}: {reason}")
            left = pause if deadline is None else deadline - monotonic()
            if left <= 0:
                raise GaveUp(waited(reason, seconds))
            sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _wanted(self, spec: JobSpec) -> JobNeeds:
        data = locate(self.context, self.cache, [spec.target, *spec.data.values()], offline=self.offline).data
        return JobNeeds(spec, spec.image, data)

    def placed(self, spec: JobSpec, name: str, then: tuple[str, ...], reason: str | None) -> Placed:
        """Return the job as this pool gets it. then: the pools to try after it"""
        pool = next(each for each in self.pools if each.name == name)
        cache = cache_folder(self.context.settings, pool)
        if cache is None:
            raise Unsupported(
                f"the cache of the pool {pool.name} is not a folder: {pool.cache}",
                subject=pool.name,
                hint=f"dsv config pools.{pool.name}.cache DIR",
            )
        there = replace(on_pool(spec, pool), pool=pool, engine=pool.engine, then=then)
        return Placed(there, cache, reason)


@dataclass(frozen=True, slots=True)
class PoolRoute:
    """The pools for a run, from the chosen one on: a `dsv.run.pools.Route`."""

    placing: Placing
    chosen: Placed
    staging: RunStaging
    """At the chosen pool; `staging_of` makes another pool's from its cache."""
    staging_of: Callable[[Path, JobSpec], RunStaging]

    @property
    def pools(self) -> dict[str, float | None]:
        spec, waits = self.chosen.spec, {pool.name: pool.wait for pool in self.placing.pools}
        assert spec.pool is not None  # it was chosen
        names = (spec.pool.name, *spec.then)
        return {name: None if name == names[-1] else waits[name] for name in names}

    def enter(self, name: str, seconds: float | None, passed: tuple[PassedOver, ...]) -> Stop:
        """Don't wait at a pool whose engine queues jobs."""
        pool = next(each for each in self.placing.pools if each.name == name)
        queues = pool.engine is not None and engine_of(pool).queues
        spec, _, reason = self.chosen
        spec = replace(spec, passed_over=(*spec.passed_over, *passed))
        if passed or (reason is not None and not queues):
            reason = self.placing.wait_for(spec, pool, seconds, queues=queues)
        where = f"queued on {name}{_at_most(seconds)}: {reason}" if queues and reason else f"on {name}"
        self.placing.context.progress.note(where)
        order = tuple(self.pools)
        spec, cache, _ = self.placing.placed(spec, name, order[order.index(name) + 1 :], reason)
        return Stop(spec, self.staging_of(cache, spec) if passed else self.staging, reason)


def _at_most(seconds: float | None) -> str:
    return "" if seconds is None else f", {format_duration(seconds)} at most"
