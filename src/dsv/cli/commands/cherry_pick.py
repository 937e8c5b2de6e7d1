"""dsv cherry-pick."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.merge import MergeRequest
from dsv.api.merge import cherry_pick as apply_commit
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
    "cherry-pick",
    unused=["--cache"],
    examples=[
        (
            "dsv cherry-pick @relabel",
            "in a workspace: the last commit of relabel, onto the workspace's branch",
        ),
        ("dsv cherry-pick chest-xray@3f2a9c01 --into v2", "anywhere, without the files"),
        ("dsv cherry-pick @relabel -- train/labels.csv", "only its changes to some paths"),
        ("dsv cherry-pick @main --mainline 1 --into v2", "what a merge commit brought to its first parent"),
    ],
    result=RESULT,
)
def cherry_pick(
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
    """Apply the changes of one commit to a branch.

    TARGET is DATASET@REV, or in a workspace just REV; its changes are those against its parent. The branch gets one new
    commit with them, or with those at and below PATH, which is a path of the dataset. If the branch has something else
    at a path that would change, that is a conflict as in dsv merge: exit code 4, the list, and nothing is written.
    """
    request = MergeRequest(
        source_target(call, source), into_name(into),
        choices(
            dataset_paths(ours), dataset_paths(theirs), dataset_paths(both), resolved_files(resolved, dataset_paths)
        ),
        message, table_key, dry_run, paths=PathSet.of(dataset_paths(paths)), mainline=mainline,
    )  # fmt: skip
    context = call.context(writes=True, author=author, override=override(force, message))
    return pick(call, apply_commit, request, context, verb="applied")
