"""Make a dataset, and bind a folder to it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from dsv.api.context import Context
from dsv.api.store import create_repository
from dsv.api.workspaces import check_no_cache
from dsv.errors import Conflict, Denied
from dsv.format.records import RefEntry
from dsv.repo.errors import may_write
from dsv.repo.refs.branches import Moved
from dsv.repo.repository import Repository
from dsv.values.names import MAIN, DatasetName
from dsv.workspace.workspace import Workspace, is_vacant


@dataclass(frozen=True, slots=True)
class Initialized:
    """A folder that was bound to a new dataset."""

    dataset: DatasetName
    store: str
    root: Path
    new_store: bool
    warnings: tuple[str, ...] = ()
    """About settings of a new store's bucket that would harm it."""


def init(context: Context, folder: Path, dataset: DatasetName, *, single_writer: bool = False) -> Initialized:
    """Bind `folder` to a new dataset in the store in effect, which is made and proved if it is not there yet.

    If it was interrupted, the same call finishes it. Raises `Conflict` if the dataset exists or the folder is in
    another workspace, and `Unsupported` if the store can't promise that one writer wins.
    """
    inside = Workspace.find(folder)
    if inside is not None and (inside.root != folder.resolve() or inside.dataset != dataset):
        raise Conflict(
            f"{folder} is already in the workspace {inside.root} of {inside.dataset} in {inside.store}",
            subject=str(folder),
            hint=f"to bind the files to something else: rm -r {shlex.quote(str(inside.dot))}, then dsv init again",
        )
    check_no_cache(folder, "copy what is to be a dataset to a folder outside of the cache")
    choice = context.settings.store()
    called = choice.called  # raises before a store is made that no workspace could be bound to
    with context.store(create=True) as store:
        new_store = not Repository.exists(store)
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
            raise _exists(context, repository, dataset, folder)
        # Bound first: interrupted between the two, the same command finishes.
        workspace = inside or Workspace.create(
            folder,
            store=called,
            store_id=repository.id,
            dataset=dataset,
            branch=MAIN,
            names=choice.names_kept,
        )
        _create_dataset(context, repository, workspace, dataset, resumed=resumed)
        warnings: tuple[str, ...] = ()
        if new_store and choice.url.startswith("s3://") and not context.options.anonymous:
            from dsv.store.bucket import bucket_warnings

            warnings = bucket_warnings(choice.url, context.store_options(choice))
        return Initialized(dataset, store.url, workspace.root, new_store, warnings)


def _create_dataset(
    context: Context, repository: Repository, workspace: Workspace, dataset: DatasetName, *, resumed: bool
) -> None:
    entry = RefEntry.of(context.writer, context.clock(), None, "init")
    try:
        with may_write(repository.store.url):
            made = repository.refs.move(dataset, MAIN, None, entry)
    except Denied:
        if not resumed:
            workspace.unbind()
        raise
    if isinstance(made, Moved):
        return
    if resumed:  # an earlier, interrupted init of this folder had come this far, or somebody else has
        head = repository.refs.head_or_none(dataset, MAIN)
        if head is not None and head.commit is None:
            return
    workspace.unbind()
    raise _exists(context, repository, dataset, workspace.root)


def _exists(context: Context, repository: Repository, dataset: DatasetName, folder: Path) -> Conflict:
    choice = context.settings.store()
    store = f" --store {shlex.quote(choice.called)}" if choice.origin == "--store" else ""
    hint = f"dsv clone {dataset}{store}"
    if not is_vacant(folder):
        where = "." if folder.resolve() == Path.cwd() else shlex.quote(str(folder))
        hint = f"dsv clone {dataset} {where}{store} --keep makes a workspace of this folder; files that differ stay"
    return Conflict(f"dataset {dataset} already exists in {repository.store.url}", subject=dataset, hint=hint)
