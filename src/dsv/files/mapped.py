"""Writes through a mapping, which do not always change a file's times.

The first write to a mapped page changes the file's times. Further writes leave no trace in any stat until the
kernel has written the page back: for half a minute or so on a disk, forever on a file system in memory.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import functools
import signal
import sys
import time
from pathlib import Path

from dsv.files.system import magic

_IN_MEMORY = {0x01021994, 0x858458F6, 0x958458F6}  # tmpfs, ramfs, hugetlbfs
_NFS = 0x6969
_PLAIN = {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010}  # ext2 to ext4, XFS, btrfs, F2FS
_AGE = 3  # times the age that the kernel aims at
_USUAL = 35.0  # seconds: the kernel's own defaults


class Notice(enum.Enum):
    """The conditions under which a file's times show that it was written."""

    NEVER = "never"
    """They may never show it."""
    WRITTEN_BACK = "written back"
    """Once its pages were written back."""
    UNMAPPED = "unmapped"
    """Like `WRITTEN_BACK`; also if it was not open or mapped to write when read: a new mapping is noticed."""
    ALWAYS = "always"
    """Reading the times of a file writes its pages back first."""


def notice(path: Path) -> Notice:
    """Return the conditions for the file system of a path."""
    try:
        found = magic(path)
    except OSError:
        return Notice.WRITTEN_BACK
    if found in _IN_MEMORY:
        return Notice.NEVER
    if found == _NFS:
        return Notice.ALWAYS
    return Notice.UNMAPPED if found in _PLAIN else Notice.WRITTEN_BACK


@functools.cache
def write_back_ns() -> int | None:
    """Return the age in ns at which a page has long been written back; None if only a sync does that."""
    try:
        settings = Path("/proc/sys/vm")
        expire, interval = (
            int((settings / f"dirty_{name}_centisecs").read_text("ascii")) for name in ("expire", "writeback")
        )
    except (OSError, ValueError):
        return int(_AGE * _USUAL * 1e9)
    return _AGE * (expire + interval) * 10_000_000 if interval else None


def is_old(ctime_ns: int) -> bool:
    """Return whether a file with this ctime has long been written back."""
    age = write_back_ns()
    return age is not None and ctime_ns < time.time_ns() - age


def has_writers(descriptor: int) -> bool:
    """Return whether a process has the file open or mapped for writing; `descriptor` only reads it.

    True also if that is unknown: for another user's file, and on most file systems that are no plain disk.
    """
    if sys.platform != "linux":
        return True
    try:
        # A read lease is granted only if no process writes. A process that opens the file now waits for the
        # lease to end; the signal that announces this must be one that does nothing.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
