"""Paths in a folder that several users can change, such as a cache's: no operation follows a symlink in it.

A member of its group can replace any name in it by a symlink, at any moment. So each operation goes down from
the root by descriptors, and acts on a name in an open folder.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from dsv.files.attributes import refresh
from dsv.files.descriptors import Opened

_T = TypeVar("_T")
# A folder opened by O_PATH need not be readable, and an NFS client asks its server no more than for a path.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_OPENAT2 = 437  # its number on all architectures that dsv runs on
_NO_SYMLINKS, _BENEATH = 0x04, 0x08


class ListedName(msgspec.Struct, frozen=True):
    """A name in a folder."""

    name: str
    is_dir: bool
    is_symlink: bool


class SharedPath(msgspec.Struct, frozen=True, order=True):
    """A path below a root, which symlinks may lead to. Methods are named as in `pathlib`, and raise `OSError`;
    for a symlink in place of a folder, `NotADirectoryError`.

    It is no `os.PathLike`, so nothing can use it by its text. `path` is for people, and for other programs.
    """

    root: Path
    below: str = ""

    def __truediv__(self, name: str) -> SharedPath:
        return SharedPath(self.root, f"{self.below}/{name}" if self.below else name)

    def __str__(self) -> str:
        return f"{self.root}/{self.below}" if self.below else str(self.root)

    @property
    def path(self) -> Path:
        return self.root / self.below

    @property
    def name(self) -> str:
        return self.below.rpartition("/")[2]

    @property
    def parent(self) -> SharedPath:
        """The folder above it, also of a name in the root; the root's is the root."""
        return SharedPath(self.root, self.below.rpartition("/")[0])

    def with_name(self, name: str) -> SharedPath:
        return self.parent / name

    @contextmanager
    def above(self) -> Iterator[tuple[str, int]]:
        """Yield the name, and a descriptor of its folder, as the functions of `os` take them."""
        if ".." in self.below.split("/"):  # another user has put it into a record
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.below)
        with Opened(self._enter(self.below.rpartition("/")[0])) as descriptor:
            yield self.name or ".", descriptor

    def _enter(self, below: str) -> int:
        if not below:
            return os.open(self.root, _FOLDER)
        with Opened(os.open(self.root, _FOLDER)) as root:
            return descend(root, below)

    def look_up_anew(self) -> None:
        """Have an NFS client look up the path, level by level: it shows removed folders for half a minute."""
        levels = self.below.split("/") if self.below else []
        for count in range(len(levels) + 1):
            try:
                refresh(SharedPath(self.root, "/".join(levels[:count])))
            except OSError:
                continue

    def _at(self, act: Callable[..., _T], *arguments: object, **options: object) -> _T:
        """Call a function of `os` with the name, and the descriptor of its folder as `dir_fd`. After ESTALE look
        the path up anew and call it again, as the kernel does for a path."""
        for attempt in range(2):
            try:
                with self.above() as (name, folder):
                    return act(name, *arguments, dir_fd=folder, **options)
            except OSError as error:
                error.filename = str(self)
                if error.errno != errno.ESTALE or attempt:
                    raise
            self.look_up_anew()
        raise AssertionError("unreachable")

    def descriptor(self, flags: int, mode: int = 0o777) -> int:
        """Open a file or folder. A symlink is an `OSError`."""
        return self._at(os.open, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)

    def stat(self) -> os.stat_result:
        """Return the attributes of the path itself, also if it is a symlink."""
        return self._at(os.stat, follow_symlinks=False)

    def mode(self) -> int:
        """Return the type and the mode; 0 if the path is missing."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self.stat().st_mode
        return 0

    def exists(self) -> bool:
        return bool(self.mode())

    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode())

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode())

    def entries(self) -> list[ListedName]:
        """List a folder."""
        with Opened(self.descriptor(os.O_RDONLY | os.O_DIRECTORY)) as folder, os.scandir(folder) as listing:
            return [
                ListedName(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                for entry in listing
            ]

    def iterdir(self) -> Iterator[SharedPath]:
        return (self / one.name for one in self.entries())

    def readlink(self) -> str:
        target: str = self._at(os.readlink)
        return target

    def mkdir(self, mode: int = 0o777) -> None:
        self._at(os.mkdir, mode)

    def rmdir(self) -> None:
        self._at(os.rmdir)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._at(os.unlink)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def symlink_to(self, target: str | bytes) -> None:
        self._at(lambda name, dir_fd: os.symlink(target, name, dir_fd=dir_fd))

    def hardlink_to(self, source: SharedPath) -> None:
        link = functools.partial(os.link, follow_symlinks=False)
        source._at(lambda old, dir_fd: self._at(_from(link, old, dir_fd)))

    def rename(self, target: SharedPath) -> None:
        """Rename it, also over a file."""
        self._at(lambda old, dir_fd: target._at(_from(os.rename, old, dir_fd)))


def _from(act: Callable[..., None], old: str, above: int) -> Callable[..., None]:
    return lambda name, dir_fd: act(old, name, src_dir_fd=above, dst_dir_fd=dir_fd)


AnyPath = Path | SharedPath


def open_at(path: AnyPath, flags: int, mode: int = 0o777) -> int:
    """Open a file or folder; following symlinks only for a `Path`. Raises `OSError`."""
    if isinstance(path, SharedPath):
        return path.descriptor(flags, mode)
    return os.open(path, flags | os.O_CLOEXEC, mode)


def descend(root: int, below: str) -> int:
    """Open a folder below an open one. Raises `OSError`; `NotADirectoryError` for a symlink."""
    openat2 = _openat2()
    if openat2 is not None:
        return openat2(root, below)
    here = os.dup(root)
    for part in below.split("/"):
        try:
            following = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
        except OSError as error:
            raise _no_folder(error.errno, below) from None
        finally:
            os.close(here)
        here = following
    return here


def _no_folder(number: int | None, below: str) -> OSError:
    number = errno.ENOTDIR if number in (errno.ELOOP, errno.EXDEV) else number or errno.EIO
    return OSError(number, os.strerror(number), below)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW = _How(_FOLDER, 0, _NO_SYMLINKS | _BENEATH)


@functools.cache
def _openat2() -> Callable[[int, str], int] | None:
    """Return a function that opens a folder by openat2(2), in one call; None without it (Linux before 5.6)."""
    if sys.platform != "linux":
        return None
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    syscall.restype = ctypes.c_long

    def enter(root: int, below: str) -> int:
        while True:
            found: int = syscall(_OPENAT2, root, os.fsencode(below), ctypes.byref(_HOW), ctypes.sizeof(_HOW))
            if found >= 0:
                return found
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise _no_folder(number, below)

    with Opened(os.open("/", _FOLDER)) as root, suppress(OSError):
        os.close(enter(root, "."))
        return enter
    return None
