"""dsv wait."""

from __future__ import annotations

from time import sleep
from typing import Annotated

import typer

from dsv.api.pool_settings import engines_of
from dsv.api.runs import Runs, open_runs
from dsv.cli.call import Call
from dsv.cli.commands.runs import warn_of_cut_off
from dsv.cli.declare import command
from dsv.model.run import RunRecord
from dsv.runs.control import find_under_way, is_here, wait_for_end
from dsv.runs.listing import ended_here
from dsv.runs.place import SPOOLS

_PAUSE, _LONGEST_PAUSE = 2.0, 15.0
"""Seconds between two looks into the store for the end of a run on another machine."""


@command(
    "wait",
    examples=[
        ("dsv wait 4f2a9c01", "ends with the exit code of the run"),
        ("dsv wait 4f2a9c01 baseline", "until both have ended"),
    ],
    result={
        "items.run": "its id",
        "items.state": "ended, not-launched, or cut-off",
        "items.exit_code": "how it ended: the command's own, or 125 to 127",
        "items.error": "why it was not launched, or was cut off",
    },
    unused=["--cache"],
)
def wait(call: Call, run: Annotated[list[str], typer.Argument(metavar="RUN...")]) -> int:
    """Wait until runs have ended, and exit with their exit code.

    RUN is a run's id, four characters or more that only its id begins or ends with, or its --name. Of several runs, the
    exit code is that of the first in this order that has not succeeded, else 0. A run on another machine has ended once
    its record is in the store.
    """
    state = call.settings.state
    ids: list[str] = []
    for text in run:
        one = find_under_way(state, text)
        ids.append(text if one is None else one.run)
        if one is not None and is_here(one):
            wait_for_end(one)
    there = [ended_here(state / SPOOLS, text) for text in ids]
    records = [each[0] for each in there if each is not None]
    if len(records) < len(ids):  # the others are in the store, or will be
        with call.context() as context, open_runs(context) as found:
            warn_of_cut_off(call, found)
            records = [_ended(call, found, text) for text in ids]
    if call.json:
        call.items(
            {"run": each.run, "state": each.state, "exit_code": each.exit_code, "error": each.error}
            for each in records
        )
    else:
        for each in records:
            call.line(f"{each.run} {each.exit_code}")
    return next((each.exit_code for each in records if each.exit_code), 0)


def _ended(call: Call, found: Runs, text: str) -> RunRecord:
    record, pause = _now(call, found, text), _PAUSE
    while not record.state.is_terminal:
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        found.end_those_cut_off(
            engines_of(call.around.environ, call.settings), lambda _: None
        )  # one whose job has lived on for a while
        record = _now(call, found, record.run)
    return record


def _now(call: Call, found: Runs, text: str) -> RunRecord:
    (view,) = found.settle([found.show(text)], engines_of(call.around.environ, call.settings))
    return view.record
