"""Where a workspace's branch is, seen from the base, as the store last said: nothing is asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dsv.api.context import Context
from dsv.errors import DsvError
from dsv.model.branch_rule import Limits
from dsv.model.commit import Commit
from dsv.model.ids import CommitId
from dsv.repo.history import Commits, Distance, ahead_behind, only_in
from dsv.repo.local_store import LocalStore
from dsv.repo.metadata import MetadataCache
from dsv.repo.objects import Objects
from dsv.worktree.last_answer import LastAnswer, last_answer
from dsv.worktree.workspace import Workspace

_LOCAL, _ASKED = 2000, 100
"""Commits that are read to tell two histories apart: by their local copies, and from the store."""


class Position(StrEnum):
    """ELSEWHERE: not at the base, and there are no local copies of the commits between them."""

    UNKNOWN = "unknown"
    NO_COMMIT = "no-commit"
    GONE = "gone"
    UP_TO_DATE = "up-to-date"
    AHEAD = "ahead"
    BEHIND = "behind"
    DIVERGED = "diverged"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class BranchPosition:
    """ahead: commits of the base that the branch has not; behind: the other way round; None if that is not known.

    commit, asked_ms: where the branch was, and when the store said so. limits: its rule, if it is protected.
    """

    position: Position
    commit: CommitId | None = None
    asked_ms: int | None = None
    ahead: int | None = None
    behind: int | None = None
    limits: Limits | None = None


class _TooMany(Exception):
    """More commits would have to be read than it is worth."""


class _Few:
    """Commits, up to a number of them."""

    def __init__(self, commits: Commits, most: int) -> None:
        self._commits = commits
        self._left = most

    def commit(self, commit_id: CommitId) -> Commit:
        if self._left <= 0:
            raise _TooMany
        self._left -= 1
        return self._commits.commit(commit_id)


def fetch_position(context: Context, workspace: Workspace, base: CommitId | None) -> None:
    """Asks the store, so that `branch_position` knows it. Raises `Unreachable`, and `NotFound` without the branch."""
    with context.bound_repository(workspace) as repository:
        head = repository.refs.newest(workspace.dataset, workspace.branch)
        if head is None:
            repository.refs.head(workspace.dataset, workspace.branch)  # raises what is missing
            return
        repository.refs.rule(workspace.dataset, workspace.branch)
        if head.commit is not None and not head.entry.deleted:
            _distance(repository.objects, base, head.commit, _ASKED)  # leaves local copies


def branch_position(context: Context, workspace: Workspace, base: CommitId | None) -> BranchPosition:
    answer = last_answer(workspace) or _seen(workspace)
    if answer is None:
        return BranchPosition(Position.UNKNOWN)
    commit, asked, limits = answer.commit, answer.time_ms, answer.limits
    if commit is None:
        position = Position.GONE if answer.gone else Position.NO_COMMIT
        return BranchPosition(position, None, asked, limits=limits)
    if commit == base:
        return BranchPosition(Position.UP_TO_DATE, commit, asked, 0, 0, limits)
    metadata = MetadataCache(context.metadata_folder(workspace.store_id))
    distance = _distance(Objects(LocalStore(workspace.store, metadata), metadata), base, commit, _LOCAL)
    if distance is None:
        return BranchPosition(Position.ELSEWHERE, commit, asked, limits=limits)
    if distance.ahead and distance.behind:
        position = Position.DIVERGED
    else:
        position = Position.AHEAD if distance.ahead else Position.BEHIND
    return BranchPosition(position, commit, asked, distance.ahead, distance.behind, limits)


def _distance(commits: Commits, base: CommitId | None, head: CommitId, most: int) -> Distance | None:
    """None if some commit can't be read, or too many would have to be."""
    few = _Few(commits, most)
    try:
        if base is None:
            return Distance(0, only_in(few, head, ()))
        return ahead_behind(few, base, head)
    except (DsvError, _TooMany):
        return None


def _seen(workspace: Workspace) -> LastAnswer | None:
    """What an older dsv has noted."""
    commit, time = workspace.seen(), workspace.seen_time()
    return None if commit is None or time is None else LastAnswer(commit, int(time * 1000))
