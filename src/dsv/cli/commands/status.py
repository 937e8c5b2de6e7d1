"""dsv status."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from dsv.api.status import Position, WorkspaceStatus
from dsv.api.status import status as compare
from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.cli.options import All, ExitCode, Paths, Rehash, paths_in
from dsv.cli.output import patterns_of, printable, rfc3339
from dsv.cli.terminal import CHANGES
from dsv.format.records import describe_limits
from dsv.periodic import now_ms
from dsv.values.paths import folders_above
from dsv.values.units import format_bytes, format_count, format_duration

ON_SCREEN = 50
"""Paths that are listed one by one. More are a table by folder on a terminal; in a pipe, a folder that was
added or removed as a whole is one line."""


@command(
    "status",
    unused=["--cache"],
    examples="""
        dsv status  # how this folder differs from its base
        dsv status --fetch  # ask the store first where the branch is now
        dsv status -q --exit-code || dsv sync -m nightly  # sync only where something changed
    """,
    result=(
        "workspace dataset branch base branch_at asked position ahead behind protected sync reason next "
        "instead only collisions(path other) clean items(path change) problems(path reason) clashes "
        "unfinished suspicious"
    ),
)
def status(
    call: Call,
    paths: Paths = None,
    exit_code: ExitCode = False,
    everything: All = False,
    rehash: Rehash = False,
    fetch: bool = option("--fetch", "Ask the store where the branch is now."),
) -> int:
    """Show local changes, and what a sync would do.

    The last lines compare the base with the branch, and say what to type next. Files are read only if their sizes and
    times leave doubt. The store is not asked where the branch is: this shows what it answered to the last command
    that asked it from here, and how long ago. --fetch asks it now.
    """
    typed = paths or ()
    with call.context() as context:
        chosen = paths_in(context.workspace(), typed)
        found = compare(
            context,
            () if b"" in chosen else chosen,
            rehash=rehash,
            fetch=fetch,
            author=call.author,
            renames=True,
        )
    if call.json:
        call.result(found, **_fields(found, typed))
    else:
        _write(call, found, typed, everything=everything)
    return 1 if exit_code and not found.is_clean else 0


def _changes(found: WorkspaceStatus) -> Iterator[tuple[bytes, str]]:
    for change in ("added", "changed", "removed", "retyped"):
        for path in getattr(found.differences, change):
            yield path, change


def _joined(found: WorkspaceStatus) -> list[tuple[bytes, str]]:
    """Return the changes, with a renamed file as one of them, at its new path."""
    gone = set(found.renamed.values())
    return [
        (path, "renamed" if path in found.renamed else change)
        for path, change in _changes(found)
        if path not in gone
    ]


def _folded(state: WorkspaceStatus, changes: Sequence[tuple[bytes, str]]) -> dict[tuple[bytes, str], int]:
    """Join the changes below a folder that was added or removed as a whole. Return them with path counts."""
    rows = Counter[tuple[bytes, str]]()
    for path, change in changes:
        above = reversed([*folders_above(path)]) if change in ("added", "removed") else ()
        folder = next((parent for parent in above if parent in state.whole), None)
        rows[path if folder is None else folder + b"/", change] += 1
    return rows


def _write(call: Call, state: WorkspaceStatus, typed: Sequence[str], *, everything: bool) -> None:
    ink = call.around.stdout_ink
    changes = _joined(state)
    more, joined = "", False
    many = len(changes) > ON_SCREEN and not everything
    if many and call.around.stdout_is_terminal:
        more, joined = _write_folders(call, state, changes), True
    else:
        rows = _folded(state, changes) if many else dict.fromkeys(changes, 1)
        joined = len(rows) < len(changes)
        for (path, change), paths in rows.items():
            old = f"{printable(state.renamed[path])} => " if change == "renamed" else ""
            of = f"  ({format_count(paths, 'path')})" if path.endswith(b"/") else ""
            call.out.line(ink.paint(CHANGES[change], f"{change:<8}") + f"  {old}{printable(path)}{of}")
    for problem in state.problems:
        call.out.line(ink.paint(CHANGES["refused"], "refused ") + f"  {printable(str(problem))}")
    for collision in state.collisions:
        text = f"{collision}, which this sparse workspace leaves out"
        call.out.line(ink.paint(CHANGES["refused"], "refused ") + f"  {printable(text)}")
    for name, other in state.clashes:
        call.warn(f"{printable(name)} and {printable(other)} are one name where case or Unicode is folded")
    for warning in (state.suspicious, state.unfinished):
        if warning is not None:
            call.warn(warning)
    where = f"{state.workspace.dataset}@{state.workspace.branch}"
    base = "no commit yet" if state.base is None else f"base {str(state.base)[:12]}"
    count = len(changes)
    differences = {0: "no differences", 1: "1 path differs"}.get(count, f"{count:,} paths differ")
    call.say(f"{where}, {base}: {differences}{more}")
    if not state.workspace.chosen.whole:
        call.say(f"sparse workspace: {patterns_of(state.workspace.chosen.lines)}")
    if joined:
        call.say("dsv status --all lists every path")
    call.out.publish()  # so that what to type next is printed last
    for line in _outlook(state, typed):
        call.say(line)


def _write_folders(call: Call, found: WorkspaceStatus, changes: Sequence[tuple[bytes, str]]) -> str:
    """Print a table with a row for each folder, and return the totals."""
    from dsv.cli.differences import COUNTED, FOLDERS, folder_name
    from dsv.diff.paths import Difference, Summary, Sums
    from dsv.format.tree import Entry, Kind
    from dsv.repo.tree.diff import What

    def size(sums: Sums) -> str:
        return format_bytes(sums.added_bytes + sums.changed_bytes + sums.renamed_bytes)

    def cell(count: int) -> str:
        return f"{count:,}" if count else ""

    summary = Summary()
    for path, change in changes:
        entry = Entry(path, Kind.FILE, _size(os.fsencode(found.workspace.root) + b"/" + path))
        summary.add(Difference(What(change), entry, entry))
    total = summary.total
    kinds = [kind for kind in COUNTED if getattr(total, kind)]
    rows = [
        [folder_name(row), *(cell(getattr(row.sums, kind)) for kind in kinds), size(row.sums)]
        for row in summary.by_folder(None, FOLDERS)
    ]
    call.table(["folder~", *(f"{kind}>~" for kind in kinds), "size>~"], rows)
    counts = ", ".join(f"{getattr(total, kind):,} {kind}" for kind in kinds)
    return f" ({counts}; {size(total)})"


def _size(path: bytes) -> int:
    """Return the size of a file, or 0 if it was removed."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _fields(found: WorkspaceStatus, typed: Sequence[str]) -> dict[str, object]:
    """Return the keys of the JSON document that are not attributes of the status."""
    branch, sync = found.branch, found.sync
    return {
        "position": branch.position,
        "ahead": branch.ahead,
        "behind": branch.behind,
        "workspace": found.workspace.root,
        "dataset": found.workspace.dataset,
        "branch": found.workspace.branch,
        "branch_at": branch.commit,
        "asked": rfc3339(branch.asked_ms),
        "protected": None if branch.limits is None else describe_limits(branch.limits),
        "sync": sync.outcome,
        "reason": sync.reason,
        "next": _with_paths(sync.next, typed),
        "instead": None if sync.instead is None else _with_paths([sync.instead], typed)[0],
        "only": found.workspace.chosen.lines,
        "clean": found.is_clean,
        "items": [{"path": _name(path), "change": change} for path, change in _changes(found)],
    }


def _name(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _outlook(found: WorkspaceStatus, paths: Sequence[str]) -> Iterator[str]:
    """Yield the last lines: how base and branch compare, what a sync will do, and what to type next."""
    yield _place(found) + _asked(found)
    if found.branch.limits is not None:
        yield f"{found.workspace.branch} is protected: {printable(describe_limits(found.branch.limits))}"
    match found.sync.outcome:
        case "refused":
            yield f"dsv sync would be refused: {printable(found.sync.reason or '')}"
        case "publish":
            yield f"dsv sync will publish {_counts(found)}"
        case "nothing":
            yield "no local changes to publish"
    for number, step in enumerate(_with_paths(found.sync.next, paths)):
        yield f"{'then' if number else 'next'}: {printable(step)}"
    if found.sync.instead is not None:
        yield f"or, to publish the removal: {printable(_with_paths([found.sync.instead], paths)[0])}"


def _with_paths(steps: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return the command lines; dsv sync gets these paths."""
    words = "".join(f" {shlex.quote(path)}" for path in paths)
    return [step + words if step.startswith("dsv sync") else step for step in steps]


def _place(found: WorkspaceStatus) -> str:
    name, branch = found.workspace.branch, found.branch
    behind = "" if branch.behind is None else format_count(branch.behind, "commit")
    ahead = "" if branch.ahead is None else format_count(branch.ahead, "commit")
    match branch.position:
        case Position.UP_TO_DATE:
            return f"up to date with {name}"
        case Position.BEHIND:
            return f"behind {name} by {behind}"
        case Position.AHEAD:
            return f"ahead of {name} by {ahead}"
        case Position.DIVERGED:
            return f"diverged from {name}: {ahead} here, {behind} there"
        case Position.ELSEWHERE:
            return f"{name} has moved to {str(branch.commit)[:12]}"
        case Position.NO_COMMIT:
            return f"{name} has no commit yet"
        case Position.GONE:
            return f"{name} was deleted or renamed"
    return f"{name} not checked yet: dsv status --fetch"


def _asked(found: WorkspaceStatus) -> str:
    """Return when the store was asked: others may have published since."""
    asked = found.branch.asked_ms
    if asked is None:
        return ""
    seconds = (now_ms() - asked) / 1000
    if seconds < 10:
        return " (checked just now)"
    return f" (checked {format_duration(seconds)} ago; dsv status --fetch checks again)"


def _counts(found: WorkspaceStatus) -> str:
    counts = Counter(change for _, change in _changes(found))  # as sync counts them
    renamed = f" ({len(found.renamed):,} renamed)" if found.renamed else ""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) + renamed
