"""Open a workspace for a command that changes it; publish it (sync), and choose its paths (sparse)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from dsv.api.cache_targets import lending
from dsv.api.context import Context, check_binding
from dsv.cache.root import SETTINGS_FILE
from dsv.errors import Conflict
from dsv.repo.damage import read_damage
from dsv.repo.tree.reader import TreeReader
from dsv.values.names import BranchName, Rev, Target
from dsv.values.paths import show
from dsv.values.progress import Progress
from dsv.workspace.baseline import check_paths, check_removals, doubts, left_out, note_let_go, open_baseline
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.publish import Publisher, Synced, adopt_killed_sync
from dsv.workspace.reupload import Reuploaded, reupload
from dsv.workspace.scan.result import WorkspaceScan
from dsv.workspace.sync_journal import SyncJournal


@contextmanager
def open_to_publish(
    context: Context, command: str, branch: BranchName | None = None, *, borrows: bool = False
) -> Iterator[OpenWorkspace]:
    """Open and lock the workspace for a command that publishes on `branch` (None: the workspace's).

    borrows: read files to write here from this machine's caches before the store. Raises `Conflict` if
    another command is running in the workspace, or it belongs to another store.
    """
    with context.workspace().locked(command) as (workspace, lock), context.store() as store:
        target = Target(workspace.dataset, Rev(branch or workspace.branch))
        repository = context.open_repository(store, target, workspace.base(), tracked=True)
        check_binding(workspace, repository)
        with lending(context, repository, workspace.dataset) if borrows else nullcontext() as copies:
            yield OpenWorkspace(
                workspace, repository, lock, context.writer, context.progress, lambda: store.counts, copies
            )


@contextmanager
def open_to_write(context: Context, command: str) -> Iterator[OpenWorkspace]:
    """Open the workspace for a command that only writes here; the store may be read from local copies."""
    with (
        context.workspace().locked(command) as (workspace, lock),
        context.bound_repository(workspace) as repository,
        lending(context, repository, workspace.dataset) as copies,
    ):
        yield OpenWorkspace(workspace, repository, lock, context.writer, context.progress, copies=copies)


def check_no_cache(folder: Path, hint: str) -> None:
    """Raises `Conflict` if a folder is in a cache, whose files are shared, and deleted when unused."""
    for above in (folder.resolve(), *folder.resolve().parents):
        if (above / SETTINGS_FILE).exists():
            raise Conflict(f"{folder} lies in the cache {above}", subject=str(folder), hint=hint)


@dataclass(frozen=True, slots=True)
class SyncRequest:
    paths: tuple[bytes, ...] = ()
    """Empty for the whole workspace."""
    message: str = ""
    """Empty for a count of the changes."""
    branch: BranchName | None = None
    """The branch to publish to and to follow afterwards."""
    new_branch: bool = False
    """Create `branch`, which must not exist. Otherwise it must exist."""
    allow_removals: bool = False
    skip_unsupported: bool = False
    reupload: bool = False
    """Read all data of the base from the store, and upload lost or damaged data again."""
    jobs: int | None = None
    """Processes that read small files; None for a suitable number."""
    rehash: bool = False
    """Read contents again even if sizes and times are unchanged."""
    confirm: Callable[[str, str], object] = lambda what, dataset: None
    """Called with what a person should know before it is published, if anything. Raises if it must not be."""


def sync(context: Context, request: SyncRequest) -> Synced:
    """Commit the workspace (or some paths of it) and publish it on its branch.

    Base data that the store has lost is uploaded again from here, so that all of the commit is in the store. Raises
    `Conflict` if the branch is not at the base, even if nothing changed here, if another sync is running or too much
    would be removed; `NotFound`; and `Unsupported` with a list of all paths that can't be stored.
    """
    with (
        open_to_publish(context, "dsv sync", request.branch) as opened,
        SyncJournal.open(opened.workspace.journal_path, opened.workspace.store_id) as journal,
    ):
        branch = request.branch or opened.workspace.branch
        new_branch = request.new_branch
        if (following := adopt_killed_sync(opened, journal)) is not None:
            opened = following
            new_branch = new_branch and opened.workspace.branch != branch  # else the killed sync made it
        base = opened.proven_base()
        publisher = Publisher(
            opened, journal, branch, base, new_branch=new_branch, skip_unsupported=request.skip_unsupported
        )
        with open_baseline(opened, base, request.paths, rehash=request.rehash) as baseline:
            scan, tree = baseline.scan, baseline.tree
            baseline.check_publishable(context.progress)
            _note_names(scan, context.progress)
            publisher.check_storable(scan.problems)
            check_paths(opened.workspace.root, lambda: tree, request.paths)
            reuploaded = _reupload_lost(opened, tree, request)
            changed = not scan.unchanged
            if not publisher.find_head():
                raise publisher.moved(changed=changed)
            done = Synced.of(opened.workspace.dataset, branch, tree)
            done.reuploaded, done.lost = reuploaded.objects, tuple(map(show, reuploaded.lost))
            done.skipped += scan.problems
            if changed:
                check_removals(scan, tree, allowed=request.allow_removals)
                dataset = str(opened.workspace.dataset)
                if (what := left_out(scan)) and not request.allow_removals:
                    request.confirm(f"this removes {what}", dataset)
                if what := doubts(scan, context.settings.home):
                    request.confirm(f"this publishes {what}", dataset)
                publisher.publish(baseline, done, request.message, jobs=request.jobs)
            if not done.any_change:
                publisher.name_base()
            counts = opened.counts()
            done.uploaded_bytes, done.uploaded_objects = counts.bytes_up, counts.won
            done.single_writer = opened.repository.format.single_writer
            return done


def _note_names(scan: WorkspaceScan, progress: Progress) -> None:
    note_let_go(scan, progress)
    for one, other in scan.clashes:
        progress.note(
            f"{show(one)} and {show(other)} are one name where case or Unicode is folded: "
            "macOS and Windows can't have both"
        )


def _reupload_lost(opened: OpenWorkspace, tree: TreeReader | None, request: SyncRequest) -> Reuploaded:
    """Upload lost base data again, if requested or if a loss is known."""
    repository = opened.repository
    if tree is None:
        return Reuploaded()
    read_damage(repository)
    if not (request.reupload or repository.objects.packs.noted(tree.commit_id)):
        return Reuploaded()
    root, progress = opened.workspace.root, opened.progress
    return reupload(repository, opened.writer, tree, root, progress, thorough=request.reupload)
