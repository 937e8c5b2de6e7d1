"""Creating a tree's files: exclusively, read-only, with one fixed time, and never twice.

Everything is done relative to a descriptor of the tree's top folder, one component at a time and never through a
symlink, so a writer stays in the tree that it joined whatever happens to any path. Files are created by O_EXCL, never
truncated, never unlinked here. A file that was found incomplete is replaced by renaming a complete one over it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable

import msgspec

from dsv.cache.layout import FILE_TIME
from dsv.cache.root import CacheRoot
from dsv.fs import folders
from dsv.fs.attributes import refresh
from dsv.fs.folders import make_folder, umask
from dsv.fs.system import begin_write_back

_TIMES = (FILE_TIME * 10**9, FILE_TIME * 10**9)
_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FOLDERS = 128
_LOOKS = 5
_PAUSE = 0.05  # seconds after the second look, and as much more after each further one
LARGE_PIECE = 256 << 10  # bytes from which on the disk is asked to begin at once
Buffer = bytes | bytearray | memoryview


class Rights(msgspec.Struct, frozen=True):
    """What this process's files and folders get, so that they end up with the rights of the cache's root.

    file, executable, folder: modes. mend: a umask is in the way, so modes are set by fchmod after the creation.
    group: to give files and folders to; None if they get the right one anyway, or if it does not matter.
    sync: each file is synced before it is closed.
    """

    file: int
    executable: int
    folder: int
    mend: bool
    group: int | None
    sync: bool = False

    @classmethod
    def of(cls, root: CacheRoot, *, sync: bool = False) -> Rights:
        """Raises `OSError`."""
        mode = root.directory_mode
        group = root.path.stat().st_gid
        shared = not mode & stat.S_ISGID and os.getegid() != group and bool(mode & 0o070)
        return cls(
            file=root.file_mode,
            executable=root.executable_mode(),
            folder=mode,
            mend=bool(mode & umask()),
            group=group if shared else None,
            sync=sync,
        )

    def for_folders(self) -> folders.Rights:
        plain = not self.mend and self.group is None
        return folders.Rights(given=self.folder, free=0, group=self.group, plain=plain)


class Folders:
    """Descriptors of a tree's folders, the last used ones kept open. Not for use from several threads.

    before_close: called before a descriptor that other threads may still use is closed.
    """

    def __init__(
        self,
        top: int,
        rights: Rights,
        drafts: int = -1,
        before_close: Callable[[], None] | None = None,
    ) -> None:
        """`top`, owned by the caller, is the tree; `drafts` a private folder in which to make folders that need
        another mode than they are born with; -1: folders are not made, and a missing one is `FileNotFoundError`."""
        self._top = top
        self._rights = rights
        self._drafts = drafts
        self._before_close = before_close
        self._open: dict[bytes, int] = {}
        self._last: tuple[bytes, int] = (b"", top)

    def of(self, path: bytes) -> tuple[int, bytes]:
        """The descriptor of the folder of an entry, and its name in there. Raises `OSError`."""
        folder, _, name = path.rpartition(b"/")
        if folder == self._last[0]:
            return self._last[1], name
        descriptor = self.open(folder)
        self._last = (folder, descriptor)
        return descriptor, name

    def open(self, folder: bytes) -> int:
        """The descriptor of a folder, which stays this object's. Raises `OSError`."""
        for attempt in range(_LOOKS):
            try:
                return self._find(folder, anew=attempt > 0)
            except OSError as error:
                if (
                    self._drafts < 0
                    or error.errno not in (errno.ENOENT, errno.ESTALE)
                    or attempt == _LOOKS - 1
                ):
                    raise
            # One above it was replaced by another's equal one, as `_make` may, after it was opened here. Or an NFS
            # client remembers that it is missing, though `_make` has found it there.
            self.forget(folder + b"/")
            time.sleep(_PAUSE * attempt)
        raise AssertionError("unreachable")

    def _find(self, folder: bytes, *, anew: bool = False) -> int:
        if not folder:
            return self._top
        known = self._open.pop(folder, None)
        if known is None:
            parent, _, name = folder.rpartition(b"/")
            above = self._find(parent, anew=anew)
            if anew:
                refresh(above)
            known = self._enter(above, name)
            if len(self._open) >= _OPEN_FOLDERS:
                self._drop_oldest()
        self._open[folder] = known
        return known

    def forget(self, path: bytes) -> None:
        """Looks the folders of this entry up again next time: one was replaced by another's equal one."""
        while path:
            path = path.rpartition(b"/")[0]
            descriptor = self._open.pop(path, None)
            if descriptor is not None:
                self._close(descriptor)
        self._last = (b"", self._top)

    def close(self) -> None:
        if self._before_close is not None:
            self._before_close()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._last = (b"", self._top)

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._open))
        self._close(self._open.pop(oldest))
        if self._last[0] == oldest:
            self._last = (b"", self._top)

    def _close(self, descriptor: int) -> None:
        if self._before_close is not None:
            self._before_close()
        os.close(descriptor)

    def _enter(self, parent: int, name: bytes) -> int:
        if self._drafts >= 0:
            self._make(parent, name)
        return os.open(name, _FOLDER, dir_fd=parent)

    def _make(self, parent: int, name: bytes) -> None:
        """A folder appears with its final rights at once: with others, it could lock other users out for ever."""
        made = self._rights.for_folders()
        if not made.plain:
            with contextlib.suppress(FileNotFoundError):
                os.stat(name, dir_fd=parent, follow_symlinks=False)
                return
        make_folder(parent, name, made, self._drafts)


def create_file(
    folder: int, name: bytes | str, pieces: Iterable[Buffer], rights: Rights, *, executable: bool
) -> None:
    """Creates a file with this content. Raises `FileExistsError`, `OSError`."""
    finish_file(
        start_file(folder, name, pieces, rights, executable=executable), rights, executable=executable
    )


def start_file(
    folder: int, name: bytes | str, pieces: Iterable[Buffer], rights: Rights, *, executable: bool
) -> int:
    """Creates and writes it; returns a descriptor for `finish_file`. Raises `FileExistsError`, `OSError`."""
    return fill_file(new_file(folder, name, rights, executable=executable), pieces)


def new_file(folder: int, name: bytes | str, rights: Rights, *, executable: bool) -> int:
    """Raises `FileExistsError`, `OSError`."""
    return os.open(name, _CREATE, rights.executable if executable else rights.file, dir_fd=folder)


def fill_file(descriptor: int, pieces: Iterable[Buffer]) -> int:
    """Writes the pieces to a new file; returns its descriptor, or closes it if that fails. Raises `OSError`."""
    at = 0
    try:
        for piece in pieces:
            size = len(piece)
            written = os.write(descriptor, piece)
            if written != size:
                _write_rest(descriptor, memoryview(piece)[written:])
            if size >= LARGE_PIECE:
                begin_write_back(descriptor, at, size)
            at += size
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def finish_file(descriptor: int, rights: Rights, *, executable: bool) -> None:
    """Gives the file its time, and its rights if it was created with others; closes it. Raises `OSError`.

    On NFS this is where the bytes go to the server, and where a full disk is reported.
    """
    try:
        if rights.group is not None:
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, -1, rights.group)
        if rights.mend:
            os.fchmod(descriptor, rights.executable if executable else rights.file)
        os.utime(descriptor, ns=_TIMES)
        if rights.sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_time(descriptor: int) -> None:
    """Raises `PermissionError` if the file is another user's, `OSError`."""
    os.utime(descriptor, ns=_TIMES)


def has_time(found: os.stat_result) -> bool:
    return found.st_mtime_ns == _TIMES[0]


def _write_rest(descriptor: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]
