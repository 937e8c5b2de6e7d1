"""Following another branch: its files come here, and what was changed here stays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from msgspec.structs import replace

from dsv.api.context import Context
from dsv.api.workspaces import open_to_publish
from dsv.errors import Conflict, NotFound
from dsv.repo.errors import missing_commit
from dsv.repo.refs.branches import Head, LostRace, no_commit
from dsv.repo.session import point_branch
from dsv.repo.tree.read import TreeReader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, TagName
from dsv.workspace.checkout import bring_to
from dsv.workspace.journal import Journal
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.plan import Counts, Goal
from dsv.workspace.publish import finish_killed
from dsv.workspace.workspace import SWITCH


@dataclass(frozen=True, slots=True)
class Switched(Counts):
    """The branch and the base of a workspace, before and after a switch."""

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    before_branch: BranchName
    before: CommitId | None
    made: bool = False
    """The switch created the branch."""
    renamed_from: DatasetName | None = None
    """The name that the workspace had its dataset by, if that was renamed."""

    @property
    def any_change(self) -> bool:
        return (
            self.renamed_from is not None
            or self.branch != self.before_branch
            or self.commit != self.before
            or self.writes
        )


def switch(context: Context, branch: BranchName, *, create: bool = False) -> Switched:
    """The workspace follows `branch`, and has its files. create: makes the branch at the base, where no file changes.

    Local changes stay. Raises `Conflict` with nothing written if one of them is to a path that would change, or if the
    branch that is to be made is there, and `NotFound` for one that is not there. If it is killed while files are
    written, the same call finishes it, and until then no command takes what was written for a change of the user's.
    If its dataset was renamed, the workspace is one of the new name from now on.
    """
    with open_to_publish(context, f"{SWITCH}{branch}", branch, borrows=True) as opened:
        workspace = opened.workspace
        home = opened.repository.refs.home(workspace.dataset)
        if home != workspace.dataset:
            opened = replace(opened, workspace=workspace.follow(workspace.branch, home))
        opened = _after_killed_sync(opened)
        done = _create(opened, branch) if create else _switch(opened, branch)
        return (
            done if home == workspace.dataset else dataclasses.replace(done, renamed_from=workspace.dataset)
        )


def _switch(opened: OpenWorkspace, branch: BranchName) -> Switched:
    workspace, repository = opened.workspace, opened.repository
    before = workspace.base()
    head = _head(opened, branch)
    if head.commit is None:
        if before is not None:
            raise no_commit(head, "dsv sync --branch makes one of what is here")
        opened.following(branch)
        return Switched(head.dataset, branch, None, workspace.branch, None)
    if repository.objects.stored_commit(head.commit) is None:
        raise missing_commit(head.commit, repository.store.url)
    base = opened.proven_base()
    if base == head.commit and not workspace.begun():
        opened.following(branch).workspace.set_seen(branch, head.commit)
        return Switched(head.dataset, branch, base, workspace.branch, before)
    goal = Goal(
        f"{SWITCH}{branch}",
        head.commit,
        hint="to keep yours: dsv sync, or dsv sync --new-branch NAME; to drop yours: dsv restore PATH",
        there=f"{str(head.commit)[:12]} by {opened.author(head)}",
        branch=branch,
    )
    made = bring_to(opened, base, TreeReader(repository.objects, head.commit), goal)
    opened.following(branch).workspace.set_seen(branch, head.commit)
    return Switched(
        head.dataset, branch, head.commit, workspace.branch, before, False, None,
        **made.counts,
    )  # fmt: skip


def _create(opened: OpenWorkspace, branch: BranchName) -> Switched:
    workspace, repository = opened.workspace, opened.repository
    dataset, base = workspace.dataset, opened.proven_base()
    newest = repository.refs.newest(dataset, branch)
    if newest is not None and not newest.entry.deleted:
        raise _taken(newest)
    repository.refs.check_new_branch(dataset, branch)
    if base is None:
        raise NotFound(
            f"{workspace.root} has no commit yet", subject=str(workspace.root), hint="dsv sync makes one"
        )
    moved = point_branch(repository, opened.writer, (dataset, branch), newest, base, "create")
    if isinstance(moved, LostRace):
        raise _taken(moved.winner)
    opened.following(branch).workspace.set_seen(branch, base)
    return Switched(dataset, branch, base, workspace.branch, base, made=True)


def _after_killed_sync(opened: OpenWorkspace) -> OpenWorkspace:
    """If a killed sync had just published, its commit is the base, and its branch the one that is followed."""
    workspace = opened.workspace
    if not workspace.journal_path.exists():
        return opened
    with Journal.open(workspace.journal_path, workspace.store_id) as journal:
        return finish_killed(opened, journal) or opened


def _head(opened: OpenWorkspace, branch: BranchName) -> Head:
    """Raise `NotFound`, with a hint for a tag, and for a branch that could be made."""
    refs, dataset = opened.repository.refs, opened.workspace.dataset
    newest = refs.newest(dataset, branch)
    if newest is not None:
        return newest if not newest.entry.deleted else refs.head(dataset, branch)
    refs.require(dataset)
    error = refs.no_name(dataset, branch)
    if refs.tag(dataset, TagName.parse(branch)) is not None:
        error.hint = f"dsv branch NAME @{branch} makes a branch there, and dsv switch NAME follows it"
    else:
        error.hint = f"dsv branch lists them; dsv switch {branch} --create makes it here"
    raise error


def _taken(head: Head) -> Conflict:
    return Conflict(
        f"dataset {head.dataset} already has a branch {head.branch}",
        subject=f"{head.dataset}@{head.branch}",
        hint=f"dsv switch {head.branch} follows it",
    )
