"""`dsv run --sweep`: its options, the start of the sweep, its progress and its result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP

from dsv.api.context import Context
from dsv.api.pools import Placing
from dsv.api.run import become_driver, dry_run, open_sweep, outcome
from dsv.api.runs import Runs, open_runs
from dsv.api.sync import workspace_above
from dsv.cli.call import Call
from dsv.cli.detach import detach, start_supervisor
from dsv.cli.launch import Typed, launching, placing_of, plan_document, show_plan, spec_of
from dsv.cli.views.runs import params_text, result_text, write_table
from dsv.errors import UsageError
from dsv.run.dirs import RunPlace
from dsv.run.engines.attach import spared
from dsv.run.listing import RunView, as_text, flattened
from dsv.run.parameters import SweepSeat, combination, names_sweep, parse_axes, varied
from dsv.run.record import RunId
from dsv.run.sweep import SweepDriver, SweepPlan, continued_sweep, driving, new_sweep, sweep_folder
from dsv.values.units import format_count, format_duration


def is_sweep(typed: Typed) -> bool:
    """Check that several runs are asked for."""
    return typed.sweep or (typed.again is not None and names_sweep(typed.again))


@spared()
def sweep(call: Call, typed: Typed) -> int:
    """Start its runs and wait for them; return the exit code, 0 if all have succeeded."""
    _check(call, typed)
    if typed.detach and call.session.announce is None:
        with launching():
            return detach(call)
    with ExitStack() as held:
        with launching():
            context = held.enter_context(call.context(writes=True))
            found = held.enter_context(open_runs(context, call.around.environ))
            place = RunPlace.here(
                call.around.environ, call.settings.state, call.settings.cwd, workspace_above
            )
            plan = _plan(call, typed, context, place, found)
            cache = call.settings.cache().path
            placing = placing_of(call, typed, context, cache)
            if typed.dry_run:
                _show(call, context, cache, place, plan, placing)
                return 0
        held.enter_context(driving(place.state, plan.seat.id))
        become_driver(found, plan)
        with launching():
            driver = held.enter_context(
                open_sweep(
                    context, found, cache, plan, place,
                    parallel=typed.parallel or 1,
                    start=lambda whole, number: start_supervisor(call, whole.member(number)),
                    watch=_watcher(call, plan.seat), note=call.say, placing=placing, force=typed.force,
                )
            )  # fmt: skip
        _announce(call, place, plan, driver.parallel)
        driver.drive()
        return _tell(call, found, driver)


def _plan(call: Call, typed: Typed, context: Context, place: RunPlace, found: Runs) -> SweepPlan:
    if typed.again is not None:
        view, turn = found.unfinished(typed.again)
        sibling = replace(typed, again=view.members[0].record.run)
        return continued_sweep(view, turn, spec_of(call, sibling, context, place), place)
    axes = parse_axes(typed.options.get("params") or ())
    options = {name: value for name, value in typed.options.items() if name != "params"}
    return new_sweep(spec_of(call, replace(typed, options=options), context, place), axes, place)


def _announce(call: Call, place: RunPlace, plan: SweepPlan, parallel: int) -> None:
    seat = plan.seat
    folder = sweep_folder(place.state, seat.id)
    if call.session.announce is not None:
        call.session.announce(seat.id, folder, folder)
    else:
        call.say(f"{seat.id}: {format_count(len(plan.left), 'run')}, at most {parallel} at once")


def _tell(call: Call, found: Runs, driver: SweepDriver) -> int:
    if driver.ended_by == SIGHUP:
        return 128 + SIGHUP  # nobody is there to be told
    code, view = outcome(found, driver)
    if call.json:
        runs = [] if view is None else [each.item() for each in view.members]
        call.document({"sweep": {"id": driver.plan.seat.id, "exit_code": code, "runs": runs}})
    elif view is not None:
        write_table(call, view.members)
    return code


def _show(
    call: Call, context: Context, cache: Path, place: RunPlace, plan: SweepPlan, placing: Placing | None
) -> None:
    items = []
    for number in plan.left:
        spec = plan.of_run(number)
        shown, spec = dry_run(context, cache, spec, place, placing=placing)
        if call.json:
            items.append({"number": number, "params": spec.params, **plan_document(shown, spec)})
        else:
            params = " ".join(f"{name}={value}" for name, value in spec.params.items())
            call.line(f"# run {number} of {plan.seat.of}: {params}")
            show_plan(call, shown, spec)
    if call.json:
        call.items(items)


def _check(call: Call, typed: Typed) -> None:
    if typed.sweep and typed.again is not None:
        raise UsageError("a sweep that is continued is one already", hint=f"dsv run --again {typed.again}")
    if typed.sweep and typed.target is None:
        raise UsageError("dsv run needs a target", hint="dsv run DATASET[@REV] -p K=V,V --sweep -- CMD...")
    if typed.offline:
        raise UsageError(
            "a sweep asks the store what has become of its runs, and --offline forbids that",
            subject="--offline",
            hint="leave out --offline",
        )
    if typed.json_file is not None:
        raise UsageError("--json-file is for one run", hint="--json prints the runs of a sweep")
    if typed.again is not None and (typed.options or call.words):
        raise UsageError(
            f"the runs of {typed.again} that are begun now are like the others",
            subject=typed.again,
            hint=f"dsv run --again {typed.again}",
        )


_METRICS = 4
"""Metrics that a line has room for."""


def _watcher(call: Call, seat: SweepSeat) -> Callable[[int, RunId | RunView], None]:
    """Return a function that says that a run of this number has begun, or has ended."""

    def say(number: int, run: RunId | RunView) -> None:
        params = params_text(varied(combination(seat.axes, number), seat.axes))
        what = f"{run.record.run} {_ending(run)}" if isinstance(run, RunView) else f"{run} begun"
        call.say(f"{number}/{seat.of} {params}: run {what}")

    return say


def _ending(view: RunView) -> str:
    """`ok after 3.2 s, acc=0.93`."""
    took = "" if view.took_seconds is None else f" after {format_duration(view.took_seconds)}"
    metrics = list(flattened(view.record.metrics or {}).items())
    shown = "".join(f", {name}={as_text(value)[:12]}" for name, value in metrics[:_METRICS])
    return f"{result_text(view.record)}{took}{shown}"
