"""Commits, their graph, and the moves of a branch, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsv.cli.output import local_time, printable
from dsv.cli.style import Style
from dsv.values.units import format_bytes

if TYPE_CHECKING:
    from dsv.cli.style import Ink
    from dsv.format.commit import Commit
    from dsv.values.ids import CommitId

COMMIT_KEYS = {
    "commit": "its id",
    "parents": "ids of the commits before it",
    "author": "who made it",
    "time": "when, in UTC",
    "message": "why",
    "files": "how many files it has",
    "bytes": "their size",
}


def commit_line(commit_id: CommitId, commit: Commit, names: Sequence[str], ink: Ink) -> str:
    """Return its id, its names, and the first line of its message."""
    first = printable(commit.message.partition("\n")[0])
    return f"{ink.paint(Style.COMMIT, str(commit_id)[:12])}{in_parentheses(names, ink)} {first}".rstrip()


def commit_lines(
    commit_id: CommitId, commit: Commit, names: Sequence[str], ink: Ink, *, parents: bool = False
) -> list[str]:
    """Return all that there is to know of a commit. `parents` shows a single parent too."""
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
    """Return the branches and tags of a commit."""
    told = ", ".join(ink.paint(Style.REF, printable(name)) for name in names)
    return f" ({told})" if told else ""


class Graph:
    """Draws commits in an order in which none precedes its children. An open line is a column of two characters."""

    def __init__(self) -> None:
        self._lines: list[CommitId] = []

    def draw(self, commit_id: CommitId, parents: Sequence[CommitId], rows: int) -> Iterator[str]:
        """Yield what precedes each of the commit's `rows` rows of text, then rows up to the next commit."""
        if commit_id not in self._lines:
            self._lines.append(commit_id)
        at = self._lines.index(commit_id)
        for number in range(rows):
            marks = ["|"] * len(self._lines)
            marks[at] = "*" if not number else "|" if parents else " "
            yield " ".join(marks)
        yield from self._fork(at, parents)
        yield from self._join()

    def _fork(self, at: int, parents: Sequence[CommitId]) -> Iterator[str]:
        """Continue the commit's line as that of its first parent; the others get lines of their own."""
        if not parents:
            del self._lines[at]
            if at < len(self._lines):
                yield _graph_row(at, " ", len(self._lines) - at, "/")
            return
        self._lines[at] = parents[0]
        for number, parent in enumerate(parents[1:], 1):
            if parent == self._lines[at]:
                continue
            right = len(self._lines) - at - number
            yield _graph_row(at + number, "\\", right, "\\")
            self._lines.insert(at + number, parent)

    def _join(self) -> Iterator[str]:
        """Join lines to the same commit."""
        while True:
            seen: dict[CommitId, int] = {}
            pair = None
            for number, commit_id in enumerate(self._lines):
                if commit_id in seen:
                    pair = seen[commit_id], number
                    break
                seen[commit_id] = number
            if pair is None:
                return
            left, right = pair
            moved = " /" * (len(self._lines) - right - 1)
            yield "| " * left + "|" + "_|" * (right - left - 1) + "/" + moved
            del self._lines[right]


def _graph_row(left: int, mark: str, right: int, moved: str) -> str:
    """Return a row with lines that continue, a mark between two columns, and lines that move aside."""
    head = " ".join("|" * left)
    return f"{head}{mark}{' '.join(moved * right)}".rstrip() if right else f"{head}{mark}".rstrip()
