"""The plan of a checkout: what to do about each path, without losing anyone's changes."""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec.structs import replace

from dsv.errors import Conflict
from dsv.files.descent import Descent, split
from dsv.files.errors import about
from dsv.format.tree import Entry, Kind
from dsv.merge.paths import (
    Choices,
    ConflictChoice,
    ConflictKind,
    Decision,
    PathConflict,
    Resolution,
    conflict_kind,
    merge_path,
)
from dsv.repo.tree.diff import Located, PathChange, difference
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.stable_read import OPEN_FLAGS, Problem
from dsv.values.ids import CommitId, FileId
from dsv.values.names import BranchName
from dsv.values.paths import folders_above, show
from dsv.workspace.scan.folder import DIRECTORY, IGNORED, KEPT, OWN_SAME, Folder, Relation
from dsv.workspace.scan.result import Pending, WorkspaceScan, hash_file, pending_at
from dsv.workspace.scan.state import NameIndex, relate

if TYPE_CHECKING:
    from dsv.merge.apply import ContentMerger

Changes = Callable[[], Iterable[PathChange]]
"""Returns the same changes at each call, in tree order with each path once."""
OverwritePolicy = Callable[[bytes], bool]
"""Return whether a file at a path that is in no commit may be overwritten."""


class Goal(msgspec.Struct, frozen=True):
    """The state to which a command brings a workspace."""

    command: str
    commit: CommitId
    changes: Changes = lambda: ()
    hint: str = ""
    """Advice about conflicts."""
    paths: tuple[bytes, ...] = ()
    """The paths that it concerns; none for the whole workspace, whose base becomes `commit`."""
    may_overwrite: OverwritePolicy = lambda path: False
    choices: Choices = Choices()
    """For paths that changed both here and there. At `ours`, the file here stays if it can't be merged; at
    `both`, the other one is kept beside it."""
    merger: ContentMerger | None = None
    """None: neither contents nor modes are merged."""
    after: TreeReader | None = None
    """The commit's tree: a file is only kept beside another at a path that is free in it."""
    there: str = ""
    """The other side of conflicts, for their message."""
    ready: Callable[[], object] = lambda: None
    """Called when there is no conflict and nothing is written yet; if it raises, nothing is written."""
    branch: BranchName | None = None
    """The branch to follow, set before the first file is written; None: the same as before."""
    files_of: CommitId | None = None
    """A commit with the same files, if `commit` was made just now."""
    dry_run: bool = False
    is_erased: Callable[[Entry], bool] = lambda entry: False
    """Return whether a workspace may lack this file without a local change."""

    @property
    def follow(self) -> CommitId | None:
        """The commit that is the base once the changes are made; None if the base stays."""
        return None if self.paths else self.commit

    def base_of(self, change: PathChange) -> Entry | None:
        """Return the base's entry once the change is made."""
        return change.before if self.follow is None else change.after


class Act(enum.Enum):
    KEEP = "keep"
    """It is as it should be, or is not for dsv to change."""
    STAY = "stay"
    """The user's version stays: a local change on top of the commit."""
    CREATE = "create"
    REPLACE = "replace"
    CHMOD = "chmod"
    """The content stays, and the file becomes executable, or is so no longer."""
    REMOVE = "remove"
    CONFLICT = "conflict"


class Step(msgspec.Struct, frozen=True):
    """The action for one change."""

    act: Act
    change: PathChange
    row: bytes | None = None
    """The stat that a file must still have to be replaced or removed; None if any will do."""
    conflict: PathConflict | None = None
    reason: str = ""
    """The conflict in words."""
    forced: bool = False
    """Whatever is in the way is removed."""
    resolved: bytes | None = None
    """The path of a conflict for which the user chose a side."""
    made: Entry | None = None
    """The entry to write if the commit has another one: a local change."""
    content: bytes | None = None
    """The content of `made`, if the commit does not have it either."""
    beside: Located | None = None
    """The commit's entry, to be written under another name as a local change."""
    merged: Resolution | None = None
    """The content that combines both sides, for the report."""

    @property
    def entry(self) -> Entry | None:
        """The entry at the path when the step is done, if it writes one."""
        return self.change.after if self.made is None else self.made


class PathCounts(msgspec.Struct, kw_only=True):
    """Paths of a workspace that a command has written."""

    created: int = 0
    replaced: int = 0
    removed: int = 0
    cached_files: int = 0
    """Files from caches on this machine, and not from the store."""
    cached_bytes: int = 0

    @property
    def writes(self) -> bool:
        return bool(self.created or self.replaced or self.removed)

    def counting(self, made: CheckoutResult) -> Self:
        """Return the same with the counts of a checkout."""
        return replace(self, **{name: getattr(made, name) for name in PathCounts.__struct_fields__})


class CheckoutResult(PathCounts):
    left: list[bytes] = msgspec.field(default_factory=list)
    """Paths that changed during the checkout, and were left as they are."""
    resolved: list[bytes] = msgspec.field(default_factory=list)
    """Paths of conflicts for which the user chose a side."""
    merged: list[Resolution] = msgspec.field(default_factory=list)
    """Contents that combine both sides."""


class CheckoutPlan(CheckoutResult):
    """The sum of the steps: the result if no path changes before it is written."""

    fetched: int = 0
    """Bytes of contents to fetch."""
    absent: int = 0
    """Changes that remove a path."""
    conflicts: list[tuple[PathConflict, str]] = msgspec.field(default_factory=list)
    """Each with its description."""
    here: list[PathChange] = msgspec.field(default_factory=list)
    """Files whose content the base does not have there, and which are here already."""

    def add(self, step: Step) -> None:
        self.absent += step.change.after is None
        if step.resolved is not None:
            self.resolved.append(step.resolved)
        if step.merged is not None:
            self.merged.append(step.merged)
        if step.beside is not None:
            self.created += 1
            self.fetched += step.beside[0].size
        if step.conflict is not None:
            self.conflicts.append((step.conflict, step.reason))
        elif step.act is Act.REMOVE:
            self.removed += 1
        elif step.act is Act.KEEP:
            before, after = step.change.before, step.change.after
            is_file = after is not None and after.is_file and after.size
            if is_file and after is not None and (before is None or before.file_id != after.file_id):
                self.here.append(step.change)
        elif step.act is not Act.STAY:
            if step.act is Act.CREATE:
                self.created += 1
            else:
                self.replaced += 1
            assert step.entry is not None
            if step.act is not Act.CHMOD and step.content is None:
                self.fetched += step.entry.size


class CheckoutPlanner:
    """Decides what to do about each change of a goal, by the files of the workspace."""

    def __init__(self, goal: Goal, disk: WorkspaceFiles) -> None:
        self._goal = goal
        self._disk = disk

    def plan(self) -> CheckoutPlan:
        plan = CheckoutPlan()
        for step in self._steps():
            plan.add(step)
        plan.conflicts = list(dict.fromkeys(plan.conflicts))
        return plan

    def _steps(self) -> Iterator[Step]:
        """Decide about all changes. A file that stays conflicts with what the commit has below it, and with a
        file in place of its folder, which then has a second step. The writer need not check that: by then the
        base has no such file."""
        over: PathChange | None = None  # the last one that puts a file where a folder is
        kept: bytes | None = None  # the last file that stays, and that the commit does not have
        for change in self._goal.changes():
            step = self.decide(change)
            is_open = step.act not in (Act.CONFLICT, Act.STAY)
            if is_open and self._replaces_folder(change):
                over = change
            elif step.act is Act.STAY and change.after is None:
                kept = change.path
                if over is not None and kept.startswith(over.path + b"/"):
                    yield self._settle(self._in_the_way(over, kept), None)
            if is_open and change.after is not None and kept and change.path.startswith(kept + b"/"):
                step = self._settle(self._in_the_way(change, kept), None)
            yield step

    def decide(self, change: PathChange) -> Step:
        """Apply the change if the disk is as in the base, or may be overwritten. Otherwise settle it, or
        return a conflict."""
        path, after = change.path, change.after
        now = self._disk.entry(path)
        if after is not None and difference(now, after) is not None:
            named = bool(self._goal.paths) or change.before is not None
            hidden = self._disk.hidden_by(path, absent_too=named)
            if hidden is not None:  # no scan would see what is written, and the next sync would remove it
                at, reason = hidden
                conflict = PathConflict(at, ConflictKind.IN_THE_WAY, self._disk.entry(at), after)
                return _conflict(change, conflict, f"{reason}, and is in the way of {_name(path)}")
        step = self._apply(change, now)
        if step.act is Act.CONFLICT:
            return self._settle(step, now)
        if step.resolved == path and now is not None and self._goal.merger is not None:
            return self._settle(step, now)  # theirs, where both changed it
        return step

    def _apply(self, change: PathChange, now: Entry | None) -> Step:
        path, after, may_overwrite = change.path, change.after, self._goal.may_overwrite
        if self._replaces_folder(change):
            return self._over_folder(change, now)
        if now is None and self._disk.is_folder(path):
            # A folder with content: nothing is removed, and no empty folder is made.
            return Step(Act.KEEP, change)
        if difference(now, after) is None:
            return Step(Act.KEEP, change)
        forced = may_overwrite(path)
        lacking = now is None and change.before is not None and self._goal.is_erased(change.before)
        changed = not lacking and difference(now, change.before) is not None
        if changed and not forced:
            return _both_changed(change, now)
        resolved = path if changed else None
        if after is None:
            return Step(Act.REMOVE, change, self._disk.row(path), resolved=resolved)
        act = Act.CREATE if now is None else Act.REPLACE
        step = Step(act, change, self._disk.row(path), forced=forced, resolved=resolved)
        foreign = self._disk.foreign_above(path)
        if foreign is None:
            return step
        if may_overwrite(foreign):
            return replace(step, forced=True, resolved=path)
        return self._in_the_way(change, foreign)

    def _replaces_folder(self, change: PathChange) -> bool:
        after = change.after
        is_file = after is not None and after.kind is not Kind.EMPTY_DIRECTORY
        return is_file and self._disk.is_folder(change.path)

    def _over_folder(self, change: PathChange, now: Entry | None) -> Step:
        """Put a file or symlink in place of a folder. Paths of the base in it have changes of their own."""
        step = Step(Act.CREATE, change, forced=self._goal.may_overwrite(change.path))
        if now is not None and difference(now, change.before) is not None:
            return replace(step, resolved=change.path) if step.forced else _both_changed(change, now)
        foreign = self._disk.foreign_below(change.path)
        if foreign is None:
            return step
        return replace(step, resolved=foreign) if step.forced else self._in_the_way(change, foreign)

    def _in_the_way(self, change: PathChange, foreign: bytes) -> Step:
        """Return the conflict of a file where a folder must be, or the reverse."""
        conflict = PathConflict(foreign, ConflictKind.FILE_AND_FOLDER, self._disk.entry(foreign), None)
        return _conflict(change, conflict, f"is in the way of {_name(change.path)}")

    def _settle(self, step: Step, now: Entry | None) -> Step:
        """Settle a conflict; return the same step if it stays, or theirs was chosen and can't be merged."""
        change, conflict, choices = step.change, step.conflict, self._goal.choices
        if any(one is not None and one.kind is Kind.EMPTY_DIRECTORY for one in (change.before, change.after)):
            return step
        if conflict is not None and conflict.path != change.path:
            choice = choices.of(change.path) or choices.of(conflict.path)
            if choice is ConflictChoice.BOTH:
                return _because(step, "a file and a folder can't both be kept")
            resolved = max(change.path, conflict.path, key=len)
            return Step(Act.STAY, change, resolved=resolved) if choice is ConflictChoice.OURS else step
        merger, content = self._goal.merger, None
        is_erased = change.before is not None and self._goal.is_erased(change.before)
        if merger is not None and now is not None and not is_erased:
            content = partial(merger, read_ours=lambda: self._disk.content(now))
        decision = merge_path(PathChange(change.path, change.before, now), change, content, choices)
        if decision.conflict is not None:
            return _because(step, decision.conflict.reason)
        return self._decided(step, now, decision)

    def _decided(self, step: Step, now: Entry | None, decision: Decision) -> Step:
        """Return the step for a decision about a path; the same step if theirs is taken, or can't be."""
        change, made, content, resolved = step.change, decision.result, decision.content, decision.resolved
        choice = None if resolved is None else resolved.choice
        is_merged = resolved is None or resolved.content is not None or choice is ConflictChoice.RESOLVED
        if choice is ConflictChoice.THEIRS and not is_merged:
            return step
        if choice is ConflictChoice.BOTH and self._disk.is_folder(change.path):
            return _because(step, "a file and a folder can't both be kept")
        if decision.file is not None:
            if now is None or not now.is_file or change.after is None or not change.after.is_file:
                reason = "a resolved file is for a file on both sides; write it here, and use --ours"
                return _because(step, reason)
            with about(decision.file):
                content = Path(decision.file).read_bytes()
            made = Entry(change.path, now.kind, len(content), FileId.hash(content))
        beside = decision.beside
        if beside is not None and difference(self._disk.entry(beside[0].path), beside[0]) is None:
            beside = None  # a killed pull has written it
        if beside is not None and (reason := self._taken(beside[0].path)):
            assert step.conflict is not None
            taken = replace(step.conflict, kind=ConflictKind.IN_THE_WAY)
            return _because(replace(step, conflict=taken), reason)
        act = Act.REPLACE
        if made is None or now is None or made == now:
            act = Act.STAY
        elif made.file_id == now.file_id:
            act = Act.STAY if made.kind is now.kind else Act.CHMOD
        return Step(
            act, change, self._disk.row(change.path), made=made, content=content, beside=beside,
            resolved=None if choice is None else change.path, merged=resolved if is_merged else None,
        )  # fmt: skip

    def _taken(self, name: bytes) -> str:
        """Return why no file can be kept by this name; an empty reason if one can."""
        disk, after = self._disk, self._goal.after
        is_there = after is not None and next(iter(after.below(name)), None) is not None
        if disk.entry(name) is not None or disk.is_folder(name) or is_there or disk.foreign_above(name):
            return f"there is {show(name)} already"
        hidden = disk.hidden_by(name)
        return "" if hidden is None else f"{show(name)} {hidden[1]}"


def _because(step: Step, reason: str) -> Step:
    """Return the step with a reason why it stays a conflict."""
    if step.conflict is None or not reason:
        return step
    return replace(step, conflict=replace(step.conflict, reason=reason), reason=f"{step.reason} ({reason})")


def _both_changed(change: PathChange, now: Entry | None) -> Step:
    kind = conflict_kind(change.before, now, change.after)
    return _conflict(change, PathConflict(change.path, kind, now, change.after), _reason(change, now))


def _conflict(change: PathChange, conflict: PathConflict, reason: str) -> Step:
    return Step(Act.CONFLICT, change, conflict=conflict, reason=reason)


def _reason(change: PathChange, now: Entry | None) -> str:
    here = "removed" if now is None else "added" if change.before is None else "changed"
    if change.before == change.after:
        return f"was {here} here"
    there = "removed" if change.after is None else "added" if change.before is None else "changed"
    return f"was {here} here, and {there} there"


def _name(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


class WorkspaceFiles:
    """The files of the workspace at single paths. Reads a file only if the state is not enough."""

    def __init__(self, scan: WorkspaceScan, descent: Descent) -> None:
        self._scan = scan
        self._state = scan.state
        self._descent = descent
        self.names = NameIndex(scan.state)
        self._clear_above = b""  # a folder that is reached through folders alone

    def entry(self, path: bytes) -> Entry | None:
        """Return the path's entry for a tree; None if it is absent, or nothing that a tree can hold. Raises
        `Conflict` for a file that can't be read."""
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
        """Return the content of a file, if it still is that of the entry."""
        above, name = split(entry.path)
        try:
            descriptor = os.open(name, OPEN_FLAGS, dir_fd=self._descent.at(above))
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(entry.size + 1)
        return data if FileId.hash(data) == entry.file_id else None

    def row(self, path: bytes) -> bytes | None:
        """Return the remembered stat of a file or symlink, if any."""
        folder, at = self._find(path)
        if folder is None or at is None or folder.kinds[at] not in KEPT:
            return None
        return folder.row(at)

    def item(self, path: bytes) -> Pending | None:
        """Return what is remembered of a file or symlink."""
        folder, at = self._find(path)
        if folder is None or at is None or folder.kinds[at] not in KEPT:
            return None
        return pending_at(folder, at, split(path)[1])

    def is_folder(self, path: bytes) -> bool:
        folder, at = self._find(path)
        return folder is not None and at is not None and _is_folder(folder, at)

    def hidden_by(self, path: bytes, *, absent_too: bool = False) -> tuple[bytes, str] | None:
        """Return a path, at or above this one, below which no scan sees what is written, and the reason. absent_too:
        also if the rules leave out a path that is not on disk."""
        for way in (path, *folders_above(path)):
            folder, at = self._find(way)
            if folder is not None and at is not None and folder.kinds[at] == IGNORED:
                return way, "is left out by .dsvignore"
            if absent_too and at is None and self._scan.ignores(way, directory=way != path):
                return way, "is left out by .dsvignore"
            if self._scan.unreadable is not None and way in self._scan.unreadable:
                return way, "can't be read"
            if way in self._scan.apart:
                return way, "is a dsv store or cache"
        return None

    def foreign_above(self, path: bytes) -> bytes | None:
        """Return a path, at or above this one, that is neither a folder nor in the base."""
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
        """Return the first path in a folder that the base does not have."""
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
            with os.scandir(self._descent.at(path)) as entries:
                return {os.fsencode(entry.name) for entry in entries}
        except OSError:  # it is gone; the writer looks again
            return set()

    def relate(self, path: bytes, base: Entry | None) -> None:
        """Set the relation of a file or symlink to the base, which has `base` there."""
        folder, at = self._find(path)
        if folder is not None and at is not None:
            relate(folder, at, base)

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
        return folder.type_at(at) == stat.S_IFDIR
    return folder.kinds[at] == DIRECTORY
