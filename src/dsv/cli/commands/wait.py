"""dsv wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Annotated, TypeVar

import typer

from dsv.api.runs import Runs
from dsv.cli.call import Call
from dsv.cli.commands.runs import opened_runs, warn_of_cut_off
from dsv.cli.declare import command
from dsv.errors import NotFound, Unreachable
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.listing import ended_here, find_under_way, run_known_here
from dsv.run.parameters import names_sweep
from dsv.run.record import RunRecord
from dsv.run.sweep import SweepView, being_started, driver
from dsv.values.units import format_count

_T = TypeVar("_T")
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
def wait(call: Call, run: Annotated[list[str], typer.Argument(metavar="RUN...")]) -> int:
    """Wait until runs have ended, and exit with their exit code.

    RUN is a run's id, four characters or more that only its id begins or ends with, or its --name. Of several runs, the
    exit code is that of the first in this order that has not succeeded, else 0. A sweep may be named instead of a
    run. A run on another machine has ended once its record is in the store.
    """
    if len(run) == 1 and names_sweep(run[0]):
        return _wait_for_sweep(call, run[0])
    state = call.settings.state
    ids: list[str] = []
    for text in run:
        one = find_under_way(state, text)
        ids.append(text if one is None else one.run)
        if one is not None and one.owner.is_here:
            one.wait_for_end()
    there = [ended_here(state, text) for text in ids]
    records = [each[0] for each in there if each is not None]
    if len(records) < len(ids):  # the others are in the store, or will be
        try:
            with opened_runs(call) as found:
                warn_of_cut_off(call, found)
                try:
                    records = [_ended(found, text) for text in ids]
                except NotFound as error:
                    if len(run) > 1:
                        raise
                    return _wait(call, found, found.sweep_instead(run[0], error))
        except Unreachable as error:
            records = _ended_here(call, ids, error)
    _write(call, records)
    return next((each.exit_code for each in records if each.exit_code), 0)


def _ended_here(call: Call, ids: Iterable[str], away: Unreachable) -> list[RunRecord]:
    """Return the records of runs that have ended and are not sent yet. Raises `away` if one of them is not here."""
    records = []
    for text in ids:
        view = run_known_here(call.settings.state, text)
        if view is None or not view.record.state.is_terminal:
            raise away
        records.append(view.record)
    call.warn(f"the store is not reachable, so this is what this machine has recorded: {away.message}")
    return records


def _write(call: Call, records: Iterable[RunRecord]) -> None:
    if call.json:
        call.results(records)
    else:
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


def _wait(call: Call, found: Runs, view: SweepView) -> int:
    """Wait for its runs, and for those that a dsv is still to start."""

    def settled() -> SweepView:
        now = found.sweep(view.id)
        return replace(now, members=tuple(found.settle(now.members)))

    view = _until(found, settled, lambda now: not _goes_on(call, found, now))
    _write(call, (each.record for each in view.latest.values()))
    if view.not_begun:
        left = format_count(len(view.not_begun), "run")
        call.warn(f"{left} of {view.id} not begun: dsv run --again {view.id.short}")
    return CANNOT_LAUNCH if view.exit_code is None else view.exit_code


def _until(found: Runs, look: Callable[[], _T], is_over: Callable[[_T], bool]) -> _T:
    """Look at growing intervals, and complete the records of runs that were cut off meanwhile."""
    pause = _PAUSE
    while not is_over(now := look()):
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        found.complete_cut_off(lambda _: None)  # also of one whose job has lived on for a while
    return now


def _goes_on(call: Call, found: Runs, view: SweepView) -> bool:
    """Check that a run has not ended, or that a process, here or on another machine, is to start more."""
    if view.under_way or driver(call.settings.state, view.id) is not None:
        return True
    if not view.not_begun:
        return False
    found_driver = found.notes(view.dataset, view.id).driver()
    return found_driver is not None and not found_driver.is_here


def _ended(found: Runs, text: str) -> RunRecord:
    run = found.show(text).record.run
    view = _until(
        found, lambda: found.settle([found.show(run)])[0], lambda view: view.record.state.is_terminal
    )
    return view.record
