"""dsv merge."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.merge import Merged, MergeRequest
from dsv.api.merge import merge as merge_branches
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.options.merging import (
    CONFLICT_KEYS,
    COUNT_KEYS,
    WORKSPACE_KEYS,
    Author,
    Both,
    DryRun,
    Force,
    Into,
    Message,
    Ours,
    Resolved,
    TableKey,
    Theirs,
    choices,
    counts_text,
    dataset_paths,
    into_name,
    override,
    resolved_files,
    source_target,
    tell_conflicts,
    tell_here,
    tell_settled,
    warn_without_effect,
    write_merged,
)
from dsv.merge.paths import MergeConflict


@command(
    "merge",
    unused=["--cache"],
    examples=[
        ("dsv merge relabel", "in a workspace: bring branch relabel into the workspace's branch"),
        ("dsv merge chest-xray@relabel --into main", "anywhere, without the files"),
        ("dsv merge relabel --dry-run", "what would change, and what conflicts"),
        ("dsv merge relabel --theirs labels/ --both notes.txt", "settle conflicts by path"),
        ("dsv merge relabel --theirs .", "settle all of them"),
        ("dsv merge relabel --resolved labels.csv=/tmp/l.csv", "with a file that you put together yourself"),
        ("dsv merge relabel --table-key image_id", "merge CSV and Parquet files row by row"),
    ],
    result={
        "dataset": "the dataset",
        "branch": "the branch that was merged into",
        "commit": "its head now; null with --dry-run or conflicts",
        "before": "its head before",
        "source": "the commit that was merged into it",
        "bases": "the commits that both sides were made from; several after a criss-cross merge",
        "outcome": "merged, fast-forward, up-to-date or conflict",
        **COUNT_KEYS,
        **CONFLICT_KEYS,
        **WORKSPACE_KEYS,
    },
)
def merge(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="BRANCH")],
    into: Into = None,
    ours: Ours = None,
    theirs: Theirs = None,
    both: Both = None,
    resolved: Resolved = None,
    table_key: TableKey = None,
    message: Message = None,
    no_ff: Annotated[
        bool,
        typer.Option("--no-ff", help="Make a merge commit even if the branch could just move forward."),
    ] = False,
    dry_run: DryRun = False,
    force: Force = False,
    author: Author = None,
) -> int | None:
    """Bring the changes of one branch into another.

    BRANCH is a branch, tag or commit: DATASET@REV, or in a workspace just REV. Only what differs is read, and no files
    are needed here; a workspace that follows the branch is updated. A path that one side changed is taken from that
    side; a text below 1 MiB that both changed is merged line by line. What can't be merged is a conflict: exit code 4,
    the list, and nothing is written. --ours, --theirs and --both settle conflicts, and what can be merged is merged all
    the same; --resolved takes a file that you have put together yourself. Each takes a path of the dataset and may be
    repeated.
    """
    chosen = choices(
        dataset_paths(ours),
        dataset_paths(theirs),
        dataset_paths(both),
        resolved_files(resolved, dataset_paths),
    )
    request = MergeRequest(
        source_target(call, source), into_name(into), chosen, message, table_key, dry_run, not no_ff
    )
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        try:
            done = merge_branches(context, request)
        except MergeConflict as error:
            return tell_conflicts(call, error, {"commit": None, "outcome": "conflict"})
    warn_without_effect(call, done.without_effect)
    if call.json:
        write_merged(call, done, outcome=_outcome(done))
        tell_here(call, done.here)
        return None
    _tell(call, done, source)
    tell_settled(call, done.counts.settled)
    tell_here(call, done.here)
    return None


def _outcome(done: Merged) -> str:
    if done.up_to_date:
        return "up-to-date"
    return "fast-forward" if done.fast_forwarded else "merged"


def _tell(call: Call, done: Merged, source: str) -> None:
    where = f"{done.dataset}@{done.branch}"
    if done.up_to_date:
        call.line(f"{where} already has everything of {source}")
        return
    would = "would be " if done.commit is None else ""
    at = "" if done.commit is None else f" ({str(done.commit)[:12]})"
    how = f"{would}moved forward to {source}" if done.fast_forwarded else f"{would}merged with {source}"
    call.line(f"{where} {how}{at}: {counts_text(done.counts)}")
