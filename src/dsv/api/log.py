"""History."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv.api.context import Context
from dsv.model.commit import Commit
from dsv.model.ids import CommitId
from dsv.model.names import DatasetName, Rev, Target
from dsv.repo.repository import Repository


@dataclass(frozen=True, slots=True)
class LogItem:
    """A commit of a history, with the branches and tags that name it now."""

    id: CommitId
    commit: Commit
    names: tuple[str, ...]


def log(context: Context, target: Target, limit: int | None = None) -> Iterator[LogItem]:
    """The commit that `target` means and its first-parent ancestors, newest first.

    In a workspace a target that names neither dataset nor revision means the head of the workspace's branch.
    """
    with context.repository(_named(context, target)) as repository:
        start = _start(context, repository, target)
        dataset = target.dataset or context.workspace().dataset
        names = names_of_commits(repository, dataset)
        current: CommitId | None = start
        shown = 0
        while current is not None and (limit is None or shown < limit):
            commit = repository.objects.commit(current)
            yield LogItem(current, commit, tuple(names.get(current, ())))
            shown += 1
            current = commit.parents[0] if commit.parents else None


def _named(context: Context, target: Target) -> Target:
    workspace = context.workspace_or_none()
    if target.dataset is None and target.rev is None and workspace is not None:
        return Target(workspace.dataset, Rev(workspace.branch))
    return target


def _start(context: Context, repository: Repository, target: Target) -> CommitId:
    workspace = context.workspace_or_none()
    if target.dataset is None and target.rev is None and workspace is not None:
        head = repository.refs.head_or_none(workspace.dataset, workspace.branch)
        if head is not None and head.commit is not None:
            return head.commit
    return context.resolve(repository, target).commit


def names_of_commits(repository: Repository, name: DatasetName) -> dict[CommitId, list[str]]:
    """The branches and tags that name each commit now."""
    found: dict[CommitId, list[str]] = {}
    heads, tags = repository.refs.names(name)
    for head in heads:
        if head.commit is not None:
            found.setdefault(head.commit, []).append(str(head.branch))
    for tag, value in tags:
        found.setdefault(value.commit, []).append(str(tag))
    return found
