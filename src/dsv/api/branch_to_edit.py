"""The branch that a command without a workspace writes to."""

from __future__ import annotations

import os.path

from dsv.api.context import Context
from dsv.errors import NotFound, UsageError
from dsv.model.names import MAIN, BranchName, DatasetName, TagName, Target
from dsv.repo.heads import deleted
from dsv.repo.naming import check_new_dataset
from dsv.repo.refs import Head
from dsv.repo.repository import Repository


def branch_to_edit(
    context: Context, repository: Repository, target: Target, *, create: bool
) -> tuple[DatasetName, BranchName, Head | None]:
    """The branch that a target means, `main` if it names none, and its newest move.

    create: a dataset that is not there is no error; it has no move. Raises `NotFound`, and `UsageError` for a target
    without a dataset or with what is no branch.
    """
    dataset, rev = target.dataset, target.rev
    if dataset is None:
        workspace = context.workspace_or_none()
        raise UsageError(
            "the target names no dataset",
            subject=str(target) or None,
            hint="dsv datasets lists the names"
            if workspace is None
            else f"in a workspace, change the files and run dsv sync; or name {workspace.dataset}",
        )
    branch = MAIN if rev is None else BranchName.parse(rev.text)
    if rev is not None and (rev.ancestor or rev.commit_prefix is not None):
        raise UsageError(f"{rev} is no branch, and only a branch gets a commit", subject=str(target))
    head = repository.refs.newest(dataset, branch)
    if head is not None and not head.entry.deleted:
        return dataset, branch, head
    if branch == MAIN and create and head is None:
        check_new_dataset(repository, dataset)
        return dataset, branch, None
    if not repository.refs.exists(dataset):
        raise _no_dataset(context, repository, dataset, target)
    if head is not None:
        raise deleted(head)
    if repository.refs.tag(dataset, TagName.parse(branch)) is not None:
        raise UsageError(
            f"{branch} is a tag of {dataset}, and a tag never moves",
            subject=str(target),
            hint=f"dsv branch NAME {dataset}@{branch} makes a branch there; then name that",
        )
    error = repository.refs.no_name(dataset, branch)
    error.hint = (
        f"dsv branch {dataset}@{branch} {dataset}@main makes it; dsv branch --list {dataset} lists them"
    )
    raise error


def _no_dataset(context: Context, repository: Repository, dataset: DatasetName, target: Target) -> NotFound:
    erased = repository.refs.erased(dataset)
    if erased is not None:
        return erased
    workspace = context.workspace_or_none()
    hint = "dsv datasets lists them; --create makes it"
    if workspace is not None and target.path is None and os.path.lexists(context.cwd / dataset):
        hint = f"{dataset} is a file or folder here: in a workspace, change the files and run dsv sync"
    return NotFound(f"there is no dataset {dataset} in {repository.store.url}", subject=dataset, hint=hint)
