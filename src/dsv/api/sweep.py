"""A sweep: what its runs have in common is made ready, and then they are begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from dsv.api.context import Context
from dsv.api.pools import Placing
from dsv.api.run import dry_run, prepared
from dsv.api.runs import Runs
from dsv.errors import Denied, NotFound
from dsv.run.dirs import RunPlace
from dsv.run.engine_list import ENGINES
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.sweep import SweepPlan, SweepView
from dsv.run.sweep_driver import Started, SweepDriver, Watcher
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
    watcher: Watcher,
    placing: Placing | None = None,
    force: bool = False,
) -> Iterator[SweepDriver]:
    """Yield a driver whose runs can be started: their commits and their code are found, and their data is fetched and
    held if they are to run here. The caller is `driving` the sweep.

    start: starts one run
    """
    first, _ = dry_run(context, cache, plan.spec, place, placing=placing)
    stage = placing is None and not ENGINES[first.engine].queues
    with prepared(context, cache, plan.spec, place, stage=stage, force=force) as spec:
        context.progress.finish()
        whole = replace(plan, spec=spec)
        dataset = _dataset(whole)
        yield SweepDriver(
            whole,
            place.state,
            parallel,
            found.notes(dataset, plan.seat.id),
            show=lambda run: found.show(run, dataset),
            start=lambda number: start(whole, number),
            watcher=watcher,
        )


def become_driver(found: Runs, plan: SweepPlan) -> None:
    """Make this process the one that starts the runs. Raises `Conflict` if another one has become that meanwhile."""
    try:
        found.notes(_dataset(plan), plan.seat.id).take(plan.turn)
    except Denied:
        if plan.again is not None:
            raise
        # Who can't write to the store leaves no record there either from which others could continue the sweep.


def _dataset(plan: SweepPlan) -> DatasetName:
    assert plan.spec.target.dataset is not None  # a record names it, and `prepared` finds it
    return plan.spec.target.dataset


def outcome(found: Runs, driver: SweepDriver) -> tuple[int, SweepView | None]:
    """Return the exit code of a sweep, and its runs; None if none has a record."""
    view = None
    with suppress(NotFound):
        view = found.sweep(driver.plan.seat.id)
    code = None if view is None else view.exit_code
    if code is None:
        code = CANNOT_LAUNCH if driver.ended_by is None else 128 + driver.ended_by
    return code if driver.refused is None else driver.refused, view
