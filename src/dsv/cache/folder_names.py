"""How the folders of datasets are called in a cache."""

from __future__ import annotations

from dsv.errors import UsageError
from dsv.model.names import DatasetName

SETTINGS_FILE = "dsv-cache.toml"
"""The owner's limits, beside the datasets' folders."""


def folder_name(dataset: DatasetName) -> str:
    """A dataset's name as one path component: `/` is written `%2F`.

    The one name without a `/` that dsv itself uses beside the datasets is written with `%2E` for its first dot,
    however its letters are cased, as there are file systems that do not tell these apart.
    """
    name = dataset.component
    return name.replace(".", "%2E", 1) if name.casefold() == SETTINGS_FILE else name


def dataset_of(folder: str) -> DatasetName:
    """The dataset whose `folder_name` this is. Raises `UsageError` for any other."""
    plain = folder.replace("%2E", ".", 1)
    dataset = DatasetName.from_component(plain)
    if folder_name(dataset) != folder:
        raise UsageError(f"{folder!r} is no folder of a dataset", subject=folder)
    return dataset


def is_dataset(name: str) -> bool:
    """Whether a name in the cache's root, or in one of the dot folder's, can be a dataset's; others are strangers'."""
    try:
        dataset_of(name)
    except UsageError:
        return False
    return True
