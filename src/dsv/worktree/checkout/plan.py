"""What it takes to make paths of a workspace what a commit has there, without losing anyone's work. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from dsv.model.diff import Change, difference
from dsv.model.entry import Entry, Kind
from dsv.worktree.checkout.disk import Disk
from dsv.worktree.checkout.settle import UNSETTLED, OverwritePolicy, Settlement, settle
from dsv.worktree.checkout.step import Act, Step


@dataclass(slots=True)
class Plan:
    """The sum of the steps, and every conflict. fetched: bytes of contents to fetch. absent: changes to nothing."""

    created: int = 0
    replaced: int = 0
    removed: int = 0
    kept: int = 0
    fetched: int = 0
    absent: int = 0
    conflicts: list[tuple[bytes, str]] = field(default_factory=list)

    @property
    def writes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.created or self.replaced or self.removed)

    def add(self, step: Step) -> None:
        self.absent += step.change.after is None
        if step.act is Act.CONFLICT:
            self.conflicts.append((step.at, step.reason))
        elif step.act is Act.REMOVE:
            self.removed += 1
        elif step.act in (Act.KEEP, Act.STAY):
            self.kept += 1
        else:
            if step.act is Act.CREATE:
                self.created += 1
            else:
                self.replaced += 1
            assert step.change.after is not None
            self.fetched += 0 if step.merged is not None else step.change.after.size


def make_plan(
    changes: Iterable[Change], disk: Disk, may_overwrite: OverwritePolicy, settlement: Settlement = UNSETTLED
) -> Plan:
    """What it takes to make the changes."""
    plan = Plan()
    for change in changes:
        plan.add(decide(change, disk, may_overwrite, settlement))
    plan.conflicts = list(dict.fromkeys(plan.conflicts))
    return plan


def decide(
    change: Change, disk: Disk, may_overwrite: OverwritePolicy, settlement: Settlement = UNSETTLED
) -> Step:
    """Applies the change if the disk is as in the base, or if `may_overwrite` says that what is there may go.

    Otherwise it is a conflict, if it can't be settled.
    """
    path, after = change.path, change.after
    now = disk.entry(path)
    if after is not None and difference(now, after) is not None:
        hidden = disk.hidden_by(path)
        if hidden is not None:  # no scan would see what is written, and the next sync would remove it
            at, reason = hidden
            return Step(Act.CONFLICT, change, at=at, reason=f"{reason}, and is in the way of {_name(path)}")
    step = _apply(change, now, disk, may_overwrite)
    return settle(step, now, disk, settlement) if step.act is Act.CONFLICT else step


def _apply(change: Change, now: Entry | None, disk: Disk, may_overwrite: OverwritePolicy) -> Step:
    path, after = change.path, change.after
    if after is not None and after.kind is not Kind.EMPTY_DIRECTORY and disk.is_folder(path):
        return _over_folder(change, now, disk, may_overwrite)
    if now is None and disk.is_folder(path):
        # A folder with something in it: there is nothing to remove, and no empty folder to make.
        return Step(Act.KEEP, change)
    if difference(now, after) is None:
        return Step(Act.KEEP, change)
    forced = may_overwrite(path)
    if difference(now, change.before) is not None and not forced:
        return Step(Act.CONFLICT, change, at=path, reason=_reason(change, now))
    if after is None:
        return Step(Act.REMOVE, change, disk.row(path))
    step = Step(Act.CREATE if now is None else Act.REPLACE, change, disk.row(path), forced=forced)
    foreign = disk.foreign_above(path)
    if foreign is None:
        return step
    if may_overwrite(foreign):
        return replace(step, forced=True)
    return Step(Act.CONFLICT, change, at=foreign, reason=f"is in the way of {_name(path)}")


def _over_folder(change: Change, now: Entry | None, disk: Disk, may_overwrite: OverwritePolicy) -> Step:
    """Puts a file or symlink in the place of a folder. What the base has in the folder has changes of its own."""
    step = Step(Act.CREATE, change, forced=may_overwrite(change.path))
    if now is not None and difference(now, change.before) is not None and not step.forced:
        return Step(Act.CONFLICT, change, at=change.path, reason=_reason(change, now))
    foreign = disk.foreign_below(change.path)
    if foreign is not None and not step.forced:
        return Step(Act.CONFLICT, change, at=foreign, reason=f"is in the way of {_name(change.path)}")
    return step


def _reason(change: Change, now: Entry | None) -> str:
    here = "removed" if now is None else "added" if change.before is None else "changed"
    if change.before == change.after:
        return f"was {here} here"
    there = "removed" if change.after is None else "added" if change.before is None else "changed"
    return f"was {here} here, and {there} there"


def _name(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
