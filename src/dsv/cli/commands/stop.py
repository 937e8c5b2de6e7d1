"""dsv stop, dsv wait and dsv logs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from time import sleep

from dsv.api.pools import engines_of
from dsv.api.runs import Runs
from dsv.cli.call import Call
from dsv.cli.commands.runs import opened_runs, warn_of_cut_off, write_log
from dsv.cli.declare import argument, command, option
from dsv.errors import Denied, DsvError, NotFound, Unreachable, Unsupported, UsageError
from dsv.files.process import host_name, user_name
from dsv.run.active_runs import RunOwner, UnderWay
from dsv.run.completing import known_secrets
from dsv.run.engine_list import find_job
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.engines.output import read_live, whole_lines
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import RunView, ended_here, find_under_way, run_known_here
from dsv.run.parameters import SweepId, names_sweep
from dsv.run.part import EndCause
from dsv.run.record import RunRecord, RunState
from dsv.run.sweep import SweepView, being_started, driver
from dsv.values.units import format_count, parse_duration

_TICK = 0.2


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
def stop(
    call: Call,
    run: str = argument("RUN"),
    grace: str | None = option("--grace DURATION", "How long the job gets to end by itself: 20s."),
) -> None:
    """Stop a run and wait for its end.

    RUN is a run's --name, or a unique prefix or suffix, of at least 4 characters, of its full or short id. The job
    gets SIGTERM and time to end by itself; its record and its log are kept as always. Ctrl-C ends only the waiting. A
    run can be stopped on the machine that started it, and one in a cluster from any machine that reaches the cluster.
    """
    seconds = GRACE if grace is None else parse_duration(grace)
    active = find_under_way(call.settings.state, run)
    if names_sweep(run):
        _stop_named_sweep(call, run, seconds)
        return
    try:
        record, asked = _end(call, run, active, seconds)
    except NotFound as error:
        if active is not None:
            raise
        with opened_runs(call) as opened:
            view = opened.sweep_instead(run, error)
        _stop_sweep(call, view, seconds)
        return
    how = "was stopped, and ended" if asked else "had ended already,"
    text = f"run {record.run} {how} with exit code {record.exit_code}"
    _tell(call, record.run, asked, record.state, record.exit_code, text)


def _end(
    call: Call, run: str, active: UnderWay | None, seconds: float, *, again: bool = False
) -> tuple[RunRecord, bool]:
    """End one run. Return its record, and whether this call asked it to end. again: an earlier call did."""
    asked = False
    if active is not None and is_in_cluster(call, active.record):
        _say_if_away(call, active.record)
    if active is not None and (active.owner.is_here or not is_in_cluster(call, active.record)):
        try:
            asked = active.ask_to_stop(seconds)
            if not (asked or again):
                call.say(f"run {active.run} is being stopped already")
            active.wait_for_end()
        except NotFound:  # its supervisor is gone
            pass
        kept = ended_here(call.settings.state, active.run, active.record.dataset)
        if kept is not None:
            return kept[0], asked
    with opened_runs(call) as opened:
        before = opened.show(run if active is None else active.run).record
        warn_of_cut_off(call, opened, stop={before.run: seconds})
        view = opened.show(before.run)
        record = view.record
        asked = asked or (record.end is EndCause.CANCELLED and not before.state.is_terminal)
        if record.state.is_terminal:
            opened.settle([view])  # ends what its cluster may still have
        if not record.state.is_terminal and is_in_cluster(call, record):
            if active is None:
                _say_if_away(call, record)
            return _stop_in_cluster(call, opened, view, seconds)
    if not record.state.is_terminal and active is not None and active.owner.is_dead:
        raise Unreachable(
            f"run {record.run} may still run: {record.engine} did not end its job",
            subject=record.run,
            hint=f"make sure that {record.engine} answers, then: dsv stop {record.run}",
        )
    if not record.state.is_terminal:
        said, hint = _out_of_reach(record, "it can be stopped", "stop")
        raise Unsupported(said, subject=record.run, hint=hint)
    return record, asked


def _out_of_reach(record: RunRecord, what: str, command: str) -> tuple[str, str]:
    """Return why this command can't do this with a run that is under way, and a hint."""
    run, host, user = record.run, record.host, record.user
    if host != host_name():
        return f"run {run} is under way on {host}, and {what} only there", f"ssh {host} dsv {command} {run}"
    if user != user_name():
        return f"run {run} is {user}'s, and {what} only by them", f"sudo -iu {user} dsv {command} {run}"
    return f"no supervisor of run {run} is known here, and {what} only through that", f"dsv runs {run}"


def _say_if_away(call: Call, record: RunRecord) -> None:
    """Say at once if the cluster of a run does not answer: its calls may take long."""
    engine = engines_of(call.around.environ, call.settings).make(record.engine, record.pool)
    try:
        assert engine is not None  # it is in a cluster
        engine.probe()
    except DsvError as error:
        call.warn(f"run {record.run} does not end before its cluster answers: {error.message}")


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


def _end_driver(process: RunOwner) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.process.pid, signal.SIGTERM)


def _wait_for_driver(call: Call, sweep: SweepId, process: RunOwner) -> None:
    while driver(call.settings.state, sweep) == process:
        sleep(_TICK)


def _stop_sweep(call: Call, view: SweepView, seconds: float) -> None:
    """Have no more runs started, here and on other machines; then stop running ones, and wait for them."""
    state = call.settings.state
    with opened_runs(call) as opened:
        if view.not_begun:
            try:
                opened.notes(view.dataset, view.id).stop()
            except (Denied, Unreachable) as error:
                call.warn(f"another machine may still start runs: {error.message}")
        process = driver(state, view.id)
        if process is not None and process.is_here:
            _end_driver(process)
        view = opened.sweep(view.id)
    for record in view.under_way:
        active = find_under_way(state, record.run)
        if active is not None and active.owner.is_here:
            with suppress(NotFound):
                active.ask_to_stop(seconds)
    problems: list[DsvError] = []
    for record in view.under_way:
        try:
            _end(call, record.run, find_under_way(state, record.run), seconds, again=True)
        except DsvError as error:
            problems.append(error)
    if process is not None and process.is_here:
        _wait_for_driver(call, view.id, process)
    for problem in problems[1:]:
        call.complain(problem)
    if problems:
        raise problems[0]
    _tell_sweep(call, view)


def _tell_sweep(call: Call, before: SweepView) -> None:
    with opened_runs(call) as runs:
        view = runs.sweep(before.id)
    asked = bool(before.under_way or len(before.latest) < before.seat.of)
    text = f"{view.id} had ended already, with exit code {view.exit_code}"
    if asked:
        ended = {view.record.run for view in before.members if view.record.state.is_terminal}
        begun = [run.record for number, run in view.latest.items() if number not in view.not_begun]
        stopped = [record for record in begun if record.run not in ended and record.cancelled_by is not None]
        text = f"{view.id}: {format_count(len(stopped), 'run')} stopped, {len(view.not_begun)} not begun"
    _tell(call, view.id, asked, RunState.ENDED, view.exit_code, text)


def _tell(call: Call, run: str, asked: bool, state: RunState, exit_code: int | None, text: str) -> None:
    call.result(run=run, stopped=asked, state=state, exit_code=exit_code)
    call.say(text)


def is_in_cluster(call: Call, record: RunRecord) -> bool:
    """Return whether a cluster holds the job, so that it can be ended from any machine."""
    engine = engines_of(call.around.environ, call.settings).make(record.engine, record.pool)
    return engine is not None and engine.queues


def _stop_in_cluster(call: Call, opened: Runs, view: RunView, seconds: float) -> tuple[RunRecord, bool]:
    """End a job without a supervisor here, and complete its record if nobody else does."""
    record = view.record
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
    (settled,) = opened.settle([view])
    shown = replace(record, state=status.state, exit_code=status.exit_code)
    return settled.record if settled.record.state.is_terminal else shown, asked


_Views = Sequence[RunView]
_Look = Callable[[], _Views]
_Rest = Callable[[float], object]
_PAUSE, _LONGEST_PAUSE = 2.0, 15.0
"""Seconds between two looks into the store for the end of a run on another machine."""


@command(
    "wait",
    examples="""
        dsv wait 4f2a9c01  # ends with the exit code of the run
        dsv wait 4f2a9c01 baseline  # until both have ended
        dsv wait sweep-1f2e3d4c  # until all runs of a sweep have
    """,
    result="items(run state exit_code error)",
    unused=["--cache"],
)
def wait(call: Call, run: list[str] = argument("RUN...")) -> int:
    """Wait until runs have ended, and exit with their exit code.

    RUN is a run's --name, or a unique prefix or suffix, of at least 4 characters, of its full or short id. Of several
    runs, the exit code is that of the first in this order that has not succeeded, else 0. A sweep may be named instead
    of a run. A run on another machine has ended once its record is in the store.
    """
    if len(run) == 1 and names_sweep(run[0]):
        return _wait_for_sweep(call, run[0])
    state = call.settings.state
    ids: list[str] = []
    for text in run:
        active = find_under_way(state, text)
        ids.append(text if active is None else active.run)
        if active is not None and active.owner.is_here:
            _wait_for_supervisor(call, active)
    there = [ended_here(state, text) for text in ids]
    records = [record[0] for record in there if record is not None]
    if len(records) < len(ids):  # the others are in the store, or will be
        try:
            with opened_runs(call) as opened:
                warn_of_cut_off(call, opened)
                if len(ids) == 1 and isinstance(meant := opened.show_or_sweep(ids[0]), SweepView):
                    return _wait(call, opened, meant)
                records = [_ended(call, opened, text) for text in ids]
        except Unreachable as error:
            records = _ended_here(call, ids, error)
    _write(call, records)
    return next((record.exit_code for record in records if record.exit_code), 0)


def _wait_for_supervisor(call: Call, active: UnderWay) -> None:
    """Wait for the end of a run of this machine. Look at its cluster ever more seldom, down to once a minute."""
    if is_in_cluster(call, active.record):
        with suppress(DsvError), opened_runs(call) as opened:
            rest = lambda pause: active.wait_for_end(4 * pause)  # noqa: E731
            _until(call, opened, lambda: [opened.show(active.run)], lambda _: active.wait_for_end(0), rest)
    active.wait_for_end()


def _ended_here(call: Call, ids: Iterable[str], away: Unreachable) -> list[RunRecord]:
    """Return the unsent records of ended runs that this machine has. Raises `away` if one is missing."""
    records = []
    for text in ids:
        view = run_known_here(call.settings.state, text)
        if view is None or not view.record.state.is_terminal:
            raise away
        records.append(view.record)
    call.warn(f"the store is not reachable, so this is what this machine has recorded: {away.message}")
    return records


def _write(call: Call, records: Iterable[RunRecord]) -> None:
    call.results(records)
    for each in records:
        call.line(f"{each.run} {each.exit_code}")


def _wait_for_sweep(call: Call, text: str) -> int:
    with opened_runs(call) as found:
        warn_of_cut_off(call, found)
        while being_started(call.settings.state, text) is not None:
            with suppress(NotFound):  # no run of it has begun yet
                return _wait(call, found, found.sweep(text))
            sleep(_PAUSE)
        return _wait(call, found, found.sweep(text))


def _wait(call: Call, opened: Runs, view: SweepView) -> int:
    """Wait for the runs of a sweep, and for those that a dsv will still start. Return the exit code."""

    def is_over(members: _Views) -> bool:
        return not _goes_on(call, opened, replace(view, members=tuple(members)))

    members = _until(call, opened, lambda: opened.sweep(view.id).members, is_over)
    view = replace(view, members=tuple(members))
    if view.not_begun:
        left = format_count(len(view.not_begun), "run")
        call.warn(f"{left} of {view.id} not begun: dsv run --again {view.id.short}")
    _write(call, [latest.record for latest in view.latest.values()])
    return CANNOT_LAUNCH if view.exit_code is None else view.exit_code


def _until(
    call: Call, found: Runs, look: _Look, is_over: Callable[[_Views], bool], rest: _Rest | None = None
) -> _Views:
    """Look at runs until they are over; complete those that were cut off. Say once why the end of one is not seen."""
    pause, warn, rest = _PAUSE, cache(call.warn), rest or sleep
    while not is_over(views := found.settle(look(), whole=True)):
        for view in views:
            if (why := view.last_known) is not None:
                said = view.record.error if len(views) == 1 else why.message
                warn(f"can't tell now whether a run has ended: {said}")
        rest(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        found.complete_cut_off(lambda _: None)  # each time: a job may outlive its supervisor for a while
    return views


def _goes_on(call: Call, found: Runs, view: SweepView) -> bool:
    """Return whether a run has not ended, or a process here or on another machine will start more."""
    if view.under_way or driver(call.settings.state, view.id) is not None:
        return True
    if len(view.latest) == view.seat.of:
        return False
    found_driver = found.notes(view.dataset, view.id).driver()
    return found_driver is not None and not found_driver.is_here


def _ended(call: Call, found: Runs, text: str) -> RunRecord:
    run = found.show(text).record.run
    (view,) = _until(call, found, lambda: [found.show(run)], lambda views: views[0].record.state.is_terminal)
    return view.record


@command(
    "logs",
    examples="""
        dsv logs 4f2a9c01  # what a run wrote, or has written so far
        dsv logs -f 4f2a9c01 | tail  # of one run of a sweep as well: dsv runs sweep-1f2e3d4c lists them
        dsv logs -f baseline  # as it is written, of the run with this --name
    """,
    unused=["--cache"],
)
def logs(
    call: Call,
    run: str = argument("RUN"),
    follow: bool = option("-f --follow", "Keep printing until the run ends."),
) -> None:
    """Print what a run writes, or wrote.

    RUN is a run's --name, or a unique prefix or suffix, of at least 4 characters, of its full or short id; a run that
    is under way here comes first. Of a detached run that has not ended this is what it has written so far, at least
    the last 16 MiB; of one that has ended it is what its record keeps, of a very long log the head and the tail.
    Secrets are hidden in both. The log of a foreground run can't be read until the run ends.
    """
    if call.json:
        raise UsageError("a log can't be printed as JSON", hint="leave out --json")
    active = find_under_way(call.settings.state, run)
    if active is not None and active.owner.is_here:
        if not active.owner.is_dead:
            if _write_live(call, active, follow):
                return
            if active.is_marked and not is_in_cluster(call, active.record):
                said = f"run {active.run} is in the foreground, so its log can't be read until it ends"
                if active.record.log is None:
                    said = f'run {active.run} keeps no log: its pool has log = "no"'
                raise NotFound(said, subject=active.run, hint=f"dsv wait {active.run}")
        if _write_engines(call, active.record, follow, alive=True):
            return
    run, dataset = (run, None) if active is None else (active.run, active.record.dataset)
    kept = ended_here(call.settings.state, run, dataset)
    if kept is not None and kept[1] is not None:
        call.out.write(kept[1])
        return
    with opened_runs(call) as runs:
        warn_of_cut_off(call, runs)
        if active is not None and not (active.owner.is_dead and active.is_marked):
            active = None  # else its job has outlived it
        if active is None or not _write_live(call, active, follow):
            _write_kept(call, runs, run, follow)


def _write_engines(call: Call, record: RunRecord, follow: bool, *, alive: bool = False) -> bool:
    """Print the engine's own log of a job. Return False if there is none. alive: only of a running job."""
    job = find_job(record, engines_of(call.around.environ, call.settings))

    def has_record() -> bool:
        with suppress(DsvError), opened_runs(call) as found:
            return found.show(record.run).record.state.is_terminal
        return False

    if job is not None:
        job.engine.has_record = has_record
    if job is None or (alive and not job.status.lives) or (log := job.logs(follow)) is None:
        return False
    masker = known_secrets(record, call.around.environ)
    shown = f", which may show values of {', '.join(masker.unknown)}" if masker.unknown else ""
    call.warn(f"this is {job.engine.name}'s own log of run {record.run}{shown}")
    with log as pieces:
        for data in whole_lines(pieces):
            call.out.write(masker.data(data))
            call.out.publish()
    return True


def _write_live(call: Call, active: UnderWay, follow: bool) -> bool:
    """Print the log so far. Return False if there is none, or if the run has ended, so that its record has it."""
    if active.live is None:
        return False
    goes_on = (lambda: active.is_marked and not active.owner.is_dead) if follow else None
    try:
        with read_live(active.live, goes_on) as pieces:
            for data in pieces:
                call.out.write(data)
                call.out.publish()
    except FileNotFoundError:
        return False
    return True


def _one(found: Runs, run: str) -> RunView:
    """Return a run. Raises `UsageError` for a sweep."""
    view = found.show_or_sweep(run)
    if isinstance(view, RunView):
        return view
    raise UsageError(
        f"{view.id} has {len(view.members)} runs, each with a log of its own",
        subject=view.id,
        hint=f"dsv logs {view.members[0].record.run}",
    )


def _write_kept(call: Call, runs: Runs, run: str, follow: bool) -> None:
    (view,) = runs.settle([_one(runs, run)], whole=True)
    record = view.record
    if record.state.is_terminal:
        write_log(call, runs, record)
    elif not (is_in_cluster(call, record) and _write_engines(call, record, follow)):
        said, hint = _out_of_reach(record, "until it has ended its log can be read", "logs")
        raise NotFound(said, subject=record.run, hint=hint)
