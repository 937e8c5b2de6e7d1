"""What cherry-pick and revert share on the command line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from dsv.cli.call import Call
from dsv.cli.declare import whole
from dsv.cli.merging import (
    CONFLICT_KEYS,
    COUNT_KEYS,
    counts_json,
    counts_text,
    tell_conflicts,
    tell_here,
    tell_settled,
    warn_without_effect,
    without_effect_json,
)

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.api.pick import Picked, PickRequest

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
}


def pick(
    call: Call,
    function: Callable[[Context, PickRequest], Picked],
    request: PickRequest,
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
        call.document(_json(done))
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


def _json(done: Picked) -> dict[str, object]:
    return {
        "dataset": str(done.dataset),
        "branch": str(done.branch),
        "commit": None if done.commit is None else str(done.commit),
        "before": None if done.before is None else str(done.before),
        "source": str(done.source),
        "any_change": done.any_change,
        **counts_json(done.counts, done.uploaded_bytes),
        "conflicts": [],
        "without_effect": without_effect_json(done.without_effect),
    }
