"""Committing a workspace and publishing the commit."""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.context import Context
from dsv.api.workspaces import open_to_publish
from dsv.repo.damage import read_damage
from dsv.repo.tree.read import TreeReader
from dsv.transfer.file_reader import Problem, refusal
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import show
from dsv.values.progress import Progress
from dsv.workspace.baseline import open_baseline
from dsv.workspace.journal import Journal
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.publish import Publisher, Saved, finish_killed
from dsv.workspace.reupload import Reuploaded, reupload
from dsv.workspace.scan.result import WorkspaceScan, may_differ
from dsv.workspace.sparse import check_paths, check_removals, note_let_go


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """The paths to publish, and the options of a sync."""

    paths: tuple[bytes, ...] = ()
    """Empty for the whole workspace."""
    message: str = ""
    """Empty for a count of the changes."""
    branch: BranchName | None = None
    """The branch to publish to, and to follow from then on."""
    new_branch: bool = False
    """Create `branch`, which must not exist. Otherwise it must."""
    allow_removals: bool = False
    skip_unsupported: bool = False
    reupload: bool = False
    """Read all data of the base from the store, and upload again what is lost or damaged."""
    jobs: int | None = None
    """Processes that read small files; None for a suitable number."""
    rehash: bool = False
    """Read contents again even if sizes and times are unchanged."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a sync."""

    commit: CommitId | None
    """The workspace's base now."""
    parent: CommitId | None
    dataset: DatasetName
    branch: BranchName
    files: int
    """Files of the whole commit; `bytes` is their size."""
    bytes: int
    added: int = 0
    changed: int = 0
    removed: int = 0
    any_change: bool = False
    """False if there was nothing to publish."""
    uploaded_bytes: int = 0
    """Bytes that this sync wrote to the store, with metadata."""
    uploaded_objects: int = 0
    reuploaded: int = 0
    """Objects that the store had lost and has again."""
    lost: tuple[str, ...] = ()
    """Files that the store has lost and that the workspace no longer has as in the base."""
    skipped: tuple[Problem, ...] = ()
    """Paths left out by `skip_unsupported`."""
    single_writer: bool = False
    """The store can't detect concurrent writers."""


def sync(context: Context, request: SyncRequest) -> Synced:
    """Commit the workspace (or some paths of it) and publish it on its branch.

    What it builds on, and what it says is published, is in the store itself: a base that the store has lost is made
    up for by what is here. Raises `Conflict` if the branch is not at the base, even if nothing changed here, if
    another sync is at work or too much would be removed; `NotFound` for a branch or a path that is not there; and
    `Unsupported` with a list of all that can't be stored.
    """
    with (
        open_to_publish(context, "dsv sync", request.branch) as opened,
        Journal.open(opened.workspace.journal_path, opened.workspace.store_id) as journal,
    ):
        branch = request.branch or opened.workspace.branch
        new_branch = request.new_branch
        if (following := finish_killed(opened, journal)) is not None:
            opened = following
            new_branch = new_branch and opened.workspace.branch != branch  # else the killed sync made it
        base = opened.proven_base()
        publisher = Publisher(opened, journal, branch, base, new_branch=new_branch)
        with open_baseline(opened, base, request.paths, rehash=request.rehash) as baseline:
            scan, tree = baseline.scan, baseline.tree
            baseline.check_publishable(context.progress)
            _check_storable(scan, request, context.progress)
            check_paths(opened.workspace.root, lambda: tree, request.paths)
            reuploaded = _reupload_lost(opened, tree, request)
            at_base = publisher.find_head()
            changed = bool(scan.missing) or may_differ(scan, reading=not at_base)
            if not at_base:
                raise publisher.moved(changed=changed)
            saved = None
            if changed:
                check_removals(scan, tree, allowed=request.allow_removals)
                saved = publisher.publish(
                    baseline, request.message, jobs=request.jobs, skip_unsupported=request.skip_unsupported
                )
            if saved is None or saved.committed is None:
                publisher.name_base()
            return _synced(opened, branch, tree, scan, saved, reuploaded)


def _check_storable(scan: WorkspaceScan, request: SyncRequest, progress: Progress) -> None:
    note_let_go(scan, progress)
    for one, other in scan.clashes:
        progress.note(
            f"{_text(one)} and {_text(other)} are one name where case or Unicode is folded: "
            "macOS and Windows can't have both"
        )
    if scan.problems and not request.skip_unsupported:
        raise refusal(scan.problems, str(scan.root))


def _reupload_lost(opened: OpenWorkspace, tree: TreeReader | None, request: SyncRequest) -> Reuploaded:
    """Store again what the store has lost of the base, if that is asked for or something is known to be lost."""
    repository = opened.repository
    if tree is None:
        return Reuploaded()
    read_damage(repository)
    if not (request.reupload or repository.objects.packs.noted(tree.commit_id)):
        return Reuploaded()
    root, progress = opened.workspace.root, opened.progress
    return reupload(repository, opened.writer, tree, root, progress, thorough=request.reupload)


def _synced(
    opened: OpenWorkspace,
    branch: BranchName,
    tree: TreeReader | None,
    scan: WorkspaceScan,
    saved: Saved | None,
    reuploaded: Reuploaded,
) -> Synced:
    committed = None if saved is None else saved.committed
    commit_id, commit = None, None
    if committed is not None:
        commit_id, commit = committed.id, committed.commit
    elif tree is not None:
        commit_id, commit = tree.commit_id, tree.commit
    counts = opened.counts()
    return Synced(
        commit=commit_id,
        parent=commit.parents[0] if commit is not None and commit.parents else None,
        dataset=opened.workspace.dataset,
        branch=branch,
        files=0 if commit is None else commit.files,
        bytes=0 if commit is None else commit.bytes,
        added=0 if saved is None else saved.added,
        changed=0 if saved is None else saved.changed,
        removed=0 if saved is None else saved.removed,
        any_change=committed is not None,
        uploaded_bytes=counts.bytes_up,
        uploaded_objects=counts.won,
        reuploaded=reuploaded.objects,
        lost=tuple(map(show, reuploaded.lost)),
        skipped=(*scan.problems, *(() if saved is None else saved.problems)),
        single_writer=opened.repository.format.single_writer,
    )


def _text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
