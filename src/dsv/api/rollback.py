"""Taking a branch back to the files of an earlier commit, by a new commit: history stays."""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.bases import not_at_base, proven_base
from dsv.api.checkout import Goal, check_out, check_tree
from dsv.api.context import Context, check_binding
from dsv.api.footing import working
from dsv.api.restore import source_commit
from dsv.errors import NotFound
from dsv.fs.lock import Lock
from dsv.model.commit import Commit
from dsv.model.ids import CommitId, Nonce
from dsv.model.names import BranchName, DatasetName, Rev, Target
from dsv.model.records import RefEntry
from dsv.repo.damage import missing_commit
from dsv.repo.naming import check_whole
from dsv.repo.refs import Head, LostRace
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.trees import TreeReader
from dsv.worktree.workspace import Workspace


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The branch's head now, and before. source: the commit whose files it has. The counts are of paths here."""

    dataset: DatasetName
    branch: BranchName
    commit: CommitId
    before: CommitId
    source: CommitId
    created: int = 0
    replaced: int = 0
    removed: int = 0

    @property
    def any_change(self) -> bool:
        """False if the branch had these files already."""
        return self.commit != self.before


def rollback(context: Context, target: Target, message: str | None = None) -> RolledBack:
    """Publishes a new commit with the files of `target` on the workspace's branch, and brings them here.

    Local changes stay, and one to a path that this would change is a `Conflict`, with nothing published or written.
    So is a branch that somebody has moved since this workspace last saw it: nobody's work is taken back unseen.
    """
    workspace = context.workspace()
    with workspace.lock("dsv rollback") as lock, context.store() as store:
        repository = context.open_repository(store, Target(workspace.dataset, Rev(workspace.branch)))
        check_binding(workspace, repository)
        source = source_commit(context, repository, workspace, target)
        if repository.objects.stored_commit(source) is None:
            raise missing_commit(source, store.url)
        base = proven_base(context, repository, workspace)
        head = repository.refs.head(workspace.dataset, workspace.branch)
        if head.commit is None:
            raise NotFound(
                f"branch {head.branch} of {head.dataset} has no commit yet",
                subject=f"{head.dataset}@{head.branch}",
                hint="dsv sync makes one",
            )
        if head.commit not in (base, workspace.seen()):
            raise not_at_base(context, repository, workspace, head, base)
        after = TreeReader(repository.objects, source)
        if after.commit.root == repository.objects.commit(head.commit).root:
            return RolledBack(workspace.dataset, workspace.branch, head.commit, head.commit, source)
        text = (
            f"roll back to {str(target) or 'the base'} ({str(source)[:12]})" if message is None else message
        )
        return _Rollback(context, repository, workspace, lock, head).run(after, text)


class _Rollback:
    def __init__(
        self, context: Context, repository: Repository, workspace: Workspace, lock: Lock, head: Head
    ) -> None:
        self._context = context
        self._repository = repository
        self._workspace = workspace
        self._lock = lock
        self._head = head

    def run(self, after: TreeReader, message: str) -> RolledBack:
        assert self._head.commit is not None
        check_tree(after, self._workspace.root)
        commit = Commit(
            root=after.commit.root,
            level=after.commit.level,
            parents=(self._head.commit,),
            author=self._context.writer.author,
            time_ms=self._context.clock(),
            message=message,
            files=after.commit.files,
            bytes=after.commit.bytes,
            entries=after.commit.entries,
        )
        commit = self._repository.named(commit, self._head.dataset, self._head.branch)
        commit_id = CommitId.hash(commit.encode())
        with working(self._repository, self._workspace) as footing:
            goal = Goal(
                "dsv rollback",
                commit_id,
                lambda: footing.changes_to(after),
                "to drop yours: dsv restore PATH; or publish them first: dsv sync",
                ready=lambda: self._publish(commit, after.commit_id),
            )
            made = check_out(self._context, self._repository.objects, self._workspace, footing, goal)
        return RolledBack(
            self._workspace.dataset, self._workspace.branch, commit_id, self._head.commit, after.commit_id,
            made.created, made.replaced, made.removed,
        )  # fmt: skip

    def _publish(self, commit: Commit, source: CommitId) -> None:
        """Nothing is noted in the journal: if this is killed before the files are here, `dsv pull` brings them."""
        repository, head = self._repository, self._head
        with Session.open(repository, self._context.writer) as session:
            check_whole(session, source)
            commit_id = session.put_commit(commit, repository.objects.commit_locator(source))
            entry = RefEntry(
                commit=commit_id,
                deleted=False,
                nonce=Nonce.random(),
                time_ms=self._context.clock(),
                author=self._context.writer.author,
                action="rollback",
            )
            moved = session.publish(head.dataset, head.branch, head, entry, self._lock.check)
        if isinstance(moved, LostRace):
            raise not_at_base(self._context, repository, self._workspace, moved.winner, head.commit)
        self._workspace.set_seen(head.branch, commit_id)
