"""What it takes to make paths of a workspace what a commit has there, without losing anyone's work. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from dsv.merge.paths import ConflictKind, PathConflict, Settled
from dsv.model.diff import Change, difference
from dsv.model.entry import Entry, Kind
from dsv.worktree.checkout.disk import Disk
from dsv.worktree.checkout.settle import UNSETTLED, OverwritePolicy, Settlement, merge_file, settle
from dsv.worktree.checkout.step import Act, Step


class Plan(msgspec.Struct):
    """The sum of the steps, and every conflict, with what it is in words.

    fetched: bytes of contents to fetch. absent: changes to nothing. settled: paths of conflicts for which the user
    chose a side. here: files that are new to the base, and are here with the same content already. merged: what is put
    together from both sides.
    """

    created: int = 0
    replaced: int = 0
    removed: int = 0
    kept: int = 0
    fetched: int = 0
    absent: int = 0
    conflicts: list[tuple[PathConflict, str]] = msgspec.field(default_factory=list)
    settled: list[bytes] = msgspec.field(default_factory=list)
    here: list[Change] = msgspec.field(default_factory=list)
    merged: list[Settled] = msgspec.field(default_factory=list)

    @property
    def writes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.created or self.replaced or self.removed)

    def add(self, step: Step) -> None:
        self.absent += step.change.after is None
        if step.settled is not None:
            self.settled.append(step.settled)
        if step.merged is not None:
            self.merged.append(step.merged)
        if step.beside is not None:
            self.created += 1
            self.fetched += step.beside[0].size
        if step.act is Act.CONFLICT:
            assert step.conflict is not None
            self.conflicts.append((step.conflict, step.reason))
        elif step.act is Act.REMOVE:
            self.removed += 1
        elif step.act in (Act.KEEP, Act.STAY):
            self.kept += 1
            if step.act is Act.KEEP and _brings_content(step.change):
                self.here.append(step.change)
        else:
            if step.act is Act.CREATE:
                self.created += 1
            else:
                self.replaced += 1
            assert step.entry is not None
            if step.act is not Act.CHMOD and step.content is None:
                self.fetched += step.entry.size


def _brings_content(change: Change) -> bool:
    before, after = change.before, change.after
    if after is None or not after.is_file or not after.size:
        return False
    return before is None or before.file_id != after.file_id


def make_plan(
    changes: Iterable[Change], disk: Disk, may_overwrite: OverwritePolicy, settlement: Settlement = UNSETTLED
) -> Plan:
    """What it takes to make the changes, which are in tree order."""
    plan = Plan()
    for step in _steps(changes, disk, may_overwrite, settlement):
        plan.add(step)
    plan.conflicts = list(dict.fromkeys(plan.conflicts))
    return plan


def _steps(
    changes: Iterable[Change], disk: Disk, may_overwrite: OverwritePolicy, settlement: Settlement
) -> Iterator[Step]:
    """A file that stays here is in the way of what the commit has below it, and of a file in its folder's place.

    What is written later need not look for that: by then the base has no such file.
    """
    over: Change | None = None  # puts a file where a folder is, and waits for what becomes of that
    kept: bytes | None = None  # the last file that stays, and that the commit does not have
    for change in changes:
        if over is not None and not change.path.startswith(over.path + b"/"):
            yield _unless_kept(over, kept, disk, may_overwrite, settlement)
            over = None
        if (
            change.after is not None
            and change.after.kind is not Kind.EMPTY_DIRECTORY
            and disk.is_folder(change.path)
        ):
            over = change
            continue
        if kept is not None and change.after is not None and change.path.startswith(kept + b"/"):
            yield _unless_kept(change, kept, disk, may_overwrite, settlement)
            continue
        step = decide(change, disk, may_overwrite, settlement)
        if step.act is Act.STAY and change.after is None:
            kept = change.path
        yield step
    if over is not None:
        yield _unless_kept(over, kept, disk, may_overwrite, settlement)


def _unless_kept(
    change: Change, kept: bytes | None, disk: Disk, may_overwrite: OverwritePolicy, settlement: Settlement
) -> Step:
    """What becomes of the change, unless the file that is kept lies above or below its path."""
    step = decide(change, disk, may_overwrite, settlement)
    if kept is None or step.act in (Act.CONFLICT, Act.STAY):
        return step
    if not (kept.startswith(change.path + b"/") or change.path.startswith(kept + b"/")):
        return step
    return settle(_in_the_way(change, kept, disk), None, disk, settlement)


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
            conflict = PathConflict(at, ConflictKind.IN_THE_WAY, disk.entry(at), after)
            return _conflict(change, conflict, f"{reason}, and is in the way of {_name(path)}")
    step = _apply(change, now, disk, may_overwrite)
    if step.act is Act.CONFLICT:
        return settle(step, now, disk, settlement)
    if (
        step.settled == path and now is not None and settlement.merge is not None
    ):  # theirs, where both changed it
        merged = merge_file(_both_changed(change, now), now, disk, settlement)
        return step if merged.act is Act.CONFLICT else merged
    return step


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
    changed = difference(now, change.before) is not None
    if changed and not forced:
        return _both_changed(change, now)
    settled = path if changed else None
    if after is None:
        return Step(Act.REMOVE, change, disk.row(path), settled=settled)
    act = Act.CREATE if now is None else Act.REPLACE
    step = Step(act, change, disk.row(path), forced=forced, settled=settled)
    foreign = disk.foreign_above(path)
    if foreign is None:
        return step
    if may_overwrite(foreign):
        return replace(step, forced=True, settled=path)
    return _in_the_way(change, foreign, disk)


def _over_folder(change: Change, now: Entry | None, disk: Disk, may_overwrite: OverwritePolicy) -> Step:
    """Puts a file or symlink in the place of a folder. What the base has in the folder has changes of its own."""
    step = Step(Act.CREATE, change, forced=may_overwrite(change.path))
    if now is not None and difference(now, change.before) is not None:
        return replace(step, settled=change.path) if step.forced else _both_changed(change, now)
    foreign = disk.foreign_below(change.path)
    if foreign is None:
        return step
    return replace(step, settled=foreign) if step.forced else _in_the_way(change, foreign, disk)


def _both_changed(change: Change, now: Entry | None) -> Step:
    return _conflict(
        change, PathConflict(change.path, _kind(change, now), now, change.after), _reason(change, now)
    )


def _in_the_way(change: Change, foreign: bytes, disk: Disk) -> Step:
    """A file is where a folder has to be, or the other way round."""
    conflict = PathConflict(foreign, ConflictKind.FILE_AND_FOLDER, disk.entry(foreign), None)
    return _conflict(change, conflict, f"is in the way of {_name(change.path)}")


def _conflict(change: Change, conflict: PathConflict, reason: str) -> Step:
    return Step(Act.CONFLICT, change, conflict=conflict, reason=reason)


def _kind(change: Change, now: Entry | None) -> ConflictKind:
    if now is None:
        return ConflictKind.OURS_REMOVED
    if change.after is None:
        return ConflictKind.THEIRS_REMOVED
    return ConflictKind.BOTH_ADDED if change.before is None else ConflictKind.BOTH_CHANGED


def _reason(change: Change, now: Entry | None) -> str:
    here = "removed" if now is None else "added" if change.before is None else "changed"
    if change.before == change.after:
        return f"was {here} here"
    there = "removed" if change.after is None else "added" if change.before is None else "changed"
    return f"was {here} here, and {there} there"


def _name(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
