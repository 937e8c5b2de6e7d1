"""Publishing a workspace's changes on a branch, and storing lost objects of its base again.

Nothing here writes a file of the workspace outside `.dsv`. After a kill, the next sync continues from the
state and the journal, which knows whether a branch had just been moved.

The journal is an append-only file of records, each with a checksum. Reading ends at a torn record, which is cut off. If
the journal is lost, content is uploaded again; no data is lost. It is synced to disk before `pack_uploaded` returns
(one fdatasync for each 32 MiB sent), and before `publishing` returns, but not for a recipe alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from dsv.errors import Conflict, NoRoom, NotFound, Unsupported
from dsv.files.descent import Descent
from dsv.files.errors import about
from dsv.format.records import CommitRecord
from dsv.repo.merge_indexes import tidy
from dsv.repo.refs.branches import Head, LostRace, already_there
from dsv.repo.session import Session, check_whole, point_branch
from dsv.repo.tree.diff import difference
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange, TreeWriter, WrittenTree
from dsv.transfer.commit import Committed, Draft, new_commit, publish_commit
from dsv.transfer.save import FileSaver
from dsv.transfer.stable_read import Problem, refusal
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import link_escapes, show
from dsv.values.units import format_bytes
from dsv.workspace.baseline import Baseline, links_with
from dsv.workspace.open import OpenWorkspace, follows
from dsv.workspace.scan.folder import Relation
from dsv.workspace.scan.result import Gone, Pending, WorkspaceScan, hash_file
from dsv.workspace.sync_journal import SyncJournal
from dsv.workspace.workspace import Workspace

ACTION = "sync"
SAVE_EVERY = 60.0
"""Seconds between two saves of the state: a killed sync reads at most this much again."""


class Synced(msgspec.Struct):
    commit: CommitId | None
    """The workspace's base now."""
    parent: CommitId | None
    dataset: DatasetName
    branch: BranchName
    files: int = 0
    """Files of the whole commit; `bytes` is their size."""
    bytes: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    any_change: bool = False
    """False if there was nothing to publish."""
    uploaded_bytes: int = 0
    """Bytes that this sync wrote to the store, including metadata."""
    uploaded_objects: int = 0
    reuploaded: int = 0
    """Objects that the store had lost and has again."""
    lost: tuple[str, ...] = ()
    """Files that the store has lost and that differ from the base, or are missing, in the workspace."""
    skipped: list[Problem] = msgspec.field(default_factory=list)
    """Paths left out by `skip_unsupported`."""
    single_writer: bool = False
    """The store can't detect concurrent writers."""

    @classmethod
    def of(cls, dataset: DatasetName, branch: BranchName, tree: TreeReader | None) -> Synced:
        """Return the result before a sync that begins with this base."""
        done = cls(None, None, dataset, branch)
        if tree is not None:
            done.set_base(tree.commit_id, tree.commit)
        return done

    def set_base(self, commit_id: CommitId, commit: CommitRecord) -> None:
        self.commit, self.files, self.bytes = commit_id, commit.files, commit.bytes
        self.parent = next(iter(commit.parents), None)


def adopt_killed_sync(opened: OpenWorkspace, journal: SyncJournal) -> OpenWorkspace | None:
    """Make the commit of a killed sync the base, if it had just moved a branch. Return the workspace, which
    then follows that branch; None without such a sync."""
    intent, workspace = journal.left.publishing, opened.workspace
    if intent is None or intent.dataset != workspace.dataset:
        return None
    branch = BranchName.parse(intent.branch)
    published = opened.repository.refs.entry(workspace.dataset, branch, intent.seq)
    if published is None or published.commit != intent.commit:
        return None
    workspace.set_base(intent.commit)
    following = opened.following(branch)
    journal.clear()
    return following


class Publisher:
    """The steps by which a sync publishes, in the order of the methods. The caller holds the workspace's
    lock. base: a commit that the store has. new_branch: the sync creates the branch, which must not exist;
    otherwise it must."""

    def __init__(
        self,
        opened: OpenWorkspace,
        journal: SyncJournal,
        branch: BranchName,
        base: CommitId | None,
        *,
        new_branch: bool,
        skip_unsupported: bool,
    ) -> None:
        self._skip_unsupported = skip_unsupported
        self._opened = opened
        self._repository = opened.repository
        self._journal = journal
        self._branch = branch
        self._new_branch = new_branch
        self._head: Head | None = None
        self._base = base

    def check_storable(self, problems: Sequence[Problem]) -> None:
        """Raises `refusal` of paths that can't be stored, unless they are left out: once listed, again once read."""
        if problems and not self._skip_unsupported:
            raise refusal(problems, str(self._workspace.root))

    def find_head(self) -> bool:
        """Read the branch. Return whether the next commit there may have the base as its parent. Raises
        `Conflict` if the branch must not exist but does, and `NotFound` for the reverse."""
        refs, dataset, branch = self._repository.refs, self._workspace.dataset, self._branch
        self._head = refs.newest(dataset, branch)
        self._repository.check_last_seen()
        if self._head is not None and not self._begins_branch and self._new_branch:
            raise already_there(self._head, f"dsv sync --branch {branch} publishes on it")
        if self._begins_branch and self._new_branch:
            self._repository.refs.check_new_branch(dataset, branch)
        elif self._begins_branch:
            if branch == self._workspace.branch:
                refs.head(dataset, branch)  # raises, with what is missing
            # A misspelt name never makes a new one.
            raise NotFound(
                f"dataset {dataset} has no branch {branch}",
                subject=branch,
                hint=f"dsv sync --new-branch {branch} makes it",
            )
        refs.check_mover(self._head, self._opened.writer.author)
        if self._head is None or self._begins_branch:
            return True
        return follows(self._repository.objects, self._head, self._base)

    def moved(self, *, changed: bool) -> Conflict:
        """Return the error if `find_head` returned False. changed: there is something to publish."""
        return self._opened.not_at_base(self._head, self._base, changed=changed)

    def publish(self, baseline: Baseline, done: Synced, message: str, *, jobs: int | None) -> None:
        """Upload changed files, and publish a commit if it differs from the base after all. Complete `done`.

        Without a message, the commit's message counts the changes. Raises `Conflict` if another writer moves
        the branch first, and `Unsupported` for files that can't be stored.
        """
        scan, tree, journal = baseline.scan, baseline.tree, self._journal
        with (
            Session.open(self._repository, self._opened.writer) as session,
            Uploader(session, journal) as uploader,
        ):
            # No branch of this name keeps the base from gc.
            if self._base is not None and self._begins_branch:
                check_whole(session, self._workspace.dataset, self._base)
            files = self._expect(scan)
            uploader.resume(journal.left.packs, journal.left.recipes)
            writer = TreeWriter(uploader, tree)
            listed = _still_listed(scan, uploader) if uploader.erasures else frozenset()
            with FileSaver[Pending | Gone](uploader, scan.root, files, self._opened.progress, jobs) as saver:
                _save_files(scan, saver, writer, done, listed)
            written = writer.finish()
            self._opened.progress.finish()
            self.check_storable(done.skipped)
            if tree is not None and written.root == tree.commit.root:
                done.added, done.changed, done.removed = 0, 0, 0
                return
            if tree is not None and written.links_moved and not baseline.held.whole:
                self._check_links(link_escapes(links_with(tree, scan, baseline.held)))
            uploader.finish()
            committed = self._commit(session, scan, written, message or _default_message(done))
        done.set_base(committed.id, committed.commit)
        done.any_change = True
        tidy(self._repository, self._opened.writer)

    def _check_links(self, escaping: list[bytes]) -> None:
        """Refuse a symlink that leads out of the dataset by way of another one that is not here."""
        if escaping:
            raise Unsupported(
                f"the symlink {show(escaping[0])} would lead out of dataset {self._workspace.dataset}, by way of what "
                "is not in this workspace; nothing was published",
                subject=show(escaping[0]),
                hint="leave the symlink out, or change it",
            )

    def name_base(self) -> None:
        """Make a named branch at the base if need be, in a sync with nothing to commit."""
        base, head = self._base, self._head
        if base is None:
            return
        if head is None or head.commit != base:  # new, or at a commit that the store has lost
            where = self._workspace.dataset, self._branch
            moved = point_branch(self._repository, self._opened.writer, where, head, base, ACTION)
            if isinstance(moved, LostRace):
                raise self._opened.not_at_base(moved.winner, base)
        self._follow(base)

    @property
    def _workspace(self) -> Workspace:
        return self._opened.workspace

    @property
    def _begins_branch(self) -> bool:
        """Return whether the branch does not exist: it never did, or it was deleted."""
        return self._head is None or self._head.entry.deleted

    def _expect(self, scan: WorkspaceScan) -> int:
        """Report the amount of work, and return the number of paths. Raises `NoRoom` if a directory store has
        no room for new content."""
        files, needed = scan.totals()
        self._opened.progress.start(files, needed)
        store = self._repository.store
        free = store.free_bytes()
        if free is not None and needed > free:
            raise NoRoom(
                f"{store.url} has {format_bytes(free)} free, and {format_bytes(needed)} may have to be written",
                subject=store.url,
                hint="free some room there, or sync some paths only: dsv sync PATH",
            )
        return files

    def _commit(self, session: Session, scan: WorkspaceScan, written: WrittenTree, message: str) -> Committed:
        dataset, base = self._workspace.dataset, self._base
        parents = () if base is None else (base,)
        draft = Draft(dataset, self._branch, self._head, parents, message, ACTION)
        commit = new_commit(self._repository, self._opened.writer, draft, written)
        number = 0 if self._head is None else self._head.number + 1

        def before_ref() -> None:
            self._opened.lock.check()
            self._journal.publishing(str(dataset), str(self._branch), number, commit.id)

        done = publish_commit(session, self._opened.writer, draft, commit, written.locator, before_ref)
        if isinstance(done, LostRace):
            raise self._opened.not_at_base(done.winner, base)
        scan.published(done.id)
        scan.state.save()
        self._workspace.set_base(done.id)
        self._follow(done.id)
        self._journal.clear()
        return done

    def _follow(self, commit: CommitId) -> None:
        self._opened = self._opened.following(self._branch)
        self._workspace.set_seen(self._branch, commit)


def _still_listed(scan: WorkspaceScan, uploader: Uploader) -> frozenset[bytes]:
    """Return files whose content was erased, and which are here as the base lists them. They stay listed."""
    found = set()
    with about(scan.root), Descent(scan.root) as descent:
        for item in scan.pending():
            if item.base is None or uploader.erasures.of(item.base) is None or item.size != item.base.size:
                continue
            if hash_file(scan, item, descent) is None and difference(item.base, item.known) is None:
                found.add(item.path)
    return frozenset(found)


def _save_files(
    scan: WorkspaceScan,
    saver: FileSaver[Pending | Gone],
    writer: TreeWriter,
    done: Synced,
    listed: frozenset[bytes],
) -> None:
    """Store what may differ from the base, and add it to the tree. listed: paths that stay as the base lists them."""
    state_saved = time.monotonic()
    for item, saved in saver.save(one for one in scan.work() if one.path not in listed):
        if isinstance(item, Gone):
            done.removed += 1
            writer.add(TreeChange(item.path, None))
            continue
        if time.monotonic() - state_saved > SAVE_EVERY:
            scan.state.save()
            state_saved = time.monotonic()
        if isinstance(saved, Problem):
            done.skipped.append(saved)
            scan.not_stored(item)
            continue
        entry, location = item.known, None
        if saved is not None:
            location = saved.stored.location
            if saved.row:
                _, file_id, recipe_id, _ = saved.stored
                entry = scan.record(
                    item, saved.row, saved.device, file_id, recipe_id, no_writer=saved.no_writer
                )
                if entry == item.base:
                    continue
        assert entry is not None
        if item.relation is Relation.ABSENT:
            done.added += 1
        else:
            done.changed += 1
        writer.add(TreeChange(item.path, entry, location))
    if torn := saver.check_together(scan.rows_in, complete=True):
        raise refusal(torn, str(scan.root))


def _default_message(done: Synced) -> str:
    """Return counts such as `2 added, 1 removed`, for a commit without a message."""
    counts = {"added": done.added, "changed": done.changed, "removed": done.removed}
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "sync"
