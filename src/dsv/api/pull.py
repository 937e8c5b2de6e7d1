"""Bringing a workspace to the head of its branch."""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.context import Context
from dsv.api.workspaces import open_to_write
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName
from dsv.repo.damage import missing_commit
from dsv.repo.trees import TreeReader
from dsv.worktree.baseline import open_baseline
from dsv.worktree.checkout.check_out import Goal, check_out, check_tree
from dsv.worktree.open_workspace import distance
from dsv.worktree.unfinished import read_begun


@dataclass(frozen=True, slots=True)
class Pulled:
    """The workspace's base after a pull, and how many paths were written for it. `before` is the base before."""

    dataset: DatasetName
    branch: BranchName
    before: CommitId | None
    commit: CommitId | None
    created: int = 0
    replaced: int = 0
    removed: int = 0

    @property
    def any_change(self) -> bool:
        return self.before != self.commit or bool(self.created or self.replaced or self.removed)


def pull(context: Context) -> Pulled:
    """Moves the workspace to the head of its branch; local changes stay.

    Raises `Conflict`, with nothing written, if both sides changed a path, or if the branch does not descend from the
    base.
    """
    with open_to_write(context, "dsv pull") as opened:
        workspace, repository = opened.workspace, opened.repository
        base = workspace.base()
        newest = repository.refs.head(workspace.dataset, workspace.branch)
        head = newest.commit
        if head is not None:
            workspace.set_seen(workspace.branch, head)
        if head is None or (head == base and not read_begun(workspace.begun_path)):
            return Pulled(workspace.dataset, workspace.branch, base, base)
        if repository.objects.stored_commit(head) is None:
            raise missing_commit(head, repository.store.url)
        base = opened.proven_base()
        if base is not None and distance(repository.objects, head, base) is None:
            raise opened.not_at_base(newest, base)
        with open_baseline(opened, base, writes=True) as baseline:
            after = TreeReader(repository.objects, head)
            check_tree(after, workspace.root)
            goal = Goal(
                "dsv pull",
                head,
                lambda: baseline.changes_to(after),
                "to drop yours: dsv restore PATH; to keep both: dsv sync --new-branch NAME",
                there=f"{str(head)[:12]} by {opened.author(newest)}",
            )
            made = check_out(opened, baseline, goal)
        return Pulled(
            workspace.dataset, workspace.branch, base, head, made.created, made.replaced, made.removed
        )
