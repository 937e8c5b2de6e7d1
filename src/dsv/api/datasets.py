"""Work on datasets in a store, without local files: list, delete, rename, resolve, ls, cat."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dsv.api.context import Context
from dsv.errors import Conflict, NotFound, UsageError
from dsv.format.tree import Entry, Kind
from dsv.repo.format_log import EXTERNAL_CONTENTS
from dsv.repo.objects.erasures import Erasures
from dsv.repo.repository import Repository
from dsv.repo.resolve import Resolved
from dsv.repo.tree.reader import TreeReader, urls_of
from dsv.stores.base import together
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, DatasetName, Target, clean_path
from dsv.values.units import format_bytes, format_count, rfc3339

if TYPE_CHECKING:
    from dsv.repo.refs.branches import Head
    from dsv.upkeep.datasets import Deletion, Renamed

Listed = tuple[Entry, str | None]


class DatasetItem(msgspec.Struct, frozen=True):
    """A dataset and the head of its `main`; the other fields are None or 0 before its first commit."""

    dataset: DatasetName
    commit: CommitId | None
    time_ms: int | None
    files: int
    bytes: int

    def __repr__(self) -> str:
        if self.commit is None or self.time_ms is None:
            return f"<dataset {self.dataset}: no commit yet>"
        files, size = format_count(self.files, "file"), format_bytes(self.bytes)
        return (
            f"<dataset {self.dataset}: {files}, {size}, {str(self.commit)[:12]} of {rfc3339(self.time_ms)}>"
        )


def datasets(context: Context) -> list[DatasetItem]:
    """Return every dataset of the store, by name."""
    with context.repository() as repository:
        names = repository.refs.datasets()
        found = together([partial(dataset_item, repository, name) for name in names])
    return [item for item in found if item is not None]


def dataset_item(repository: Repository, name: DatasetName) -> DatasetItem | None:
    """Return one dataset; None if it has no branch `main`, like a dataset whose creation was interrupted."""
    head = repository.refs.head_or_none(name, MAIN)
    if head is None:
        return None
    if head.commit is None:
        return DatasetItem(name, None, None, 0, 0)
    commit = repository.objects.commit(head.commit)
    return DatasetItem(name, head.commit, commit.time_ms, commit.files, commit.bytes)


def resolve(context: Context, target: Target) -> Resolved:
    """Return the commit that a target means now. Raises `IntegrityError` if that commit is missing."""
    with context.repository(target) as repository:
        resolved = context.resolve(repository, target)
        repository.objects.commit(resolved.commit)
        return resolved


@contextmanager
def ls(context: Context, target: Target, urls: bool = False) -> Iterator[tuple[Iterator[Listed], Erasures]]:
    """Open the entries at and below the target's path, with the URLs that they refer to if `urls`; and the erasures."""
    path = clean_path(target.path)
    with context.repository(target) as repository:
        resolved = context.resolve(repository, target)
        objects, urls = repository.objects, urls and repository.format.has(EXTERNAL_CONTENTS)
        found = (
            (entry, next(urls_of(objects, entry, where), None) if urls else None)
            for entry, where in TreeReader(objects, resolved.commit).below(path)
        )
        first = next(found, None)
        if first is None and path:
            raise _no_path(target, resolved)
        yield found if first is None else chain([first], found), repository.objects.erasures


@contextmanager
def cat(context: Context, target: Target) -> Iterator[Iterator[bytes]]:
    """Open the content of a file in verified pieces. Raises `NotFound`, and `UsageError` if it is no file."""
    path = clean_path(target.path)
    if not path:
        near = _path_here(context, target) or f"{str(target).removesuffix(':')}:PATH"
        raise UsageError("dsv cat needs a path", subject=str(target), hint=f"dsv cat {near}")
    with context.repository(target, mirrors=True) as repository:
        resolved = context.resolve(repository, target)
        tree = TreeReader(repository.objects, resolved.commit)
        found = tree.entry(path)
        if found is None and next(iter(tree.below(path)), None) is None:
            raise _no_path(target, resolved)
        if found is None or found[0].kind is Kind.EMPTY_DIRECTORY:
            raise UsageError(f"{target} is a folder", subject=str(target), hint=f"dsv ls {target}")
        context.note_read(resolved.dataset, resolved.commit, tree.commit)
        entry, where = found
        if entry.kind == Kind.SYMLINK:
            name = (entry.target or b"").decode(errors="backslashreplace")
            raise UsageError(f"{target} is a symlink to {name}", subject=str(target), hint=f"dsv ls {target}")
        pieces = Fetcher(repository.objects, resolved.dataset, connections=4).files(
            [WantedFile(entry, where)]
        )
        yield next(pieces)[1]


def _path_here(context: Context, target: Target) -> str | None:
    """If a workspace path was given as a dataset, return it as it should be, with a colon; else None."""
    workspace = context.workspace_or_none()
    if workspace is None or target.dataset is None or target.rev is not None or target.path is not None:
        return None
    path = workspace.inside(Path(target.dataset))
    found = path is not None and os.path.lexists(workspace.root / target.dataset)
    return f":{target.dataset}" if found else None


def _no_path(target: Target, resolved: Resolved) -> NotFound:
    return resolved.no_path((target.path or b"").decode(errors="backslashreplace"), str(target))


def delete(
    context: Context, dataset: DatasetName, confirm: Callable[[str], None], message: str = ""
) -> Deletion:
    """Delete a dataset. It can be restored until gc has removed its content.

    confirm: gets a description of it, and raises if the user refuses; not called if the dataset was deleted
    before. Raises like `delete_dataset`, and `Conflict` if the current workspace belongs to the dataset.
    """
    from dsv.upkeep.datasets import delete_dataset

    with context.repository() as repository:
        refs = repository.refs
        if refs.deleted_dataset(dataset) is None:
            seen = refs.head(dataset, MAIN)
            workspace = context.workspace_or_none()
            if workspace is not None and (workspace.store_id, workspace.dataset) == (repository.id, dataset):
                raise Conflict(
                    f"{workspace.root} is a workspace of {dataset}",
                    subject=dataset,
                    hint="run the same command in another folder",
                )
            confirm(_described(repository, dataset, seen))
        else:
            seen = None
        return delete_dataset(repository, context.writer, dataset, message, seen)


def undelete(context: Context, dataset: DatasetName, message: str = "") -> list[Head]:
    """Restore a deleted dataset, and return the heads of its branches. Raises like `undelete_dataset`."""
    from dsv.upkeep.datasets import undelete_dataset

    with context.repository() as repository:
        return undelete_dataset(repository, context.writer, dataset, message)


def rename(context: Context, old: DatasetName, new: DatasetName, message: str = "") -> Renamed:
    """Rename a dataset. Raises like `rename_dataset`."""
    from dsv.upkeep.datasets import rename_dataset

    with context.repository() as repository:
        return rename_dataset(repository, context.writer, old, new, message)


def deleted_datasets(context: Context) -> list[Head]:
    """Return the last moves of `main` of the deleted datasets, by name."""
    with context.repository() as repository:
        names = repository.refs.datasets()
        found = together([partial(repository.refs.deleted_dataset, name) for name in names])
    return [head for head in found if head is not None]


def _described(repository: Repository, dataset: DatasetName, main: Head) -> str:
    heads, tags = repository.refs.names(dataset)
    named = [format_count(len(heads), "branch"), format_count(len(tags), "tag")]
    start = f"dataset {dataset} of {repository.store.url} has {' and '.join(named)}; its main has "
    if main.commit is None:
        return f"{start}no commit"
    commit = repository.objects.commit(main.commit)
    return f"{start}{format_count(commit.files, 'file')}, and was last moved by {main.entry.author}"
