"""dsv pull."""

from __future__ import annotations

from dsv.api.checkout import Updated
from dsv.api.checkout import pull as bring
from dsv.cli.call import Call
from dsv.cli.commands.merge import (
    CONFLICT_KEYS,
    RESOLVED_KEYS,
    Resolved,
    TableKey,
    choices,
    resolved_json,
    say_resolved,
    tell_conflicts,
    warn_without_effect,
)
from dsv.cli.declare import command, option
from dsv.cli.options import paths_in
from dsv.cli.output import WRITTEN_KEYS, written
from dsv.merge.paths import MergeConflict


@command(
    "pull",
    examples="""
        dsv pull  # what others have synced to this workspace's branch
        dsv pull --theirs labels/ --ours notes.txt  # settle conflicts by path
        dsv pull --both labels.csv  # keep yours, and theirs beside it as labels.theirs.csv
    """,
    result=(
        f"dataset branch before commit {WRITTEN_KEYS} any_change merged(path {RESOLVED_KEYS}) {CONFLICT_KEYS}"
    ),
)
def pull(
    call: Call,
    ours: list[str] | None = option("--ours PATH", "Take ours, what is here, in conflicts at or below PATH."),
    theirs: list[str] | None = option(
        "--theirs PATH", "Take theirs in conflicts at or below PATH: ours is lost."
    ),
    both: list[str] | None = option("--both PATH", "Keep both: theirs beside it as NAME.theirs.EXT."),
    resolved: Resolved = None,
    table_key: TableKey = None,
) -> int | None:
    """Update the workspace to its branch.

    Local changes stay, and the next sync publishes them on top. A text below 1 MiB that both sides changed is merged
    line by line; a change of mode goes together with one of content. If both changed a path in another way, it ends
    with exit code 4 and the list, and writes nothing; --ours, --theirs and --both settle that by path. What can be
    merged is merged all the same.
    """
    with call.context() as context:
        workspace = context.workspace()
        chosen = choices(ours, theirs, both, resolved, lambda typed: paths_in(workspace, typed))
        try:
            done = bring(context, chosen, table_key)
        except MergeConflict as error:
            return tell_conflicts(
                call, error, dataset=workspace.dataset, branch=workspace.branch, commit=None
            )
    warn_without_effect(call, done.without_effect)
    _tell_pulled(call, done)
    return None


def _tell_pulled(call: Call, done: Updated) -> None:
    call.result(done, merged=list(map(resolved_json, done.merged)), conflicts=[])
    where = f"{done.dataset}@{done.branch}"
    if done.commit is None:
        call.line(f"{where} has no commit yet")
    elif not done.any_change:
        call.line(f"{where} is already at {str(done.commit)[:12]}")
    else:
        call.line(f"pulled {where} ({str(done.commit)[:12]}): {written(done)}")
        say_resolved(call, done.merged)
