"""How a commit is told, by log and show alike."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.cli.call import Call
from dsv.cli.output import local_time, printable, rfc3339
from dsv.cli.style import Ink, Style
from dsv.model.commit import Commit
from dsv.model.ids import CommitId
from dsv.model.units import format_bytes

COMMIT_KEYS = {
    "commit": "its id",
    "parents": "ids of the commits before it",
    "author": "who made it",
    "time": "when, in UTC",
    "message": "why",
    "files": "how many files it has",
    "bytes": "their size",
}


def commit_item(commit_id: CommitId, commit: Commit) -> dict[str, object]:
    """What a JSON document says of it."""
    return {
        "commit": str(commit_id),
        "parents": [str(parent) for parent in commit.parents],
        "author": commit.author,
        "time": rfc3339(commit.time_ms),
        "message": commit.message,
        "files": commit.files,
        "bytes": commit.bytes,
    }


def commit_line(commit_id: CommitId, commit: Commit, names: Sequence[str], ink: Ink) -> str:
    """Its id, its names, and the first line of its message."""
    first = printable(commit.message.partition("\n")[0])
    return f"{ink.paint(Style.COMMIT, str(commit_id)[:12])}{in_parentheses(names, ink)} {first}".rstrip()


def commit_lines(
    commit_id: CommitId, commit: Commit, names: Sequence[str], ink: Ink, *, parents: bool = False
) -> list[str]:
    """All that is to be said of it. parents: also if there is only one."""
    lines = [ink.paint(Style.COMMIT, f"commit {commit_id}") + in_parentheses(names, ink)]
    if parents or len(commit.parents) > 1:
        told = " ".join(str(parent)[:12] for parent in commit.parents) or "none, it is the first commit"
        lines.append(f"{'Parent: ' if len(commit.parents) < 2 else 'Merge:  '}{told}")
    lines += [
        f"Author: {printable(commit.author)}",
        f"Date:   {local_time(commit.time_ms)}",
        f"Files:  {commit.files:,}, {format_bytes(commit.bytes)}",
    ]
    if commit.message:
        lines += ["", *(f"    {printable(line)}" for line in commit.message.splitlines())]
    return lines


def in_parentheses(names: Sequence[str], ink: Ink) -> str:
    """The branches and tags of a commit."""
    told = ", ".join(ink.paint(Style.REF, printable(name)) for name in names)
    return f" ({told})" if told else ""


def write_lines(call: Call, lines: Sequence[str]) -> None:
    """Lines of the result that are printable already."""
    for line in lines:
        call.out.line(line)
