"""The plan of a checkout: what is done about each path, without losing anyone's changes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from dsv.format.tree import Entry, Kind
from dsv.merge.paths import Choice, ConflictKind, MergedContent, PathConflict, Settled, beside
from dsv.repo.tree.diff import Change, Located, difference
from dsv.values.ids import FileId
from dsv.values.paths import show
from dsv.workspace.checkout.disk import Disk


class Act(enum.Enum):
    KEEP = "keep"
    """It is as it should be, or is not for dsv to change."""
    STAY = "stay"
    """It stays as the user has it, though the commit has something else: a local change on top of the commit."""
    CREATE = "create"
    REPLACE = "replace"
    CHMOD = "chmod"
    """The file stays, and may be executed from now on, or no longer."""
    REMOVE = "remove"
    CONFLICT = "conflict"


class Step(msgspec.Struct, frozen=True):
    """What to do about one change.

    row: the stat that a file must still have to be replaced or removed; None if any will do. conflict, reason: what is
    in conflict, and why in words. forced: whatever is in the way is removed. settled: the path of a conflict for which
    the user chose a side. made: what is written if that is not what the commit has there, so that it is a local change;
    content: its bytes if the commit does not have them either. beside: what the commit has there, which is written
    under another name, as a local change too. merged: what was put together from both sides, for the report.
    """

    act: Act
    change: Change
    row: bytes | None = None
    conflict: PathConflict | None = None
    reason: str = ""
    forced: bool = False
    settled: bytes | None = None
    made: Entry | None = None
    content: bytes | None = None
    beside: Located | None = None
    merged: Settled | None = None

    @property
    def entry(self) -> Entry | None:
        """What is at the path when the step is done, if it writes something."""
        return self.change.after if self.made is None else self.made


OverwritePolicy = Callable[[bytes], bool]
"""Whether something that no commit has may be overwritten at a path."""


def _never(_: bytes) -> bool:
    return False


def _always(_: bytes) -> bool:
    return True


NEVER: OverwritePolicy = _never
ALWAYS: OverwritePolicy = _always


MergeFile = Callable[[Change, Entry, bytes], MergedContent | str]
"""Merges a local file, of which the entry and the content are given, with what a commit makes of its base: the new
content, or why there is none.
"""


class Settlement(msgspec.Struct, frozen=True):
    """What to do about paths that were changed both here and there, before they are conflicts.

    may_stay: at which paths what is here stays, if it can't be merged. keep_both: at which what is there is kept beside
    it then. taken: whether the commit has something at or below a path, so that nothing else may be kept there. merge:
    how contents are merged; None: not at all, and neither are modes. mergeable: the files for which that is tried.
    resolved: the content that the user has for a path; None: no such.
    """

    may_stay: OverwritePolicy = NEVER
    keep_both: OverwritePolicy = NEVER
    choice: Callable[[bytes], Choice | None] = lambda path: None
    taken: Callable[[bytes], bool] = NEVER
    merge: MergeFile | None = None
    mergeable: Callable[[Change, Entry], bool] = lambda change, now: True
    resolved: Callable[[bytes], bytes | None] = lambda path: None


UNSETTLED = Settlement()


def settle(step: Step, now: Entry | None, disk: Disk, settlement: Settlement) -> Step:
    """What is done about a conflict; the step itself if it stays one."""
    change, conflict = step.change, step.conflict
    assert conflict is not None
    if any(one is not None and one.kind is Kind.EMPTY_DIRECTORY for one in (change.before, change.after)):
        return step
    if conflict.path == change.path and (content := settlement.resolved(change.path)) is not None:
        return _resolve(step, now, disk, content)
    if settlement.merge is not None and now is not None and conflict.path == change.path:
        step = merge_file(step, now, disk, settlement)
    if step.act is not Act.CONFLICT:
        return step
    if settlement.may_stay(change.path) or settlement.may_stay(conflict.path):
        return Step(Act.STAY, change, settled=max(change.path, conflict.path, key=len))
    if settlement.keep_both(change.path) or settlement.keep_both(conflict.path):
        return _keep_both(step, disk, settlement)
    return step


def _resolve(step: Step, now: Entry | None, disk: Disk, content: bytes) -> Step:
    change = step.change
    if now is None or not now.is_file or change.after is None or not change.after.is_file:
        return _because(step, "a resolved file is for a file on both sides; write it here, and use --ours")
    made = Entry(change.path, now.kind, len(content), FileId.hash(content))
    merged = Settled(change.path, Choice.RESOLVED)
    return Step(
        Act.REPLACE, change, disk.row(change.path),
        made=made, content=content, settled=change.path, merged=merged,
    )  # fmt: skip


def merge_file(step: Step, now: Entry, disk: Disk, settlement: Settlement) -> Step:
    """Merges the content and the mode of a file, each apart from the other; the step itself if that can't be done."""
    change = step.change
    before, after = change.before, change.after
    if before is None or after is None or not (now.is_file and before.is_file and after.is_file):
        return step
    row = disk.row(change.path)
    kind = now.kind if now.kind != before.kind else after.kind
    if _content(after) in (_content(now), _content(before)):
        if kind is now.kind:
            return Step(Act.STAY, change)
        return Step(Act.CHMOD, change, row, made=now._replace(kind=kind))
    if _content(now) == _content(before):
        return Step(Act.REPLACE, change, row, made=after._replace(kind=kind))
    mine = disk.content(now) if settlement.mergeable(change, now) else None
    if mine is None or settlement.merge is None:
        return step
    merged = settlement.merge(change, now, mine)
    if isinstance(merged, str):
        return _because(step, merged)
    made = Entry(change.path, kind, len(merged.data), FileId.hash(merged.data))
    done = Step(
        Act.REPLACE, change, row, made=made, content=merged.data, merged=Settled(change.path, None, merged)
    )
    if not merged.settled.count:
        return done
    if settlement.keep_both(change.path):
        kept = _keep_both(step, disk, settlement)
        if kept.act is Act.CONFLICT:
            return kept
        done = replace(done, beside=kept.beside)
    choice = settlement.choice(change.path)
    return replace(done, settled=change.path, merged=Settled(change.path, choice, merged))


def _keep_both(step: Step, disk: Disk, settlement: Settlement) -> Step:
    """Keeps what is here, and what the commit has beside it."""
    change, conflict = step.change, step.conflict
    assert conflict is not None
    if conflict.path != change.path or disk.is_folder(change.path):
        return _because(step, "a file and a folder can't be kept both")
    if change.after is None:
        return Step(Act.STAY, change, settled=change.path)
    name = beside(change.path)
    if name is None:
        return _because(step, "its name with .theirs in it would be too long")
    kept = change.after._replace(path=name)
    there = disk.entry(name)
    if difference(there, kept) is None:  # a pull that was killed has kept it
        return Step(Act.STAY, change, settled=change.path)
    if there is not None or disk.is_folder(name) or settlement.taken(name) or disk.foreign_above(name):
        taken = replace(conflict, kind=ConflictKind.IN_THE_WAY)
        return _because(replace(step, conflict=taken), f"there is {show(name)} already")
    hidden = disk.hidden_by(name)
    if hidden is not None:
        return _because(step, f"{show(name)} {hidden[1]}")
    return Step(Act.STAY, change, settled=change.path, beside=(kept, change.location))


def _because(step: Step, reason: str) -> Step:
    """The same conflict, with the reason why it could not be settled."""
    assert step.conflict is not None
    if not reason:
        return step
    return replace(step, conflict=replace(step.conflict, reason=reason), reason=f"{step.reason} ({reason})")


def _content(entry: Entry) -> tuple[object, ...]:
    return entry.size, entry.file_id


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
