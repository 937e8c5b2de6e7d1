"""Files on this machine that a checkout may copy before it asks the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dsv.model.entry import Entry
from dsv.model.ids import CommitId


class Loan(Protocol):
    """Copies of files, by their number in what was asked for."""

    def has(self, at: int) -> bool: ...

    def take(self, at: int, target: int) -> bool:
        """Fills the empty file with verified content. False if that can't be had after all; it is empty then."""
        ...

    def close(self) -> None: ...


class Copies(Protocol):
    """Files on this machine that may be copied."""

    def lend(self, commit: CommitId, entries: Sequence[Entry]) -> Loan | None:
        """What there is of these files of the commit, in tree order; None if there is nothing now or later."""
        ...


class NoCopies:
    """Everything comes from the store."""

    def lend(self, commit: CommitId, entries: Sequence[Entry]) -> Loan | None:
        return None


NO_COPIES: Copies = NoCopies()
