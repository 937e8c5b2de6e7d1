"""A workspace's base, proven to be in the store, and how its branch stands to it."""

from __future__ import annotations

from dsv.api.context import Context
from dsv.errors import Conflict, NotFound
from dsv.model.ids import CommitId
from dsv.model.units import format_count, format_duration
from dsv.repo.objects import Objects
from dsv.repo.refs import Head
from dsv.repo.repository import Repository
from dsv.repo.standing import standing
from dsv.worktree.workspace import Workspace

_COUNTED = 50
"""Commits that are read to say how many are newer."""


def proven_base(context: Context, repository: Repository, workspace: Workspace) -> CommitId | None:
    """The base, or its nearest ancestor that the store has, which then is the base.

    What the lost commits brought counts as local changes from then on, so that no command takes it for safe, and the
    next sync publishes it again.
    """
    base = workspace.base()
    found = standing(repository.objects, base)
    if base is not None and found != base:
        workspace.set_base(found)
        goes_on = "" if found is None else f", and the base is now its ancestor {_short(found)}"
        context.progress.note(
            f"the base {_short(base)} is not in {repository.store.url} any more (perhaps an older copy of the store "
            f"was put back): its files count as local changes{goes_on}"
        )
    return found


def follows(objects: Objects, head: Head, base: CommitId | None) -> bool:
    """Whether the next commit of a branch may have this base as its parent.

    That is so if the branch is there, or at commits which the store has lost and whose nearest ancestor it is.
    """
    if head.commit == base or head.commit is None:
        return head.commit == base
    if objects.stored_commit(head.commit) is not None:
        return False
    return objects.local_commit(head.commit) is not None and standing(objects, head.commit) == base


def distance(objects: Objects, start: CommitId, goal: CommitId, limit: int | None = None) -> int | None:
    """How many commits `start` is ahead of its ancestor `goal`; None if that is no ancestor of it (within `limit`)."""
    level, steps, seen = [start], 0, {start}
    while level and (limit is None or steps <= limit):
        if goal in level:
            return steps
        found = [objects.commit_or_none(one) for one in level]
        parents = dict.fromkeys(parent for commit in found if commit is not None for parent in commit.parents)
        level = [parent for parent in parents if parent not in seen]
        seen.update(level)
        steps += 1
    return None


def not_at_base(
    context: Context,
    repository: Repository,
    workspace: Workspace,
    head: Head | None,
    base: CommitId | None,
    *,
    changed: bool = True,
) -> Conflict:
    """Why nothing was published: the branch is not at the workspace's base. changed: there was something to publish."""
    if head is None or head.commit is None:
        name = str(workspace.branch if head is None else head.branch)
        return Conflict(
            f"{name} of {workspace.dataset} has no commit, and this workspace has one",
            subject=f"{workspace.dataset}@{name}",
            hint="dsv sync --new-branch NAME publishes what is here beside it",
        )
    where, hint = _standing(context, repository, workspace, head, base)
    if not changed and base is not None:
        where = f"nothing differs here from {_short(base)}, so nothing was published; but {where}"
    return Conflict(where, subject=f"{workspace.dataset}@{head.branch}", hint=hint)


def _standing(
    context: Context, repository: Repository, workspace: Workspace, head: Head, base: CommitId | None
) -> tuple[str, str]:
    """Where a branch is, seen from a base, and what leads on."""
    assert head.commit is not None
    objects, name = repository.objects, f"{head.branch} of {workspace.dataset}"
    last = f"last: {head.entry.author}, {_ago(context, head)}"
    pull = "dsv pull brings them here; dsv sync --new-branch NAME publishes beside them"
    if base is None:
        return f"{name} has commits that this workspace has not ({last})", pull
    ahead = distance(objects, head.commit, base, _COUNTED)
    if ahead is not None:
        if head.branch == workspace.branch and workspace.seen() == head.commit:
            text = f"{name} is at {_short(head.commit)}, {format_count(ahead, 'commit')} after this workspace's base"
            return (
                f"{text} {_short(base)}, and has not moved since this workspace was there",
                f"dsv pull goes there again; dsv rollback @{_short(base)} takes {head.branch} back to the base",
            )
        return f"{name} has {format_count(ahead, 'newer commit')} ({last})", pull
    back = distance(objects, base, head.commit, _COUNTED)
    if back is not None:
        text = (
            f"{name} is at {_short(head.commit)}, {format_count(back, 'commit')} before this workspace's base"
        )
        return (
            f"{text} {_short(base)} ({last})",
            "dsv sync --new-branch NAME publishes what is here beside it",
        )
    return (
        f"{name} is at {_short(head.commit)}, which does not descend from the base {_short(base)} here ({last})",
        f"dsv clone {workspace.dataset}@{head.branch} DIR; dsv sync --new-branch NAME publishes what is here",
    )


def no_branch(repository: Repository, workspace: Workspace, name: str) -> NotFound:
    """A branch that was named and is not there: a new one is never made by a misspelt name."""
    return NotFound(
        f"dataset {workspace.dataset} has no branch {name}",
        subject=name,
        hint=f"dsv sync --new-branch {name} makes it",
    )


def _ago(context: Context, head: Head) -> str:
    seconds = (context.clock() - head.entry.time_ms) / 1000
    return "just now" if seconds < 10 else f"{format_duration(seconds)} ago"


def _short(commit: CommitId) -> str:
    return str(commit)[:12]
