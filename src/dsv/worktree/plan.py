"""What it takes to make paths of a workspace what a commit has there, without losing anybody's work. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from dsv.model.diff import Change
from dsv.model.entry import Entry, Kind
from dsv.worktree.status import difference


class Act(enum.Enum):
    KEEP = "keep"
    """It is as it is to be, or not for dsv to change."""
    CREATE = "create"
    REPLACE = "replace"
    REMOVE = "remove"
    CONFLICT = "conflict"


class Disk(Protocol):
    """What the workspace has."""

    def entry(self, path: bytes) -> Entry | None:
        """What a tree would hold for the path; None if it is absent, or nothing that a tree holds."""
        ...

    def row(self, path: bytes) -> bytes | None:
        """The stat of a file or symlink; None if there is none, or none that is remembered."""
        ...

    def is_folder(self, path: bytes) -> bool: ...

    def closed(self, path: bytes) -> tuple[bytes, str] | None:
        """Something at or above the path that keeps all that is written there out of sight, and what it is."""
        ...

    def stranger(self, path: bytes) -> bytes | None:
        """Something at or above the path that is neither a folder nor anything that the base has, if there is one."""
        ...

    def stranger_below(self, path: bytes) -> bytes | None:
        """The first thing in a folder that the base does not have."""
        ...


OverwritePolicy = Callable[[bytes], bool]
"""Whether something that no commit has may be overwritten at a path."""


def _never(_: bytes) -> bool:
    return False


def _always(_: bytes) -> bool:
    return True


NEVER: OverwritePolicy = _never
ALWAYS: OverwritePolicy = _always


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one change. row: the stat that what is replaced or removed must still have, if it has
    one.

    at, reason: where a conflict is, and what it is. forced: whatever is in the way goes.
    """

    act: Act
    change: Change
    row: bytes | None = None
    at: bytes = b""
    reason: str = ""
    forced: bool = False


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
        elif step.act is Act.KEEP:
            self.kept += 1
        else:
            if step.act is Act.CREATE:
                self.created += 1
            else:
                self.replaced += 1
            assert step.change.after is not None
            self.fetched += step.change.after.size


def make_plan(changes: Iterable[Change], disk: Disk, may_overwrite: OverwritePolicy) -> Plan:
    """What it takes to make the changes."""
    plan = Plan()
    for change in changes:
        plan.add(decide(change, disk, may_overwrite))
    plan.conflicts = list(dict.fromkeys(plan.conflicts))
    return plan


def decide(change: Change, disk: Disk, may_overwrite: OverwritePolicy) -> Step:
    """Applies the change if the disk is as in the base, or if `may_overwrite` says that what is there may go."""
    path, after = change.path, change.after
    now = disk.entry(path)
    if after is not None and difference(now, after) is not None:
        closed = disk.closed(path)
        if (
            closed is not None
        ):  # whatever was written would count as removed, and the next sync would remove it
            at, reason = closed
            return Step(Act.CONFLICT, change, at=at, reason=f"{reason}, and is in the way of {_name(path)}")
    if after is not None and after.kind is not Kind.EMPTY_DIRECTORY and disk.is_folder(path):
        return _over_folder(change, now, disk, may_overwrite)
    if now is None and disk.is_folder(path):
        return Step(
            Act.KEEP, change
        )  # a folder with something in it: nothing to remove, no empty folder to make
    if difference(now, after) is None:
        return Step(Act.KEEP, change)
    forced = may_overwrite(path)
    if difference(now, change.before) is not None and not forced:
        return Step(Act.CONFLICT, change, at=path, reason=_reason(change, now))
    if after is None:
        return Step(Act.REMOVE, change, disk.row(path))
    step = Step(Act.CREATE if now is None else Act.REPLACE, change, disk.row(path), forced=forced)
    stranger = disk.stranger(path)
    if stranger is None:
        return step
    if may_overwrite(stranger):
        return replace(step, forced=True)
    return Step(Act.CONFLICT, change, at=stranger, reason=f"is in the way of {_name(path)}")


def _over_folder(change: Change, now: Entry | None, disk: Disk, may_overwrite: OverwritePolicy) -> Step:
    """Puts a file or symlink in the place of a folder; what the base has in the folder has changes of its own."""
    step = Step(Act.CREATE, change, forced=may_overwrite(change.path))
    if now is not None and difference(now, change.before) is not None and not step.forced:
        return Step(Act.CONFLICT, change, at=change.path, reason=_reason(change, now))
    stranger = disk.stranger_below(change.path)
    if stranger is not None and not step.forced:
        return Step(Act.CONFLICT, change, at=stranger, reason=f"is in the way of {_name(change.path)}")
    return step


def _reason(change: Change, now: Entry | None) -> str:
    here = (
        "was removed here"
        if now is None
        else "was added here"
        if change.before is None
        else "was changed here"
    )
    if change.before == change.after:
        return here
    there = "removed" if change.after is None else "added" if change.before is None else "changed"
    return f"{here}, and {there} there"


def _name(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
