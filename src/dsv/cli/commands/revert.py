"""dsv revert."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.merge import MergeRequest
from dsv.api.merge import revert as undo_commit
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.options.merging import (
    RESULT,
    Author,
    Both,
    DryRun,
    Force,
    Into,
    Mainline,
    Message,
    Ours,
    Resolved,
    TableKey,
    Theirs,
    choices,
    dataset_paths,
    into_name,
    override,
    pick,
    resolved_files,
    source_target,
)
from dsv.values.paths import PathSet


@command(
    "revert",
    unused=["--cache"],
    examples=[
        ("dsv revert 3f2a9c01", "in a workspace: undo this commit's changes on the workspace's branch"),
        ("dsv revert chest-xray@main", "the last commit of main, anywhere and without the files"),
        ("dsv revert 3f2a9c01 -- train/", "only its changes below a folder"),
        ("dsv revert 9b1c44d0 --mainline 1", "all that a merge commit brought to its first parent"),
    ],
    result=RESULT,
)
def revert(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="TARGET")],
    paths: Annotated[list[str] | None, typer.Argument(metavar="[-- PATH...]")] = None,
    into: Into = None,
    mainline: Mainline = None,
    ours: Ours = None,
    theirs: Theirs = None,
    both: Both = None,
    resolved: Resolved = None,
    table_key: TableKey = None,
    message: Message = None,
    dry_run: DryRun = False,
    force: Force = False,
    author: Author = None,
) -> int | None:
    """Undo the changes of one commit on a branch.

    TARGET is DATASET@REV, or in a workspace just REV. The branch gets one new commit in which what TARGET changed (or
    what it changed at and below PATH) is as it was before; history and later changes stay. If a path was changed again
    since, that is a conflict as in dsv merge: exit code 4, the list, and nothing is written.
    """
    request = MergeRequest(
        source_target(call, source), into_name(into),
        choices(
            dataset_paths(ours), dataset_paths(theirs), dataset_paths(both), resolved_files(resolved, dataset_paths)
        ),
        message, table_key, dry_run, paths=PathSet.of(dataset_paths(paths)), mainline=mainline,
    )  # fmt: skip
    context = call.context(writes=True, author=author, override=override(force, message))
    return pick(call, undo_commit, request, context, verb="reverted")
