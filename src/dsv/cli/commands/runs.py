"""dsv runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dsv.api.runs import RunView, list_runs, run_log, show_run
from dsv.cli.call import Call
from dsv.cli.declare import command, whole
from dsv.cli.output import local_time, to_json
from dsv.cli.table import Column
from dsv.errors import NotFound, UsageError
from dsv.model.names import DatasetName
from dsv.model.units import format_bytes, format_count, format_duration
from dsv.repo.repository import Repository
from dsv.repo.run_spool import Spool
from dsv.repo.runs import RunStore

SHOWN = 50
"""Runs in a table, where no limit is given; JSON has all."""


@command(
    "runs",
    examples=[
        ("dsv runs", "the newest runs on this workspace's dataset, else on all of the store"),
        ("dsv runs --dataset chest-xray --json | jq '.items[] | [.run, .metrics.accuracy]'", ""),
        ("dsv runs 4f2a9c01", "one run, by the end of its id"),
        ("dsv runs 4f2a9c01 --log", "what it wrote"),
    ],
    result={
        "items.run": "its id",
        "items.dataset": "the dataset",
        "items.commit": "the commit that it saw",
        "items.target": "how that was named",
        "items.data": "all data it saw: name, dataset, commit, path, files, bytes",
        "items.state": "running, ended, not-launched, or cut-off",
        "items.engine": "what started it",
        "items.engine_version": "the engine's version",
        "items.image": "the image as it was named",
        "items.image_id": "the engine's id of the image",
        "items.image_digest": "the registry's digest of it",
        "items.command": "the command, secrets hidden",
        "items.engine_args": "further options of the engine",
        "items.argv": "what was executed, values hidden",
        "items.env": "names of the variables that were passed",
        "items.params": "the parameters",
        "items.gpus": "how many GPUs it asked for, or all",
        "items.shm_bytes": "shared memory",
        "items.code": "the code's folder, git commit, and whether it had changes",
        "items.out": "the output folder",
        "items.name": "the name that it was given",
        "items.host": "where it ran",
        "items.user": "who ran it",
        "items.started": "when, in UTC",
        "items.ended": "when it was over",
        "items.exit_code": "the command's own, or 125 to 127",
        "items.signal": "the signal that ended it",
        "items.error": "why it was not launched, or was cut off",
        "items.cache_hit": "true where the data was cached already",
        "items.stage_seconds": "how long getting the data took",
        "items.stage_bytes": "bytes fetched for it",
        "items.usage": "peak memory, processor seconds, GPUs",
        "items.metrics": "what the job wrote to metrics.json",
        "items.metrics_error": "why that could not be used",
        "items.log": "bytes written, and bytes kept",
        "items.again_of": "the run that it repeats",
        "items.dsv": "the version of dsv",
        "items.sent": "false while the record waits on this machine",
    },
)
def runs(
    call: Call,
    run: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="DATASET", help="Only runs on this dataset.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("-n", "--limit", parser=whole(1), metavar="N", help="Show the newest N runs."),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Print what the run ID wrote: all of it, or its head and its tail.")
    ] = False,
) -> None:
    """Show the records of runs.

    ID is a run's id, or a part of it that begins or ends no other. A record is in the store, beside the dataset;
    one that could not be sent yet is shown too.
    """
    if log and run is None:
        raise UsageError("--log needs the run", hint="dsv runs ID --log")
    named = None if dataset is None else DatasetName.parse(dataset)
    with _stores(call) as (repository, store, spool, bound):
        if run is None:
            number = limit if limit is not None or call.json else SHOWN
            _write_table(
                call,
                list_runs(
                    store,
                    spool,
                    named or bound,
                    number,
                    skipped=lambda error: call.warn(f"{error}; not shown"),
                ),
            )
            return
        places = [named] if named is not None else list(repository.refs.datasets())
        view = show_run(store, spool, run, places)
        if log:
            _write_log(call, store, view)
        elif call.json:
            call.items([view.item()])
        else:
            _write_one(call, view)


@contextmanager
def _stores(call: Call) -> Iterator[tuple[Repository, RunStore, Spool, DatasetName | None]]:
    with call.context() as context, context.repository() as repository:
        workspace = context.workspace_or_none()
        spool = Spool(call.settings.state / "unsent-runs", repository.id)
        yield repository, RunStore(repository.store), spool, None if workspace is None else workspace.dataset


def _write_log(call: Call, store: RunStore, view: RunView) -> None:
    data = run_log(store, view.record)
    if data is None:
        raise NotFound(
            f"run {view.record.run} has no log", subject=view.record.run, hint=f"dsv runs {view.record.run}"
        )
    call.out.write(data)


def _write_table(call: Call, views: list[RunView]) -> None:
    if call.json:
        call.items(view.item() for view in views)
        return
    columns = [
        Column("run", keep=True),
        Column("data", keep=True),
        Column("took", right=True),
        Column("exit", right=True, keep=True),
        Column("params"),
        Column("metrics"),
    ]
    rows = []
    for view in views:
        record = view.record
        rows.append(
            [
                record.run,
                f"{record.dataset}@{str(record.commit)[:12]}",
                _took(view),
                str(record.state) if record.exit_code is None else str(record.exit_code),
                _pairs(record.params),
                _pairs(record.metrics or {}),
            ]
        )
    call.table(columns, rows)
    if not views:
        call.say("there are no runs yet")


def _write_one(call: Call, view: RunView) -> None:
    record = view.record
    code = record.code
    usage = record.usage
    lines: list[tuple[str, str | None]] = [
        ("run", record.run),
        ("state", str(record.state) + ("" if view.sent else ", not sent to the store yet")),
        *(
            (
                each.name or "data",
                f"{each.dataset}@{each.commit}{'' if each.path is None else ':' + each.path}",
            )
            for each in record.data
        ),
        (
            "size",
            f"{format_count(record.data[0].files, 'file')}, {format_bytes(record.data[0].bytes)}"
            if record.data
            else None,
        ),
        ("engine", " ".join(filter(None, (record.engine, record.engine_version)))),
        (
            "image",
            None
            if record.image is None
            else f"{record.image} {record.image_digest or record.image_id or ''}",
        ),
        ("command", shlex.join(record.command) or None),
        ("parameters", _pairs(record.params) or None),
        (
            "code",
            None
            if code is None
            else f"{code.path} {code.commit or ''}{' with changes' if code.dirty else ''}",
        ),
        ("host", f"{record.host}, by {record.user}"),
        ("started", local_time(record.started_ms)),
        ("took", _took(view)),
        ("exit code", None if record.exit_code is None else str(record.exit_code)),
        ("ended by", record.signal),
        ("error", record.error),
        ("staging", _staging(view)),
        ("memory", _bytes(None if usage is None else usage.peak_memory_bytes)),
        (
            "processor",
            None if usage is None or usage.cpu_seconds is None else format_duration(usage.cpu_seconds),
        ),
        *(
            ("GPU", f"{gpu.name}, {gpu.utilization:.0f}% busy, {format_bytes(gpu.peak_memory_bytes)}")
            for gpu in (usage.gpus if usage is not None else ())
        ),
        ("metrics", _pairs(record.metrics or {}) or record.metrics_error),
        ("output", record.out),
        ("repeats", record.again_of),
    ]
    room = max(len(title) for title, text in lines if text)
    for title, text in lines:
        if text:
            call.line(f"{title:<{room}}  {text}")


def _took(view: RunView) -> str:
    record = view.record
    return "-" if record.ended_ms is None else format_duration((record.ended_ms - record.started_ms) / 1000)


def _staging(view: RunView) -> str:
    record = view.record
    if record.cache_hit:
        return "cache hit"
    return f"{format_bytes(record.stage_bytes)} fetched in {format_duration(record.stage_seconds)}"


def _bytes(count: int | None) -> str | None:
    return None if count is None else format_bytes(count)


def _pairs(values: dict[str, object]) -> str:
    """`lr=0.1 epochs=3`; what isn't a number or a word is shown as JSON."""
    return " ".join(
        f"{key}={value if isinstance(value, str | int | float) else to_json({'': value})[5:-1]}"
        for key, value in values.items()
    )
