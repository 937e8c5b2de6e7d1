"""Names of commits as the cache last heard of them: what serves when the store is away.

A tag never changes its meaning, so it is recorded once. A branch is recorded with the time of the last look.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from dsv.cache.root import CacheRoot
from dsv.errors import UsageError
from dsv.fs.files import list_names, read_json
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import BranchName, DatasetName, TagName

Name = TypeVar("Name", BranchName, TagName)

_OFTEN_ENOUGH = 60.0  # seconds between two records of an unchanged branch


class _Known(msgspec.Struct, frozen=True):
    version: int
    commit: str
    seen: float


_KNOWN = msgspec.json.Decoder(_Known)


class KnownRef(msgspec.Struct, frozen=True):
    """seen: when the store last said so, by the file server's clock."""

    commit: CommitId
    seen: float


class KnownRefs:
    """The names of one store that this cache has heard of. Everything here raises `OSError`."""

    def __init__(self, root: CacheRoot, store: StoreId) -> None:
        self._root = root
        self._folder = root.store(store) / "refs"

    def saw_tag(self, dataset: DatasetName, tag: TagName, commit: CommitId) -> None:
        if self.tag(dataset, tag) is None:
            self._root.write_once(self._tag(dataset, tag), _encode(commit, self._root.now()))

    def saw_branch(self, dataset: DatasetName, branch: BranchName, commit: CommitId) -> None:
        now = self._root.now()
        known = self.branch(dataset, branch)
        if known is None or known.commit != commit or not 0 <= now - known.seen < _OFTEN_ENOUGH:
            self._root.replace(self._branch(dataset, branch), _encode(commit, now))

    def forget_tag(self, dataset: DatasetName, tag: TagName) -> None:
        """Remove a tag that the store says was deleted."""
        self._tag(dataset, tag).unlink(missing_ok=True)

    def tag(self, dataset: DatasetName, tag: TagName) -> KnownRef | None:
        return _read(self._tag(dataset, tag))

    def branch(self, dataset: DatasetName, branch: BranchName) -> KnownRef | None:
        return _read(self._branch(dataset, branch))

    def tags(self, dataset: DatasetName) -> dict[TagName, KnownRef]:
        """Every tag that this cache has heard of."""
        return _known(TagName, self._folder / dataset.component / "tags")

    def branches(self, dataset: DatasetName) -> dict[BranchName, KnownRef]:
        """Every branch that this cache has heard of."""
        return _known(BranchName, self._folder / dataset.component / "branches")

    def names(self, dataset: DatasetName) -> dict[CommitId, list[str]]:
        """For each commit the tags, then the branches, that name it as far as is known."""
        found: dict[CommitId, list[str]] = {}
        for known in (self.tags(dataset), self.branches(dataset)):
            for name, ref in known.items():
                found.setdefault(ref.commit, []).append(str(name))
        return found

    def _tag(self, dataset: DatasetName, tag: TagName) -> Path:
        return self._folder / dataset.component / "tags" / tag.component

    def _branch(self, dataset: DatasetName, branch: BranchName) -> Path:
        return self._folder / dataset.component / "branches" / branch.component


def _encode(commit: CommitId, seen: float) -> bytes:
    return msgspec.json.encode(_Known(1, str(commit), seen))


def _known(kind: type[Name], folder: Path) -> dict[Name, KnownRef]:
    found: dict[Name, KnownRef] = {}
    for component in list_names(folder):
        ref = _read(folder / component)
        with suppress(UsageError):  # no name of dsv's
            if ref is not None:
                found[kind.from_component(component)] = ref
    return found


def _read(path: Path) -> KnownRef | None:
    known = read_json(path, _KNOWN)
    try:
        return None if known is None else KnownRef(CommitId.parse(known.commit), known.seen)
    except UsageError:
        return None
