"""dsv logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv.api.pools import engines_of
from dsv.api.runs import Runs
from dsv.cli.call import Call
from dsv.cli.commands.runs import opened_runs, warn_of_cut_off
from dsv.cli.commands.stop import is_in_cluster
from dsv.cli.declare import command, option
from dsv.errors import NotFound, UsageError
from dsv.run.active_runs import UnderWay
from dsv.run.engine_list import find_job
from dsv.run.engines.output import read_live
from dsv.run.listing import RunView, ended_here, find_under_way
from dsv.run.record import RunRecord

Follow = Annotated[bool, option("-f --follow", "Go on until the run has ended.")]


@command(
    "logs",
    examples="""
        dsv logs 4f2a9c01  # what a run wrote, or has written so far
        dsv logs -f 4f2a9c01 | tail  # of one run of a sweep as well: dsv runs sweep-1f2e3d4c lists them
        dsv logs -f baseline  # as it is written, of the run with this --name
    """,
    unused=["--cache"],
)
def logs(call: Call, run: Annotated[str, typer.Argument(metavar="RUN")], follow: Follow = False) -> None:
    """Print what a run writes, or wrote.

    RUN is a run's id, four characters or more that only its id begins or ends with, or its --name; a run that is under
    way here comes first. Of a detached run that has not ended this is what it has written so far, at least the last
    16 MiB; of one that has ended it is what its record keeps, of a very long log the head and the tail. Secrets are
    hidden in both.
    """
    if call.json:
        raise UsageError("a log can't be printed as JSON", hint="leave out --json")
    one = find_under_way(call.settings.state, run)
    if one is not None and one.owner.is_here:
        if not one.owner.is_dead:
            if one.live is not None and _write_live(call, one, one.live, follow):
                return
            if one.is_marked and not is_in_cluster(call, one.record):
                raise NotFound(
                    f"run {one.run} keeps no log that can be read before it has ended",
                    subject=one.run,
                    hint=f"dsv wait {one.run}",
                )
        if _write_engines(call, one.record, follow, alive=True):
            return
    run, dataset = (run, None) if one is None else (one.run, one.record.dataset)
    kept = ended_here(call.settings.state, run, dataset)
    if kept is not None and kept[1] is not None:
        call.out.write(kept[1])
        return
    with opened_runs(call) as found:
        warn_of_cut_off(call, found)
        _write_kept(call, found, run, follow)


def _write_engines(call: Call, record: RunRecord, follow: bool, *, alive: bool = False) -> bool:
    """Print what its engine keeps of a job. Return False if there is no such job.

    alive: only of one that lives
    """
    job = find_job(record, engines_of(call.around.environ, call.settings))
    if job is None or (alive and not job.status.lives) or (log := job.logs(follow)) is None:
        return False
    call.warn(f"this is {job.engine.name}'s own log of run {record.run}, and secrets are not hidden in it")
    with log as pieces:
        for data in pieces:
            call.out.write(data)
            call.out.publish()
    return True


def _write_live(call: Call, one: UnderWay, live: Path, follow: bool) -> bool:
    """Print the log so far. Return False if the run has ended meanwhile, so that its record has the log."""
    try:
        with read_live(live, (lambda: one.is_marked and not one.owner.is_dead) if follow else None) as pieces:
            for data in pieces:
                call.out.write(data)
                call.out.publish()
    except FileNotFoundError:
        return False
    return True


def _one(found: Runs, run: str) -> RunView:
    """Return a run. Raise `UsageError` for a sweep."""
    view = found.show_or_sweep(run)
    if isinstance(view, RunView):
        return view
    raise UsageError(
        f"{view.id} has {len(view.members)} runs, each with a log of its own",
        subject=view.id,
        hint=f"dsv logs {view.members[0].record.run}",
    )


def _write_kept(call: Call, found: Runs, run: str, follow: bool) -> None:
    (view,) = found.settle([_one(found, run)])
    record = view.record
    if not record.state.is_terminal and is_in_cluster(call, record) and _write_engines(call, record, follow):
        return
    data = found.log(record) if record.state.is_terminal else None
    if data is not None:
        call.out.write(data)
    elif record.state.is_terminal:
        raise NotFound(f"run {record.run} has no log", subject=record.run, hint=f"dsv runs {record.run}")
    else:
        raise NotFound(
            f"run {record.run} is under way on {record.host}: its log can be read there alone until it has ended",
            subject=record.run,
            hint=f"ssh {record.host} dsv logs {record.run}",
        )
