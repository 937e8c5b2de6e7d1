"""What becomes of a path that was changed both in a workspace and in the commit that it is brought to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dsv.model.chunking import SINGLE_CHUNK_MAX
from dsv.model.diff import Change
from dsv.model.entry import Entry, Kind
from dsv.model.ids import FileId
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


def settle(step: Step, now: Entry | None, disk: Disk, settlement: Settlement) -> Step:
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
