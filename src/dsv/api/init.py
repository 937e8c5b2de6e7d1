"""Make a dataset, and bind a folder to it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from dsv.api.context import Context
from dsv.api.workspaces import check_no_cache
from dsv.errors import Conflict, Denied, Unsupported, UsageError
from dsv.format.records import RefEntry
from dsv.repo.errors import may_write
from dsv.repo.refs.branches import Moved
from dsv.repo.repository import Repository
from dsv.store.base import Store
from dsv.store.open import OpenStore, Unavailable, open_names, split_of
from dsv.store.probe import Proof, prove, prove_data, same_place
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


def create_repository(context: Context, store: Store, *, single_writer: bool) -> Repository:
    """Prove that the store keeps its promises, each of its places for what it is used for, then makes a repository."""
    split = split_of(store)
    if split is not None and single_writer:
        raise UsageError(
            "names that are elsewhere are there for several writers", hint="leave out --single-writer"
        )
    if split is not None:
        make_place(context, split)
    proof = prove_names(store if split is None else split.names, single_writer=single_writer)
    if split is not None:
        if same_place(split.names, split.data):
            raise UsageError(
                f"{split.names.url} is the place of the data itself",
                subject=split.names.url,
                hint="leave out --names, or name another place: a folder, or another bucket's URL",
            )
        split.data.conditional = prove(split.data).put_if_absent_ok
        findings = prove_data(split.data)
        if findings:
            raise Unsupported(
                f"{store.url} can't keep data: {'; '.join(findings)}",
                subject=store.url,
                hint="dsv init --store with another bucket; docs/operations/stores.md has the settings of each server",
            )
    return Repository.create(
        store,
        context.metadata_folder,
        author=context.writer.author,
        tool=context.writer.tool,
        single_writer=not proof.put_if_absent_ok,
        ordered=proof.ordered,
        clock=context.clock,
    )


def make_place(context: Context, split: OpenStore) -> None:
    """Make the folder that is to have the names, if it is not there. Only for names that are about to be made: if
    there are some already, a folder that is absent is a mount that is missing."""
    if isinstance(split.names, Unavailable):
        options = context.store_options(context.settings.store())
        split.names = open_names(split.names.url, options, create=True)


def prove_names(store: Store, *, single_writer: bool = False) -> Proof:
    """Test a place that is to hold names, and return the result. Raises `Unsupported` if it cannot hold them."""
    proof = prove(store)
    if proof.unsupported and single_writer:
        store.conditional = False
        proof = structs.replace(prove(store, writers=1, rounds=1), put_if_absent_ok=False)
    if not proof.put_if_absent_ok and not single_writer:
        what = (
            f"{store.url} has no put-if-absent: {'; '.join(proof.findings)}"
            if proof.unsupported
            else f"{store.url} let several writers win one key: it ignores If-None-Match, so two syncs could lose data"
        )
        raise Unsupported(
            what,
            subject=store.url,
            hint="keep its names where one writer wins: dsv init --names DIR (on NFS for a team) or another bucket; "
            "or --single-writer if only one person ever writes to it",
        )
    if not proof.listing_ok:
        raise Unsupported(
            f"{store.url} does not list what was just written to it, so dsv cannot work there",
            subject=store.url,
        )
    return proof


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
