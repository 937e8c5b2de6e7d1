"""dsv log."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.log import LogItem
from dsv.api.log import log as read_log
from dsv.cli.call import Call
from dsv.cli.declare import command, whole
from dsv.cli.output import local_time, printable, rfc3339, to_json
from dsv.cli.style import Ink, Style
from dsv.cli.targets import Offline, commit_target, one_of
from dsv.model.units import format_bytes


@command(
    "log",
    examples=[
        ("dsv log", "the branch of this workspace"),
        ("dsv log chest-xray@v1 -n 5", "five commits, from a tag backwards"),
        ("dsv log chest-xray --oneline", ""),
        ("dsv log --offline", "as far as is known here, without the store"),
        ("dsv log --json | jq -r '.items[0].commit'", "the newest commit's id"),
    ],
    result={
        "items.commit": "its id",
        "items.parents": "ids of the commits before it",
        "items.author": "who made it",
        "items.time": "when, in UTC",
        "items.message": "why",
        "items.files": "how many files it has",
        "items.bytes": "their size",
    },
)
def log(
    call: Call,
    target: Annotated[str, typer.Argument(metavar="[TARGET]")] = "",
    limit: Annotated[
        int | None,
        typer.Option("-n", "--limit", parser=whole(1), metavar="N", help="Show at most N commits."),
    ] = None,
    oneline: Annotated[bool, typer.Option("--oneline", help="One line for each commit.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a line, for each commit.")] = False,
    offline: Offline = False,
) -> None:
    """Show the commits of a branch.

    Newest first, from TARGET backwards: [DATASET][@REV], or the branch of this workspace where it is left out.
    """
    one_of(json=call.json, jsonl=jsonl, oneline=oneline)
    wanted = commit_target("log", target)
    with call.context(offline=offline) as context:
        items = read_log(context, wanted, limit)
        if jsonl:
            for item in items:
                call.out.line(to_json(_item(item)))
        elif call.json:
            call.items(map(_item, items))
        elif oneline:
            for item in items:
                call.out.line(_short(item, call.around.stdout_ink))
        else:
            for number, item in enumerate(items):
                if number:
                    call.line("")
                _write(call, item)


def _item(item: LogItem) -> dict[str, object]:
    commit = item.commit
    return {
        "commit": str(item.id),
        "parents": [str(parent) for parent in commit.parents],
        "author": commit.author,
        "time": rfc3339(commit.time_ms),
        "message": commit.message,
        "files": commit.files,
        "bytes": commit.bytes,
    }


def _short(item: LogItem, ink: Ink) -> str:
    first = printable(item.commit.message.partition("\n")[0])
    return f"{ink.paint(Style.COMMIT, str(item.id)[:12])}{_names(item, ink)} {first}".rstrip()


def _names(item: LogItem, ink: Ink) -> str:
    """The branches and tags of a commit, in parentheses."""
    names = ", ".join(ink.paint(Style.REF, printable(str(name))) for name in item.names)
    return f" ({names})" if names else ""


def _write(call: Call, item: LogItem) -> None:
    commit = item.commit
    ink = call.around.stdout_ink
    call.out.line(ink.paint(Style.COMMIT, f"commit {item.id}") + _names(item, ink))
    call.line(f"Author: {commit.author}")
    call.line(f"Date:   {local_time(commit.time_ms)}")
    call.line(f"Files:  {commit.files:,}, {format_bytes(commit.bytes)}")
    if commit.message:
        call.line("")
        for line in commit.message.splitlines():
            call.line(f"    {line}")
