"""Bringing a workspace to the head of its branch."""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.cache_targets import lending
from dsv.api.context import Context
from dsv.api.workspaces import open_to_write
from dsv.errors import DsvError
from dsv.merge.apply import ContentMerger
from dsv.merge.paths import Choices, Settled
from dsv.repo.errors import missing_commit
from dsv.repo.history import distance
from dsv.repo.repository import Repository
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName
from dsv.workspace.checkout import bring_to
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.plan import Counts, Goal


@dataclass(frozen=True, slots=True)
class Pulled(Counts):
    """The workspace's base after a pull, and before, and how many paths were written."""

    dataset: DatasetName
    branch: BranchName
    before: CommitId | None
    commit: CommitId | None
    without_effect: tuple[bytes, ...] = ()
    """Paths for which a side was chosen, but that had no conflict."""
    merged: tuple[Settled, ...] = ()
    """Files that were put together from both sides."""

    @property
    def any_change(self) -> bool:
        return self.before != self.commit or self.writes


def pull(context: Context, choices: Choices = Choices(), table_key: str | None = None) -> Pulled:
    """Move the workspace to the head of its branch; local changes stay.

    Texts below 1 MiB that were changed both here and on the branch are merged line by line, and CSV and Parquet files
    by their rows if `table_key` names the column that tells them apart. What can't be merged is settled by `choices`,
    with what is here as `ours`. Raises `Conflict`, with nothing written, if that leaves a path, or if the branch does
    not descend from the base.
    """
    with open_to_write(context, "dsv pull") as opened:
        return _pull(opened, "dsv pull", choices, table_key)


def update_workspace(
    context: Context, repository: Repository, dataset: DatasetName, branch: BranchName, command: str
) -> Pulled | DsvError | None:
    """Update the workspace to the head of the branch on which `command` has just published.

    Return None if the command was not typed in a workspace of this branch, and the error if the workspace could not be
    updated, such as a `Conflict` with local changes.
    """
    try:
        found = context.workspace_or_none()
        if found is None or found.store_id != repository.id:
            return None
        with found.locked(command) as (workspace, lock), lending(context, repository, dataset) as copies:
            if (workspace.dataset, workspace.branch) != (dataset, branch):
                return None
            opened = OpenWorkspace(
                workspace, repository, lock, context.writer, context.progress, copies=copies
            )
            return _pull(opened, command)
    except DsvError as error:
        return error


def _pull(
    opened: OpenWorkspace, command: str, choices: Choices = Choices(), table_key: str | None = None
) -> Pulled:
    workspace, repository = opened.workspace, opened.repository
    base = workspace.base()
    newest = repository.refs.head(workspace.dataset, workspace.branch)
    repository.check_last_seen()
    head = newest.commit
    if head is not None:
        workspace.set_seen(workspace.branch, head)
    if head is None or (head == base and not workspace.begun()):
        without_effect = choices.without_effect(())
        return Pulled(workspace.dataset, workspace.branch, base, base, without_effect=without_effect)
    if repository.objects.stored_commit(head) is None:
        raise missing_commit(head, repository.store.url)
    base = opened.proven_base()
    moved = None if base is None else distance(repository.objects, base, head)
    if base is not None and (moved is None or moved.ahead):
        raise opened.not_at_base(newest, base)
    after = TreeReader(repository.objects, head)
    goal = Goal(
        command,
        head,
        hint="dsv pull --ours PATH keeps yours, --theirs PATH takes the branch's, --both PATH keeps both; . means all",
        may_overwrite=lambda path: choices.theirs is not None and path in choices.theirs,
        choices=choices,
        merger=ContentMerger(after.objects, table_key),
        after=after,
        there=f"{str(head)[:12]} by {opened.author(newest)}",
    )
    made = bring_to(opened, base, after, goal)
    return Pulled(
        workspace.dataset, workspace.branch, base, head,
        choices.without_effect(made.settled), tuple(made.merged), **made.counts,
    )  # fmt: skip
