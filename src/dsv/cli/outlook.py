"""The last lines of `dsv status`: where the branch is, what a sync will do, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dsv.api.branch_position import Position
from dsv.api.protection import describe_limits
from dsv.api.status import Status
from dsv.api.sync_forecast import Outcome
from dsv.cli.output import printable
from dsv.model.units import format_count, format_duration


def outlook(found: Status, *, now_ms: int, paths: Sequence[str]) -> Iterator[str]:
    """paths: those that the command line named, if it did."""
    asked = found.branch.asked_ms
    place = _place(found)
    if asked is not None:
        seconds = (now_ms - asked) / 1000
        ago = "just now" if seconds < 10 else f"{format_duration(seconds)} ago"
        place += f" (the store said so {ago})"
    yield place
    if found.branch.limits is not None:
        yield f"{found.workspace.branch} is protected: {printable(describe_limits(found.branch.limits))}"
    match found.sync.outcome:
        case Outcome.REFUSED:
            yield f"dsv sync would be refused: {printable(found.sync.reason or '')}"
        case Outcome.PUBLISH:
            yield f"dsv sync will publish {_counts(found)}"
        case Outcome.NOTHING:
            yield "dsv sync has nothing to publish"
    steps = with_paths(found.sync.next, paths)
    for number, step in enumerate(steps):
        yield f"{'then' if number else 'next'}: {printable(step)}"
    if not steps:
        yield "next: nothing to do"


def with_paths(steps: Sequence[str], paths: Sequence[str]) -> list[str]:
    """The command lines, with a sync of these paths only."""
    words = "".join(f" {shlex.quote(path)}" for path in paths)
    return [step + words if step.startswith("dsv sync") else step for step in steps]


def _place(found: Status) -> str:
    name, branch = found.workspace.branch, found.branch
    behind = "" if branch.behind is None else format_count(branch.behind, "commit")
    ahead = "" if branch.ahead is None else format_count(branch.ahead, "commit")
    match branch.position:
        case Position.UP_TO_DATE:
            return f"{name} is at the base"
        case Position.BEHIND if found.base is None:
            return f"{name} has {behind}, and none of them is here"
        case Position.BEHIND:
            return f"{name} has {behind} after the base"
        case Position.AHEAD:
            return f"{name} is {ahead} before the base"
        case Position.DIVERGED:
            return f"{name} and the base have diverged: {behind} there, {ahead} here"
        case Position.ELSEWHERE:
            return f"{name} is at {str(branch.commit)[:12]}, not at the base"
        case Position.NO_COMMIT:
            return f"{name} has no commit"
        case Position.GONE:
            return f"{name} was deleted or renamed"
    return f"the store was not asked about {name} yet: dsv status --fetch"


def _counts(found: Status) -> str:
    of = found.differences
    kinds = {"added": of.added, "changed": of.changed, "removed": of.removed, "retyped": of.retyped}
    return ", ".join(f"{len(paths):,} {kind}" for kind, paths in kinds.items() if paths)
