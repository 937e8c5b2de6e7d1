"""A dataset's files in a new workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dsv.api.context import Context
from dsv.api.nearby_caches import lending
from dsv.errors import Conflict, UsageError
from dsv.model.ids import CommitId
from dsv.model.names import MAIN, BranchName, DatasetName, Target
from dsv.repo.repository import Repository
from dsv.repo.trees import TreeReader
from dsv.worktree.baseline import open_baseline
from dsv.worktree.checkout.check_out import Goal, check_out, check_tree
from dsv.worktree.last_answer import note_answer
from dsv.worktree.open_workspace import OpenWorkspace
from dsv.worktree.unfinished import read_begun
from dsv.worktree.workspace import Workspace, is_vacant

COMMAND = "dsv clone"


@dataclass(frozen=True, slots=True)
class Cloned:
    """A new workspace. `commit` is None for a dataset that has none yet.

    cached_files, cached_bytes: what came from caches on this machine.
    """

    root: Path
    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    files: int
    bytes: int
    cached_files: int = 0
    cached_bytes: int = 0


def clone(context: Context, target: Target, folder: Path | None = None) -> Cloned:
    """Makes a workspace of a commit, in a folder that is absent or empty (by default the dataset's own name).

    The workspace follows the branch that the target names, else `main`. If it is interrupted, the same call finishes
    it. Raises `Conflict` if the folder holds something else.
    """
    if target.dataset is None or target.path is not None:
        raise UsageError(
            "dsv clone needs a dataset's name", subject=str(target), hint="dsv datasets lists the names"
        )
    dataset = target.dataset
    root = context.cwd / (folder or Path(dataset.rsplit("/", 1)[-1]))
    with context.repository(target) as repository:
        branch, commit = _start(context, repository, target, dataset)
        workspace = _bind(context, repository, root, dataset, branch)
        note_answer(workspace, repository.refs, repository.clock())
        if commit is None:
            return Cloned(workspace.root, dataset, branch, None, 0, 0)
        with workspace.lock(COMMAND) as lock, lending(context, repository, dataset) as copies:
            opened = OpenWorkspace(
                workspace, repository, lock, context.writer, context.progress, copies=copies
            )
            with open_baseline(opened, workspace.base(), writes=True) as baseline:
                tree = TreeReader(repository.objects, commit)
                check_tree(tree, workspace.root)
                changes = partial(baseline.changes_to, tree)
                goal = Goal(COMMAND, commit, changes, "move them away, or remove them")
                made = check_out(opened, baseline, goal)
        return Cloned(
            workspace.root, dataset, branch, commit, tree.commit.files, tree.commit.bytes,
            made.copied, made.copied_bytes,
        )  # fmt: skip


def _start(
    context: Context, repository: Repository, target: Target, dataset: DatasetName
) -> tuple[BranchName, CommitId | None]:
    if target.rev is None:
        return MAIN, repository.refs.head(dataset, MAIN).commit
    resolved = context.resolve(repository, target)
    return resolved.branch or MAIN, resolved.commit


def _bind(
    context: Context, repository: Repository, root: Path, dataset: DatasetName, branch: BranchName
) -> Workspace:
    inside = Workspace.find(root)
    if inside is not None and inside.root == root.resolve():
        begun = inside.base() is None or any(
            each.command == COMMAND for each in read_begun(inside.begun_path)
        )
        if begun and inside.store_id == repository.id and inside.dataset == dataset:
            return inside if inside.branch == branch else inside.follow(branch)
        raise Conflict(
            f"{root} is a workspace of {inside.dataset} already",
            subject=str(root),
            hint=f"dsv -C {root} pull",
        )
    if inside is not None:
        raise Conflict(
            f"{root} lies in the workspace {inside.root} of {inside.dataset}",
            subject=str(root),
            hint=f"dsv clone {dataset} DIR, with a folder outside of it",
        )
    if (root.is_symlink() or root.exists()) and not is_vacant(root):
        raise Conflict(
            f"{root} is there already and not empty",
            subject=str(root),
            hint=f"dsv clone {dataset} OTHER-DIR",
        )
    choice = context.settings.store()
    return Workspace.create(
        root,
        store=choice.called,
        store_id=repository.id,
        dataset=dataset,
        branch=branch,
        names=choice.names_kept,
    )
