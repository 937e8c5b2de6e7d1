"""dsv stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from dsv.api.pool_settings import engines_of
from dsv.api.runs import open_runs
from dsv.cli.call import Call
from dsv.cli.commands.runs import warn_of_cut_off
from dsv.cli.declare import command
from dsv.engines.guard import GRACE
from dsv.errors import NotFound, Unreachable, Unsupported
from dsv.model.run import RunRecord
from dsv.model.units import parse_duration
from dsv.runs.control import ask_to_stop, find_under_way, is_here, wait_for_end
from dsv.runs.jobs import find_job
from dsv.runs.listing import ended_here
from dsv.runs.place import SPOOLS

Grace = Annotated[
    str | None,
    typer.Option("--grace", metavar="DURATION", help="How long the job gets to end by itself: 20s."),
]


@command(
    "stop",
    examples=[
        ("dsv stop 4f2a9c01", "SIGTERM, and 20 seconds later SIGKILL"),
        ("dsv stop baseline --grace 5m", "five minutes to save a model"),
        ("dsv stop 4f2a9c01 --grace 0", "at once, also if it has been asked to stop before"),
    ],
    result={
        "run": "its id",
        "stopped": "false if it was being stopped, or had ended, already",
        "state": "ended, not-launched, or cut-off",
        "exit_code": "how it ended: the command's own, or 125 to 127",
    },
    unused=["--cache"],
)
def stop(call: Call, run: Annotated[str, typer.Argument(metavar="RUN")], grace: Grace = None) -> None:
    """End a run that is under way on this machine, and wait for its end.

    RUN is a run's id, four characters or more that only its id begins or ends with, or its --name. The job gets SIGTERM
    and time to end by itself; its record and its log are kept as always. Ctrl-C ends the waiting alone. A run in a
    cluster can be ended from any machine that reaches the cluster.
    """
    seconds = GRACE if grace is None else 0 if grace.strip() == "0" else parse_duration(grace)
    one = find_under_way(call.settings.state, run)
    asked = False
    if one is not None and (is_here(one) or not is_in_cluster(call, one.mark.known())):
        try:
            asked = ask_to_stop(one, seconds)
            if not asked:
                call.say(f"run {one.run} was asked to stop already")
            wait_for_end(one)
        except NotFound:  # its supervisor is gone
            pass
        kept = ended_here(call.settings.state / SPOOLS, one.run)
        if kept is not None:
            _tell(call, kept[0], asked=asked)
            return
    with call.context() as context, open_runs(context) as found:
        record = found.show(run if one is None else one.run).record
        warn_of_cut_off(call, found, stop={record.run: seconds})
        record = found.show(record.run).record
        if not record.state.is_terminal and is_in_cluster(call, record):
            _stop_in_cluster(call, record, seconds)
            return
    if not record.state.is_terminal and one is not None and one.mark.is_dead():
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
    _tell(call, record, asked=asked)


def is_in_cluster(call: Call, record: RunRecord | None) -> bool:
    """Whether a cluster holds the job, so that it can be ended from any machine."""
    engine = (
        None
        if record is None
        else engines_of(call.around.environ, call.settings).make(record.engine, record.pool)
    )
    return engine is not None and engine.queues


def _stop_in_cluster(call: Call, record: RunRecord, seconds: float) -> None:
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
    _tell(call, replace(record, state=status.state, exit_code=status.exit_code), asked=asked)


def _tell(call: Call, record: RunRecord, *, asked: bool) -> None:
    if call.json:
        call.document(
            {"run": record.run, "stopped": asked, "state": record.state, "exit_code": record.exit_code}
        )
    elif asked:
        call.say(f"run {record.run} was stopped, and ended with exit code {record.exit_code}")
    else:
        call.say(f"run {record.run} had ended already, with exit code {record.exit_code}")
