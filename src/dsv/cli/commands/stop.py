"""dsv stop."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Annotated

import typer

from dsv.api.pools import engines_of
from dsv.cli.call import Call
from dsv.cli.commands.runs import opened_runs, warn_of_cut_off
from dsv.cli.declare import command, option
from dsv.cli.failure import of_error
from dsv.errors import Denied, DsvError, NotFound, Unreachable, Unsupported
from dsv.run.active_runs import Owner, UnderWay
from dsv.run.engine_list import find_job
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import ended_here, find_under_way
from dsv.run.parameters import SweepId, names_sweep
from dsv.run.record import RunRecord, RunState
from dsv.run.sweep import SweepView, being_started, driver
from dsv.values.units import format_count, parse_duration

_TICK = 0.2

Grace = Annotated[str | None, option("--grace DURATION", "How long the job gets to end by itself: 20s.")]


@command(
    "stop",
    examples="""
        dsv stop 4f2a9c01  # SIGTERM, and 20 seconds later SIGKILL
        dsv stop baseline --grace 5m  # five minutes to save a model
        dsv stop sweep-1f2e3d4c  # the running runs of a sweep; no more of them are started
    """,
    result="run stopped state exit_code",
    unused=["--cache"],
)
def stop(call: Call, run: Annotated[str, typer.Argument(metavar="RUN")], grace: Grace = None) -> None:
    """Stop a run and wait for its end.

    RUN is a run's id, four characters or more that only its id begins or ends with, or its --name. The job gets SIGTERM
    and time to end by itself; its record and its log are kept as always. Ctrl-C ends the waiting alone. A run can
    be stopped on the machine that started it, and one in a cluster from any machine that reaches the cluster.
    """
    seconds = GRACE if grace is None else 0 if grace.strip() == "0" else parse_duration(grace)
    one = find_under_way(call.settings.state, run)
    if names_sweep(run):
        _stop_named_sweep(call, run, seconds)
        return
    try:
        record, asked = _end(call, run, one, seconds)
    except NotFound as error:
        if one is not None:
            raise
        with opened_runs(call) as found:
            view = found.sweep_instead(run, error)
        _stop_sweep(call, view, seconds)
        return
    how = "was stopped, and ended" if asked else "had ended already,"
    text = f"run {record.run} {how} with exit code {record.exit_code}"
    _tell(call, record.run, asked, record.state, record.exit_code, text)


def _end(
    call: Call, run: str, one: UnderWay | None, seconds: float, *, again: bool = False
) -> tuple[RunRecord, bool]:
    """End one run. Return its record, and True if it was this call that asked for that.

    again: this command has asked for it before
    """
    asked = False
    if one is not None and (one.owner.is_here or not is_in_cluster(call, one.record)):
        try:
            asked = one.ask_to_stop(seconds)
            if not (asked or again):
                call.say(f"run {one.run} is being stopped already")
            one.wait_for_end()
        except NotFound:  # its supervisor is gone
            pass
        kept = ended_here(call.settings.state, one.run, one.record.dataset)
        if kept is not None:
            return kept[0], asked
    with opened_runs(call) as found:
        record = found.show(run if one is None else one.run).record
        warn_of_cut_off(call, found, stop={record.run: seconds})
        record = found.show(record.run).record
        if not record.state.is_terminal and is_in_cluster(call, record):
            return _stop_in_cluster(call, record, seconds)
    if not record.state.is_terminal and one is not None and one.owner.is_dead:
        raise Unreachable(
            f"run {record.run} may still run: {record.engine} did not end its job",
            subject=record.run,
            hint=f"see that {record.engine} answers, then: dsv stop {record.run}",
        )
    if not record.state.is_terminal:
        raise Unsupported(
            f"run {record.run} is not supervised on this machine: it was started on {record.host}",
            subject=record.run,
            hint=f"ssh {record.host} dsv stop {record.run}",
        )
    return record, asked


def _stop_named_sweep(call: Call, text: str, seconds: float) -> None:
    starting = being_started(call.settings.state, text)
    with opened_runs(call) as found:
        try:
            view = found.sweep(text)
        except NotFound:
            if starting is None:
                raise
            sweep, process = starting  # no run of it has a record yet
            _end_driver(process)
            _wait_for_driver(call, sweep, process)
            try:
                view = found.sweep(text)
            except NotFound:
                said = f"{sweep} was stopped before a run of it had begun"
                _tell(call, sweep, True, RunState.NOT_LAUNCHED, CANNOT_LAUNCH, said)
                return
    _stop_sweep(call, view, seconds)


def _end_driver(process: Owner) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.process.pid, signal.SIGTERM)


def _wait_for_driver(call: Call, sweep: SweepId, process: Owner) -> None:
    while driver(call.settings.state, sweep) == process:
        sleep(_TICK)


def _stop_sweep(call: Call, view: SweepView, seconds: float) -> None:
    """Have no more runs started, here and on other machines; then stop all that go on, and wait for them."""
    state = call.settings.state
    with opened_runs(call) as found:
        if view.not_begun:
            try:
                found.notes(view.dataset, view.id).stop()
            except (Denied, Unreachable) as error:
                call.warn(f"another machine may still start runs: {error.message}")
        process = driver(state, view.id)
        if process is not None and process.is_here:
            _end_driver(process)
        view = found.sweep(view.id)
    for record in view.under_way:
        one = find_under_way(state, record.run)
        if one is not None and one.owner.is_here:
            with suppress(NotFound):
                one.ask_to_stop(seconds)
    problems: list[DsvError] = []
    for record in view.under_way:
        try:
            _end(call, record.run, find_under_way(state, record.run), seconds, again=True)
        except DsvError as error:
            problems.append(error)
    if process is not None and process.is_here:
        _wait_for_driver(call, view.id, process)
    for problem in problems[1:]:
        call.complain(of_error(problem))
    if problems:
        raise problems[0]
    _tell_sweep(call, view)


def _tell_sweep(call: Call, before: SweepView) -> None:
    with opened_runs(call) as found:
        view = found.sweep(before.id)
    asked = bool(before.under_way or before.not_begun)
    text = f"{view.id} had ended already, with exit code {view.exit_code}"
    if asked:
        stopped = format_count(len(before.under_way), "run")
        text = f"{view.id}: {stopped} stopped, {len(view.not_begun)} not begun"
    _tell(call, view.id, asked, RunState.ENDED, view.exit_code, text)


def _tell(call: Call, run: str, asked: bool, state: RunState, exit_code: int | None, text: str) -> None:
    if call.json:
        call.document({"run": run, "stopped": asked, "state": state, "exit_code": exit_code})
    else:
        call.say(text)


def is_in_cluster(call: Call, record: RunRecord) -> bool:
    """Check that a cluster holds the job, so that it can be ended from any machine."""
    engine = engines_of(call.around.environ, call.settings).make(record.engine, record.pool)
    return engine is not None and engine.queues


def _stop_in_cluster(call: Call, record: RunRecord, seconds: float) -> tuple[RunRecord, bool]:
    job = find_job(record, engines_of(call.around.environ, call.settings))
    if job is None:
        raise NotFound(
            f"{record.engine} has no job of run {record.run} any more",
            subject=record.run,
            hint=f"dsv runs {record.run}",
        )
    asked, status = job.status.lives, job.cancel(seconds)
    if status.lives:
        raise Unreachable(
            f"{record.engine} has not ended the job of run {record.run} yet",
            subject=record.run,
            hint=f"dsv stop {record.run}",
        )
    return replace(record, state=status.state, exit_code=status.exit_code), asked
