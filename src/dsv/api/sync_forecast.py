"""Forecasts the next sync of a workspace, and the commands to type, from what is known without asking the store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dsv.api.branch_position import BranchPosition, Position
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName
from dsv.model.units import format_count
from dsv.repo.rules import refused_mover

_BESIDE = " --new-branch NAME"


class Outcome(StrEnum):
    NOTHING = "nothing"
    PUBLISH = "publish"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Forecast:
    """reason: why a sync would be refused; None if it would not. next: command lines, in the order to type them;
    none if nothing is to be done. NAME in them is for the user to choose. instead: the command line that publishes
    what `next` restores as removed.
    """

    outcome: Outcome
    reason: str | None
    next: tuple[str, ...]
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What decides. differences, problems, removed: how many paths. removals: why they need `--allow-removals`.

    restore: the command line that brings back what is missing; given only with `removals`; empty if all was
    renamed. finish: the command line that finishes one that was interrupted here. collisions: new
    paths that are in the way of what the dataset has and this workspace does not.
    """

    dataset: DatasetName
    branch: BranchName
    base: CommitId | None
    author: str
    differences: int
    problems: int
    removals: str | None
    finish: str | None
    collisions: int = 0
    removed: int = 0
    restore: str = ""


def forecast(found: Findings, branch: BranchPosition) -> Forecast:
    """All that would keep a sync from publishing, and the way around it."""
    reasons: list[str] = []
    options = ""
    if found.problems:
        reasons.append(f"{format_count(found.problems, 'path')} can't be stored")
        options += " --skip-unsupported"
    if found.collisions:
        paths = format_count(found.collisions, "path")
        reasons.append(f"{paths} in the way of files that this sparse workspace leaves out")
    before, beside, after = _by_branch(found, branch, reasons)
    instead: str | None = None
    sync = "dsv sync" + (_BESIDE if beside else "") + options
    if found.removals is not None:
        reasons.append("it would remove too much")
        steps = [found.restore, *before]
        if found.differences > found.removed or found.problems:
            steps += [sync, *after]
        instead = f"{sync} --allow-removals"
        if not found.restore:
            steps, instead = [*before, f"{sync} --allow-removals", *after], None
    else:
        differs = found.differences > 0 or found.problems > 0
        steps = [*before, *([sync] if differs or beside else []), *after]
    if found.finish is not None:
        steps, instead = [found.finish], None
    if reasons:
        return Forecast(Outcome.REFUSED, "; ".join(reasons), tuple(steps), instead)
    return Forecast(Outcome.PUBLISH if found.differences else Outcome.NOTHING, None, tuple(steps))


def _by_branch(
    found: Findings, branch: BranchPosition, reasons: list[str]
) -> tuple[list[str], bool, list[str]]:
    """The commands before the sync, whether it goes to a new branch, and the commands after it; adds to `reasons`."""
    name, merge = found.branch, f"dsv merge NAME --into {found.branch}"
    match branch.position:
        case Position.DIVERGED:
            reasons.append(f"{name} has diverged")
            return [], True, [merge]
        case Position.AHEAD:
            reasons.append(f"{name} was moved back")
            return [], True, []
        case Position.NO_COMMIT if found.base is not None:
            reasons.append(f"{name} has no commit")
            return [], True, []
    before = []
    if branch.position in (Position.BEHIND, Position.ELSEWHERE):
        reasons.append(f"{name} has new commits: pull first")
        before = ["dsv pull"]
    if branch.position is Position.GONE:
        reasons.append(f"branch {name} was deleted or renamed")
        before = [f"dsv branch --restore {found.dataset}@{name}"]
    limits = branch.limits
    refused = None if limits is None else refused_mover(limits, found.author, merge=False)
    if limits is None or refused is None or not found.differences:
        return before, False, []
    reasons.append(f"{name} is protected: {refused}")
    return before, True, [merge] if refused_mover(limits, found.author, merge=True) is None else []
