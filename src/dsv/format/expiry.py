"""The record of a dataset's expiry log: commits whose content is not kept any more, and those that are kept again."""

from __future__ import annotations

import enum

from dsv.format.envelope import Count, Long, Millis, Record, Short, is_sorted
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import DatasetName

MAX_COMMITS = 1 << 14
"""Commits that one entry names; more take several entries."""


class ExpiryAction(enum.StrEnum):
    """What an entry of the log does with its commits."""

    EXPIRE = "expire"
    DELETE = "delete"
    """They expire, because their dataset is deleted."""
    UNDO = "undo"
    """They are kept again, unless their content was freed."""
    FREE = "free"
    """A garbage collection removes the content of those that are expired; nothing undoes that."""


class ExpiryEntry(Record, frozen=True):
    """One entry of a dataset's expiry log."""

    kind = "expiry"
    action: ExpiryAction
    commits: tuple[CommitId, ...]
    """Sorted, each once."""
    nonce: Nonce
    """The entries that one command has written have the same."""
    time_ms: Millis
    author: Short
    message: Long
    dataset: DatasetName
    number: Count
    """The position of the entry, from 0."""

    def fault(self) -> str | None:
        if not 0 < len(self.commits) <= MAX_COMMITS:
            return f"it has {len(self.commits)} commits"
        return None if is_sorted(self.commits) else "its commits are not sorted, each once"
