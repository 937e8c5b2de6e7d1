"""The last lines of `dsv status`: how the base stands to the branch, what a sync will do, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsv.api.status import Outcome, Position
from dsv.cli.output import printable
from dsv.format.records import describe_limits
from dsv.values.patterns import SparsePatterns
from dsv.values.units import format_count, format_duration

if TYPE_CHECKING:
    from dsv.api.status import Status

_SHOWN = 5
"""Patterns of a sparse workspace that are listed."""


def outlook(found: Status, *, now_ms: int, paths: Sequence[str]) -> Iterator[str]:
    """paths: those that the command line named, if it did."""
    yield _place(found) + _asked(found, now_ms)
    if found.branch.limits is not None:
        yield f"{found.workspace.branch} is protected: {printable(describe_limits(found.branch.limits))}"
    match found.sync.outcome:
        case Outcome.REFUSED:
            yield f"dsv sync would be refused: {printable(found.sync.reason or '')}"
        case Outcome.PUBLISH:
            yield f"dsv sync will publish {_counts(found)}"
        case Outcome.NOTHING:
            yield "no local changes to publish"
    for number, step in enumerate(with_paths(found.sync.next, paths)):
        yield f"{'then' if number else 'next'}: {printable(step)}"
    if found.sync.instead is not None:
        yield f"or, to publish the removal: {printable(with_paths([found.sync.instead], paths)[0])}"


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


def _asked(found: Status, now_ms: int) -> str:
    """When the store was asked: others may have published since."""
    asked = found.branch.asked_ms
    if asked is None:
        return ""
    seconds = (now_ms - asked) / 1000
    if seconds < 10:
        return " (checked just now)"
    return f" (checked {format_duration(seconds)} ago; dsv status --fetch checks again)"


def _counts(found: Status) -> str:
    of, renamed = found.differences, len(found.renamed)
    counts = {
        "added": len(of.added) - renamed,
        "changed": len(of.changed),
        "renamed": renamed,
        "removed": len(of.removed) - renamed,
        "retyped": len(of.retyped),
    }
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


def patterns_of(chosen: SparsePatterns) -> str:
    """Return a few patterns of a sparse workspace, and how many more there are."""
    lines = chosen.lines or ()
    more = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return ", ".join([*lines[:_SHOWN], *more]) or "nothing"
