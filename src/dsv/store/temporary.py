"""Files of a directory store that have no name yet: made under `.tmp/`, synced, then linked into place."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from dsv.fs.attributes import ask_again, refresh
from dsv.store.base import Buffer

FOLDER: Final = ".tmp"
_STALE_SECONDS: Final = 24 * 3600
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TAKEN: Final = {errno.ENOTEMPTY, errno.EEXIST}
_READABLE_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Sharing:
    """Mode bits that are added to what the umask left, so that a group's store stays the group's.

    They derive from the store's folder: where the group may write in it, the group may read every file and
    write every folder below, whatever the umask of the person who makes them.
    """

    file_bits: int
    folder_bits: int

    @classmethod
    def of(cls, root_mode: int) -> Sharing:
        if not root_mode & stat.S_IWGRP:
            return cls(0, 0)
        return cls(stat.S_IRGRP, root_mode & (stat.S_IRWXG | stat.S_ISGID))


@dataclass(frozen=True, slots=True)
class TemporaryFile:
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
        make_folder(self._root, FOLDER, self._sharing)
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


def make_folder(parent: int, name: str, sharing: Sharing) -> None:
    """Makes a folder, which is not durable yet; one that another just made is fine.

    A group's has its mode when it appears: who dies half way leaves nothing that locks the others out, but at
    most an empty folder with a hidden name.
    """
    if not sharing.folder_bits:
        with suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=parent)
        return
    draft = f".{os.urandom(16).hex()}"  # beside it, to inherit what it would
    os.mkdir(draft, 0o777, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.stat(draft, dir_fd=parent, follow_symlinks=False).st_mode)
        os.chmod(draft, mode | sharing.folder_bits, dir_fd=parent)
        # Replaces one that another just made while that is empty: who was to link into it finds it gone, as
        # where a deleter removed it, and looks again.
        os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.rmdir(draft, dir_fd=parent)
        if not isinstance(error, OSError) or not (error.errno in _TAKEN or _is_there(parent, name)):
            raise


def _is_there(parent: int, name: str) -> bool:
    """Asked where a rename was refused: in a sticky folder even an empty one of another user's stays."""
    ask_again(parent)
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def sync_folder(folder: int) -> None:
    """fsync of a folder given by any descriptor. One that can't be read or synced is left alone."""
    try:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        return
    try:
        os.fsync(readable)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(readable)
