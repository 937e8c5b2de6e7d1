"""What becomes of a path that was changed both in a workspace and in the commit that it is brought to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from dsv.merge.paths import Choice, ConflictKind, MergedContent, Settled, beside
from dsv.model.diff import Change, difference
from dsv.model.entry import Entry, Kind
from dsv.model.ids import FileId
from dsv.model.paths import show
from dsv.worktree.checkout.disk import Disk
from dsv.worktree.checkout.step import Act, Step

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
