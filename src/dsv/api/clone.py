"""Make workspaces: of a new dataset (init), or with the files of an existing dataset (clone)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from msgspec import structs

from dsv.api.cache_targets import lending
from dsv.api.context import Context, note_store, write_tracking
from dsv.api.sparse import chosen_by
from dsv.api.store import create_repository
from dsv.api.sync import check_no_cache
from dsv.errors import Conflict, Denied, UsageError
from dsv.files.errors import about
from dsv.files.folders import bound_folder
from dsv.format.records import RefEntry
from dsv.merge.paths import Choices
from dsv.repo.errors import explain_denied_write
from dsv.repo.format_log import has_layout
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader, find_paths
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, Target
from dsv.values.paths import PathSet
from dsv.values.patterns import EVERYTHING, SparsePatterns
from dsv.workspace.baseline import open_baseline
from dsv.workspace.checkout import check_equal, check_out, check_tree
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.plan import CheckoutResult, Goal, OverwritePolicy, PathCounts
from dsv.workspace.workspace import DOT_FOLDER, Workspace, is_vacant


@dataclass(frozen=True, slots=True)
class Initialized:
    dataset: DatasetName
    store: str
    root: Path
    new_store: bool
    warnings: tuple[str, ...] = ()
    """About harmful settings of a new store's bucket."""


def init(context: Context, folder: Path, dataset: DatasetName, *, single_writer: bool = False) -> Initialized:
    """Bind `folder` to a new dataset in the current store, which is made and tested if it does not exist.

    If this is interrupted, the same call finishes it. Raises `Conflict` if the dataset exists or the folder
    is in another workspace, and `Unsupported` if the store can't guarantee that one of several writers wins.
    """
    inside = Workspace.find(folder)
    if inside is None:
        _check_no_unreadable(folder)
    elif inside.root != folder.resolve() or inside.dataset != dataset:
        raise Conflict(
            f"{folder} is already in the workspace {inside.root} of {inside.dataset} in {inside.store}",
            subject=str(folder),
            hint=f"to bind the files to something else: rm -r {shlex.quote(str(inside.dot))}, then dsv init again",
        )
    check_no_cache(folder, "copy what is to be a dataset to a folder outside of the cache")
    choice = context.settings.store()
    _ = choice.called  # raises before this creates a store that no workspace could be bound to
    with context.store(create=True) as store:
        new_store = not has_layout(store)
        repository = (
            create_repository(context, store, single_writer=single_writer)
            if new_store
            else context.open_repository(store)
        )
        repository.format.check(store.url, writing=True)
        repository.refs.check_new_dataset(dataset)
        resumed = inside is not None and inside.store_id == repository.id and inside.base() is None
        if inside is not None and not resumed:
            raise Conflict(
                f"{folder} is already a workspace of {dataset} in {inside.store}",
                subject=str(folder),
                hint=f"to bind the files to another store: rm -r {shlex.quote(str(inside.dot))}, then dsv init again",
            )
        if inside is None and repository.refs.exists(dataset):
            raise _dataset_exists(context, repository, dataset, folder)
        # Bound first: if this is interrupted between the two, the same command finishes it.
        workspace = inside or _new_workspace(context, repository, folder, (dataset, MAIN, EVERYTHING))
        _create_dataset(context, repository, workspace, dataset, resumed=resumed)
        warnings: tuple[str, ...] = ()
        if new_store and choice.url.startswith("s3://") and not context.options.anonymous:
            from dsv.stores.bucket import bucket_warnings

            warnings = bucket_warnings(choice.url, context.store_options(choice))
        return Initialized(dataset, store.url, workspace.root, new_store, warnings)


def _create_dataset(
    context: Context, repository: Repository, workspace: Workspace, dataset: DatasetName, *, resumed: bool
) -> None:
    entry = RefEntry.of(context.writer, context.clock(), None, "init")
    try:
        with explain_denied_write(repository.store.url):
            made = repository.refs.move(dataset, MAIN, None, entry)
    except Denied:
        if not resumed:
            workspace.unbind()
        raise
    if isinstance(made, Head):
        return
    if resumed:  # an earlier, interrupted init of this folder, or another process, has made the dataset
        head = repository.refs.head_or_none(dataset, MAIN)
        if head is not None and head.commit is None:
            return
    workspace.unbind()
    raise _dataset_exists(context, repository, dataset, workspace.root)


def _dataset_exists(context: Context, repository: Repository, dataset: DatasetName, folder: Path) -> Conflict:
    choice = context.settings.store()
    store = f" --store {shlex.quote(choice.called)}" if choice.origin == "--store" else ""
    hint = f"dsv clone {dataset}{store}"
    if not is_vacant(folder):
        where = "." if folder.resolve() == Path.cwd() else shlex.quote(str(folder))
        hint = f"dsv clone {dataset} {where}{store} --keep makes a workspace of this folder; files that differ stay"
    return Conflict(f"dataset {dataset} already exists in {repository.store.url}", subject=dataset, hint=hint)


COMMAND = "dsv clone"
_HINT = "move or remove them"


class Differing(Enum):
    """The treatment of files that differ from the commit's. Files that the commit lacks are always kept."""

    REFUSE = "refuse"
    """Refuse them, and also files that the commit does not have."""
    KEEP = "keep"
    """Keep them as local changes."""
    OVERWRITE = "overwrite"


_HINTS = {Differing.REFUSE: f"{_HINT}; --keep keeps them as local changes, --force overwrites them"}


class Cloned(PathCounts):
    root: Path
    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    """None for a dataset without commits."""
    files: int
    """Files of the whole commit; `bytes` is their size."""
    bytes: int
    chosen: SparsePatterns = EVERYTHING
    erased: int = 0
    """Files of the commit that the workspace lacks because they were erased from the store."""


def clone(
    context: Context,
    target: Target,
    folder: Path | None = None,
    *,
    only: Sequence[str] = (),
    differing: Differing = Differing.REFUSE,
) -> Cloned:
    """Make a workspace of a commit, in a folder (by default named after the dataset).

    Only files that the folder does not have as in the commit are fetched. The workspace follows the branch of
    the target, else `main`. If this is interrupted, the same call finishes it. only: patterns of the paths to
    check out. Raises `Conflict`, with nothing written, for anything else in the folder.
    """
    if target.dataset is None or target.path is not None:
        raise UsageError(
            "dsv clone needs a dataset's name", subject=str(target), hint="dsv datasets lists the names"
        )
    dataset = target.dataset
    root = context.cwd / (folder or Path(dataset.rsplit("/", 1)[-1]))
    with context.repository(target, mirrors=True) as repository, ExitStack() as stack:
        if target.rev is None:
            branch, commit = MAIN, repository.refs.head(dataset, MAIN).commit
        else:
            resolved = context.resolve(repository, target)
            branch, commit = resolved.branch or MAIN, resolved.commit
        copies = stack.enter_context(lending(context, repository, dataset))  # first: it has metadata too
        tree = None if commit is None else TreeReader(repository.objects, commit)
        if tree is not None:
            context.note_read(dataset, tree.commit_id, tree.commit)
        chosen = chosen_by(tree, only)
        _check_folder(root, dataset, tree, differing)
        workspace, is_new = _bind(context, repository, root, (dataset, branch, chosen))
        write_tracking(structs.replace(context, cwd=workspace.root), repository)
        if tree is None:
            return Cloned(workspace.root, dataset, branch, None, 0, 0, chosen=chosen)
        with workspace.locked(COMMAND) as (bound, lock):
            opened = OpenWorkspace(bound, repository, lock, context.writer, context.progress, copies=copies)
            try:
                made = _fill(opened, tree, differing)
            except BaseException:
                if is_new and not bound.begun():  # nothing was written: restore the folder
                    bound.unbind()
                raise
        erasures = tree.objects.erasures
        erased = sum(erasures.of(entry) is not None for entry, _ in tree.below(b"")) if erasures else 0
        done = Cloned(
            workspace.root, dataset, branch, commit, tree.commit.files, tree.commit.bytes, chosen, erased
        )
        return done.counting(made)


def _fill(opened: OpenWorkspace, tree: TreeReader, differing: Differing) -> CheckoutResult:
    workspace = opened.workspace
    with open_baseline(opened, workspace.base(), writes=True) as baseline:
        check_tree(tree, workspace.root, baseline.held)
        goal = Goal(COMMAND, tree.commit_id, partial(baseline.changes_to, tree), _HINTS.get(differing, _HINT))
        if differing is Differing.REFUSE and not baseline.begun:
            check_equal(baseline, tree, goal)
        if differing is Differing.OVERWRITE:
            goal = structs.replace(goal, may_overwrite=_policy(tree, workspace.root))
        elif differing is Differing.KEEP:
            goal = structs.replace(goal, choices=Choices(ours=PathSet()))
        return check_out(opened, baseline, goal)


def _policy(tree: TreeReader, root: Path) -> OverwritePolicy:
    """Return a policy to replace files by the commit's. Files that it lacks, and their folders, are kept."""

    def may_overwrite(path: bytes) -> bool:
        place = root / os.fsdecode(path)
        if not os.path.lexists(place):
            return True
        return (place.is_symlink() or not place.is_dir()) and tree.entry(path) is not None

    return may_overwrite


def _check_folder(root: Path, dataset: DatasetName, tree: TreeReader | None, differing: Differing) -> None:
    """Raises `Conflict` if the folder has something but no path of the commit, or if it is in a cache."""
    elsewhere = f"dsv clone {dataset} OTHER-DIR"
    check_no_cache(root, elsewhere)
    if (root / DOT_FOLDER).exists() or not (root.is_symlink() or root.exists()) or is_vacant(root):
        return
    names: list[bytes] = []
    if root.is_dir() and tree is not None:
        with about(root):
            names = [os.fsencode(path.name) for path in root.iterdir()]
    if differing is Differing.REFUSE:
        names = [path for path, found in find_paths(tree, names) if found.entry is not None or found.below]
    if not names:
        raise Conflict(
            f"{root} already exists and is {'not empty' if root.is_dir() else 'not a folder'}",
            subject=str(root),
            hint=f"{elsewhere}; --keep turns a folder into a workspace as it is",
        )


_Wanted = tuple[DatasetName, BranchName, SparsePatterns]
"""The dataset, the branch and the paths that a workspace is bound to."""


def _bind(context: Context, repository: Repository, root: Path, wanted: _Wanted) -> tuple[Workspace, bool]:
    """Return the workspace, and whether this call has bound it."""
    dataset, branch, chosen = wanted
    inside = Workspace.find(root)
    if inside is not None and inside.root == root.resolve():
        begun = inside.base() is None or any(each.command == COMMAND for each in inside.begun())
        if begun and inside.store_id == repository.id and inside.dataset == dataset:
            if inside.chosen != chosen:
                only = "".join(f" --only {shlex.quote(line)}" for line in inside.chosen.lines or ())
                raise Conflict(
                    f"an interrupted clone in {root} was started {'with' + only if only else 'without --only'}",
                    subject=str(root),
                    hint=f"dsv clone {dataset} {root}{only} finishes it; then dsv sparse add or dsv sparse remove",
                )
            return (inside if inside.branch == branch else inside.follow(branch)), False
        raise Conflict(
            f"{root} is already a workspace of {inside.dataset}",
            subject=str(root),
            hint=f"dsv -C {shlex.quote(str(root))} pull",
        )
    if inside is not None:
        raise Conflict(
            f"{root} lies in the workspace {inside.root} of {inside.dataset}",
            subject=str(root),
            hint=f"dsv clone {dataset} DIR, with a folder outside of it",
        )
    _check_no_unreadable(root)
    return _new_workspace(context, repository, root, wanted), True


def _check_no_unreadable(folder: Path) -> None:
    """Raises `Conflict` if the folder lies in a workspace that this user can't read."""
    around = bound_folder(folder.resolve(), unreadable=True)
    if around is not None:
        raise Conflict(
            f"{folder} lies in the workspace {around}, which this user can't read",
            subject=str(folder),
            hint="choose a folder outside of it",
        )


def _new_workspace(context: Context, repository: Repository, root: Path, wanted: _Wanted) -> Workspace:
    dataset, branch, chosen = wanted
    choice = context.settings.store()
    note_store(context, choice.url, repository.id)
    return Workspace.create(
        root,
        store=choice.called,
        store_id=repository.id,
        dataset=dataset,
        branch=branch,
        names=choice.names_kept,
        chosen=chosen,
    )
