"""What a fill is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dsv.cache.record import Cached
from dsv.cache.root import Place
from dsv.values.ids import CommitId, StoreId
from dsv.values.paths import PathSet


class FillRequest(msgspec.Struct, frozen=True):
    """One commit, or a selection of it, to be visible in a cache.

    dataset: the path component (`/` written `%2F`).
    """

    dataset: str
    commit: CommitId
    store: StoreId
    selection: PathSet = msgspec.field(default_factory=PathSet)

    @property
    def place(self) -> Place:
        return Place.of(self.dataset, self.commit, self.selection.id)


class FillResult(msgspec.Struct, frozen=True):
    """A visible, whole commit.

    files, bytes: of the commit (or selection).
    fetched_bytes: read from the store by this call and its helper processes.
    linked_files: files that this call and its helpers took from other cached commits.
    hit: it was there already.
    """

    path: Path
    files: int
    bytes: int
    fetched_bytes: int = 0
    linked_files: int = 0
    hit: bool = True

    @classmethod
    def of(cls, found: Cached) -> FillResult:
        """Return the result for a commit that was there already."""
        return cls(found.path, found.record.files, found.record.bytes)


class HelperSpec(msgspec.Struct, frozen=True):
    """How a helper process gets its source: `factory` is `module:function`, called with `arguments` (JSON)."""

    factory: str
    arguments: Mapping[str, object] = msgspec.field(default_factory=dict)
