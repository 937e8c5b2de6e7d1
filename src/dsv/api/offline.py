"""A repository that is read without asking its store: names as last known, trees by their local copies, and contents by
the files of a cache.

What is not here is `Unreachable`, and never said to be absent: only the store knows that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dsv.api.cache_targets import LastKnown, last_known, say_how_old
from dsv.api.context import Context
from dsv.cache.evict.inventory import find_places
from dsv.cache.root import CacheRoot, explain
from dsv.errors import Unreachable
from dsv.format.records import FormatEntry, RefEntry, TagValue
from dsv.format.tree import Entry
from dsv.repo.format_log import Format
from dsv.repo.local_store import LocalStore
from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.refs.branches import Head, Refs
from dsv.repo.repository import Repository
from dsv.repo.tracking import Tracked
from dsv.transfer.file_reader import hash_content
from dsv.values.ids import Nonce, StoreId
from dsv.values.names import BranchName, DatasetName, Rev, TagName, Target
from dsv.values.paths import show

Say = Callable[[DatasetName, BranchName, Tracked], None]


def open_offline(context: Context, target: Target | None) -> Repository:
    """The repository that a target (None: the workspace) belongs to. Raises `Unreachable` if it is not known here."""
    root = CacheRoot(context.settings.cache().path)
    url = context.settings.store().url
    try:
        known = last_known(context, root, target)
        dataset = _dataset(context, target)
        if known is None or dataset is None:
            _refuse(f"{dataset or target}", root)
        cached = MetadataCache(root.metadata(known.store))
        metadata = MetadataCache(context.metadata_folder(known.store), cached)
        store = LocalStore(url, metadata)

        def say(named: DatasetName, branch: BranchName, ref: Tracked) -> None:
            say_how_old(context, root, named, Rev(branch), ref)

        refs = LastKnownRefs(store, known, say)
        repository = Repository(store, _format(known.store), refs, metadata, context.clock)
        repository.objects.copy_of = CachedFiles(root, dataset).find
        return repository
    except OSError as error:
        raise explain(error, root.path, "read") from error


class LastKnownRefs(Refs):
    """Names as last known. `say` is told what a branch that was asked for is taken for."""

    def __init__(self, store: LocalStore, known: LastKnown, say: Say) -> None:
        super().__init__(store)
        self._known = known
        self._say = say

    def expect(self, dataset: DatasetName, branch: BranchName) -> None:
        pass

    def heads(self, dataset: DatasetName) -> list[Head]:
        known = self._known.of(dataset).there("branches")
        return [_head(dataset, BranchName.parse(name), one) for name, one in known.items()]

    def tags(self, dataset: DatasetName) -> list[tuple[TagName, TagValue]]:
        known = self._known.of(dataset).there("tags")
        return [(TagName.parse(name), _tag_value(one)) for name, one in known.items()]

    def branch_or_tag(self, dataset: DatasetName, text: str) -> Head | TagValue | None:
        """Raises `Unreachable` for a name that is not known here."""
        found = self.tag(dataset, TagName.parse(text)) or self.head_or_none(dataset, BranchName.parse(text))
        return found or _refuse(f"{dataset}@{text}", self._known.root)

    def exists(self, dataset: DatasetName) -> bool:
        """None is known to be absent."""
        return True

    def head_or_none(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        known = self._known.of(dataset).branch(branch)
        if known is None:
            return None
        self._say(dataset, branch, known)
        return _head(dataset, branch, known)

    def head(self, dataset: DatasetName, branch: BranchName) -> Head:
        """Raises `Unreachable` for a branch that is not known here."""
        return self.head_or_none(dataset, branch) or _refuse(f"{dataset}@{branch}", self._known.root)

    def tag(self, dataset: DatasetName, tag: TagName) -> TagValue | None:
        known = self._known.of(dataset).tag(tag)
        return None if known is None else _tag_value(known)


class CachedFiles:
    """The files of one dataset's cached commits, by what they hold."""

    def __init__(self, root: CacheRoot, dataset: DatasetName) -> None:
        self._root = root
        self._dataset = dataset
        self._folders: list[Path] | None = None

    def find(self, entry: Entry) -> Path:
        """A cached file at the entry's path with its size, and if several differ, with its content. Whoever reads it
        checks what it holds. Raises `Unreachable` if there is none.
        """
        if self._folders is None:
            self._folders = [self._root.visible(place) for place in find_places(self._root, self._dataset)]
        found: dict[tuple[int, int], Path] = {}
        for folder in self._folders:
            path = folder / os.fsdecode(entry.path)
            try:
                status = path.lstat()
            except OSError:  # not in this commit, or not for this user
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size == entry.size:
                found[status.st_dev, status.st_ino] = path
        candidates = list(found.values())
        if len(candidates) > 1:
            candidates = [path for path in candidates if _holds(path, entry)]
        if not candidates:
            raise Unreachable(
                f"{self._root.path} has no cached copy of {show(entry.path)} of {self._dataset}, and the store is "
                "not asked",
                subject=entry.path.decode("utf-8", "backslashreplace"),
                hint=f"without --offline the store is asked; dsv cached {self._dataset} shows what is here",
            )
        return candidates[0]


def _holds(path: Path, entry: Entry) -> bool:
    try:
        with path.open("rb") as file:
            return hash_content(file.fileno(), entry.size) == (entry.file_id, entry.size)
    except OSError:
        return False


def _dataset(context: Context, target: Target | None) -> DatasetName | None:
    if target is not None and target.dataset is not None:
        return target.dataset
    workspace = context.workspace_or_none()
    return None if workspace is None else workspace.dataset


def _refuse(name: str, root: CacheRoot) -> NoReturn:
    raise Unreachable(
        f"{name} is not known to the cache {root.path}, and the store is not asked",
        subject=name,
        hint="without --offline the store is asked; dsv cached shows what is here",
    )


def _format(store: StoreId) -> Format:
    entry = FormatEntry(store_id=store, nonce=Nonce.random(), time_ms=0, author="", tool="")
    return Format((entry,))


def _head(dataset: DatasetName, branch: BranchName, known: Tracked) -> Head:
    return Head(dataset, branch, 0, RefEntry(known.commit_id, False, Nonce.random(), known.time_ms, "", ""))


def _tag_value(known: Tracked) -> TagValue:
    assert known.commit_id is not None  # as of every tag that is not deleted
    return TagValue(known.commit_id, Nonce.random(), known.time_ms, "", "")
