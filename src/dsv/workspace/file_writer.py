"""Single changes to a workspace. Each leaves the old file or the new one, even if killed, and follows no symlink."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dsv.format.tree import Kind
from dsv.fs.descent import Descent, split
from dsv.fs.errors import about
from dsv.transfer.file_reader import OPEN_FLAGS, row_of
from dsv.workspace.scan.folder import TEMPORARY

if TYPE_CHECKING:
    from dsv.format.tree import Entry

_FLAGS = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Writer:
    """Writes below one root. It reports paths that are not as expected, and leaves them alone.

    Files appear complete: each is written beside its place under a name that scans ignore, then linked or renamed. New
    files get their mode from the umask, and group and access lists from their folder. Contents are not synced to disk:
    after a power cut the state recognizes a file that lost its content by its size.
    """

    def __init__(self, root: Path) -> None:
        self._descent = Descent(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._descent.close()

    def file(
        self, entry: Entry, fill: Callable[[int], None], expected: bytes | None, *, replace: bool
    ) -> bytes | None:
        """Write a file; return its row, or None if something else than `expected` was in its place.

        fill: writes the content to the descriptor of an empty file, open for reading and writing.
        """
        above, name = split(entry.path)
        temporary = TEMPORARY + os.urandom(8).hex().encode()
        with about(entry.path):
            mode = 0o777 if entry.kind is Kind.EXECUTABLE else 0o666
            descriptor = os.open(temporary, _FLAGS, mode, dir_fd=self._descent.at(above, make=True))
            try:
                try:
                    fill(descriptor)
                finally:
                    os.close(descriptor)
                folder = self._descent.at(above)
                # After closing: an NFS server stamps the file then.
                written = os.stat(temporary, dir_fd=folder, follow_symlinks=False)
                if replace:
                    if not self._expected(entry.path, expected):
                        return None
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                elif not _put(folder, temporary, name):
                    return None
                temporary = b""
                now = os.stat(name, dir_fd=folder, follow_symlinks=False)
            finally:
                if temporary:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=self._descent.at(above))
            same = (now.st_ino, now.st_size, now.st_mtime_ns) == (
                written.st_ino,
                written.st_size,
                written.st_mtime_ns,
            )
            return row_of(now) if same else None

    def chmod(self, entry: Entry, expected: bytes | None) -> bool:
        """Let all who may read a file execute it too, or nobody; False if it is not the expected one."""
        above, name = split(entry.path)
        with about(entry.path):
            if not self._expected(entry.path, expected):
                return False
            descriptor = os.open(name, OPEN_FLAGS, dir_fd=self._descent.at(above))
            try:
                now = os.fstat(descriptor)
                if expected is not None and row_of(now) != expected:
                    return False
                mode = stat.S_IMODE(now.st_mode)
                runs = entry.kind is Kind.EXECUTABLE
                os.fchmod(descriptor, mode | (mode & 0o444) >> 2 if runs else mode & ~0o111)
            finally:
                os.close(descriptor)
            return True

    def link(self, entry: Entry, expected: bytes | None, *, replace: bool) -> bytes | None:
        """Make a symlink. Returns what `file` returns."""
        above, name = split(entry.path)
        assert entry.target is not None
        with about(entry.path):
            folder = self._descent.at(above, make=True)
            try:
                if replace:
                    if not self._expected(entry.path, expected):
                        return None
                    temporary = TEMPORARY + os.urandom(8).hex().encode()
                    os.symlink(entry.target, temporary, dir_fd=folder)
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    os.symlink(entry.target, name, dir_fd=folder)
            except FileExistsError:
                return None
            return row_of(os.stat(name, dir_fd=folder, follow_symlinks=False))

    def folder(self, path: bytes) -> bool:
        """Make a folder with those above it; False if something else is in the way."""
        with about(path):
            try:
                self._descent.at(path, make=True)
            except (NotADirectoryError, FileExistsError):
                return False
            return True

    def remove(self, path: bytes, expected: bytes | None) -> bool:
        """Remove a file or symlink; False if it is not the expected one. True if nothing is there."""
        above, name = split(path)
        with about(path):
            try:
                if expected is not None and not self._expected(path, expected):
                    return not _is_there(self._descent.at(above), name)
                os.unlink(name, dir_fd=self._descent.at(above))
            except (FileNotFoundError, NotADirectoryError):
                return True
            except IsADirectoryError:
                return False
            return True

    def remove_folders(self, paths: Iterable[bytes]) -> None:
        """Remove the folders that are empty, and then those above them that are empty."""
        waiting = sorted(set(paths), key=lambda path: path.count(b"/"))
        seen: set[bytes] = set()
        while waiting:
            path = waiting.pop()
            if not path or path in seen:
                continue
            seen.add(path)
            above, name = split(path)
            with contextlib.suppress(OSError):  # not empty, or gone
                os.rmdir(name, dir_fd=self._descent.at(above))
                self._descent.forget()
                waiting.append(above)
                waiting.sort(key=lambda each: each.count(b"/"))

    def clear(self, path: bytes, *, everything: bool) -> bool:
        """Remove an empty folder at the path, or with `everything` anything there."""
        above, name = split(path)
        with about(path):
            try:
                folder = self._descent.at(above)
                if not everything:
                    os.rmdir(name, dir_fd=folder)
                    return True
                try:
                    os.unlink(name, dir_fd=folder)
                except (IsADirectoryError, PermissionError):  # macOS says the latter of a folder
                    shutil.rmtree(name, dir_fd=folder)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            finally:
                self._descent.forget()
            return True

    def _expected(self, path: bytes, expected: bytes | None) -> bool:
        """Return whether the path is unchanged since the plan was made; None: anything may be there."""
        above, name = split(path)
        try:
            now = os.stat(name, dir_fd=self._descent.at(above), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return expected is None or row_of(now) == expected


def _put(folder: int, temporary: bytes, name: bytes) -> bool:
    """Give the file its name, which must be free, and take away the temporary one."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if _is_there(folder, name):
            return False
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    os.unlink(temporary, dir_fd=folder)
    return True


def _is_there(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
