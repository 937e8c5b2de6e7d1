"""Choosing the pool that a run goes to, and waiting there for its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep

from dsv.api.context import Context
from dsv.api.pool_settings import cache_folder
from dsv.api.pools import Wanted, locate, report_pools
from dsv.errors import Unsupported
from dsv.model.pool import DEFAULT_WAIT, PassedOver, Pool
from dsv.model.units import format_duration
from dsv.runs.pools.choice import Choice, NoPool, PoolFacts, Prefer, choose_pool, why_never, why_not_now
from dsv.runs.pools.turns import GaveUp, no_pool, poll, take_turns, waited
from dsv.runs.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Placed:
    """The run as it goes to its pool. cache: the folder of the pool's cache. begins: whether it can begin there now."""

    spec: JobSpec
    cache: Path
    begins: bool
    then: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placing:
    """Decides where runs go. cache: the one in effect here."""

    context: Context
    environ: Mapping[str, str]
    pools: Sequence[Pool]
    cache: Path
    prefer: Prefer = Prefer.CACHED
    wait: float = DEFAULT_WAIT
    offline: bool = False

    def choose(self, spec: JobSpec, note: Callable[[str], None]) -> Placed:
        """Asks all pools, and tells which ones were passed over. Raises `LaunchError` if none can ever run it."""
        wanted = self._wanted(spec)
        facts = [each.facts for each in report_pools(self.context, self.environ, self.pools, wanted)]
        choice = choose_pool(facts, spec, self.prefer)
        if isinstance(choice, NoPool):
            raise no_pool(choice.passed_over)
        for passed in choice.passed_over:
            note(f"not on {passed.pool}: {passed.reason}")
        if choice.begins:
            note(f"on {choice.pool}")
        return self._placed(spec, choice)

    def await_turn(self, placed: Placed, note: Callable[[str], None]) -> Placed:
        """Waits until the job can begin: at its pool, and after `wait` at the next one. For engines that hold no job
        back themselves, so that nothing has been submitted meanwhile."""
        if placed.begins or placed.spec.pool is None:
            return placed
        spec, order = placed.spec, (placed.spec.pool.name, *placed.then)

        def stay(pool: str, seconds: float | None) -> Choice | GaveUp:
            return self._stay(spec, pool, seconds, note)

        choice, passed = take_turns(order, self.wait, stay)
        note(f"on {choice.pool}")
        return self._placed(spec, replace(choice, passed_over=(*spec.passed_over, *passed)))

    def _stay(
        self, spec: JobSpec, name: str, seconds: float | None, note: Callable[[str], None]
    ) -> Choice | GaveUp:
        wanted = self._wanted(spec)
        pool = next(each for each in self.pools if each.name == name)
        told: list[str] = []
        never: list[str] = []

        def why_not() -> str | None:
            (report,) = report_pools(self.context, self.environ, [pool], wanted)
            reason = _why_not(report.facts, spec)
            if report.facts.unreachable is None and (found := why_never(report.facts, spec)) is not None:
                never.append(found)
                return None
            if reason is not None and not told:
                told.append(reason)
                limit = "" if seconds is None else f", {format_duration(seconds)} at most"
                note(f"waiting for {name}{limit}: {reason}")
            return reason

        reason = poll(why_not, seconds, sleep)
        if never:
            return GaveUp(never[0])
        return Choice(name, True) if reason is None else waited(reason, seconds)

    def _wanted(self, spec: JobSpec) -> Wanted:
        data = locate(self.context, self.cache, [spec.target, *spec.data.values()], offline=self.offline).data
        return Wanted(spec, spec.image, data)

    def _placed(self, spec: JobSpec, choice: Choice) -> Placed:
        pool = next(each for each in self.pools if each.name == choice.pool)
        cache = cache_folder(self.context.settings, pool)
        if cache is None:
            raise Unsupported(
                f"the cache of the pool {pool.name} is no folder: {pool.cache}",
                subject=pool.name,
                hint=f"dsv config pools.{pool.name}.cache DIR",
            )
        passed: tuple[PassedOver, ...] = choice.passed_over
        there = replace(spec, pool=pool, engine=pool.engine, passed_over=passed)
        return Placed(there, cache, choice.begins, choice.then)


def _why_not(facts: PoolFacts, spec: JobSpec) -> str | None:
    """Why it can't begin there now. One that doesn't answer for a moment is waited for as well."""
    if facts.unreachable is not None:
        return f"unreachable: {facts.unreachable}"
    return why_not_now(facts, spec)
