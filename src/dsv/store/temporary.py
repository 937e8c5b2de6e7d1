"""Files of a directory store that have no name yet: made under `.tmp/`, synced, then linked into place."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from dsv.fs.attributes import refresh
from dsv.fs.folders import Rights, make_folder
from dsv.store.base import Buffer

FOLDER: Final = ".tmp"
_STALE_SECONDS: Final = 24 * 3600
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READABLE_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Sharing(msgspec.Struct, frozen=True):
    """What is added to what the umask leaves, so that a group's store stays the group's.

    It derives from the store's folder: if the group may write in it, the group may read every file and write every
    folder below, whatever the umask of the person who makes them.
    """

    file_bits: int
    folder: Rights

    @classmethod
    def of(cls, root_mode: int) -> Sharing:
        if not root_mode & stat.S_IWGRP:
            return cls(0, Rights())
        return cls(stat.S_IRGRP, Rights(given=root_mode & (stat.S_IRWXG | stat.S_ISGID)))


class TemporaryFile(msgspec.Struct, frozen=True):
    """A file that is whole and synced; `inode` tells it from another's once it is linked."""

    name: str
    inode: int


class TemporaryFiles:
    """The `.tmp` folder below `root`, an open folder descriptor that stays the caller's."""

    def __init__(self, root: int, sharing: Sharing) -> None:
        self._root = root
        self._sharing = sharing
        self._swept = False
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, data: Buffer) -> Iterator[tuple[int, TemporaryFile]]:
        """Yields (descriptor of `.tmp`, a synced file of these bytes), and removes that name at the end."""
        folder = self._open()
        try:
            name = os.urandom(16).hex()
            try:
                file = self._write(folder, name, data)
                self._sweep_once(folder)
                yield folder, file
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)

    def _open(self) -> int:
        with suppress(FileNotFoundError):
            return os.open(FOLDER, _READABLE_FOLDER, dir_fd=self._root)
        make_folder(self._root, FOLDER, self._sharing.folder)
        return os.open(FOLDER, _READABLE_FOLDER, dir_fd=self._root)

    def _write(self, folder: int, name: str, data: Buffer) -> TemporaryFile:
        descriptor = os.open(name, _CREATE_FLAGS, 0o444, dir_fd=folder)
        # Closed before anything is unlinked: NFS keeps an unlinked open file under another name.
        try:
            if self._sharing.file_bits:
                mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
                os.fchmod(descriptor, mode | self._sharing.file_bits)
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
            return TemporaryFile(name, os.fstat(descriptor).st_ino)
        finally:
            os.close(descriptor)

    def _sweep_once(self, folder: int) -> None:
        """Removes what killed writers left a day ago, by the file server's clock, once per opened store.

        A writer that stood still for longer finds its file gone when it links, and writes it anew.
        """
        with self._lock:
            if self._swept:
                return
            self._swept = True
        now = refresh(folder) / 1e9  # a file has just been made in it; see `fs.attributes.server_time`
        for name in os.listdir(folder):
            with suppress(FileNotFoundError, PermissionError):
                if now - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _STALE_SECONDS:
                    os.unlink(name, dir_fd=folder)
