"""Syncing a file system in a separate process, because a wait for a disk can't be interrupted."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys

from dsv.files import sync_process, system
from dsv.files.descriptors import Opened
from dsv.files.shared_path import AnyPath, open_at

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_left_behind: list[subprocess.Popen[bytes]] = []  # kept so that Popen does not warn of them


class Syncer:
    """Syncs the file system of the folder `tree`, and renames it to `dead`, beside it, if data was lost. Not
    thread-safe.

    The kernel reports a failed write once to each open descriptor. A second process has a descriptor of its
    own. If it dies, this process syncs, so that no failure is missed. `close` the object afterwards.
    """

    def __init__(self, tree: AnyPath, dead: str) -> None:
        """Start the second process if possible. Lost data is noticed from now on. Raises `OSError` if `tree`
        is missing or can't be opened."""
        self.busy = False
        self._process: subprocess.Popen[bytes] | None = None
        self._descriptor = open_at(tree, _FOLDER)
        if sys.platform != "linux":
            return
        with contextlib.ExitStack() as opened:
            try:
                folders = [
                    opened.enter_context(Opened(open_at(path, _FOLDER))) for path in (tree, tree.parent)
                ]
            except OSError:
                os.close(self._descriptor)
                raise
            with contextlib.suppress(OSError):  # no process could be started
                self._process = _start(folders, tree.name, dead)

    def begin(self) -> None:
        """Make the second process begin to sync."""
        assert not self.busy
        self.busy = True
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"x")

    def poll(self) -> None:
        """Collect the result if it is ready. Raises the disk's `OSError`."""
        if self.busy and self._process is not None:
            assert self._process.stdout is not None
            if select.select([self._process.stdout], [], [], 0)[0]:
                self.wait()

    def wait(self) -> None:
        """Wait for the result; a signal handler may raise during the wait. Raises the disk's `OSError`."""
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
        """Begin and wait. Raises `OSError`."""
        self.begin()
        self.wait()

    def close(self) -> None:
        """End the second process and close the folder, without waiting for a disk."""
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


def _start(folders: list[int], tree: str, dead: str) -> subprocess.Popen[bytes]:
    """Start it in its own session, because Ctrl-C is for its starter, and without the starter's streams."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", sync_process.__file__, *map(str, folders), tree, dead],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        pass_fds=folders,
        start_new_session=True,
    )
