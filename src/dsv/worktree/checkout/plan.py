"""What it takes to make paths of a workspace what a commit has there, without losing anyone's work. Writes nothing."""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dsv.errors import Conflict
from dsv.fs.descent import Descent, split
from dsv.model.chunking import SINGLE_CHUNK_MAX
from dsv.model.diff import Change, difference
from dsv.model.entry import Entry, Kind
from dsv.model.ids import FileId
from dsv.model.path_set import folders_above
from dsv.worktree.scan.folder import DIRECTORY, IGNORED, KEPT, OWN_SAME, Folder, Relation
from dsv.worktree.scan.problem import Problem
from dsv.worktree.scan.state_updates import NameIndex
from dsv.worktree.scan.workspace_scan import WorkspaceScan, pending_at
from dsv.worktree.status import hash_file


class Act(enum.Enum):
    KEEP = "keep"
    """It is as it should be, or is not for dsv to change."""
    STAY = "stay"
    """It stays as the user has it, though the commit has something else: a local change on top of the commit."""
    CREATE = "create"
    REPLACE = "replace"
    REMOVE = "remove"
    CONFLICT = "conflict"


OverwritePolicy = Callable[[bytes], bool]
"""Whether something that no commit has may be overwritten at a path."""


def _never(_: bytes) -> bool:
    return False


def _always(_: bytes) -> bool:
    return True


NEVER: OverwritePolicy = _never
ALWAYS: OverwritePolicy = _always


MergeFile = Callable[[Change, Entry, bytes], bytes | str]
"""Merges a local file, of which the entry and the content are given, with what a commit makes of its base: the new
content, or why there is none.
"""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to do about paths that were changed both here and there, before they are conflicts.

    may_stay: at which paths what is here stays. merge: how contents are merged; None: not at all. mergeable: of which
    files that is tried.
    """

    may_stay: OverwritePolicy = NEVER
    merge: MergeFile | None = None
    mergeable: Callable[[Change, Entry], bool] = lambda change, now: True


UNSETTLED = Settlement()


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one change.

    row: the stat that a file must still have to be replaced or removed; None if any will do. at, reason: the path of a
    conflict, and what it is. forced: whatever is in the way is removed. merged: what is written instead of what the
    commit has; a local change then.
    """

    act: Act
    change: Change
    row: bytes | None = None
    at: bytes = b""
    reason: str = ""
    forced: bool = False
    merged: tuple[Entry, bytes] | None = None


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


class Disk:
    """What the workspace has at single paths. Answers from the state; reads a file if only its content can tell."""

    def __init__(self, scan: WorkspaceScan, descent: Descent) -> None:
        self._scan = scan
        self._state = scan.state
        self._descent = descent
        self.names = NameIndex(scan.state)
        self._clear_above = b""  # a folder that is reached through folders alone

    def entry(self, path: bytes) -> Entry | None:
        """What a tree would hold for the path; None if it is absent, or nothing that a tree can hold.

        Raises `Conflict` for a file that can't be read.
        """
        folder, at = self._find(path)
        if folder is None or at is None:
            return None
        if folder.kinds[at] == DIRECTORY:
            below = self._state.folder(path)
            return Entry(path, Kind.EMPTY_DIRECTORY) if below is not None and below.is_empty else None
        if folder.kinds[at] not in KEPT:
            return None
        known = folder.known_entry(at, path)
        return known if known is not None else self._read(folder, at, split(path)[1])

    def content(self, entry: Entry) -> bytes | None:
        """What a file holds, if that still is the content of the entry."""
        above, name = split(entry.path)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self._descent.at(above))
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(entry.size + 1)
        return data if FileId.hash(data) == entry.file_id else None

    def row(self, path: bytes) -> bytes | None:
        """The stat of a file or symlink; None if there is none, or none that is remembered."""
        folder, at = self._find(path)
        if folder is None or at is None or folder.kinds[at] not in KEPT:
            return None
        return folder.row(at)

    def is_folder(self, path: bytes) -> bool:
        folder, at = self._find(path)
        return folder is not None and at is not None and _is_folder(folder, at)

    def hidden_by(self, path: bytes) -> tuple[bytes, str] | None:
        """A path, at or above this one, below which no scan sees what is written, and the reason."""
        for way in (path, *folders_above(path)):
            folder, at = self._find(way)
            if folder is not None and at is not None and folder.kinds[at] == IGNORED:
                return way, "is left out by .dsvignore"
            if self._scan.withheld is not None and way in self._scan.withheld:
                return way, "can't be read"
        return None

    def foreign_above(self, path: bytes) -> bytes | None:
        """A path, this one or one above it, that is neither a folder nor something that the base has."""
        way = path
        while True:
            folder, at = self._find(way)
            if folder is not None and at is not None and not _is_folder(folder, at):
                of_base = folder.kinds[at] in KEPT and folder.relation(at) is not Relation.ABSENT
                if not of_base and (way != path or folder.kinds[at] not in KEPT):
                    return way
            way = split(way)[0]
            if not way or way == self._clear_above:
                self._clear_above = split(path)[0]
                return None

    def foreign_below(self, path: bytes) -> bytes | None:
        """The first thing in a folder that the base does not have."""
        inside = path + b"/"
        for each in sorted(self._state.paths()):
            if each != path and not each.startswith(inside):
                continue
            folder = self._state.folder(each)
            assert folder is not None
            if each != path and folder.is_empty and folder.own != OWN_SAME and each not in self._state.gone:
                return each
            names = folder.name_list()
            unseen = self._names_on_disk(each).difference(names)
            if unseen:  # such as dsv's and git's own files, which no scan looks at
                return folder.path_of(min(unseen))
            for at, name in enumerate(names):
                kind = folder.kinds[at]
                if kind != DIRECTORY and (kind not in KEPT or folder.relation(at) is Relation.ABSENT):
                    return folder.path_of(name)
        return None

    def _names_on_disk(self, path: bytes) -> set[bytes]:
        try:
            with os.scandir(self._descent.at(path)) as found:
                return {os.fsencode(each.name) for each in found}
        except OSError:  # it is gone; the writer looks again
            return set()

    def relate(self, path: bytes, base: Entry | None) -> None:
        """Sets how a file or symlink stands to the base, which has `base` there."""
        folder, at = self._find(path)
        if folder is not None and at is not None:
            self._scan.relate(pending_at(folder, at, split(path)[1]), base)

    def _find(self, path: bytes) -> tuple[Folder | None, int | None]:
        parent, name = split(path)
        at = self.names.find(parent, name)
        return (None, None) if at is None else (self._state.edit(parent), at)

    def _read(self, folder: Folder, at: int, name: bytes) -> Entry | None:
        item = pending_at(folder, at, name)
        problem = hash_file(self._scan, item, self._descent)
        if isinstance(problem, Problem):
            raise Conflict(
                f"{problem}", subject=item.path.decode("utf-8", "backslashreplace"), hint="dsv status"
            )
        return item.known


def _is_folder(folder: Folder, at: int) -> bool:
    if folder.kinds[at] == IGNORED:
        mode = int.from_bytes(folder.row(at)[-4:], "little")
        return stat.S_ISDIR(mode)
    return folder.kinds[at] == DIRECTORY


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
    return _settle(step, now, disk, settlement) if step.act is Act.CONFLICT else step


def _settle(step: Step, now: Entry | None, disk: Disk, settlement: Settlement) -> Step:
    change = step.change
    before, after = change.before, change.after
    if any(one is not None and one.kind is Kind.EMPTY_DIRECTORY for one in (before, after)):
        return step
    if settlement.may_stay(change.path) or settlement.may_stay(step.at):
        return Step(Act.STAY, change)
    if settlement.merge is None or now is None or before is None or after is None or step.at != change.path:
        return step
    if not (now.is_file and before.is_file and after.is_file) or not settlement.mergeable(change, now):
        return step
    mine = disk.content(now)
    if mine is None:
        return step
    merged = settlement.merge(change, now, mine)
    if isinstance(merged, str):
        return replace(step, reason=f"{step.reason} ({merged})" if merged else step.reason)
    if len(merged) > SINGLE_CHUNK_MAX:
        return replace(step, reason=f"{step.reason} (merged, it would be too large to be put together here)")
    kind = now.kind if now.kind != before.kind else after.kind
    entry = Entry(change.path, kind, len(merged), FileId.hash(merged))
    return Step(Act.REPLACE, change, disk.row(change.path), merged=(entry, merged))


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
