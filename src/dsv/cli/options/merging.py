"""The options of merge, cherry-pick, revert and pull: choices for conflicts, and --force."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv.cli.call import Call
from dsv.cli.declare import text, whole
from dsv.cli.failure import of_error
from dsv.cli.output import from_caches, path_counts, to_item
from dsv.errors import DsvError, NotFound, UsageError
from dsv.merge.paths import Choices
from dsv.values.names import BranchName, Rev, Target, clean_path
from dsv.values.paths import PathSet, show

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.api.merge import Merged, MergeRequest
    from dsv.api.pull import Pulled
    from dsv.format.tree import Entry
    from dsv.merge.apply import MergeCounts
    from dsv.merge.paths import MergeConflict, Settled


Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Move the branch even if it is protected; the message is the reason, and is kept."
    ),
]
"""The option of commands for which it means nothing else."""


def override(force: bool, message: str | None) -> str | None:
    """Why rules are overridden; None: they are not. Raises `UsageError` for `--force` without a reason."""
    if not force:
        return None
    if not (message or "").strip():
        raise UsageError(
            "--force needs a reason, which is kept in the log of moves", hint="--force -m REASON"
        )
    return message


Paths = list[str] | None

Ours = Annotated[
    Paths,
    typer.Option(
        "--ours",
        metavar="PATH",
        help="Settle conflicting rows, lines or paths at or below PATH with what the branch has.",
    ),
]
Theirs = Annotated[
    Paths,
    typer.Option("--theirs", metavar="PATH", help="Settle them with what is brought in."),
]
Both = Annotated[
    Paths,
    typer.Option("--both", metavar="PATH", help="Keep ours, and theirs beside it as NAME.theirs.EXT."),
]
Resolved = Annotated[
    Paths,
    typer.Option(
        "--resolved",
        metavar="PATH=FILE",
        help="Give PATH, which both sides changed, the content of the local FILE.",
    ),
]
Into = Annotated[
    str | None,
    typer.Option(
        "--into", metavar="BRANCH", help="The branch that gets the commit: default the workspace's, or main."
    ),
]
TableKey = Annotated[
    str | None,
    typer.Option(
        "--table-key",
        metavar="COLUMN",
        help="Merge CSV and Parquet files row by row; COLUMN tells rows apart.",
    ),
]
Message = Annotated[
    str | None, typer.Option("-m", "--message", parser=text, metavar="TEXT", help="Commit message.")
]
Author = Annotated[
    str | None,
    typer.Option(
        "--author", parser=text, metavar="WHO", help="Who commits, instead of the configured author."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and write nothing.")]

COUNT_KEYS = {
    "added": "how many paths are new on the branch",
    "changed": "how many have other content or another mode now",
    "removed": "how many were removed",
    "merged": "how many files were put together from both sides' contents",
    "settled.path": "a file that was put together from both sides, or a conflict that a choice has settled",
    "settled.choice": "ours, theirs, both or resolved; null if nothing had to be settled",
    "settled.from_theirs": "rows or lines taken from the other side; at most ten are named",
    "settled.settled": "rows or lines that both sides changed, likewise",
    "settled.from_theirs_count": "how many these are",
    "settled.settled_count": "how many were settled; null if the whole path was",
    "uploaded_bytes": "what was sent to the store",
}
CONFLICT_KEYS = {
    "conflicts.path": "a path that both sides changed; the exit code is then 4, and nothing was written",
    "conflicts.kind": "both-changed, both-added, ours-removed, theirs-removed, file-and-folder or in-the-way",
    "conflicts.ours": "what the branch has there: kind, size, file_id, target; null if nothing",
    "conflicts.theirs": "what the other side has there, likewise",
    "conflicts.reason": "why the contents could not be put together, if that was tried",
    "without_effect": "paths of --ours, --theirs and --both that have no conflict at or below them",
}
WORKSPACE_KEYS = {
    "workspace.status": "updated, or not-updated; workspace is null if none here follows the branch",
    "workspace.reason": "why the workspace was not updated, else null",
}


def source_target(call: Call, typed: str) -> Target:
    """DATASET@REV, or in a workspace a plain REV of its dataset. Raises `UsageError`."""
    if "@" in typed or ":" in typed:
        target = Target.parse(typed)
        if target.path is not None:
            raise UsageError(
                f"{typed} names a path, and this is about whole commits",
                subject=typed,
                hint=f"dsv {call.session.command} {Target(target.dataset, target.rev)}",
            )
        return target
    return Target(None, Rev.parse(typed))


def into_name(typed: str | None) -> BranchName | None:
    """The branch of --into in a known dataset."""
    return None if typed is None else BranchName.parse(typed.removeprefix("@"))


def choices(
    ours: Iterable[bytes] | None,
    theirs: Iterable[bytes] | None,
    both: Iterable[bytes] | None = None,
    resolved: Mapping[bytes, str] | None = None,
) -> Choices:
    """Raises `UsageError` for a path that is in two of them, and for a resolved file that is no file."""
    sets = {
        option: None if not (named := tuple(paths or ())) else PathSet.of(named)
        for option, paths in (("--ours", ours), ("--theirs", theirs), ("--both", both))
    }
    seen: dict[bytes, str] = {}
    for option, paths in sets.items():
        for path in () if paths is None else paths.paths or (b"",):
            if path in seen:
                name = path.decode("utf-8", "backslashreplace") or "."
                raise UsageError(
                    f"{seen[path]} and {option} both name {name}", subject=name, hint="choose one of them"
                )
            seen[path] = option
    for path, name in (resolved or {}).items():
        if path in seen:
            raise UsageError(
                f"{seen[path]} and --resolved both name {show(path)}", subject=name, hint="choose one of them"
            )
        if not Path(name).is_file():
            raise NotFound(
                f"{name} is not a file",
                subject=name,
                hint="--resolved PATH=FILE: FILE is a file on this machine",
            )
    return Choices(sets["--ours"], sets["--theirs"], sets["--both"], dict(resolved or {}))


def resolved_files(
    typed: Sequence[str] | None, paths: Callable[[list[str]], list[bytes]]
) -> dict[bytes, str]:
    """PATH=FILE for each path of the dataset. paths: makes such paths of what was typed. Raises `UsageError`."""
    found: dict[bytes, str] = {}
    for one in typed or ():
        path, equals, name = one.partition("=")
        if not (path and equals and name):
            raise UsageError(
                f"{one} is not PATH=FILE", subject=one, hint="--resolved labels.csv=/tmp/labels.csv"
            )
        [place] = paths([path])
        if place in found:
            raise UsageError(f"--resolved names {path} twice", subject=path, hint="give it one file")
        found[place] = name
    return found


def dataset_paths(typed: Sequence[str] | None) -> list[bytes]:
    """Paths of a dataset, from its top; `.` is all of it, which is the empty path."""
    return [clean_path(os.fsencode(one)) for one in typed or ()]


def counts_text(counts: MergeCounts) -> str:
    parts = [f"{counts.added:,} added", f"{counts.changed:,} changed", f"{counts.removed:,} removed"]
    if counts.merged:
        parts.append(f"{counts.merged:,} merged by content")
    return ", ".join(parts)


def tell_here(call: Call, here: Pulled | DsvError | None) -> None:
    """What a commit on the branch has done to the workspace that follows it."""
    if isinstance(here, DsvError):
        call.warn("the commit is published, but this workspace was not updated; dsv pull updates it")
        call.complain(of_error(here))
    elif here is not None:
        counts = path_counts(here.created, here.replaced, here.removed)
        call.say(f"updated this workspace: {counts}{from_caches(here.cached_files, here.cached_bytes)}")


def _workspace_json(here: Pulled | DsvError | None) -> dict[str, str | None] | None:
    if here is None:
        return None
    failed = isinstance(here, DsvError)
    return {"status": "not-updated" if failed else "updated", "reason": str(here) if failed else None}


def settled_json(one: Settled) -> dict[str, object]:
    content = one.content
    return {
        "path": one.path.decode("utf-8", "surrogateescape"),
        "choice": None if one.choice is None else one.choice.name.lower(),
        "from_theirs": [] if content is None else content.taken.first,
        "from_theirs_count": 0 if content is None else content.taken.count,
        "settled": [] if content is None else content.settled.first,
        "settled_count": None if content is None else content.settled.count,
    }


def tell_settled(call: Call, settled: Sequence[Settled]) -> None:
    """A line for each file that was put together from both sides, or that a choice has settled."""
    for one in settled[:_TOLD]:
        call.line(f"  {one}")
    if len(settled) > _TOLD:
        call.line(f"  and {len(settled) - _TOLD:,} more; --json has them all")


_TOLD = 20


def tell_conflicts(call: Call, error: MergeConflict, head: Mapping[str, object]) -> int:
    """The list for a program; a person is told by the error itself. Gives the exit code."""
    warn_without_effect(call, error.without_effect)
    if not call.json:
        raise error
    conflicts = [_conflict_json(error, at) for at in range(len(error.conflicts))]
    call.result(error, **head, conflicts=conflicts)
    return error.exit_code


def warn_without_effect(call: Call, paths: Iterable[bytes]) -> None:
    """A path that was mistyped, most likely."""
    for path in paths:
        call.warn(f"a side was chosen for {show(path)}, but no conflict is at or below it")


def _conflict_json(error: MergeConflict, at: int) -> dict[str, object]:
    one = error.conflicts[at]
    keys = ("path", "kind", "ours", "theirs", "reason")
    return to_item(
        one, keys, ours=_entry_json(one.ours), theirs=_entry_json(one.theirs), reason=one.reason or None
    )


def _entry_json(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    kind = entry.kind.name.lower().replace("_", "-")
    return to_item(entry, ("kind", "size", "file_id", "target"), kind=kind)


def write_merged(call: Call, done: Merged, **more: object) -> None:
    """Print the JSON document of what was merged or picked."""
    counts = to_item(done.counts, COUNT_KEYS, settled=list(map(settled_json, done.counts.settled)))
    call.result(done, **counts, conflicts=[], workspace=_workspace_json(done.here), **more)


Mainline = Annotated[
    int | None,
    typer.Option(
        "--mainline",
        parser=whole(1),
        metavar="N",
        help="Of a merge commit: the changes against its N-th parent; 1 is the branch that it was made on.",
    ),
]

RESULT = {
    "dataset": "the dataset",
    "branch": "the branch that got the commit",
    "commit": "its head now; null with --dry-run or conflicts",
    "before": "its head before",
    "source": "the commit whose changes are meant",
    "any_change": "false if the branch had these changes already",
    **COUNT_KEYS,
    **CONFLICT_KEYS,
    **WORKSPACE_KEYS,
}


def pick(
    call: Call,
    function: Callable[[Context, MergeRequest], Merged],
    request: MergeRequest,
    opening: AbstractContextManager[Context],
    *,
    verb: str,
) -> int | None:
    """Runs one of both, and tells of it.

    opening: gives the context. verb: what was done to the commit, such as `applied`.
    """
    from dsv.merge.paths import MergeConflict

    with opening as context:
        try:
            done = function(context, request)
        except MergeConflict as error:
            return tell_conflicts(call, error, {"commit": None})
    warn_without_effect(call, done.without_effect)
    if call.json:
        write_merged(call, done)
        tell_here(call, done.here)
        return None
    source = str(done.source)[:12]
    where = f"{done.dataset}@{done.branch}"
    if not done.any_change:
        call.line(f"nothing to do: {source} is already {verb} on {where}")
    elif done.commit is None:
        call.line(f"{source} would be {verb} on {where}: {counts_text(done.counts)}")
    else:
        call.line(f"{source} {verb} on {where} ({str(done.commit)[:12]}): {counts_text(done.counts)}")
        tell_settled(call, done.counts.settled)
        tell_here(call, done.here)
    return None
