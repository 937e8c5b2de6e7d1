"""A sweep and its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from dsv.api.cache import take_lease
from dsv.api.context import Context
from dsv.api.pools import Placing
from dsv.api.run import dry_run
from dsv.api.run_staging import RunStaging
from dsv.api.runs import Runs
from dsv.cache.root import CacheRoot
from dsv.errors import Denied, DsvError, NotFound, as_launch_error
from dsv.repo.session import Session
from dsv.run.dirs import RunPlace, code_folder
from dsv.run.engine_list import ENGINES
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.listing import RunView
from dsv.run.origin import code_state
from dsv.run.record import RunId
from dsv.run.sweep import Started, SweepDriver, SweepPlan, SweepView
from dsv.values.names import Target


@contextmanager
def open_sweep(
    context: Context,
    runs: Runs,
    cache: Path,
    plan: SweepPlan,
    place: RunPlace,
    *,
    parallel: int,
    start: Callable[[SweepPlan, int], Started],
    watch: Callable[[int, RunId | RunView], None],
    note: Callable[[str], None],
    placing: Placing | None = None,
    force: bool = False,
) -> Iterator[SweepDriver]:
    """Yield a driver that can start runs: commits and code are found, and data is held in each cache seen here.

    The caller is `driving` the sweep. start: starts one run. watch: called with a run's number, and its id
    when it has started, or its record when it has ended.
    """
    spec = plan.spec
    first, *_ = dry_run(context, cache, replace(spec, once=False), place, placing=placing, force=force)
    stage = (
        placing is None and not ENGINES[first.engine].queues and not spec.once
    )  # each run may have its result
    sessions: list[Session] = []
    with ExitStack() as opened:
        with as_launch_error():
            staging = RunStaging(context, cache, spec, opened, sessions, force=force)
            code = spec.recorded_code
            if spec.code is not None and code is None:
                folder = code_folder(place, spec.code)
                if (tree := staging.commit_code(folder)) is not None:
                    code = replace(code_state(folder, place.environ), tree=tree.hex())
            for target in staging.found if stage else ():
                opened.callback(staging.stage(target, None)[1].release)
            for folder in () if placing is None else placing.caches_here():
                for each in staging.found.values():
                    with suppress(DsvError):  # each run holds it as well
                        opened.callback(take_lease(CacheRoot(folder), each.place, optional=True).release)
        dataset = staging.main.dataset
        spec = replace(
            spec,
            target=Target(dataset, spec.target.rev, spec.target.path),
            pins={str(target): str(staged.commit) for target, staged in staging.found.items()},
            recorded_code=code,
        )
        context.progress.finish()
        whole = replace(plan, spec=spec)

        def settle(views: Sequence[RunView]) -> Sequence[RunView]:
            cut_off = {record.run: RunView(record, False) for record in runs.complete_cut_off(lambda _: None)}
            known = [view if view.record.job else runs.show(view.record.run, dataset) for view in views]
            return runs.settle([cut_off.get(view.record.run, view) for view in known], whole=True)

        yield SweepDriver(
            whole, place.state, parallel, runs.notes(dataset, plan.seat.id), watch=watch, note=note,
            show=lambda run: runs.show(run, dataset), start=lambda number: start(whole, number),
            settle=settle, end=runs.end_in_cluster,
        )  # fmt: skip


def become_driver(found: Runs, plan: SweepPlan) -> None:
    """Make this process the driver of the sweep. Raises `Conflict` if another process has become it."""
    assert plan.spec.target.dataset is not None  # a record names it, or the command line
    try:
        found.notes(plan.spec.target.dataset, plan.seat.id).take(plan.turn)
    except Denied:  # such a user leaves no record there from which others could continue
        if plan.again is not None:
            raise


def outcome(found: Runs, driver: SweepDriver) -> tuple[int, SweepView | None]:
    """Return the exit code of a sweep, and its runs; None if none has a record."""
    view = None
    with suppress(NotFound):
        view = found.sweep(driver.plan.seat.id)
    code = None if view is None else view.exit_code
    if code is None:
        code = CANNOT_LAUNCH if driver.ended_by is None else 128 + driver.ended_by
    return code if driver.refused is None else driver.refused, view
