"""What the store last said of a workspace's branch: where it was, how it is protected, and when that was.

Every command that meets the branch notes it in a file below `.dsv`. `dsv status` reads it, so that it need not ask, and
the next command that builds on the branch, so that it finds out if the store has another move in its place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dsv.errors import DsvError
from dsv.format.records import Limits
from dsv.fs.files import read_json, replace_file
from dsv.values.ids import CommitId

if TYPE_CHECKING:
    from dsv.repo.last_seen_move import Remembered
    from dsv.repo.refs.branches import Refs
    from dsv.workspace.workspace import Workspace

_OFTEN_ENOUGH = 1000  # milliseconds between two notes that say the same


class LastAnswer(msgspec.Struct, frozen=True):
    """commit: None for a branch without one. gone: the branch was not there. limits: its rule, if it is protected.

    number: of the move that named the commit; names: the URL of the place where it was read; None if an older dsv has
    noted it.
    """

    commit: CommitId | None
    time_ms: int
    gone: bool = False
    limits: Limits | None = None
    number: int | None = None
    names: str | None = None


class _Record(msgspec.Struct, frozen=True):
    version: int
    branch: str
    commit: str | None
    time_ms: int
    gone: bool = False
    protected: bool = False
    only_merge: bool = False
    who: tuple[str, ...] = ()
    max_removals: int | None = None
    number: int | None = None
    names: str | None = None


_RECORD = msgspec.json.Decoder(_Record)


def last_answer(workspace: Workspace) -> LastAnswer | None:
    """None if the store has not said anything of this branch yet, or if the note can't be read."""
    try:
        found = read_json(workspace.asked_path, _RECORD)
        if found is None or found.version != 1 or found.branch != str(workspace.branch):
            return None
        limits = Limits(found.only_merge, found.who, found.max_removals) if found.protected else None
        commit = None if found.commit is None else CommitId.parse(found.commit)
        return LastAnswer(commit, found.time_ms, found.gone, limits, found.number, found.names)
    except (OSError, DsvError):
        return None


def remembered(workspace: Workspace) -> Remembered | None:
    """Where the workspace's branch was met; None if that is not known, or the branch had no commit."""
    found = last_answer(workspace)
    if found is None or found.number is None or found.commit is None:
        return None
    from dsv.repo.last_seen_move import Remembered

    return Remembered(workspace.dataset, workspace.branch, found.number, found.commit, found.names)


def note_answer(workspace: Workspace, refs: Refs, names: str, now_ms: int) -> None:
    """Notes what was met of the branch. Asks nothing; a failure is none, as nothing depends on the note.

    names: the URL of the place where names are.
    """
    head, rule, ruled = refs.met(workspace.dataset, workspace.branch)
    if head is None:
        return
    before = last_answer(workspace)
    limits = None if rule is None else rule.limits
    if rule is None and ruled and before is not None:
        limits = before.limits  # the rule was not read
    gone = head.entry.deleted
    after = LastAnswer(None if gone else head.commit, now_ms, gone, limits, head.number, names)
    if before is not None and 0 <= now_ms - before.time_ms < _OFTEN_ENOUGH and _same(before, after):
        return
    limits = limits or Limits()
    record = _Record(
        1, str(workspace.branch), None if after.commit is None else str(after.commit), now_ms, gone,
        after.limits is not None, limits.only_merge, limits.who, limits.max_removals, head.number, names,
    )  # fmt: skip
    with suppress(OSError):
        replace_file(workspace.asked_path, msgspec.json.encode(record) + b"\n", sync=False)


def _same(one: LastAnswer, other: LastAnswer) -> bool:
    return replace(one, time_ms=0) == replace(other, time_ms=0)
