"""Read a repository without asking its store: last known names, local copies of trees, and cached files.

Anything not found here raises `Unreachable`, never `NotFound`: only the store knows what exists.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import cache
from typing import NoReturn

from dsv.api.cache_targets import note_branch_age, store_in_effect, tracked
from dsv.api.context import Context
from dsv.cache.inventory import find_places
from dsv.cache.names import bound_store
from dsv.cache.root import CacheRoot, explaining
from dsv.errors import Unreachable
from dsv.files.shared_path import SharedPath
from dsv.format.records import FormatEntry, RefEntry, TagValue
from dsv.format.tree import Entry
from dsv.repo.format_log import FormatLog
from dsv.repo.objects.access import Access
from dsv.repo.objects.metadata import LocalStore, MetadataCache
from dsv.repo.refs.branches import Head, Refs
from dsv.repo.repository import Repository
from dsv.repo.tracking import Tracked, Tracking
from dsv.transfer.stable_read import hash_content
from dsv.values.ids import Nonce, StoreId
from dsv.values.names import BranchName, DatasetName, Rev, TagName, Target
from dsv.values.paths import show


def open_offline(context: Context, target: Target | None) -> Repository:
    """Return the repository of a target (None: of the workspace). Raises `Unreachable` if it is not known."""
    root = CacheRoot(context.settings.cache().path)
    url = context.settings.store().url
    workspace = context.workspace_or_none()
    named = None if target is None else target.dataset
    dataset = named or (None if workspace is None else workspace.dataset)
    with explaining(root.path, "read"):
        if dataset is None:
            dataset = context.workspace_of("" if target is None else str(target)).dataset
        here = workspace is not None and workspace.dataset == dataset
        store_id = bound_store(root, dataset) if named is not None else None
        if store_id is None and workspace is not None and here:
            store_id = workspace.store_id
        if store_id is None:
            store_id = store_in_effect(context, root) or _refuse(dataset, root)
        metadata = MetadataCache(context.metadata_folder(store_id), MetadataCache(root.metadata(store_id)))
        store = LocalStore(url, metadata)
        refs = LastKnownRefs(store, context, root, store_id)
        entry = FormatEntry(store_id=store_id, nonce=Nonce.random(), time_ms=0, author="", tool="")
        access = Access(context.clock, copy_of=cached_files(root, dataset))
        return Repository(store, FormatLog((entry,)), refs, metadata, access)


class LastKnownRefs(Refs):
    """Names as last known to a cache and the current workspace. The age of a branch that is used is noted."""

    def __init__(self, store: LocalStore, context: Context, root: CacheRoot, store_id: StoreId) -> None:
        super().__init__(store)
        self._context = context
        self._root = root
        self._id = store_id

    def expect(self, dataset: DatasetName, branch: BranchName) -> None:
        pass

    def heads(self, dataset: DatasetName) -> list[Head]:
        known = self._known(dataset).there("branches")
        return [_head(dataset, BranchName.parse(name), one) for name, one in known.items()]

    def tags(self, dataset: DatasetName) -> list[tuple[TagName, TagValue]]:
        known = self._known(dataset).there("tags")
        return [(TagName.parse(name), _tag_value(one)) for name, one in known.items()]

    def branch_or_tag(self, dataset: DatasetName, text: str) -> Head | TagValue | None:
        """Return a branch or tag as last seen. Raises `Unreachable` if the name was never seen here."""
        found = self.tag(dataset, TagName.parse(text)) or self.head_or_none(dataset, BranchName.parse(text))
        return found or _refuse(f"{dataset}@{text}", self._root)

    def exists(self, dataset: DatasetName) -> bool:
        """Return True: no dataset is known to be absent."""
        return True

    def head_or_none(self, dataset: DatasetName, branch: BranchName) -> Head | None:
        known = self._known(dataset).branch(branch)
        if known is None:
            return None
        note_branch_age(self._context, self._root, dataset, Rev(branch), known)
        return _head(dataset, branch, known)

    def head(self, dataset: DatasetName, branch: BranchName) -> Head:
        """Return a branch as last seen. Raises `Unreachable` if it was never seen here."""
        return self.head_or_none(dataset, branch) or _refuse(f"{dataset}@{branch}", self._root)

    def tag(self, dataset: DatasetName, tag: TagName) -> TagValue | None:
        known = self._known(dataset).tag(tag)
        return None if known is None else _tag_value(known)

    def _known(self, dataset: DatasetName) -> Tracking:
        return tracked(self._root, self._id, dataset, self._context.workspace_or_none())


def cached_files(root: CacheRoot, dataset: DatasetName) -> Callable[[Entry], SharedPath]:
    """Return a function that finds an entry's file in the dataset's cached commits, by path and size, and by
    content if several differ. The reader verifies it. Raises `Unreachable` if there is none.
    """
    folders = cache(lambda: [root.visible(place) for place in find_places(root, dataset)])

    def find(entry: Entry) -> SharedPath:
        found: dict[tuple[int, int], SharedPath] = {}
        for folder in folders():
            path = folder / os.fsdecode(entry.path)
            try:
                status = path.stat()
            except OSError:  # not in this commit, or not readable for this user
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size == entry.size:
                found[status.st_dev, status.st_ino] = path
        candidates = list(found.values())
        if len(candidates) > 1:
            candidates = [path for path in candidates if _holds(path, entry)]
        if not candidates:
            raise Unreachable(
                f"{root.path} has no cached copy of {show(entry.path)} of {dataset}, and the store is not asked",
                subject=entry.path.decode("utf-8", "backslashreplace"),
                hint=f"without --offline the store is asked; dsv cached {dataset} shows what is here",
            )
        return candidates[0]

    return find


def _holds(path: SharedPath, entry: Entry) -> bool:
    try:
        with os.fdopen(path.descriptor(os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return hash_content(file.fileno(), entry.size) == (entry.file_id, entry.size)
    except OSError:
        return False


def _refuse(name: str, root: CacheRoot) -> NoReturn:
    raise Unreachable(
        f"{name} is not known to the cache {root.path}, and the store is not asked",
        subject=name,
        hint="without --offline the store is asked; dsv cached shows what is here",
    )


def _head(dataset: DatasetName, branch: BranchName, known: Tracked) -> Head:
    return Head(dataset, branch, 0, RefEntry(known.commit_id, False, Nonce.random(), known.time_ms, "", ""))


def _tag_value(known: Tracked) -> TagValue:
    assert known.commit_id is not None  # only deleted tags have none
    return TagValue(known.commit_id, Nonce.random(), known.time_ms, "", "")
