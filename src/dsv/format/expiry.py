"""The record of a dataset's expiry log: commits whose content is not kept any more, and those that are kept again."""

from __future__ import annotations

import enum

import msgspec

from dsv.format import envelope
from dsv.format.envelope import Buffer, Count, Long, Millis, Raw16, Raw32, Record, Short
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import DatasetName

MAX_COMMITS = 1 << 14
"""Commits that one entry names; more take several entries."""

_EXPIRY = Record("expiry", tuple[Short, tuple[Raw32, ...], Raw16, Millis, Short, Long, Short, Count])


class ExpiryAction(enum.StrEnum):
    """What an entry of the log does with its commits."""

    EXPIRE = "expire"
    DELETE = "delete"
    """They expire, because their dataset is deleted."""
    UNDO = "undo"
    """They are kept again, unless their content was freed."""
    FREE = "free"
    """A garbage collection removes the content of those that are expired; nothing undoes that."""


class ExpiryEntry(msgspec.Struct, frozen=True):
    """One entry of a dataset's expiry log."""

    action: ExpiryAction
    commits: tuple[CommitId, ...]
    """Sorted, each once."""
    nonce: Nonce
    """The entries that one command has written have the same."""
    time_ms: int
    author: str
    message: str
    dataset: DatasetName
    number: int
    """The position of the entry, from 0."""

    def _fault(self) -> str | None:
        if not 0 < len(self.commits) <= MAX_COMMITS:
            return f"it has {len(self.commits)} commits"
        if list(self.commits) != sorted(set(self.commits)):
            return "its commits are not sorted, each once"
        return None

    def encode(self) -> bytes:
        """Raise `ValueError` for no commit, too many, or commits that are not sorted."""
        fault = self._fault()
        if fault is not None:
            raise ValueError(fault)
        commits = tuple(map(bytes, self.commits))
        return _EXPIRY.encode((
            self.action.value, commits, bytes(self.nonce), self.time_ms, self.author, self.message,
            str(self.dataset), self.number,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer) -> ExpiryEntry:
        action, commits, nonce, time_ms, author, message, name, number = _EXPIRY.decode(data)
        try:
            known = ExpiryAction(action)
        except ValueError:
            raise envelope.damaged("expiry", f"it has an unknown action, {action}") from None
        dataset = envelope.carried("expiry", DatasetName.parse, name)
        ids = tuple(map(CommitId, commits))
        found = cls(known, ids, Nonce(nonce), time_ms, author, message, dataset, number)
        fault = found._fault()
        if fault is not None:
            raise envelope.damaged("expiry", fault)
        return found
