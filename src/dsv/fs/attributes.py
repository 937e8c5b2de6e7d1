"""Attributes as the file server has them now, and the time by the server's clock.

A Linux NFS client remembers for up to a minute that a name was absent, what a directory held, and when it changed.
A forced statx(2) makes it ask the server, and forget what it knew of a directory that has changed since. On a local
file system the call costs a microsecond and changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

PROBE: Final = ".now-"
"""Names that begin like this were made by `server_time`, and may be removed by anybody."""

_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_FORCE_SYNC: Final = 0x2000
_STATX_BASIC_STATS: Final = 0x7FF
_STATX_SIZE: Final = 256
_MTIME: Final = struct.Struct("@qI")  # stx_mtime: seconds, then nanoseconds
_MTIME_AT: Final = 112  # its offset in struct statx
_UNREAD: Final = ctypes.create_string_buffer(_STATX_SIZE)  # for answers that nobody reads, of all threads


@cache
def _statx() -> Any:
    """libc's statx, or None on a system that has none (macOS, an old libc)."""
    try:
        function = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def refresh(what: int | Path) -> int:
    """Ask the server about an open file or folder, or a path, and return its mtime in ns. Raises `OSError`.

    One request, for which the right to reach it is enough. Without statx(2) an NFS client may answer from memory.
    """
    function = _statx()
    if function is not None:
        buffer = ctypes.create_string_buffer(_STATX_SIZE)
        if isinstance(what, int):
            arguments = (what, b"", _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC)
        else:
            arguments = (_AT_FDCWD, os.fsencode(what), _AT_STATX_FORCE_SYNC)
        if function(*arguments, _STATX_BASIC_STATS, buffer) == 0:
            seconds, nanoseconds = _MTIME.unpack_from(buffer.raw, _MTIME_AT)
            return int(seconds) * 10**9 + int(nanoseconds)
        number = ctypes.get_errno()
        if number != errno.ENOSYS:
            raise OSError(number, os.strerror(number), None if isinstance(what, int) else str(what))
    return os.stat(what).st_mtime_ns  # noqa: PTH116 (a descriptor, or a path)


def ask_again(descriptor: int) -> None:
    """Like `refresh`, but leaves a failure to the operation that follows. Called for every folder of every key."""
    function = _statx()
    flags = _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC
    if function is not None and function(descriptor, b"", flags, _STATX_BASIC_STATS, _UNREAD) == 0:
        return
    with contextlib.suppress(OSError):
        refresh(descriptor)


def server_time(folder: Path) -> float:
    """Seconds since 1970 by the clock of the server that holds the folder, never by this host's.

    It is the time of a change that this call makes in the folder. It is read from the folder and not from the new
    file: a Linux client (6.11 and newer) that was given a write delegation dates a file by its own clock until it
    returns the delegation (FATTR4_TIME_DELEG_MODIFY), and says so even of a forced statx. Of a folder the forced
    statx always gives the server's answer.

    Never makes the folder. Raises `OSError`; `FileNotFoundError` or ESTALE if the folder has gone.
    """
    return _stamps(folder)[1] / 1e9


def earliest_stamp(folder: Path) -> int:
    """Now, in ns, by the slower of the two clocks that may date a file in `folder`: the server's and this host's.

    A file that was dated before this moment, by either clock, was not changed since. Raises `OSError`.
    """
    return min(_stamps(folder))


def _stamps(folder: Path) -> tuple[int, int]:
    """Return the mtimes, in ns, of a file that was made just now in the folder, and of the folder itself after that."""
    probe = folder / f"{PROBE}{os.urandom(8).hex()}"
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            stamp = os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
        return stamp, refresh(folder)
    finally:
        probe.unlink(missing_ok=True)


GONE: Final = (errno.ENOENT, errno.ESTALE)
"""The errors of a file or folder that is not there: ESTALE if another host of NFS removed an open folder."""


@contextmanager
def unless_gone() -> Iterator[None]:
    """End the body silently if a file or folder is not there, or not any more."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise


def remove_probes(folder: Path) -> None:
    """Remove what processes left that died while asking for the time. What can't be removed stays."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(PROBE):
                path.unlink(missing_ok=True)
