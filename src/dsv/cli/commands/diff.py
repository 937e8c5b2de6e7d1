"""dsv diff."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Annotated

import typer

from dsv.api.diff import Comparison, Side
from dsv.api.diff import diff as compare
from dsv.cli.call import Call
from dsv.cli.declare import PATHS, command
from dsv.cli.options.arguments import All, ExitCode, JsonLines, Offline, commit_target, dataset_paths, one_of
from dsv.cli.output import printable, to_item, to_json
from dsv.cli.views import differences as told
from dsv.cli.views.contents import Shown, contents_item, write_contents
from dsv.diff.summary import Summary
from dsv.errors import UsageError
from dsv.values.names import Target

ON_SCREEN = 50
"""Paths listed on a terminal: more are told by the folder, as they would scroll everything else away."""
FOLDERS = 20
"""Folders that are told one by one without --dirs; the others share a row."""


@command(
    "diff",
    unused=["--cache"],
    words=PATHS,
    examples=[
        ("dsv diff", "what differs between this folder and its base"),
        ("dsv diff @v1", "between a tag and this folder"),
        ("dsv diff chest-xray@v1 chest-xray@v2 --stat", "between two tags, summed by folder"),
        ("dsv diff @v1 @v2 --stat --dirs 2 -- train", "two levels of folders, below train/"),
        ("dsv diff --text -- labels.txt", "line by line"),
        ("dsv diff @v1 @v2 --table --key image -- labels.csv", "row by row"),
        ("dsv diff @v1 @v2 -q --exit-code || echo changed", "1 if anything differs"),
        ("dsv diff @v1 @v2 --jsonl | jq -r 'select(.change == \"added\") | .path'", "paths that are new"),
    ],
    result={
        "before": "the commit on the left; null before a dataset's first one",
        "before_dataset": "its dataset",
        "after": "the commit on the right; null for the workspace",
        "after_dataset": "its dataset",
        "workspace": "the folder that is compared; null between two commits",
        **told.SUM_KEYS,
        "unsearched": "large files that were too many to find out whether they were renamed and changed; else 0",
        "note": "what to know of a command that did not end in the workspace; else null",
        "problems.path": "a path of the workspace that can't be compared",
        "problems.reason": "why",
        **told.ITEM_KEYS,
        "items.lines": "with --text: the lines of a unified diff; null for what is no text below 1 MiB",
        "items.table": "with --table: columns and rows that differ; null for what is no table",
        **told.FOLDER_KEYS,
    },
)
def diff(
    call: Call,
    a: Annotated[str | None, typer.Argument(metavar="[A]")] = None,
    b: Annotated[str | None, typer.Argument(metavar="[B]")] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Sum up by folder, with bytes.")] = False,
    dirs: told.Dirs = None,
    name_only: told.NameOnly = False,
    name_status: told.NameStatus = False,
    text: Annotated[
        bool, typer.Option("--text", help="Show how texts below 1 MiB differ, line by line.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Show how CSV, Parquet and Arrow files differ, row by row.")
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN", help="With --table: what names a row. May be repeated."),
    ] = None,
    everything: All = False,
    exit_code: ExitCode = False,
    jsonl: JsonLines = False,
    offline: Offline = False,
) -> int:
    """Show what differs between two commits, or in this workspace.

    Without A and B the workspace is compared with its base, with A alone with that commit. A and B are
    [DATASET][@REV]. A file whose content was at another path before counts as renamed, and so does a large one that
    shares at least half of its chunks with one that is gone. Paths are those of the dataset; in a workspace they are
    relative to the working directory.
    """
    forms = {"name-only": name_only, "name-status": name_status}
    one_of(stat=stat, text=text, table=table, **forms)
    one_of(json=call.json, jsonl=jsonl, **forms)
    shown = Shown(text=text, table=table, key=tuple(key or ()))
    shown.check()
    targets = [_target(each) for each in (a, b)]
    summed = stat or dirs is not None
    with call.context(offline=offline) as context:
        paths = dataset_paths(context, call.words, targets)
        with compare(context, targets[0], targets[1], paths) as found:
            if call.json or jsonl:
                _write_json(call, found, shown, lines=jsonl, summed=summed, dirs=dirs)
            elif name_only or name_status:
                for one in found.found.differences:
                    call.out.line(told.name_status(one) if name_status else printable(one.path))
            elif text or table:
                write_contents(call, found, shown)
            else:
                whole_list = everything or not call.around.stdout_is_terminal
                many = len(found.found.differences) > ON_SCREEN and not whole_list
                _write(call, found, summed=summed or many, dirs=dirs)
                if many and not summed:
                    call.say("dsv diff --all lists every path")
            _say(call, found)
            differs = exit_code and bool(found.found.differences or found.problems)
            return shown.exit_code or int(differs)


def _target(text: str | None) -> Target | None:
    if text is None:
        return None
    try:
        return commit_target("diff", text)
    except UsageError as error:
        if os.path.lexists(text):
            error.hint = f"paths come behind --: dsv diff -- {shlex.quote(text)}"
        raise


def _write(call: Call, found: Comparison, *, summed: bool, dirs: int | None) -> None:
    ink = call.around.stdout_ink
    if not summed:
        for one in found.found.differences:
            call.out.line(told.line(one, ink))
        return
    summary = Summary(found.found.differences)
    told.write_folders(call, summary.by_folder(dirs, FOLDERS if dirs is None else None), summary.total)


def _say(call: Call, found: Comparison) -> None:
    """Notes for people."""
    for problem in found.problems:
        call.warn(f"not compared: {problem}")
    if found.note is not None:
        call.warn(found.note)
    if found.found.unsearched:
        call.say(told.unsearched(found.found.unsearched))
    total = Summary(found.found.differences).total
    call.say(f"{_name(found.before)} -> {_name(found.after)}: {told.counts(total)}")


def _name(side: Side) -> str:
    if side.workspace is not None:
        return str(side.workspace)
    return f"{side.dataset}@{str(side.commit)[:12]}" if side.commit is not None else f"{side.dataset}, empty"


def _write_json(
    call: Call, found: Comparison, shown: Shown, *, lines: bool, summed: bool, dirs: int | None
) -> None:
    summary = Summary(found.found.differences)
    if summed:
        folders = map(told.folder_item, summary.by_folder(dirs))
        if lines:
            for folder in folders:
                call.out.line(to_json(folder))
        else:
            call.document({**_head(found, summary), "folders": list(folders)})
        return
    items = _items(call, found, shown)
    if lines:
        for each in items:
            call.out.line(to_json(each))
    else:
        call.items(items, _head(found, summary))


def _items(call: Call, found: Comparison, shown: Shown) -> Iterator[dict[str, object]]:
    if not shown.any:
        yield from map(told.item, found.found.differences)
        return
    for one, extra in contents_item(call, found, shown):
        yield {**told.item(one), **extra}


def _head(found: Comparison, summary: Summary) -> dict[str, object]:
    fields: dict[str, object] = {
        "before": found.before.commit,
        "before_dataset": found.before.dataset,
        "after": found.after.commit,
        "after_dataset": found.after.dataset,
        "workspace": found.after.workspace,
        **told.sums_item(summary.total),
        "unsearched": found.found.unsearched,
    }
    return to_item(found, (*fields, "note", "problems.path", "problems.reason"), **fields)
