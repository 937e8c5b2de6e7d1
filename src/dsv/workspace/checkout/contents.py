"""Where the contents of files come from: from copies on this machine, else from the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from dsv.format.locator import Location
from dsv.format.tree import Entry
from dsv.transfer.download import Fetcher, Wanted
from dsv.values.ids import CommitId
from dsv.values.units import format_count
from dsv.workspace.open import Copies, Loan

_RUN_FILES = 8192
_RUN_BYTES = 256 << 20

Asked = tuple[Entry, Location | None]


class Content(Protocol):
    """What a file is to hold, verified."""

    def fill(self, descriptor: int) -> None:
        """Writes it to an empty file, which is open for reading and writing."""
        ...


class Pieces(msgspec.Struct, frozen=True):
    """Content that comes piece by piece."""

    pieces: Iterable[bytes]

    def fill(self, descriptor: int) -> None:
        for piece in self.pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]


class Contents(msgspec.Struct):
    """The contents of one commit's files, to be closed after use.

    files, bytes: that were copied. failed: copies that could not be used.
    """

    fetcher: Fetcher
    copies: Copies
    commit: CommitId
    files: int = 0
    bytes: int = 0
    failed: int = 0
    loan: Loan | None = None

    def close(self) -> None:
        if self.loan is not None:
            self.loan.close()
            self.loan = None

    def of(self, asked: Iterator[Asked]) -> Iterator[Content]:
        """Of each file that is asked for, in that order. Each is to be used before the next one is asked for."""
        while run := _next_run(asked):
            self.loan = self.copies.lend(self.commit, [entry for entry, _ in run])
            if self.loan is None:
                yield from self._fetched(_chained(run, asked))
                return
            yield from self._of_run(run, self.loan)
            self.close()

    def _of_run(self, run: Sequence[Asked], loan: Loan) -> Iterator[Content]:
        fetched = self._fetched(each for at, each in enumerate(run) if not loan.has(at))
        for at, each in enumerate(run):
            yield _Copy(self, loan, at, each) if loan.has(at) else next(fetched)

    def _fetched(self, asked: Iterable[Asked]) -> Iterator[Content]:
        for _, pieces in self.fetcher.files(Wanted(entry, where) for entry, where in asked):
            yield Pieces(pieces)

    def note(self, tell: Callable[[str], None]) -> None:
        """Tells a person what was odd."""
        if self.failed:
            tell(
                f"{format_count(self.failed, 'cached file')} could not be used and came from the store; "
                "dsv cached --check repairs damaged ones"
            )


class _Copy(msgspec.Struct, frozen=True):
    """A file that is copied, or fetched if that fails."""

    contents: Contents
    loan: Loan
    at: int
    asked: Asked

    def fill(self, descriptor: int) -> None:
        contents, (entry, where) = self.contents, self.asked
        if self.loan.take(self.at, descriptor):
            contents.files += 1
            contents.bytes += entry.size
            return
        contents.failed += 1
        for _, pieces in contents.fetcher.files([Wanted(entry, where)]):
            Pieces(pieces).fill(descriptor)


def _next_run(asked: Iterator[Asked]) -> list[Asked]:
    run: list[Asked] = []
    room = _RUN_BYTES
    for each in asked:
        run.append(each)
        room -= each[0].size
        if len(run) == _RUN_FILES or room < 0:
            break
    return run


def _chained(run: Iterable[Asked], asked: Iterator[Asked]) -> Iterator[Asked]:
    yield from run
    yield from asked
