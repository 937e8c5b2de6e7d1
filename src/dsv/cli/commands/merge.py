"""dsv merge, cherry-pick and revert, and the conflicts that they and dsv pull show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from dsv.api import merge as api
from dsv.api.checkout import Updated
from dsv.api.context import Context
from dsv.api.merge import MergeRequest, MergeResult
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import Author, DryRun, Force, Message, commit_target, override
from dsv.cli.output import first, to_item, written
from dsv.errors import DsvError, NotFound, UsageError
from dsv.format.tree import Entry
from dsv.merge.apply import MergeCounts
from dsv.merge.paths import Choices, MergeConflict, Resolution
from dsv.values.names import BranchName, Rev, Target, clean_path
from dsv.values.paths import PathSet, show

Resolved = Annotated[
    list[str] | None,
    option("--resolved PATH=FILE", "Give PATH, which both sides changed, the content of the local FILE."),
]
TableKey = Annotated[
    str | None,
    option("--table-key COLUMN", "Merge CSV and Parquet files row by row; COLUMN tells rows apart."),
]
RESOLVED_KEYS = "choice from_theirs settled from_theirs_count settled_count"
CONFLICT_KEYS = "conflicts(path kind ours theirs reason) without_effect"

_OPTIONS: dict[str, Any] = {
    "into": Annotated[
        str | None,
        option("--into BRANCH", "The branch that gets the commit: default the workspace's, or main."),
    ],
    "ours": Annotated[
        list[str] | None,
        option("--ours PATH", "In conflicts (rows, lines or paths) at or below PATH, take ours."),
    ],
    "theirs": Annotated[
        list[str] | None, option("--theirs PATH", "Take theirs in conflicts at or below PATH.")
    ],
    "both": Annotated[
        list[str] | None, option("--both PATH", "Keep ours, and theirs beside it as NAME.theirs.EXT.")
    ],
    "resolved": Resolved,
    "table_key": TableKey,
    "message": Message,
    "dry_run": DryRun,
    "force": Force,
    "author": Author,
}
"""Of all three commands."""
_MAINLINE = Annotated[
    int | None,
    option(
        "--mainline N",
        "Of a merge commit: the changes against its N-th parent; 1 is the branch that it was made on.",
        parser=whole(1),
    ),
]
_PICK_OPTIONS = {"into": _OPTIONS["into"], "mainline": _MAINLINE} | _OPTIONS

_COUNTS = "added changed removed merged"
_RESULT = (
    f"added changed removed merged settled(path {RESOLVED_KEYS}) uploaded_bytes {CONFLICT_KEYS} "
    "workspace(status reason)"
)
_PICKED = f"dataset branch commit before source any_change {_RESULT}"


@command(
    "merge",
    unused=["--cache"],
    examples="""
        dsv merge relabel  # in a workspace: bring branch relabel into the workspace's branch
        dsv merge chest-xray@relabel --into main  # anywhere, without the files
        dsv merge relabel --theirs labels/ --both notes.txt  # settle conflicts by path
        dsv merge relabel --table-key image_id  # merge CSV and Parquet files row by row
    """,
    result=f"dataset branch commit before source bases outcome {_RESULT}",
    options=_OPTIONS,
)
def merge(
    call: Call,
    source: str = argument("BRANCH"),
    no_ff: bool = option("--no-ff", "Make a merge commit even if the branch could just move forward."),
    **options: Any,
) -> int | None:
    """Bring the changes of one branch into another.

    BRANCH is a branch, tag or commit: DATASET@REV, or in a workspace just REV. Only what differs is read, and no files
    are needed here; a workspace that follows the branch is updated. A path that one side changed is taken from that
    side; a text below 1 MiB that both changed is merged line by line. What can't be merged is a conflict: exit code 4,
    the list, and nothing is written. --ours, --theirs and --both settle conflicts, and what can be merged is merged all
    the same; --resolved takes a file that you have put together yourself. Each takes a path of the dataset and may be
    repeated.
    """
    return _apply(call, api.merge, source, source, options, fast_forward=not no_ff)


@command(
    "cherry-pick",
    unused=["--cache"],
    examples="""
        dsv cherry-pick @relabel  # in a workspace: the last commit of relabel, onto the workspace's branch
        dsv cherry-pick chest-xray@3f2a9c01 --into v2  # anywhere, without the files
        dsv cherry-pick @relabel -- train/labels.csv  # only its changes to some paths
    """,
    result=_PICKED,
    options=_PICK_OPTIONS,
)
def cherry_pick(
    call: Call,
    source: str = argument("TARGET"),
    paths: list[str] | None = argument("[-- PATH...]"),
    **options: Any,
) -> int | None:
    """Apply the changes of one commit to a branch.

    TARGET is DATASET@REV, or in a workspace just REV; its changes are those against its parent. The branch gets one new
    commit with them, or with those at and below PATH, which is a path of the dataset. If the branch has something else
    at a path that would change, that is a conflict as in dsv merge: exit code 4, the list, and nothing is written.
    """
    more = {"paths": PathSet.of(_paths(paths)), "mainline": options["mainline"]}
    return _apply(call, api.cherry_pick, source, "applied", options, **more)


@command(
    "revert",
    unused=["--cache"],
    examples="""
        dsv revert 3f2a9c01  # in a workspace: undo this commit's changes on the workspace's branch
        dsv revert chest-xray@main  # the last commit of main, anywhere and without the files
        dsv revert 3f2a9c01 -- train/  # only its changes below a folder
    """,
    result=_PICKED,
    options=_PICK_OPTIONS,
)
def revert(
    call: Call,
    source: str = argument("TARGET"),
    paths: list[str] | None = argument("[-- PATH...]"),
    **options: Any,
) -> int | None:
    """Undo the changes of one commit on a branch.

    TARGET is DATASET@REV, or in a workspace just REV. The branch gets one new commit in which what TARGET changed (or
    what it changed at and below PATH) is as it was before; history and later changes stay. If a path was changed again
    since, that is a conflict as in dsv merge: exit code 4, the list, and nothing is written.
    """
    more = {"paths": PathSet.of(_paths(paths)), "mainline": options["mainline"]}
    return _apply(call, api.revert, source, "reverted", options, **more)


def _paths(typed: Sequence[str] | None) -> list[bytes]:
    """Return paths of a dataset, from its top; `.` is all of it, which is the empty path."""
    return [clean_path(os.fsencode(one)) for one in typed or ()]


def _source(call: Call, typed: str) -> Target:
    """Return the target DATASET@REV, or in a workspace a plain REV of its dataset. Raises `UsageError`."""
    if "@" not in typed and ":" not in typed:
        return Target(None, Rev.parse(typed))
    return commit_target(call.session.command, typed)


def _apply(
    call: Call,
    function: Callable[[Context, MergeRequest], MergeResult],
    source: str,
    word: str,
    options: Mapping[str, Any],
    **more: Any,
) -> int | None:
    """Call a function of the api, and print its result. word: for `_text`. more: fields of the request."""

    def outcome_of(merge: str) -> dict[str, object]:
        return {"outcome": merge} if function is api.merge else {}

    into, message = options["into"], options["message"]
    request = MergeRequest(
        choices=choices(options["ours"], options["theirs"], options["both"], options["resolved"], _paths),
        into=None if into is None else BranchName.parse(into.removeprefix("@")),
        source=_source(call, source),
        message=message,
        table_key=options["table_key"],
        dry_run=options["dry_run"],
        **more,
    )
    reason = override(options["force"], message)
    with call.context(writes=True, author=options["author"], override=reason) as context:
        try:
            done = function(context, request)
        except MergeConflict as error:
            return tell_conflicts(call, error, commit=None, **outcome_of("conflict"))
    warn_without_effect(call, done.without_effect)
    _tell_workspace(call, done.here)
    failed = isinstance(done.here, DsvError)
    settled = list(map(resolved_json, done.counts.resolved))
    workspace = {
        "status": "not-updated" if failed else "updated",
        "reason": str(done.here) if failed else None,
    }
    outcome = "up-to-date" if done.up_to_date else "fast-forward" if done.fast_forwarded else "merged"
    call.result(
        done,
        **to_item(done.counts, _COUNTS),
        **outcome_of(outcome),
        settled=settled,
        conflicts=[],
        workspace=None if done.here is None else workspace,
    )
    call.line(_text(done, word, picked=function is not api.merge))
    say_resolved(call, done.counts.resolved)
    return None


def _text(done: MergeResult, word: str, *, picked: bool) -> str:
    """Return the line for people. `word` is the merged branch, or what was done to a commit, such as `applied`."""
    where = f"{done.dataset}@{done.branch}"
    would = "would be " if done.commit is None else ""
    at = "" if done.commit is None else f" ({str(done.commit)[:12]})"
    if picked:
        source = str(done.source)[:12]
        if not done.any_change:
            return f"nothing to do: {source} is already {word} on {where}"
        return f"{source} {would}{word} on {where}{at}: {_counts(done.counts)}"
    if done.up_to_date:
        return f"{where} already has everything of {word}"
    how = f"{would}moved forward to {word}" if done.fast_forwarded else f"{would}merged with {word}"
    return f"{where} {how}{at}: {_counts(done.counts)}"


def _counts(counts: MergeCounts) -> str:
    merged = f", {counts.merged:,} merged by content" if counts.merged else ""
    return f"{counts.added:,} added, {counts.changed:,} changed, {counts.removed:,} removed{merged}"


def _tell_workspace(call: Call, here: Updated | DsvError | None) -> None:
    if isinstance(here, DsvError):
        call.warn("the commit is published, but this workspace was not updated; dsv pull updates it")
        call.complain(here)
    elif here is not None:
        call.say(f"updated this workspace: {written(here)}")


def choices(
    ours: list[str] | None,
    theirs: list[str] | None,
    both: list[str] | None,
    resolved: list[str] | None,
    paths: Callable[[list[str]], Sequence[bytes]],
) -> Choices:
    """Return the choices for conflicts. Raises `UsageError` for a path with two choices.
    paths: turns typed paths into paths of the dataset."""
    seen: dict[bytes, str] = {}

    def choose(path: bytes, option: str) -> None:
        if seen.setdefault(path, option) != option:
            name = path.decode("utf-8", "backslashreplace") or "."
            raise UsageError(
                f"{seen[path]} and {option} both name {name}", subject=name, hint="choose one of them"
            )

    sides: dict[str, PathSet | None] = {}
    for name, typed in (("--ours", ours), ("--theirs", theirs), ("--both", both)):
        side = sides[name] = PathSet.of(paths(typed)) if typed else None
        for path in () if side is None else side.paths or (b"",):
            choose(path, name)
    files: dict[bytes, str] = {}
    for one in resolved or ():
        named, equals, file = one.partition("=")
        if not (named and equals and file):
            raise UsageError(
                f"{one} is not PATH=FILE", subject=one, hint="--resolved labels.csv=/tmp/labels.csv"
            )
        [path] = paths([named])
        if path in files:
            raise UsageError(f"--resolved names {named} twice", subject=named, hint="give it one file")
        choose(path, "--resolved")
        if not Path(file).is_file():
            hint = "--resolved PATH=FILE: FILE is a file on this machine"
            raise NotFound(f"{file} is not a file", subject=file, hint=hint)
        files[path] = file
    return Choices(sides["--ours"], sides["--theirs"], sides["--both"], files)


def resolved_json(one: Resolution) -> dict[str, object]:
    content = one.content
    return {
        "path": one.path.decode("utf-8", "surrogateescape"),
        "choice": None if one.choice is None else one.choice.name.lower(),
        "from_theirs": [] if content is None else content.taken.first,
        "from_theirs_count": 0 if content is None else content.taken.count,
        "settled": [] if content is None else content.resolved.first,
        "settled_count": None if content is None else content.resolved.count,
    }


def say_resolved(call: Call, settled: Sequence[Resolution]) -> None:
    """Print a line for each file that was merged or settled by a choice."""
    for line in first(list(map(str, settled)), more="; --json has them all"):
        call.line(f"  {line}")


def tell_conflicts(call: Call, error: MergeConflict, **head: object) -> int:
    """With --json print the conflicts and return the exit code, else raise the error, which lists them."""
    warn_without_effect(call, error.without_effect)
    if not call.json:
        raise error
    keys = "path kind ours theirs reason"
    conflicts = [
        to_item(
            one, keys, ours=_entry_json(one.ours), theirs=_entry_json(one.theirs), reason=one.reason or None
        )
        for one in error.conflicts
    ]
    call.result(error, **head, conflicts=conflicts)
    return error.exit_code


def warn_without_effect(call: Call, paths: Iterable[bytes]) -> None:
    """Warn of chosen paths without a conflict, which were probably mistyped."""
    for path in paths:
        call.warn(f"a side was chosen for {show(path)}, but no conflict is at or below it")


def _entry_json(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    return to_item(entry, "kind size file_id target", kind=entry.kind.name.lower().replace("_", "-"))
