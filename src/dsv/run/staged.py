"""A commit, or part of one, in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName


class Staged(msgspec.Struct, frozen=True):
    """A commit, or part of one, and its path in the cache, present or not. Times are seconds since 1970."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    files: int
    bytes: int
    hit: bool
    """It was in the cache already."""
    seconds: float = 0.0
    """The time that staging took."""
    fetched_bytes: int = 0
    """The bytes read from the store."""
    linked_files: int = 0
    """The files that another cached commit had."""
    root: str | None = None
    """The root of the tree of what is staged, and that of the whole commit; None if they were not looked up."""
    commit_root: str | None = None
    erased: int = 0
    """The files that are missing because they were erased from the store."""
    hold: str | None = None
    """The id of the requested hold."""
    held_until: float | None = None
    may_go: float | None = None
    """The time from which it may be evicted as unused if it is not held; None if that never happens."""
