"""Getting a fill's bytes to the disk: while it goes on, so that its end waits for less, and at its end, for certain.

The kernel reports bytes that it could not write once to each descriptor that is open at the time, and to the first
one that is opened later. So one descriptor is opened before anything can be lost, and a fill that has lost something is
given up at once: no later process could find out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from dsv.cache.fill.directory import FillDirectory, end_unpublished
from dsv.cache.fill.reservations import refusal
from dsv.errors import DsvError, Unreachable
from dsv.fs.files import FULL
from dsv.fs.syncer import Syncer

# Bytes of small files between two syncs. Less would write the blocks of inodes and folders more often.
STEP = 32 << 20


class Lost(Unreachable):
    """The disk could not write some part of a fill; the fill has ended."""


def lost(directory: FillDirectory, error: OSError) -> DsvError:
    """Give up the fill whose data could not be synced to disk; returns the error to raise."""
    with contextlib.suppress(OSError):  # the caller, which gets the error, gives it up too
        end_unpublished(directory)
    told: DsvError
    if error.errno in FULL:  # some file systems say so only now
        told = refusal(
            directory.root, directory.place, error, directory.plan.need_bytes, directory.plan.need_files
        )
    else:
        told = Lost(
            f"cannot fill {directory.place}: {directory.root.path} lost what was written to it: {error.strerror}",
            subject=str(directory.place),
            hint="check the kernel's log for that disk (dmesg), then try again",
        )
    told.__cause__ = error
    return told


class WriteBack:
    """Syncs the local file system that a fill's tree is on. For one thread; `close` it afterwards."""

    def __init__(self, directory: FillDirectory) -> None:
        """Raises `OSError`."""
        self._directory = directory
        self._syncer = Syncer(directory.tree, directory.dead)
        self._begun_at = 0
        self._error: DsvError | None = None

    @property
    def lost(self) -> bool:
        return self._error is not None

    def advance(self, written: int) -> None:
        """Has the disk begin, if there is something worth it and it is not at work yet. Raises `Lost`, `NoRoom`.

        written: bytes so far in files that were left in memory when they were written.
        """
        self.check()
        if written - self._begun_at >= STEP and not self._syncer.busy:
            self._begun_at = written
            self._syncer.begin()

    def finish(self) -> None:
        """Returns when all that was written before is on stable storage. Raises `Lost`, `NoRoom`."""
        if self._syncer.busy:
            self._hear(self._syncer.wait)
        self.check()
        self._hear(self._syncer.sync)
        self.check()

    def check(self) -> None:
        """Raises `Lost` or `NoRoom` if a sync has failed so far."""
        self._hear(self._syncer.poll)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._syncer.close()

    def _hear(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self._error = lost(self._directory, error)
