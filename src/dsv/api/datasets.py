"""Delete datasets, bring them back, and rename them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dsv.api.context import Context
from dsv.errors import Conflict
from dsv.store.base import together
from dsv.values.names import MAIN
from dsv.values.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv.repo.refs.branches import Head
    from dsv.repo.repository import Repository
    from dsv.upkeep.datasets import Deletion, Renamed
    from dsv.values.names import DatasetName


def delete(
    context: Context, dataset: DatasetName, confirm: Callable[[str], None], message: str = ""
) -> Deletion:
    """Delete a dataset, so that it can be brought back until gc has removed its content.

    confirm: gets what is about to be deleted, and raises if the user does not want that. It is not called for what was
    deleted before. Raises as `delete_dataset`, and `Conflict` if the workspace around here belongs to the dataset.
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
    """Bring a deleted dataset back, and return the heads of its branches. Raises as `undelete_dataset`."""
    from dsv.upkeep.datasets import undelete_dataset

    with context.repository() as repository:
        return undelete_dataset(repository, context.writer, dataset, message)


def rename(context: Context, old: DatasetName, new: DatasetName, message: str = "") -> Renamed:
    """Give a dataset another name. Raises as `rename_dataset`."""
    from dsv.upkeep.datasets import rename_dataset

    with context.repository() as repository:
        return rename_dataset(repository, context.writer, old, new, message)


def deleted_datasets(context: Context) -> list[Head]:
    """Return the last moves of `main` of the datasets that were deleted, by name."""
    with context.repository() as repository:
        names = repository.refs.datasets()
        found = together([partial(repository.refs.deleted_dataset, name) for name in names])
    return [head for head in found if head is not None]


def _described(repository: Repository, dataset: DatasetName, main: Head) -> str:
    heads, tags = repository.refs.names(dataset)
    named = [format_count(len(heads), "branch"), format_count(len(tags), "tag")]
    if main.commit is None:
        return f"dataset {dataset} of {repository.store.url} has no commit yet"
    commit = repository.objects.commit(main.commit)
    return (
        f"dataset {dataset} of {repository.store.url} has {' and '.join(named)}; its main has "
        f"{format_count(commit.files, 'file')}, and was last moved by {main.entry.author}"
    )
