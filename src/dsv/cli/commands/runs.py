"""dsv runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import sleep

from dsv.api.context import Context
from dsv.api.runs import Runs, open_runs
from dsv.cli.call import Call
from dsv.cli.commands.site import Html, write_page
from dsv.cli.declare import argument, command, option
from dsv.cli.options import one_of
from dsv.cli.run_views import write_csv, write_curve, write_differences, write_key, write_one, write_table
from dsv.errors import DsvError, NotFound, Unreachable, UsageError, lacks
from dsv.run.listing import Filter, RunQuery, RunView, differences, run_known_here, runs_known_here
from dsv.run.parameters import ID_PART
from dsv.run.record import RunId, RunRecord, RunState
from dsv.run.sweep import SweepView
from dsv.values.names import DatasetName, Target
from dsv.values.units import format_bytes, format_count, parse_duration

SHOWN = 50
"""Runs in a table without a limit; JSON has all."""
WATCH = 10.0
"""Seconds between two looks of `--watch`."""


@command(
    "runs",
    examples="""
        dsv runs  # the newest runs on this workspace's dataset, else on all of the store
        dsv runs --sort metrics.acc --filter 'params.lr<0.1' --filter state=ended  # the best of some first
        dsv runs --compare 4f2a9c01 baseline  # in what two runs differ, by an id and by a --name
        dsv runs --of raw@v1  # those that read or made this commit, or another with the same files
        dsv runs 4f2a9c01  # one run, by the end of its id
    """,
    result=(
        f"items({' '.join(RunRecord.keys())} took_seconds sent series) copy(to source files bytes known left_out) "
        "into(dataset branch commit root path new error) once(key again same document) deleted(run dataset) "
        "compare(runs differences) "
        "series(name of last points) export(runs new hits notes)"
    ),
)
def runs(
    call: Call,
    run: list[str] | None = argument("[ID]..."),
    dataset: str | None = option("--dataset DATASET", "Only runs on this dataset."),
    limit: int | None = option("-n --limit N", "Show the first N of them."),
    of: str | None = option("--of TARGET", "Only runs that read or made it; without @REV, any commit of it."),
    where: list[str] | None = option("--filter 'KEY OP VALUE'", "Only runs that match; repeat it to narrow."),
    sort: str | None = option("--sort KEY", "Best metric first, else the least; +KEY: least, -KEY: most."),
    reverse: bool = option("--reverse", "Reverse the order."),
    hits: bool = option("--hits", "Also runs for which nothing was run, as another had the result."),
    compare: bool = option("--compare", "Compare these runs, or those that a filter leaves."),
    html: Html = None,
    as_csv: bool = option("--csv", "Write it as CSV, exact and with all columns."),
    export: str | None = option("--export FORMAT", "To mlflow, or openlineage: to the FILE named last."),
    experiment: str | None = option("--experiment NAME", "With --export mlflow: the experiment there."),
    once: bool = option("--once", "Show what is in the key of the run ID, and compute it again."),
    log: bool = option("--log", "Print the log of the run ID; of a very long one, head and tail."),
    out: str | None = option("--out DIR", "Copy the output of the run ID to a new folder."),
    into: str | None = option("--into TARGET", "Make this branch exactly the kept output of the run ID."),
    plot: str | None = option("--plot NAME", "Draw the curve of this metric of the run ID."),
    watch: bool = option("--watch", "Show it again every 10 seconds while a run is under way."),
    delete: bool = option("--delete", "Delete these runs for good, with their own folders here."),
    older_than: str | None = option("--older-than DURATION", "With --delete: all that ended longer ago."),
    yes: bool = option("--yes", "With --delete: do not ask."),
    force: bool = option("--force", "With --delete: even if a run has not ended."),
) -> int:
    """Show, search, sort and compare the records of runs.

    ID is a run's --name, or a unique prefix or suffix, of at least 4 characters, of its full or short id. A KEY is a
    path into what --json shows: params.lr, metrics.acc, exit_code, host. OP is one of = != < <= > >= and ~ (contains).
    A run without KEY matches only KEY=null. Records are in the store, beside the dataset, or here until they are sent.
    --delete keeps folders that --out or a pool names. The name of a dataset in place of an ID stands for --dataset.
    """
    ids, of_dataset = _ids(call, run or []), None if dataset is None else DatasetName.parse(dataset)
    if delete or older_than is not None or yes or force:
        return _delete(call, ids, of_dataset, older_than, yes, force)
    query = RunQuery(tuple(Filter.parse(text) for text in where or ()), sort, reverse, limit, hits)
    asked_for = {"--log": log or None, "--out": out, "--into": into, "--once": once or None, "--plot": plot}
    only = [what for what, it in asked_for.items() if it is not None]
    if only and (len(ids) != 1 or compare or as_csv or export or len(only) > 1):
        raise UsageError(f"{only[0]} needs one run, and nothing else", hint=f"dsv runs ID {only[0]}")
    _check_forms(call, bool(only))
    most = None if ids or limit or call.json or compare or as_csv or html or export else SHOWN
    try:
        with call.context(writes=bool(into)) as context, open_runs(context, call.around.environ) as found:
            ids, of_dataset = (ids, of_dataset) if only else found.ids_or_dataset(ids, of_dataset)
            while True:
                warn_of_cut_off(call, found)
                asked = _find(call, found, ids, of_dataset, query, most, only=bool(only), compare=compare)
                views = found.settle(asked[0])
                if only:
                    return _answer(call, context, found, views[0].record)
                _show(call, context, found, views, query, *asked[1:], bool(ids) and asked[1] is None)
                if not watch or all(view.record.state.is_terminal for view in views):
                    return _tell_last_known(call, views)
                _pause(call)
    except Unreachable as error:
        if compare or as_csv or only or of or html or export:
            raise
        return _write_known_here(call, ids, of_dataset, query, error)


def _show(
    call: Call, context: Context, found: Runs, views: list[RunView], query: RunQuery, sweep: SweepView | None,
    cut: bool, each: bool,
) -> None:  # fmt: skip
    if call.params["watch"]:
        call.out.stream()  # past the pager
    if call.params["export"] is not None:
        _export(call, found, views)
    elif (file := call.params["html"]) is not None:
        beside = call.params["compare"] and len(views) == 2
        is_one = beside or (each and len(views) == 1)
        about = ("run", views[-1], views[0] if beside else None) if is_one else ("runs", views)
        write_page(call, context, file, list({view.record.dataset for view in views}), *about)
    elif call.params["compare"]:
        _write_comparison(call, views, call.params["as_csv"])
    elif call.params["as_csv"]:
        write_csv(call, views)
    else:
        if each or call.params["watch"]:
            views = found.with_series(views, ended=each)
        _write(call, views, query, sweep, each=each)
        if cut:
            call.say(f"only {len(views)} runs are shown; --limit N shows N")


def _ids(call: Call, words: list[str]) -> list[str]:
    """Return the words without the file of an export. Raises `UsageError`."""
    kind, experiment = call.params["export"], call.params["experiment"]
    hint = "dsv runs [ID]... --export mlflow [--experiment NAME], or --export openlineage ./FILE"
    if kind not in (None, "mlflow", "openlineage") or (experiment is not None and kind != "mlflow"):
        raise UsageError("--export takes mlflow or openlineage, and --experiment is for mlflow", hint=hint)
    if kind == "openlineage" and (not words or not words[-1] or ID_PART.fullmatch(words[-1])):
        raise UsageError("--export openlineage needs a FILE after the ids", hint=hint)
    return words[:-1] if kind == "openlineage" else words


def _check_forms(call: Call, only: bool) -> None:
    given = call.params
    html, export, compare, csv = (given[name] for name in ("html", "export", "compare", "as_csv"))
    page = html or export
    one_of(csv=csv, json=call.json and not export, html=html, export=export, compare=export and compare)
    if given["watch"] and (only or compare or csv or call.json or page):
        raise UsageError("--watch takes ids and filters alone", subject="--watch", hint="dsv runs --watch")


def _export(call: Call, found: Runs, views: list[RunView]) -> None:
    """Nothing was run for a hit of `--once`, so it is left out."""
    ran, environ, notes = [view for view in views if not view.hit], call.around.environ, list[str]()
    where, kind = "MLflow", call.params["export"]
    try:
        if kind == "mlflow":
            from dsv.api.mlflow import export

            new, notes = export(found, ran, call.params["experiment"], environ)
        else:
            from dsv.api.openlineage import Events, add_events

            where, events = call.params["run"][-1], Events(found.repository.id, found.runs, environ)
            new = add_events(Path(where).absolute(), events, (view.record for view in ran))
    except ImportError as error:
        raise lacks(error, kind) from error
    hits = len(views) - len(ran)
    call.result(export={"runs": len(ran), "new": new, "hits": hits, "notes": notes})
    for note in (*notes, *([f"{hits:,} for which nothing was run are left out"] if hits else ())):
        call.warn(note)
    call.say(f"{format_count(len(ran), 'run')} in {where}, {new:,} new or completed")


def _pause(call: Call) -> None:
    """Show what was written, wait, and begin anew at the top of the screen."""
    call.out.publish()
    sleep(WATCH)
    if call.around.stdout_is_terminal and not call.around.is_dumb:
        call.out.write(b"\x1b[H\x1b[2J")


def _answer(call: Call, context: Context, found: Runs, record: RunRecord) -> int:
    """Do what an option asks for about one run; of its output and log, about the run whose result it has."""
    if call.params["once"]:
        return 0 if write_key(call, record) else 1
    result = found.result_of(record)
    if (out := call.params["out"]) is not None:
        _copy_output(call, context, found, result, out)
    elif (name := call.params["plot"]) is not None:
        write_curve(call, result, found.series(result), name)
    elif (into := call.params["into"]) is not None:
        _put_output(call, context, result, into)
    else:
        write_log(call, found, result)
    return 0


def _tell_last_known(call: Call, views: list[RunView]) -> int:
    """Say which states are only the last known ones, and return the exit code."""
    reasons = {str(view.last_known): view.last_known for view in views if view.last_known is not None}
    for text, why in sorted(reasons.items()):
        runs = [view.record.run for view in views if str(view.last_known) == text]
        what = f"run {runs[0]}" if len(runs) == 1 else format_count(len(runs), "run")
        call.complain(Unreachable(f"only the last known state of {what} is shown: {text}", hint=why.hint))
    return Unreachable.exit_code if reasons else 0


def _find(
    call: Call,
    opened: Runs,
    ids: list[str],
    dataset: DatasetName | None,
    query: RunQuery,
    most: int | None,
    *,
    only: bool,
    compare: bool,
) -> tuple[list[RunView], SweepView | None, bool]:
    """Return the runs that were asked for, their sweep if its id was given, and whether there are more than the
    `most` that a list without a limit gets. only: one run is needed. compare: two are."""
    if (of := call.params["of"]) is not None:
        from dsv.api.lineage import runs_of

        if ids or dataset or compare:
            raise UsageError("--of is for lists, and takes no ID", subject="--of", hint=f"dsv runs --of {of}")
        return query.choose(runs_of(opened.repository, Target.parse(of), opened.bound)), None, False
    named = opened.show_or_sweep(ids[0], dataset) if len(ids) == 1 else None
    if isinstance(named, SweepView):
        if only:
            raise UsageError(
                f"{named.id} has {format_count(len(named.members), 'run')}, and this needs one",
                subject=named.id,
                hint=f"dsv runs {named.members[0].record.run} --log",
            )
        return query.choose(named.members), named, False
    if ids and (query.needs_all or query.limit):
        raise UsageError(
            "--filter, --sort, --reverse and --limit are for lists", hint="leave out the ids, or these"
        )
    if named is not None and compare:
        raise UsageError("one run can't be compared", hint=f"dsv runs --compare {ids[0]} OTHER")
    if ids:
        return [named] if named is not None else [opened.show(text, dataset) for text in ids], None, False
    limited = query if most is None else replace(query, limit=most + 1)
    unread: list[DsvError] = []
    listed = opened.listed(dataset, limited, skipped=unread.append)
    for error in unread:
        call.warn(f"{error}; not shown")
    # One that waits here, whose subject is a path, does not count against the limit.
    stored = [error for error in unread if not (error.subject or "").startswith("/")]
    read = len(listed) if query.needs_all else len(listed) + len(stored)
    return listed[:most], None, most is not None and read > most


def _write_known_here(
    call: Call, ids: list[str], dataset: DatasetName | None, query: RunQuery, away: Unreachable
) -> int:
    """Write the runs that this machine knows, without the store. Raises `away` if it lacks one of `ids`."""
    state = call.settings.state
    found = [run_known_here(state, text) for text in ids] if ids else runs_known_here(state)
    views = [view for view in found if view is not None and dataset in (None, view.record.dataset)]
    if not views or len(views) < len(ids):
        raise away
    call.warn(
        f"the store is not reachable, so these are only the runs that this machine knows: {away.message}"
    )
    _write(call, views if ids else query.choose(views), query, None, each=bool(ids))
    return 0


def _write(call: Call, views: list[RunView], query: RunQuery, sweep: SweepView | None, *, each: bool) -> None:
    """each: print all about each run instead of a table"""
    if call.json:
        call.items(view.item() for view in views)
    elif each:
        for number, view in enumerate(views):
            if number:
                call.line("")
            write_one(call, view)
    else:
        write_table(call, views, query.keys, whole=sweep)
        if not views:
            call.say("no run matches" if query.filters else "there are no runs yet")
        if sweep is not None and sweep.not_begun:
            left = format_count(len(sweep.not_begun), "run")
            call.say(f"{left} not begun: dsv run --again {sweep.id.short}")


def _delete(
    call: Call, ids: list[str], dataset: DatasetName | None, age: str | None, yes: bool, force: bool
) -> int:
    typed = call.typed
    others = typed - {"run", "dataset", "delete", "older_than", "yes", "force"}
    refusal = UsageError(
        "--delete takes ids or --older-than, with --dataset, --yes and --force alone",
        hint="dsv runs --delete ID, or dsv runs --delete --older-than 1y",
    )
    if "delete" not in typed or others or not (ids or age):
        raise refusal
    with opened_runs(call) as opened:
        ids, dataset = opened.ids_or_dataset(ids, dataset)
        if bool(ids) == (age is not None):
            raise refusal
        chosen = (
            opened.stored(ids, dataset) if age is None else opened.older_than(parse_duration(age), dataset)
        )
        if chosen:
            name = chosen[0].run if len(chosen) == 1 else format_count(len(chosen), "run")
            datasets = ", ".join(sorted({str(stored.dataset) for stored in chosen}))
            call.confirm(f"{name} of {datasets} can't be restored once deleted", name, yes=yes)
            opened.delete(chosen, call.warn, force=force)
    if call.json:
        call.document({"deleted": [{"run": stored.run, "dataset": stored.dataset} for stored in chosen]})
        return 0
    for stored in chosen:
        call.line(f"deleted run {stored.run} of {stored.dataset}")
    if not chosen:
        call.say("no runs are that old")
    return 0


@contextmanager
def opened_runs(call: Call) -> Iterator[Runs]:
    """Yield the runs of the store in effect."""
    with call.context() as context, open_runs(context, call.around.environ) as found:
        yield found


def warn_of_cut_off(call: Call, found: Runs, stop: Mapping[RunId, float] | None = None) -> None:
    """Complete the records of runs that were cut off. stop: runs to end, with their seconds of grace."""
    for record in found.complete_cut_off(call.warn, stop):
        if record.state is RunState.CUT_OFF:
            call.warn(f"run {record.run} was cut off: {record.error}")


def write_log(call: Call, found: Runs, record: RunRecord) -> None:
    data = found.log(record)
    if data is None:
        why = ": its command never began" if record.job is None else ""
        raise NotFound(f"run {record.run} has no log{why}", subject=record.run, hint=f"dsv runs {record.run}")
    call.out.write(data)


def _copy_output(call: Call, context: Context, found: Runs, record: RunRecord, out: str) -> None:
    from dsv.api.run_output import copy_output

    done = copy_output(found.repository, record, Path(out), context.progress)
    for path in done.left_out:
        call.warn(f"not in the copy: {path}")
    if call.json:
        call.document({"copy": {"to": out, **asdict(done)}})
    else:
        size = f"{format_count(done.files, 'file')}, {format_bytes(done.bytes)}"
        call.say(f"{out}: {size}{' there already' if done.known else ''}, from {done.source}")


def _put_output(call: Call, context: Context, record: RunRecord, into: str) -> None:
    from dsv.api.run_into import put_output

    done = put_output(context, record, Target.parse(into))
    if call.json:
        call.document({"into": {**asdict(done), "commit": str(done.commit)}})
    else:
        call.say(str(done))


def _write_comparison(call: Call, views: list[RunView], as_csv: bool) -> None:
    if len(views) < 2:
        raise NotFound("there are fewer than two runs to compare", hint="dsv runs --compare ID ID")
    differ, same = differences(views)
    if call.json:
        rows = [{"key": key, "values": values} for key, values in differ]
        call.document({"compare": {"runs": [view.record.run for view in views], "differences": rows}})
    else:
        write_differences(call, views, differ, same, as_csv=as_csv)
