"""Getting a fill's bytes to the disk: while it goes on, so that its end waits for less, and at its end, for certain.

The kernel tells of bytes that it could not write once to each descriptor that is open at the time, and to the first
one that is opened later; after that nobody can tell. So one descriptor is opened before there is anything to be lost,
and a fill that has lost something is given up at once: nobody who came later could find out.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dsv.cache.fill_state.fill_directory import FillDirectory, condemn
from dsv.cache.fill_state.room import refusal
from dsv.errors import DsvError, Unreachable
from dsv.fs import sync_process, system
from dsv.fs.files import FULL

# Bytes of small files between two syncs. Less would write the blocks of inodes and folders more often.
STEP = 32 << 20


class Lost(Unreachable):
    """The disk could not write some part of a fill; the fill has ended."""


def lost(directory: FillDirectory, error: OSError) -> DsvError:
    """Gives up the fill of which a sync told this error; returns what is to be raised."""
    with contextlib.suppress(OSError):  # the caller, which gets the error, gives it up too
        condemn(directory)
    told: DsvError
    if error.errno in FULL:  # some file systems say so only now
        told = refusal(
            directory.root, directory.place, error, directory.plan.need_bytes, directory.plan.need_files
        )
    else:
        told = Lost(
            f"cannot fill {directory.place}: {directory.root.path} lost what was written to it: {error.strerror}",
            subject=str(directory.place),
            hint="look at what the kernel says of that disk (dmesg), then try again",
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

        written: bytes so far in files of which nothing was sent to the disk when they were written.
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


_left_behind: list[subprocess.Popen[bytes]] = []  # so that nobody warns of them


class Syncer:
    """Syncs the file system that a fill's tree is on. For one thread; `close` it afterwards.

    What the kernel could not write it tells once to each open descriptor. Each process has one of its own, so that
    nothing goes unheard if the other one dies: then this one syncs.
    """

    def __init__(self, tree: Path, dead: Path) -> None:
        """From here on nothing that is lost goes unheard: then `tree` is renamed to `dead`. Raises `OSError`."""
        self.busy = False
        self._process: subprocess.Popen[bytes] | None = None
        self._descriptor = _open(tree)
        if sys.platform != "linux":
            return
        try:
            others = _open(tree)
        except OSError:
            os.close(self._descriptor)
            raise
        try:
            self._process = _start(others, tree, dead)
        except OSError:  # no process to be had
            self._process = None
        finally:
            os.close(others)

    def begin(self) -> None:
        """Has the other process begin."""
        assert not self.busy
        self.busy = True
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"x")

    def poll(self) -> None:
        """Hears what came of it, if that is known by now. Raises `OSError`: what the disk said."""
        if self.busy and self._process is not None:
            assert self._process.stdout is not None
            if select.select([self._process.stdout], [], [], 0)[0]:
                self.wait()

    def wait(self) -> None:
        """Waits for what was begun; a signal's handler may raise meanwhile. Raises `OSError`: what the disk said."""
        said = b""
        if self._process is not None:
            assert self._process.stdout is not None
            select.select([self._process.stdout], [], [])
            said = self._process.stdout.readline()
        self.busy = False
        if not said:
            system.sync(self._descriptor)
        elif int(said):
            raise OSError(int(said), os.strerror(int(said)))

    def sync(self) -> None:
        """Begins and waits. Raises `OSError`."""
        self.begin()
        self.wait()

    def close(self) -> None:
        """Waits for no disk."""
        process, self._process = self._process, None
        if process is not None:
            if not self.busy:
                process.kill()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            if self.busy:
                _left_behind.append(process)
            else:
                process.wait()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _start(descriptor: int, tree: Path, dead: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, as Ctrl-C is for its starter; and with no stream of its starter's to keep open."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", sync_process.__file__, str(descriptor), str(tree), str(dead)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        pass_fds=(descriptor,),
        start_new_session=True,
    )
