"""A sweep: what its runs have in common is made ready, and then they are begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dsv.api.context import Context
from dsv.api.placing import Placing
from dsv.api.run import dry_run, prepared
from dsv.api.runs import Runs
from dsv.engines.base import CANNOT_LAUNCH
from dsv.errors import NotFound
from dsv.model.names import DatasetName
from dsv.model.run import RunId
from dsv.model.sweep import SweepId
from dsv.runs.engines import ENGINES
from dsv.runs.listing import RunView
from dsv.runs.place import RunPlace
from dsv.runs.sweep_driver import Driven, Started, SweepDriver
from dsv.runs.sweep_plan import SweepPlan
from dsv.runs.sweeps import SweepView


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
        assert spec.target.dataset is not None  # `prepared` saw to it
        whole = replace(plan, spec=spec)
        known = _Known(found, spec.target.dataset, plan.seat.id)
        yield SweepDriver(whole, place.state, parallel, known, lambda number: start(whole, number))


@dataclass(frozen=True, slots=True)
class _Known:
    found: Runs
    dataset: DatasetName
    sweep: SweepId

    def show(self, run: RunId) -> RunView:
        return self.found.show(run, self.dataset)

    def stops(self) -> int:
        return self.found.runs.sweep_stops(self.dataset, self.sweep)


def outcome(found: Runs, sweep: SweepId, driven: Driven) -> tuple[int, SweepView | None]:
    """The exit code of a sweep, and its runs; None if none has a record."""
    view = None
    with suppress(NotFound):
        view = found.sweep(sweep)
    code = None if view is None else view.exit_code
    if code is None:
        code = CANNOT_LAUNCH if driven.ended_by is None else 128 + driven.ended_by
    return code if driven.refused is None else driven.refused, view
