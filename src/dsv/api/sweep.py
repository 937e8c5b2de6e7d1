"""A sweep: what its runs have in common is made ready, and then they are begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dsv.api.context import Context
from dsv.api.pools import Placing
from dsv.api.run import dry_run, prepared
from dsv.api.runs import Runs
from dsv.errors import Conflict, Denied, NotFound
from dsv.run.dirs import RunPlace
from dsv.run.engine_list import ENGINES
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.listing import RunView
from dsv.run.parameters import SweepId
from dsv.run.record import RunId
from dsv.run.record_store import SweepNews, SweepNotes
from dsv.run.sweep.driver import Driven, Started, SweepDriver
from dsv.run.sweep.plan import SweepPlan
from dsv.run.sweep.progress import SweepView
from dsv.values.names import DatasetName


@contextmanager
def open_sweep(
    context: Context,
    found: Runs,
    cache: Path,
    plan: SweepPlan,
    place: RunPlace,
    *,
    parallel: int,
    start: Callable[[SweepPlan, int], Started],
    placing: Placing | None = None,
    jobs: int | None = None,
    force: bool = False,
) -> Iterator[SweepDriver]:
    """A driver whose runs can be begun: their commits and their code are found, and their data is fetched and held if
    they are to run here.

    start: begins one run. The others are as for `run`, and so is what is raised. The caller is `driving` the sweep.
    """
    first = dry_run(context, cache, plan.spec, place, placing=placing)
    stage = placing is None and not ENGINES[first.engine].queues
    with prepared(context, cache, plan.spec, place, stage=stage, jobs=jobs, force=force) as spec:
        context.progress.finish()
        whole = replace(plan, spec=spec)
        known = _Known(found, found.runs.notes(_dataset(whole), plan.seat.id), whole)
        yield SweepDriver(whole, place.state, parallel, known, lambda number: start(whole, number))


def take_turn(found: Runs, plan: SweepPlan) -> None:
    """If a sweep is continued, makes this process the one that begins its runs. Raises `Conflict` if another one has
    become that since the plan was made, or has taken all that is left."""
    if plan.again is None:
        return
    if not plan.left:
        number, host = min(plan.held.items())
        raise Conflict(
            f"run {number} of {plan.seat.id} was taken by dsv on {host}, and has no record yet",
            subject=plan.seat.id,
            hint=f"if that dsv is gone: dsv run --again {plan.seat.id.short} --force",
        )
    notes = found.runs.notes(_dataset(plan), plan.seat.id)
    other = notes.take_turn(plan.news.turns + 1)
    if other is not None:
        raise Conflict(
            f"the runs of {plan.seat.id} are being started by dsv on {other.host}, which came first",
            subject=plan.seat.id,
            hint=f"dsv wait {plan.seat.id.short}",
        )


@dataclass(frozen=True, slots=True)
class _Known:
    found: Runs
    notes: SweepNotes
    plan: SweepPlan

    def show(self, run: RunId) -> RunView:
        return self.found.show(run, _dataset(self.plan))

    def news(self) -> SweepNews:
        return self.notes.news()

    def successor(self, news: SweepNews) -> str | None:
        own = self.plan.news.turns + (self.plan.again is not None)
        return self.notes.who_has_turn(news.turns).host if news.turns > own else None

    def take(self, number: int) -> str | None:
        try:
            other = self.notes.begin(number, self._time(number))
        except Denied:
            if self.plan.again is not None:
                raise
            return None  # who can't write to the store leaves no record there either that others could go by
        return None if other is None else other.host

    def drop(self, number: int) -> None:
        self.notes.drop(number, self._time(number))

    def _time(self, number: int) -> int:
        return self.plan.news.begins.get(number, 0) + 1


def _dataset(plan: SweepPlan) -> DatasetName:
    assert plan.spec.target.dataset is not None  # a record names it, and `prepared` finds it
    return plan.spec.target.dataset


def outcome(found: Runs, sweep: SweepId, driven: Driven) -> tuple[int, SweepView | None]:
    """The exit code of a sweep, and its runs; None if none has a record."""
    view = None
    with suppress(NotFound):
        view = found.sweep(sweep)
    code = None if view is None else view.exit_code
    if code is None:
        code = CANNOT_LAUNCH if driven.ended_by is None else 128 + driven.ended_by
    return code if driven.refused is None else driven.refused, view
