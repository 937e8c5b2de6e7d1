"""dsv runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from dsv.api.context import Context
from dsv.api.runs import Runs, open_runs
from dsv.cli.call import Call
from dsv.cli.declare import command, option, whole
from dsv.cli.views.runs import write_csv, write_differences, write_one, write_table
from dsv.errors import NotFound, Unreachable, UsageError
from dsv.run.listing import (
    Filter,
    RunView,
    choose_runs,
    differences,
    run_known_here,
    runs_known_here,
    sort_order,
)
from dsv.run.record import RunId, RunState
from dsv.run.sweep import SweepView
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes, format_count, parse_duration

SHOWN = 50
"""Runs in a table, where no limit is given; JSON has all."""


Dataset = Annotated[str | None, option("--dataset DATASET", "Only runs on this dataset.")]
Limit = Annotated[int | None, option("-n --limit N", "Show the first N of them.", parser=whole(1))]
Where = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="'KEY OP VALUE'", help="Only runs that match; several must all match."),
]
Sort = Annotated[
    str | None,
    option("--sort KEY", "A metric's best first, else the smallest; +KEY: smallest, -KEY: largest first."),
]
Compare = Annotated[bool, option("--compare", "Compare these runs, or those that a filter leaves.")]
Csv = Annotated[bool, option("--csv", "Write it as CSV, exact and with all columns.")]
Log = Annotated[bool, option("--log", "Print the log of the run ID; of a very long one head and tail.")]
Delete = Annotated[bool, option("--delete", "Delete the records, logs and outputs of these runs for good.")]
OlderThan = Annotated[
    str | None, option("--older-than DURATION", "With --delete: all that ended longer ago.")
]
Yes = Annotated[bool, option("--yes", "With --delete: do not ask.")]
Force = Annotated[bool, option("--force", "With --delete: even if a run has not ended.")]
Out = Annotated[str | None, option("--out DIR", "Copy the output of the run ID to a new folder.")]


@command(
    "runs",
    examples="""
        dsv runs  # the newest runs on this workspace's dataset, else on all of the store
        dsv runs --sort metrics.acc --filter 'params.lr<0.1' --filter state=ended  # the best of some first
        dsv runs --compare 4f2a9c01 baseline  # in what two runs differ, by an id and by a --name
        dsv runs 4f2a9c01  # one run, by the end of its id
    """,
    result=(
        "items(run dataset commit target data state engine pool passed_over then engine_version job image "
        "image_id image_digest command engine_args argv env params gpus gpu_type tpu tpu_topology cpus "
        "memory_bytes time_seconds nodes retries shm_bytes code out output sweep name host user started "
        "ended exit_code signal end cancelled_by parts error cache_hit stage_seconds stage_bytes usage "
        "metrics metrics_error log again_of dsv took_seconds sent) copy(to source files bytes known "
        "left_out) deleted(run dataset) compare(runs differences)"
    ),
)
def runs(
    call: Call,
    run: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    dataset: Dataset = None,
    limit: Limit = None,
    where: Where = None,
    sort: Sort = None,
    reverse: Annotated[bool, option("--reverse", "Reverse the order.")] = False,
    compare: Compare = False,
    as_csv: Csv = False,
    log: Log = False,
    out: Out = None,
    delete: Delete = False,
    older_than: OlderThan = None,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Show, search, sort and compare the records of runs.

    ID is a run's id, four characters or more that only its id begins or ends with, or its --name. A KEY is a path into
    what --json shows: params.lr, metrics.acc, exit_code, host. OP is one of = != < <= > >= and ~ (contains). A run that
    lacks KEY matches KEY=null alone. Records are in the store, beside the dataset; one that could not be sent yet is
    shown too.
    """
    if delete or older_than is not None or yes or force:
        others = call.typed() - {"run", "dataset", "delete", "older_than", "yes", "force"}
        if not delete or others or bool(run) == (older_than is not None):
            raise UsageError(
                "--delete takes ids or --older-than, with --dataset, --yes and --force alone",
                hint="dsv runs --delete ID, or dsv runs --delete --older-than 1y",
            )
        seconds = None if older_than is None else parse_duration(older_than)
        _delete(call, run or [], None if dataset is None else DatasetName.parse(dataset), seconds, yes, force)
        return
    asked = _Asked(
        ids=run or [],
        dataset=None if dataset is None else DatasetName.parse(dataset),
        filters=[Filter.parse(text) for text in where or ()],
        sort=sort,
        reverse=reverse,
        limit=limit,
        compare=compare,
        as_csv=as_csv,
        log=log,
        out=out,
    )
    _check(call, asked)
    try:
        _show(call, asked)
    except Unreachable as error:
        if compare or as_csv or log or out is not None:
            raise
        _show_known_here(call, asked, error)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The runs that were asked for, and the way in which they are shown."""

    ids: list[str]
    dataset: DatasetName | None
    filters: list[Filter]
    sort: str | None
    reverse: bool
    limit: int | None
    compare: bool
    as_csv: bool
    log: bool
    out: str | None

    @property
    def orders(self) -> bool:
        return bool(self.filters or self.sort or self.reverse)

    def choose(self, views: Iterable[RunView]) -> list[RunView]:
        return choose_runs(views, self.filters, self.sort, self.reverse, self.limit)

    @property
    def columns(self) -> list[str]:
        """The keys that a table must show."""
        return [each.key for each in self.filters] + ([] if self.sort is None else [sort_order(self.sort)[0]])


def _show_known_here(call: Call, asked: _Asked, away: Unreachable) -> None:
    """Show what this machine knows while the store is not reachable.

    Raises `away` if it doesn't know what was asked for.
    """
    state = call.settings.state
    found = [run_known_here(state, text) for text in asked.ids] if asked.ids else runs_known_here(state)
    views = [view for view in found if view is not None and asked.dataset in (None, view.record.dataset)]
    if not views or len(views) < len(asked.ids):
        raise away
    call.warn(
        f"the store is not reachable, so these are only the runs that this machine knows: {away.message}"
    )
    views = views if asked.ids else asked.choose(views)
    if call.json:
        call.items(view.item() for view in views)
    elif asked.ids:
        _write_each(call, views)
    else:
        write_table(call, views, [each.key for each in asked.filters])


def _show(call: Call, asked: _Asked) -> None:
    ids = asked.ids
    with call.context() as context, open_runs(context, call.around.environ) as found:
        warn_of_cut_off(call, found)
        one = found.show_or_sweep(ids[0], asked.dataset) if len(ids) == 1 else None
        sweep = one if isinstance(one, SweepView) else None
        if sweep is not None:
            if asked.log or asked.out is not None:
                raise UsageError(
                    f"{sweep.id} has {format_count(len(sweep.members), 'run')}, and --log and --out are for one",
                    subject=sweep.id,
                    hint=f"dsv runs {sweep.members[0].record.run} --log",
                )
            views = asked.choose(sweep.members)
        elif ids:
            _check_ids(asked)
            views = [one] if isinstance(one, RunView) else [found.show(text, asked.dataset) for text in ids]
        else:
            views = _listed(call, found, asked)
        views = found.settle(views)
        if asked.out is not None:
            _copy_output(call, context, found, views[0], asked.out)
        elif asked.log:
            _write_log(call, found, views[0])
        elif asked.compare:
            _write_comparison(call, views, asked.as_csv)
        elif asked.as_csv:
            write_csv(call, views)
        elif call.json:
            call.items(view.item() for view in views)
        elif ids and sweep is None:
            _write_each(call, views)
        else:
            write_table(call, views, asked.columns, whole=sweep)
            if not views:
                call.say("no run matches" if asked.filters else "there are no runs yet")
        if sweep is not None and sweep.not_begun and not call.json:
            call.say(
                f"{format_count(len(sweep.not_begun), 'run')} not begun: dsv run --again {sweep.id.short}"
            )


def _write_each(call: Call, views: list[RunView]) -> None:
    for number, view in enumerate(views):
        if number:
            call.line("")
        write_one(call, view)


def _delete(
    call: Call, ids: list[str], dataset: DatasetName | None, older_than: int | None, yes: bool, force: bool
) -> None:
    with opened_runs(call) as found:
        chosen = found.stored(ids, dataset) if older_than is None else found.older_than(older_than, dataset)
        if chosen:
            name = chosen[0].run if len(chosen) == 1 else format_count(len(chosen), "run")
            datasets = ", ".join(sorted({str(one.dataset) for one in chosen}))
            call.confirm(f"nothing brings back {name} of {datasets} once deleted", name, yes=yes)
            found.delete(chosen, force=force)
    if call.json:
        call.document({"deleted": [{"run": one.run, "dataset": one.dataset} for one in chosen]})
        return
    for one in chosen:
        call.line(f"deleted run {one.run} of {one.dataset}")
    if not chosen:
        call.say("no run is so old")


def _check(call: Call, asked: _Asked) -> None:
    """Refuse options that make no sense together."""
    only = [option for option, given in (("--log", asked.log), ("--out", asked.out is not None)) if given]
    if only and (len(asked.ids) != 1 or asked.compare or asked.as_csv or len(only) > 1):
        raise UsageError(f"{only[0]} needs one run, and nothing else", hint=f"dsv runs ID {only[0]}")
    if asked.as_csv and call.json:
        raise UsageError("--csv and --json are two formats", hint="leave out one of them")


def _check_ids(asked: _Asked) -> None:
    if asked.compare and len(asked.ids) == 1:
        raise UsageError("one run can't be compared", hint=f"dsv runs --compare {asked.ids[0]} OTHER")
    if asked.orders or asked.limit:
        raise UsageError(
            "--filter, --sort, --reverse and --limit are for lists", hint="leave out the ids, or these"
        )


def _listed(call: Call, found: Runs, asked: _Asked) -> list[RunView]:
    if asked.limit is None and not (call.json or asked.compare or asked.as_csv):
        asked = replace(asked, limit=SHOWN)
    return found.listed(
        asked.dataset,
        asked.filters,
        asked.sort,
        asked.reverse,
        asked.limit,
        skipped=lambda error: call.warn(f"{error}; not shown"),
    )


@contextmanager
def opened_runs(call: Call) -> Iterator[Runs]:
    """Yield the runs of the store in effect."""
    with call.context() as context, open_runs(context, call.around.environ) as found:
        yield found


def warn_of_cut_off(call: Call, found: Runs, stop: Mapping[RunId, float] | None = None) -> None:
    """Complete the records of runs that were cut off, before any of them is shown.

    stop: runs to be ended, with their seconds of grace
    """
    for record in found.complete_cut_off(call.warn, stop):
        if record.state is RunState.CUT_OFF:
            call.warn(f"run {record.run} was cut off: {record.error}")


def _write_log(call: Call, found: Runs, view: RunView) -> None:
    data = found.log(view.record)
    if data is None:
        raise NotFound(
            f"run {view.record.run} has no log", subject=view.record.run, hint=f"dsv runs {view.record.run}"
        )
    call.out.write(data)


def _copy_output(call: Call, context: Context, found: Runs, view: RunView, out: str) -> None:
    from dsv.api.run_trees import copy_output

    done = copy_output(found.repository, view.record, Path(out), context.progress)
    for path in done.left_out:
        call.warn(f"not in the copy: {path}")
    if call.json:
        call.document({"copy": {"to": out, **asdict(done)}})
    else:
        size = f"{format_count(done.files, 'file')}, {format_bytes(done.bytes)}"
        call.say(f"{out}: {size}{' there already' if done.known else ''}, from {done.source}")


def _write_comparison(call: Call, views: list[RunView], as_csv: bool) -> None:
    if len(views) < 2:
        raise NotFound("there are fewer than two runs to compare", hint="dsv runs --compare ID ID")
    differ, same = differences(views)
    if call.json:
        rows = [{"key": key, "values": values} for key, values in differ]
        call.document({"compare": {"runs": [view.record.run for view in views], "differences": rows}})
    else:
        write_differences(call, views, differ, same, as_csv=as_csv)
