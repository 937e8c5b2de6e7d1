"""Committing a workspace and publishing the commit.

Nothing here writes a file of the workspace outside `.dsv`. Killed anywhere, the next sync goes on from the state and
the journal; where the ref had just been written, the journal knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.bases import follows, no_branch, not_at_base, proven_base
from dsv.api.changes import Changes
from dsv.api.context import Context, check_binding
from dsv.api.footing import Trees, find_footing
from dsv.api.names import check_new_branch
from dsv.api.paths import check_paths
from dsv.api.removals import check_removals
from dsv.api.reupload import Reuploaded, reupload
from dsv.errors import Conflict, NoRoom
from dsv.fs.descent import Descent
from dsv.fs.lock import Lock
from dsv.model.commit import Commit
from dsv.model.diff import difference
from dsv.model.ids import CommitId, Nonce
from dsv.model.names import BranchName, DatasetName, Rev, Target
from dsv.model.paths import show
from dsv.model.records import RefEntry
from dsv.model.units import format_bytes
from dsv.repo.naming import check_whole, naming
from dsv.repo.refs import Head, LostRace
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree_edit import WrittenTree, write_tree
from dsv.repo.trees import TreeReader
from dsv.store.counting import Counting
from dsv.transfer.processors import processors
from dsv.transfer.upload import Uploader
from dsv.worktree.journal import Journal
from dsv.worktree.prefetch.readers import Readers, suitable
from dsv.worktree.problem import Problem, refusal
from dsv.worktree.state import State
from dsv.worktree.status import hash_file
from dsv.worktree.workspace import Workspace
from dsv.worktree.workspace_scan import WorkspaceScan


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What to publish. No paths: the whole workspace. `branch`: publish there, and follow it from then on.

    new_branch: `branch` is made by this sync; it must not be there yet. Without it `branch` must be there.
    reupload: everything that the base refers to is looked for in the store, and stored again if it is not there.
    jobs: processes that read small files; None for what suits the work and the machine.
    rehash: reads contents again, whatever sizes and times say.
    """

    paths: tuple[bytes, ...] = ()
    message: str = ""
    branch: BranchName | None = None
    new_branch: bool = False
    allow_removals: bool = False
    skip_unsupported: bool = False
    reupload: bool = False
    jobs: int | None = None
    rehash: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """The workspace's base after the sync. `any_change` is False where there was nothing to publish.

    files, bytes: of the whole commit. uploaded_bytes, uploaded_objects: everything that this sync wrote to the store.
    reuploaded: objects that the store had lost and has again. lost: files whose content it has lost, and that are not
    here as the base has them.
    skipped: what was left out by `skip_unsupported`.
    single_writer: the store can't tell two writers apart, and who synced has to be told so each time.
    """

    commit: CommitId | None
    parent: CommitId | None
    dataset: DatasetName
    branch: BranchName
    files: int
    bytes: int
    added: int = 0
    changed: int = 0
    removed: int = 0
    any_change: bool = False
    uploaded_bytes: int = 0
    uploaded_objects: int = 0
    reuploaded: int = 0
    lost: tuple[str, ...] = ()
    skipped: tuple[Problem, ...] = ()
    single_writer: bool = False


def sync(context: Context, request: SyncRequest) -> Synced:
    """Commits the workspace (or some paths of it) and publishes it on its branch.

    What it builds on, and what it says is published, is in the store itself: a base that the store has lost is made
    up for by what is here. Raises `Conflict` if the branch is not at the base, even if nothing changed here, if
    another sync is at work or too much would be removed; `NotFound` for a branch or a path that is not there; and
    `Unsupported` with a list of all that can't be stored.
    """
    workspace = context.workspace()
    with workspace.lock("dsv sync") as lock, context.store() as store:
        branch = request.branch or workspace.branch
        target = Target(workspace.dataset, Rev(branch))
        repository = context.open_repository(store, target, workspace.base())
        check_binding(workspace, repository)
        return _Sync(context, request, workspace, repository, store, lock).run()


class _Sync:
    def __init__(
        self,
        context: Context,
        request: SyncRequest,
        workspace: Workspace,
        repository: Repository,
        store: Counting,
        lock: Lock,
    ) -> None:
        self._context = context
        self._request = request
        self._workspace = workspace
        self._repository = repository
        self._store = store
        self._lock = lock
        self._branch = request.branch or workspace.branch
        self._journal = Journal.open(workspace.journal_path, workspace.store_id)
        self._problems: list[Problem] = []
        self._settled: BranchName | None = None
        self._mended = Reuploaded()

    def run(self) -> Synced:
        with self._journal:
            self._settle()
            base = proven_base(self._context, self._repository, self._workspace)
            state = State.load(self._workspace.state_folder)
            try:
                return self._publish_changes(state, base)
            finally:
                state.save()

    def _settle(self) -> None:
        """Where a killed sync had just moved the branch, its commit is the base."""
        intent = self._journal.left.publishing
        if intent is None or intent.dataset != self._workspace.dataset:
            return
        branch = BranchName.parse(intent.branch)
        published = self._repository.refs.entry(self._workspace.dataset, branch, intent.seq)
        if published is not None and published.commit == intent.commit:
            self._workspace.set_base(intent.commit)
            self._workspace = _following(self._workspace, branch)
            self._settled = branch
            self._journal.clear()

    def _publish_changes(self, state: State, base: CommitId | None) -> Synced:
        trees = Trees(lambda: self._repository.objects, proven=True)
        footing = find_footing(
            self._workspace, state, base, trees, self._request.paths, rehash=self._request.rehash
        )
        scan, tree = footing.scan, footing.tree
        footing.check_publishable(self._context.progress)
        self._report(scan)
        check_paths(self._workspace.root, lambda: tree, self._request.paths)
        if tree is not None and (self._request.reupload or self._repository.objects.packs.noted()):
            self._mended = reupload(
                self._repository,
                self._context.writer,
                tree,
                self._workspace.root,
                thorough=self._request.reupload,
            )
        head = self._head()
        begins = head is None or head.entry.deleted
        here = head is None or head.entry.deleted or follows(self._repository.objects, head, base)
        if not scan.missing and not self._any_difference(scan, reading=not here):
            if not here:
                raise self._moved(head, base, changed=False)
            return self._without_change(base, tree, head)
        if not here:
            raise self._moved(head, base)
        check_removals(scan, tree, allowed=self._request.allow_removals)
        with (
            Session.open(self._repository, self._context.writer) as session,
            Uploader(session, self._journal) as uploader,
        ):
            if base is not None and begins:  # no branch of this name keeps the base from gc
                check_whole(session, base)
            files = self._expect(scan)
            uploader.resume(self._journal.left.packs, self._journal.left.recipes)
            root, jobs = self._workspace.root, self._request.jobs
            processes = suitable(files, processors()) if jobs is None else jobs - 1
            with Readers(root, processes) as readers, Descent(root) as descent:
                changes = Changes(scan, uploader, descent, self._context.progress)
                written = write_tree(uploader, tree, changes.over(readers))
            self._problems += changes.problems
            self._refuse_problems()
            if tree is not None and written.root == tree.commit.root:
                return self._without_change(base, tree, head)
            uploader.finish()
            return self._publish(session, scan, tree, head, written, changes)

    def _head(self) -> Head | None:
        """The branch's newest entry. A branch that is to be made has none, or that of its deletion."""
        dataset, branch = self._workspace.dataset, self._branch
        newest = self._repository.refs.newest(dataset, branch)
        there = newest is not None and not newest.entry.deleted
        making = (
            self._request.new_branch and branch != self._settled
        )  # which a killed sync made, and this goes on
        if there and making:
            raise Conflict(
                f"dataset {dataset} has a branch {branch} already",
                subject=branch,
                hint=f"dsv sync --branch {branch} publishes on it",
            )
        if not there and making:
            check_new_branch(self._repository, dataset, branch)
        elif not there:
            if branch == self._workspace.branch:
                self._repository.refs.head(dataset, branch)  # raises what is missing
            raise no_branch(self._repository, self._workspace, branch)
        return newest

    def _any_difference(self, scan: WorkspaceScan, *, reading: bool) -> bool:
        """Whether there is anything to publish. `reading`: finds out even where only contents can tell."""
        with Descent(self._workspace.root) as descent:
            for item in scan.pending():
                if item.base is not None and item.known == item.base:
                    continue  # too young to be trusted without another look, and the same
                if not reading or item.surely_changed or item.known is not None or item.base is None:
                    return True
                if (
                    hash_file(scan, item, descent) is not None
                    or difference(item.base, item.known) is not None
                ):
                    return True
        return False

    def _report(self, scan: WorkspaceScan) -> None:
        for one, other in scan.clashes:
            self._context.progress.note(
                f"{_show(one)} and {_show(other)} are one name where case or Unicode is folded: "
                "macOS and Windows can't have both"
            )
        self._problems = list(scan.problems)
        self._refuse_problems()

    def _refuse_problems(self) -> None:
        if self._problems and not self._request.skip_unsupported:
            raise refusal(self._problems, str(self._workspace.root))

    def _expect(self, scan: WorkspaceScan) -> int:
        """Says how much there is to do, and gives the number of paths.

        Raises `NoRoom` where a directory store can't take what is new.
        """
        files, needed = scan.totals()
        self._context.progress.start(files, needed)
        free = self._store.free_bytes()
        if free is not None and needed > free:
            raise NoRoom(
                f"{self._store.url} has {format_bytes(free)} free, and {format_bytes(needed)} may have to be written",
                subject=self._store.url,
                hint="free some room there, or sync some paths only: dsv sync PATH",
            )
        return files

    def _publish(
        self,
        session: Session,
        scan: WorkspaceScan,
        tree: TreeReader | None,
        head: Head | None,
        written: WrittenTree,
        changes: Changes,
    ) -> Synced:
        context, dataset = self._context, self._workspace.dataset
        parent = None if tree is None else tree.commit_id
        commit = Commit(
            root=written.root,
            level=written.level,
            parents=() if parent is None else (parent,),
            author=context.writer.author,
            time_ms=context.clock(),
            message=self._request.message,
            files=written.files,
            bytes=written.bytes,
            entries=written.entries,
        )
        commit = self._repository.named(commit, dataset, self._branch)
        commit_id = session.put_commit(commit, written.locator)
        number = 0 if head is None else head.number + 1

        def before_ref() -> None:
            self._lock.check()
            self._journal.publishing(str(dataset), str(self._branch), number, commit_id)

        moved = session.publish(dataset, self._branch, head, self._entry(commit_id), before_ref)
        if isinstance(moved, LostRace):
            raise self._moved(moved.winner, parent)
        scan.published(commit_id)
        scan.state.save()
        self._workspace.set_base(commit_id)
        self._follow(commit_id)
        self._journal.clear()
        counts = self._store.counts
        return Synced(
            commit_id, parent, dataset, self._branch, commit.files, commit.bytes,
            added=changes.added, changed=changes.changed, removed=changes.removed,
            any_change=True, uploaded_bytes=counts.bytes_up, uploaded_objects=counts.won,
            reuploaded=self._mended.objects, lost=tuple(map(show, self._mended.lost)),
            skipped=tuple(self._problems),
            single_writer=self._repository.format.single_writer,
        )  # fmt: skip

    def _without_change(self, base: CommitId | None, tree: TreeReader | None, head: Head | None) -> Synced:
        """Nothing to commit; a branch that is named may still have to be made at the base."""
        dataset = self._workspace.dataset
        if base is not None and (head is None or head.commit != base):  # new, or at what the store has lost
            with naming(self._repository, self._context.writer, base):
                moved = self._repository.refs.move(dataset, self._branch, head, self._entry(base))
            if isinstance(moved, LostRace):
                raise self._moved(moved.winner, base)
        if base is not None:
            self._follow(base)
        files, size = (0, 0) if tree is None else (tree.commit.files, tree.commit.bytes)
        counts = self._store.counts
        parent = tree.commit.parents[0] if tree is not None and tree.commit.parents else None
        return Synced(
            base, parent, dataset, self._branch, files, size,
            uploaded_bytes=counts.bytes_up, uploaded_objects=counts.won,
            reuploaded=self._mended.objects, lost=tuple(map(show, self._mended.lost)),
            skipped=tuple(self._problems),
            single_writer=self._repository.format.single_writer,
        )  # fmt: skip

    def _follow(self, commit: CommitId) -> None:
        """The workspace follows the branch, which is at this commit."""
        self._workspace = _following(self._workspace, self._branch)
        self._workspace.set_seen(self._branch, commit)

    def _entry(self, commit_id: CommitId) -> RefEntry:
        return RefEntry(
            commit=commit_id,
            deleted=False,
            nonce=Nonce.random(),
            time_ms=self._context.clock(),
            author=self._context.writer.author,
            action="sync",
        )

    def _moved(self, head: Head | None, base: CommitId | None, *, changed: bool = True) -> Conflict:
        return not_at_base(self._context, self._repository, self._workspace, head, base, changed=changed)


def _following(workspace: Workspace, branch: BranchName) -> Workspace:
    return workspace if branch == workspace.branch else workspace.follow(branch)


def _show(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
