"""Taking a branch back to the files of an earlier commit, by a new commit: history stays."""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.context import Context
from dsv.api.restore import source_commit
from dsv.api.workspaces import open_to_publish
from dsv.format.commit import Commit
from dsv.repo.errors import missing_commit
from dsv.repo.refs.branches import Head, LostRace, no_commit
from dsv.repo.repository import Repository
from dsv.repo.session import Session, check_whole
from dsv.repo.tree.diff import diff_trees
from dsv.repo.tree.read import TreeReader
from dsv.transfer.commit import Draft, new_commit, publish_commit
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, Target
from dsv.workspace.checkout import bring_to
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.plan import Counts, Goal


@dataclass(frozen=True, slots=True)
class RolledBack(Counts):
    """A branch after a rollback."""

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    """The new head; None after a dry run."""
    before: CommitId
    """The old head."""
    source: CommitId
    """The commit whose files the new head has."""

    @property
    def any_change(self) -> bool:
        """False if the branch had these files already."""
        return self.commit != self.before


def rollback(
    context: Context, target: Target, message: str | None = None, *, dry_run: bool = False
) -> RolledBack:
    """Publish a new commit with the files of `target` on the workspace's branch, and bring them here.

    Local changes stay, and one to a path that this would change is a `Conflict`, with nothing published or written.
    So is a branch that somebody has moved since this workspace last saw it: nobody's work is taken back unseen.
    dry_run: raises the same, and publishes and writes nothing.
    """
    with open_to_publish(context, "dsv rollback", borrows=True) as opened:
        workspace, repository = opened.workspace, opened.repository
        source = source_commit(context, repository, workspace, target)
        if repository.objects.stored_commit(source) is None:
            raise missing_commit(source, repository.store.url)
        base = opened.proven_base()
        head = repository.refs.head(workspace.dataset, workspace.branch)
        repository.check_last_seen()
        if head.commit is None:
            raise no_commit(head)
        if head.commit not in (base, workspace.seen()):
            raise opened.not_at_base(head, base)
        after = TreeReader(repository.objects, source)
        if after.commit.root == repository.objects.commit(head.commit).root:
            return RolledBack(workspace.dataset, workspace.branch, head.commit, head.commit, source)
        _check_rule(repository, head, context.writer.author, after)
        text = (
            f"roll back to {str(target) or 'the base'} ({str(source)[:12]})" if message is None else message
        )
        draft = Draft(workspace.dataset, workspace.branch, head, (head.commit,), text, "rollback")
        commit = new_commit(repository, context.writer, draft, after.commit)
        goal = Goal(
            "dsv rollback",
            commit.id,
            hint="to drop yours: dsv restore PATH; or publish them first: dsv sync",
            ready=lambda: _publish(opened, draft, commit, source),
            files_of=source,
            dry_run=dry_run,
        )
        made = bring_to(opened, base, after, goal)
        return RolledBack(
            workspace.dataset, workspace.branch, None if dry_run else commit.id, head.commit, source,
            **made.counts,
        )  # fmt: skip


def _check_rule(repository: Repository, head: Head, author: str, after: TreeReader) -> None:
    """Raise `Conflict` if the branch's rule refuses this, before anything is done; a dry run does no more."""
    repository.refs.check_mover(head, author)
    limits = repository.refs.limits(head.dataset, head.branch)
    if limits is None or limits.max_removals is None or head.commit is None:
        return
    before = TreeReader(repository.objects, head.commit)
    removed = sum(change.after is None for change in diff_trees(before, after))
    repository.refs.check_mover(head, author, removed=removed, entries=before.commit.entries)


def _publish(opened: OpenWorkspace, draft: Draft, commit: Commit, source: CommitId) -> None:
    """Nothing is noted in the journal: if this is killed before the files are here, `dsv pull` brings them."""
    with Session.open(opened.repository, opened.writer) as session:
        check_whole(session, draft.dataset, source)
        locator = opened.repository.objects.commit_locator(source)
        done = publish_commit(session, opened.writer, draft, commit, locator, opened.lock.check)
    if isinstance(done, LostRace):
        raise opened.not_at_base(done.winner, draft.head)
    opened.workspace.set_seen(draft.branch, done.id)
