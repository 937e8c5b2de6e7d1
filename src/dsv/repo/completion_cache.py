"""The names and commits of a store that a command met: what the shell's completion offers later.

A file for each store, read and replaced as a whole. Of two commands at the same time one may forget what the other has
heard; it is heard again. Nothing else reads it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from dsv.format.commit import Commit
from dsv.fs.files import read_small, replace_file
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, TagName

_COMMITS = 200
"""Of each dataset so many are kept."""
_MESSAGE = 100
_MAX_BYTES = 8 << 20


class Known(msgspec.Struct, frozen=True):
    branches: list[str] = []
    tags: list[str] = []
    commits: list[tuple[str, str]] = []
    deleted_branches: list[str] = []
    deleted_tags: list[str] = []


class _File(msgspec.Struct, frozen=True):
    version: int
    datasets: dict[str, Known]


_FILE = msgspec.json.Decoder(_File)


class Heard:
    """What one command has met. Lists of datasets, branches and tags are whole: what is not in them has gone."""

    def __init__(self) -> None:
        self._datasets: list[str] | None = None
        self._names: dict[str, dict[str, list[str]]] = {}
        self._met: dict[str, dict[str, dict[str, bool]]] = {}
        self._commits: dict[str, dict[str, str]] = {}

    def datasets(self, names: Iterable[DatasetName]) -> None:
        self._datasets = [str(name) for name in names]

    def branches(self, dataset: DatasetName, names: Iterable[BranchName]) -> None:
        self._names.setdefault(str(dataset), {})["branches"] = [str(name) for name in names]

    def tags(self, dataset: DatasetName, names: Iterable[TagName]) -> None:
        self._names.setdefault(str(dataset), {})["tags"] = [str(name) for name in names]

    def branch(self, dataset: DatasetName, name: BranchName, *, deleted: bool) -> None:
        """One that was read or moved."""
        self._meet(dataset, "branches", name, deleted=deleted)

    def tag(self, dataset: DatasetName, name: TagName, *, deleted: bool) -> None:
        """One that was set or deleted."""
        self._meet(dataset, "tags", name, deleted=deleted)

    def _meet(self, dataset: DatasetName, kind: str, name: str, *, deleted: bool) -> None:
        self._met.setdefault(str(dataset), {}).setdefault(kind, {})[str(name)] = deleted

    def commit(self, commit_id: CommitId, commit: Commit) -> None:
        """One that was read. Those that don't say their dataset are left out."""
        rows = self._commits.setdefault(str(commit.dataset), {}) if commit.dataset is not None else None
        if rows is not None and len(rows) < _COMMITS:
            rows.setdefault(str(commit_id), commit.message.partition("\n")[0][:_MESSAGE])

    def keep(self, path: Path) -> None:
        """Adds it to what earlier commands have heard. A failure is none: nothing depends on it."""
        if self._datasets is None and not self._names and not self._met and not self._commits:
            return
        with suppress(OSError):
            folder = path.parent.lstat()
            if not stat.S_ISDIR(folder.st_mode):  # a symlink leads to what may be no folder of dsv
                return
            before = read(path)
            after = self._added_to(before)
            if after != before:
                mode = folder.st_mode & 0o666  # whatever the umask: the folder of a cache is shared
                replace_file(path, msgspec.json.encode(_File(1, after)), mode=mode, sync=False)

    def _added_to(self, before: dict[str, Known]) -> dict[str, Known]:
        names = {*before, *self._names, *self._met, *self._commits, *(self._datasets or ())}
        after: dict[str, Known] = {}
        for name in sorted(names if self._datasets is None else self._datasets):
            known = before.get(name, Known())
            commits = {**self._commits.get(name, {}), **dict(known.commits)}
            branches, deleted_branches = self._after(name, "branches", known.branches, known.deleted_branches)
            tags, deleted_tags = self._after(name, "tags", known.tags, known.deleted_tags)
            after[name] = Known(
                branches, tags, list(commits.items())[:_COMMITS], deleted_branches, deleted_tags
            )
        return after

    def _after(
        self, dataset: str, kind: str, known: list[str], deleted: list[str]
    ) -> tuple[list[str], list[str]]:
        """The names of a dataset that are there, and those that were deleted."""
        listed = self._names.get(dataset, {}).get(kind)
        there = set(known if listed is None else listed)
        gone = set(deleted) - there
        for name, is_deleted in (
            self._met.get(dataset, {}).get(kind, {}).items()
        ):  # perhaps after they were listed
            (there if is_deleted else gone).discard(name)
            (gone if is_deleted else there).add(name)
        return sorted(there), sorted(gone)


def read(path: Path) -> dict[str, Known]:
    try:
        data = read_small(path, _MAX_BYTES)
        return {} if data is None else _FILE.decode(data).datasets
    except msgspec.DecodeError:
        return {}
