"""Attributes as the file server has them now, and the time by the server's clock.

A Linux NFS client caches for up to a minute that a name was absent, what a directory held, and when it
changed. A forced statx(2) makes it ask the server, and drop its cache of a directory that has changed since.
On a local file system the call costs a microsecond and changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from dsv.files.descriptors import Opened

PROBE: Final = ".now-"
"""Prefix of the files of `server_time`, which any process may remove."""

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_FORCE_SYNC: Final = 0x2000
_STATX_BASIC_STATS: Final = 0x7FF
_STATX_SIZE: Final = 256
_MTIME: Final = struct.Struct("@qI")  # stx_mtime: seconds, then nanoseconds
_MTIME_AT: Final = 112  # its offset in struct statx
_UNREAD: Final = ctypes.create_string_buffer(_STATX_SIZE)  # for answers that are not read, of all threads


@cache
def _statx() -> Any:
    """Return libc's statx, or None on a system without it (macOS, an old libc)."""
    try:
        function = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


class Below(Protocol):
    """A path that is reached from an open folder: `files.shared_path.SharedPath`."""

    def above(self) -> AbstractContextManager[tuple[str, int]]: ...


def refresh(what: int | Path | Below) -> int:
    """Ask the server about an open file or folder, or a path, and return its mtime in ns. Raises `OSError`.

    One request, for which the right to reach it is enough. Without statx(2) an NFS client may use its cache.
    """
    if isinstance(what, int):
        return _mtime(what, "", _AT_EMPTY_PATH)
    if isinstance(what, Path):
        return _mtime(_AT_FDCWD, str(what), 0)
    with what.above() as (name, folder):
        return _mtime(folder, name, _AT_SYMLINK_NOFOLLOW)


def _mtime(folder: int, name: str, flags: int) -> int:
    function = _statx()
    if function is not None:
        buffer = ctypes.create_string_buffer(_STATX_SIZE)
        where = (folder, os.fsencode(name), flags | _AT_STATX_FORCE_SYNC)
        if function(*where, _STATX_BASIC_STATS, buffer) == 0:
            seconds, nanoseconds = _MTIME.unpack_from(buffer.raw, _MTIME_AT)
            return int(seconds) * 10**9 + int(nanoseconds)
        number = ctypes.get_errno()
        if number != errno.ENOSYS:
            raise OSError(number, os.strerror(number), name or None)
    if not name:
        return os.fstat(folder).st_mtime_ns
    above = None if folder == _AT_FDCWD else folder
    return os.stat(name, dir_fd=above, follow_symlinks=not flags).st_mtime_ns


def ask_again(descriptor: int) -> None:
    """Refresh a descriptor; errors are left to the next operation. Called for every folder of every key."""
    function = _statx()
    flags = _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC
    if function is not None and function(descriptor, b"", flags, _STATX_BASIC_STATS, _UNREAD) == 0:
        return
    with contextlib.suppress(OSError):
        refresh(descriptor)


def server_time(folder: Path) -> float:
    """Return the seconds since 1970 by the clock of the server that holds the folder, never by this host's.

    This makes a change in the folder, and reads the time of that change from the folder, not from the new
    file. A Linux client (6.11 and newer) with a write delegation dates a file by its own clock until it
    returns the delegation (FATTR4_TIME_DELEG_MODIFY), and even a forced statx returns that time. For a
    folder, a forced statx always returns the server's answer.

    Never makes the folder. Raises `OSError`; `FileNotFoundError` or ESTALE if the folder was removed.
    """
    return _stamps(folder)[1] / 1e9


def earliest_stamp(folder: Path) -> int:
    """Return the time in ns by the slower of two clocks that may date a file in `folder`: the server's and
    ours.

    A file that was dated before this time, by either clock, has not changed since. Raises `OSError`.
    """
    return min(_stamps(folder))


def _stamps(folder: Path) -> tuple[int, int]:
    """Make a file in the folder. Return its mtime, and then the mtime of the folder, both in ns."""
    probe = folder / f"{PROBE}{os.urandom(8).hex()}"
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with Opened(descriptor):
            stamp = os.fstat(descriptor).st_mtime_ns
        return stamp, refresh(folder)
    finally:
        probe.unlink(missing_ok=True)


GONE: Final = (errno.ENOENT, errno.ESTALE)
"""The errors for a file or folder that is missing; ESTALE if another NFS host removed an open folder."""


@contextmanager
def ignoring(numbers: Collection[int | None]) -> Iterator[None]:
    """End the body silently at an `OSError` with one of these numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def unless_gone() -> AbstractContextManager[None]:
    """End the body silently if a file or folder is missing or was removed."""
    return ignoring(GONE)
