"""dsv log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dsv.api.branches import BranchPath
from dsv.api.context import Context
from dsv.api.log import LogItem, LogQuery, MoveItem
from dsv.api.log import log as read_log
from dsv.api.log import reflog as read_moves
from dsv.cli.call import Call
from dsv.cli.declare import PATHS, command, option, whole
from dsv.cli.options import JsonLines, Offline, TargetOrBase, commit_target, dataset_paths, one_of
from dsv.cli.output import local_time, printable, short, to_item
from dsv.cli.terminal import Ink, Style
from dsv.errors import UsageError
from dsv.values.names import Target
from dsv.values.units import format_bytes, parse_moment, rfc3339

if TYPE_CHECKING:
    from dsv.format.records import CommitRecord
    from dsv.values.ids import CommitId

COMMIT_KEYS = "commit parents author time message files bytes"
_MOVE_KEYS = "number commit before deleted author time action forced message"


@command(
    "log",
    words=PATHS,
    examples="""
        dsv log  # the branch of this workspace
        dsv log --oneline --graph  # what was merged with what
        dsv log --stat -- train labels.csv  # what changed there, and in which commit
        dsv log --reflog main -n 5  # the last five moves of a branch: who, when, from where to where, why
    """,
    result=(
        f"items({COMMIT_KEYS} names expired folders path change old_path similarity present) "
        f"moves({_MOVE_KEYS})"
    ),
)
def log(
    call: Call,
    target: TargetOrBase = "",
    limit: int | None = option("-n --limit N", "Show at most N commits.", parser=whole(1)),
    since: str | None = option("--since TIME", "Commits from then on: 2026-11-20, or 2w for two weeks ago."),
    until: str | None = option("--until TIME", "Commits up to then."),
    author: str = option("--author TEXT", "Only commits whose author contains TEXT."),
    grep: str = option("--grep TEXT", "Only commits whose message contains TEXT."),
    follow: str | None = option("--follow PATH", "Where a file's content comes from, through renames."),
    reflog: str | None = option("--reflog BRANCH", "Show every move of BRANCH, even if it was deleted."),
    first_parent: bool = option("--first-parent", "Follow only the first parent of merges."),
    graph: bool = option("--graph", "Draw what was merged with what."),
    stat: bool = option("--stat", "Sum up by folder what each commit changed."),
    oneline: bool = option("--oneline", "One line for each commit."),
    jsonl: JsonLines = False,
    offline: Offline = False,
) -> None:
    """Show the commits of a branch.

    Newest first, from TARGET backwards: [DATASET][@REV], or the branch of this workspace if it is left out. With paths,
    only the commits that changed something there. Case does not matter to --author and --grep.
    """
    one_of(json=call.json, jsonl=jsonl, oneline=oneline)
    if reflog is not None:
        _show_moves(call, reflog, limit, jsonl=jsonl)
        return
    one_of(json=call.json, jsonl=jsonl, graph=graph)
    one_of(follow=follow, graph=graph)
    wanted = commit_target("log", target)
    with call.context(offline=offline) as context:
        query = LogQuery(
            limit=limit,
            paths=dataset_paths(context, call.words, [wanted]),
            since_ms=_moment(context, since),
            until_ms=_moment(context, until, end=True),
            filters=tuple(_filters(author, grep)),
            first_parent=first_parent,
            stat=stat,
            follow=_followed(call, context, follow, wanted),
            graph=graph,
        )
        with read_log(context, wanted, query) as items:
            if jsonl or call.json:
                call.items(map(_item, items), lines=jsonl)
            else:
                _write(call, items, Graph() if graph else None, oneline=oneline)


def _followed(call: Call, context: Context, path: str | None, target: Target) -> bytes | None:
    if path is None:
        return None
    if call.words:
        raise UsageError("--follow takes one file, and no paths after --", subject="--follow")
    (found,) = dataset_paths(context, [path], [target])
    return found


def _filters(author: str, grep: str) -> Iterator[Callable[[CommitRecord], bool]]:
    if author:
        yield lambda commit: author.casefold() in commit.author.casefold()
    if grep:
        yield lambda commit: grep.casefold() in commit.message.casefold()


def _moment(context: Context, typed: str | None, *, end: bool = False) -> float | None:
    return None if typed is None else parse_moment(typed, context.clock(), end=end)


def _item(item: LogItem) -> dict[str, object]:
    from dsv.cli import differences as view
    from dsv.diff.paths import Summary

    step = item.difference
    followed = view.item(step) if step is not None else {}
    folders = None if item.found is None else Summary(item.found.differences).by_folder()
    return {
        **to_item(item.commit, COMMIT_KEYS, commit=item.id),
        "names": list(item.names),
        "expired": _expired(item),
        "folders": None if folders is None else list(map(view.folder_item, folders)),
        **{key: followed.get(key) for key in ("path", "change", "old_path", "similarity")},
        "present": None if step is None else item.present,
    }


def _expired(item: LogItem) -> dict[str, object] | None:
    if item.expired is None:
        return None
    entry = item.expired.entry
    return {"time": rfc3339(entry.time_ms), "author": entry.author, "freed": item.expired.freed}


def _write(call: Call, items: Iterable[LogItem], graph: Graph | None, *, oneline: bool) -> None:
    """Print the commits; with a graph each line of text has its part of the drawing before it."""
    for place, item in enumerate(items):
        lines = _lines(call, item, oneline=oneline)
        if graph is None:
            for line in lines if oneline or not place else ["", *lines]:
                call.prose(line)
            continue
        if not oneline:
            lines.append("")
        for number, before in enumerate(graph.draw(item.id, item.above, len(lines))):
            call.out.line(f"{before} {lines[number]}".rstrip() if number < len(lines) else before)


def _names(item: LogItem) -> tuple[str, ...]:
    """Return the commit's names, and that it is expired: reading it is refused."""
    if item.expired is None:
        return item.names
    entry = item.expired.entry
    return (*item.names, f"expired {local_time(entry.time_ms)[:10]} by {entry.author}")


def _lines(call: Call, item: LogItem, *, oneline: bool) -> list[str]:
    ink = call.around.stdout_ink
    if oneline:
        lines = [commit_line(item.id, item.commit, _names(item), ink)]
    else:
        lines = commit_lines(item.id, item.commit, _names(item), ink)
    if item.difference is None and item.found is None:
        return lines
    from dsv.cli import differences as view
    from dsv.diff.paths import Summary

    if item.difference is not None:
        one = item.difference
        since = ", unchanged since" if item.present else ""
        lines.append(f"    {printable(one.path)}: {view.rename(one)}{since}")
        if not oneline:
            lines.insert(-1, "")
    if item.found is not None:
        summary = Summary(item.found.differences)
        indent = "  " if oneline else "    "
        if not oneline:
            lines.append("")
        lines += [f"{indent}{line}" for line in view.folder_lines(summary)]
        lines.append(f"{indent}{view.counts(summary.total)}")
    return lines


def _show_moves(call: Call, branch: str, limit: int | None, *, jsonl: bool) -> None:
    """Show the moves of a branch. Raises `UsageError` for arguments that select or show commits."""
    if call.words or not call.typed <= {"reflog", "limit", "jsonl"}:
        raise UsageError(
            "--reflog shows the moves of a branch, and takes nothing but -n, --json and --jsonl",
            subject="--reflog",
            hint=f"dsv log --reflog {branch}",
        )
    path = BranchPath.parse(branch)
    columns = ["move>", "when~", "from", "to", "action~", "by~", "message~"]
    with call.context() as context, read_moves(context, path, limit) as moves:
        if jsonl:
            call.items((to_item(move, _MOVE_KEYS) for move in moves), lines=True)
        elif call.json:
            call.document({"moves": [to_item(move, _MOVE_KEYS) for move in moves]})
        else:
            call.table(columns, list(map(_move_row, moves)))


def _move_row(move: MoveItem) -> list[str]:
    return [
        f"{move.number}",
        local_time(move.time_ms),
        short(move.before),
        "deleted" if move.deleted else short(move.commit),
        f"{move.action} (forced)" if move.forced else move.action,
        move.author,
        move.message.partition("\n")[0],
    ]


def commit_line(commit_id: CommitId, commit: CommitRecord, names: Sequence[str], ink: Ink) -> str:
    """Return its id, its names, and the first line of its message."""
    first = printable(commit.message.partition("\n")[0])
    return f"{ink.paint(Style.COMMIT, str(commit_id)[:12])}{in_parentheses(names, ink)} {first}".rstrip()


def commit_lines(
    commit_id: CommitId, commit: CommitRecord, names: Sequence[str], ink: Ink, *, parents: bool = False
) -> list[str]:
    """Return all lines about a commit. parents: show a single parent too."""
    lines = [ink.paint(Style.COMMIT, f"commit {commit_id}") + in_parentheses(names, ink)]
    if parents or len(commit.parents) > 1:
        shown = " ".join(str(parent)[:12] for parent in commit.parents) or "none, it is the first commit"
        lines.append(f"{'Parent: ' if len(commit.parents) < 2 else 'Merge:  '}{shown}")
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
    shown = ", ".join(ink.paint(Style.REF, printable(name)) for name in names)
    return f" ({shown})" if shown else ""


class Graph:
    """Draws commits, children before parents. An open line is a column of two characters."""

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
