"""Descriptors of folders below a root, reached without ever following a symlink.

If a folder is replaced by a symlink while a command runs, nothing outside the root is read or written.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path

from dsv.files.folders import FOLDER_FLAGS
from dsv.files.shared_path import AnyPath, open_at

# Maximum open folders of the current path. The upper folders of a deeper path are opened again when needed.
_MAX_OPEN = max(4, min(64, os.sysconf("SC_OPEN_MAX") // 16))


class Descent(AbstractContextManager["Descent"]):
    """Opens each folder once if folders are requested in tree order. Not thread-safe."""

    def __init__(self, root: AnyPath | bytes, dir_fd: int | None = None) -> None:
        """Open the root, which symlinks may lead to if it is a `Path`. Raises `OSError` if that fails."""
        if isinstance(root, bytes):
            self._root = os.open(root, FOLDER_FLAGS, dir_fd=dir_fd)
        else:
            self._root = open_at(root, FOLDER_FLAGS & ~os.O_NOFOLLOW)
        self._path = b""
        self._parts: list[bytes] = []
        self._open: list[int] = []  # of each part; -1 for one that was closed to save descriptors

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cut(0)
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def at(self, path: bytes, *, make: bool = False) -> int:
        """Return a descriptor of the folder, valid until the next call; `make` makes missing folders. Raises
        `OSError`: `FileNotFoundError`, and `NotADirectoryError` for a symlink or file in the way."""
        if path == self._path:
            return self._last()
        parts = path.split(b"/") if path else []
        common = 0
        for ours, wanted in zip(self._parts, parts, strict=False):
            if ours != wanted:
                break
            common += 1
        self._cut(common)
        for part in parts[common:]:
            self._push(self._last(), part, make)
        return self._last()

    def walk(self) -> Iterator[tuple[bytes, int, list[os.DirEntry[str]]]]:
        """Yield each folder, from the root on: its path, its descriptor, valid until the next one, and what is
        in it. Raises `OSError`."""
        waiting = [b""]
        while waiting:
            path = waiting.pop()
            folder = self.at(path)
            entries = _entries(folder)
            below = [os.fsencode(one.name) for one in entries if one.is_dir(follow_symlinks=False)]
            yield path, folder, entries
            waiting += [join(path, name) for name in below]

    def forget(self) -> None:
        """Close all folders except the root, after folders were moved or removed."""
        self._cut(0)

    def _push(self, above: int, part: bytes, make: bool) -> None:
        try:
            descriptor = _enter(above, part)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):  # another process has just made it
                os.mkdir(part, 0o777, dir_fd=above)
            descriptor = _enter(above, part)
        self._parts.append(part)
        self._open.append(descriptor)
        self._path = b"/".join(self._parts)
        surplus = len(self._open) - _MAX_OPEN
        if surplus > 0 and self._open[surplus - 1] >= 0:
            os.close(self._open[surplus - 1])
            self._open[surplus - 1] = -1

    def _last(self) -> int:
        """Return the descriptor of the current path, opened again if it was closed."""
        if not self._open:
            return self._root
        if self._open[-1] < 0:
            self._reopen()
        return self._open[-1]

    def _reopen(self) -> None:
        here, kept = self._root, max(0, len(self._parts) - _MAX_OPEN // 2)
        for at, part in enumerate(self._parts):
            try:
                below = _enter(here, part)
            finally:
                if 0 < at <= kept:
                    os.close(here)
            here = below
            if at >= kept:
                self._open[at] = here

    def _cut(self, length: int) -> None:
        for descriptor in self._open[length:]:
            if descriptor >= 0:
                os.close(descriptor)
        if length < len(self._parts):
            del self._parts[length:], self._open[length:]
            self._path = b"/".join(self._parts)


def _enter(above: int, part: bytes) -> int:
    try:
        return os.open(part, FOLDER_FLAGS, dir_fd=above)
    except OSError as error:
        if error.errno == errno.ELOOP:  # the error of O_NOFOLLOW for a symlink on some systems
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), part) from None
        raise


def _entries(folder: int) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return list(found)


def remove_tree(root: Path | bytes, dir_fd: int | None = None) -> None:
    """Remove a folder with all that is in it, however deep it is. Raises `OSError`."""
    with Descent(root, dir_fd) as descent:
        last = b""
        for path, folder, entries in chain(descent.walk(), ((b"", -1, []),)):
            for one in entries:
                if not one.is_dir(follow_symlinks=False):
                    os.unlink(one.name, dir_fd=folder)
            while last and not path.startswith(last + b"/"):  # all that was in it is gone
                last, name = split(last)
                os.rmdir(name, dir_fd=descent.at(last))
            last = path
    os.rmdir(root, dir_fd=dir_fd)


def split(path: bytes) -> tuple[bytes, bytes]:
    """Return a path's folder, empty for the root, and its name there."""
    above, _, name = path.rpartition(b"/")
    return above, name


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name
