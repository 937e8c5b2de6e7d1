"""Where everything lies in a cache, and how the folders of datasets and commits are called.

A cache is a directory, local or on a network file system, that several hosts and users share:

    <root>/dsv-cache.toml              the owner's limits
    <root>/<dataset>/<name>/…          a commit, or a selection of one, as plain read-only files
    <root>/.dsv/claims/<dataset>/<name>/   leases, pins, eviction intents, last use
    <root>/.dsv/fill/<dataset>/<name>/     a fill under way
    <root>/.dsv/stores/<store>/            metadata fetched from a store, last known refs
    <root>/.dsv/datasets/<dataset>         which store owns the visible paths of this name
    <root>/.dsv/inventory                  a copy of what the claims folders say
    <root>/.dsv/room/  trash/  tmp/

`<name>` is `<commit>` or `<commit>+<selection>`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from dsv.errors import UsageError
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName

DOT = ".dsv"
FILE_TIME = 946_684_800
"""2000-01-01T00:00:00Z: every cached file's mtime. What has another one was changed after it was filled."""
_NAME = re.compile(r"([0-9a-f]{64})(?:\+([0-9a-f]{16}))?")
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
    """The dataset whose `folder_name` this is. Raises `UsageError` if it is none."""
    plain = folder.replace("%2E", ".", 1)
    dataset = DatasetName.from_component(plain)
    if folder_name(dataset) != folder:
        raise UsageError(f"{folder!r} is not the folder of a dataset", subject=folder)
    return dataset


def is_dataset(name: str) -> bool:
    """Whether a name in the cache's root, or in one of the dot folder's, can be a dataset's; others are foreign."""
    try:
        dataset_of(name)
    except UsageError:
        return False
    return True


class Place(msgspec.Struct, frozen=True, order=True):
    """A visible path: `<dataset>/<name>`.

    dataset: one path component, as `folder_name` makes it.
    name: `<commit>` or `<commit>+<selection>`.
    """

    dataset: str
    name: str

    @classmethod
    def of(cls, dataset: str, commit: CommitId, selection: str | None = None) -> Place:
        """`dataset` is the component; `selection` 16 hex digits, None for the whole commit."""
        return cls(dataset, f"{commit}+{selection}" if selection else str(commit))

    @classmethod
    def parse(cls, dataset: str, name: str) -> Place | None:
        """The place that two folder names mean; None for something that is not dsv's."""
        if dataset.startswith(".") or not dataset or "/" in dataset or not _NAME.fullmatch(name):
            return None
        return cls(dataset, name)

    @property
    def commit(self) -> CommitId:
        return CommitId.parse(self.name[:64])

    @property
    def selection(self) -> str | None:
        return self.name[65:] or None

    def __str__(self) -> str:
        return f"{self.dataset.replace('%2F', '/').replace('%2E', '.')}@{self.name}"

    @property
    def dataset_name(self) -> DatasetName:
        """Raises `UsageError` if `dataset` is no dataset's."""
        return dataset_of(self.dataset)


class Layout:
    """The paths of one cache."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would follow the site's own links)
        self.dot = self.path / DOT

    def visible(self, place: Place) -> Path:
        return self.path / place.dataset / place.name

    def claims(self, place: Place) -> Path:
        return self.dot / "claims" / place.dataset / place.name

    def fill(self, place: Place) -> Path:
        return self.dot / "fill" / place.dataset / place.name

    def store(self, store: StoreId) -> Path:
        return self.dot / "stores" / str(store)

    def metadata(self, store: StoreId) -> Path:
        """For `Repository.open(metadata=…)`: copies of immutable objects."""
        return self.store(store) / "objects"

    def binding(self, dataset: str) -> Path:
        return self.dot / "datasets" / dataset

    @property
    def room(self) -> Path:
        return self.dot / "room"

    @property
    def trash(self) -> Path:
        return self.dot / "trash"

    @property
    def temporary(self) -> Path:
        return self.dot / "tmp"

    @property
    def inventory(self) -> Path:
        """What the claims folders held when they were last read."""
        return self.dot / "inventory"

    @property
    def spares(self) -> Path:
        return self.dot / "spare"

    @property
    def spare_folder(self) -> Path:
        return self.trash / "spare"

    @property
    def settings_file(self) -> Path:
        return self.path / SETTINGS_FILE
