"""Choosing the pool that a run goes to, and waiting there for its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep

from dsv.api.context import Context
from dsv.api.pools import Wanted, cache_folder, locate, report_pools
from dsv.errors import Unsupported
from dsv.run.engine_list import engine_of
from dsv.run.pools.choice import Choice, NoPool, PoolFacts, Prefer, choose_pool, why_never, why_not_now
from dsv.run.pools.queue_wait import GaveUp, no_pool, poll, waited
from dsv.run.resources import DEFAULT_WAIT, PassedOver, Pool
from dsv.run.spec import JobSpec
from dsv.values.units import format_duration


@dataclass(frozen=True, slots=True)
class Placed:
    """The run as it goes to its pool. cache: the folder of the pool's cache. begins: whether it can begin there now;
    reason: why not."""

    spec: JobSpec
    cache: Path
    begins: bool
    reason: str | None = None


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
        return self._placed(spec, choice)

    def order(self, placed: Placed) -> tuple[str, ...]:
        """The pools that the run may go to, from the one that it was placed at."""
        assert placed.spec.pool is not None  # it was chosen
        return (placed.spec.pool.name, *placed.spec.then)

    def enter(
        self,
        placed: Placed,
        name: str,
        seconds: float | None,
        passed: tuple[PassedOver, ...],
        note: Callable[[str], None],
    ) -> Placed | GaveUp:
        """Waits until the job may be given to this pool: at once if its engine holds jobs back, else once there is
        room. Gives up after so many seconds, or if the pool can never run it."""
        pool = next(each for each in self.pools if each.name == name)
        queues = pool.engine is not None and engine_of(pool).queues
        order = self.order(placed)
        there = replace(placed.spec, passed_over=(*placed.spec.passed_over, *passed))
        if not passed and (placed.begins or queues):
            found: str | GaveUp | None = placed.reason
        else:
            found = self._wait_for(there, pool, seconds, note, queues=queues)
        if isinstance(found, GaveUp):
            return found
        if queues and found is not None:
            limit = "" if seconds is None else f", {format_duration(seconds)} at most"
            note(f"queued on {name}{limit}: {found}")
        else:
            note(f"on {name}")
        then = order[order.index(name) + 1 :]
        return self._placed(there, Choice(name, found is None, there.passed_over, then, found))

    def _wait_for(
        self, spec: JobSpec, pool: Pool, seconds: float | None, note: Callable[[str], None], *, queues: bool
    ) -> str | GaveUp | None:
        """Returns once the job may be given to the pool: with the reason why it can't begin at once, if its engine
        holds it back itself."""
        wanted = self._wanted(spec)
        told: list[str] = []
        never: list[str] = []
        held: list[str | None] = []

        def why_not() -> str | None:
            (report,) = report_pools(self.context, self.environ, [pool], wanted)
            if report.facts.unreachable is None and (found := why_never(report.facts, spec)) is not None:
                never.append(found)
                return None
            reason = _why_not(report.facts, spec)
            if queues and report.facts.unreachable is None:
                held.append(reason)
                return None
            if reason is not None and not told:
                told.append(reason)
                limit = "" if seconds is None else f", {format_duration(seconds)} at most"
                note(f"waiting for {pool.name}{limit}: {reason}")
            return reason

        late = poll(why_not, seconds, sleep)
        if never:
            return GaveUp(never[0])
        if late is not None:
            return waited(late, seconds)
        return held[0] if held else None

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
        there = replace(spec, pool=pool, engine=pool.engine, passed_over=choice.passed_over, then=choice.then)
        return Placed(there, cache, choice.begins, choice.reason)


def _why_not(facts: PoolFacts, spec: JobSpec) -> str | None:
    """Why it can't begin there now. One that doesn't answer for a moment is waited for as well."""
    if facts.unreachable is not None:
        return f"unreachable: {facts.unreachable}"
    return why_not_now(facts, spec)
