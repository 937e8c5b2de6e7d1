"""Reading a file that others may be writing to, and why a path cannot be stored."""

from __future__ import annotations

import errno
import operator
import os
import stat
import struct
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec
from blake3 import blake3

from dsv.errors import Changing, DsvError, Unsupported
from dsv.files.descent import Descent, split
from dsv.files.descriptors import Opened
from dsv.files.mapped import has_writers, is_old
from dsv.values.ids import FileId
from dsv.values.paths import show
from dsv.values.units import format_count, format_lines

ROW = struct.Struct("<QQqqI")
"""A stat as it is remembered: inode, size, mtime and ctime in ns, mode."""
_SHOWN = 1000  # in a message; programs get all


class Problem(msgspec.Struct, frozen=True):
    """`reason` follows the path in a sentence: 'it is a socket'."""

    path: bytes
    reason: str
    changing: bool = False
    """Another program is changing it: trying again may work."""
    data: bool = True
    """False for a FIFO, a socket or a device where the base has nothing: leaving it out loses nothing."""

    def __str__(self) -> str:
        return f"{show(self.path)}: {self.reason}"


def refusal(problems: Iterable[Problem], root: str) -> DsvError:
    listed = list(problems)
    what, lines = format_count(len(listed), "path"), format_lines(list(map(str, listed)), _SHOWN)
    if all(problem.changing for problem in listed):
        return Changing(
            f"{what} in {root} changed while dsv was reading:{lines}",
            subject=root,
            hint="run the same command again, if possible while nothing writes there",
        )
    return Unsupported(
        f"{what} in {root} can't be stored:{lines}",
        subject=root,
        hint="remove them, name them in .dsvignore, or leave them out with --skip-unsupported",
    )


T = TypeVar("T")
TRIES = 3
_PIECE = 4 << 20  # bytes read at a time
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# An open file keeps its inode.
_times = operator.attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_mode")
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class StableRead(msgspec.Struct, Generic[T], frozen=True):
    """The result of reading a file that did not change while it was read."""

    value: T
    stat: os.stat_result
    """The same before and after."""
    no_writer: bool
    """See `has_no_writer`."""


def same_times(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether a file was neither written nor given another mode between two stats of a descriptor."""
    return _times(before) == _times(after)


def has_no_writer(descriptor: int, now: os.stat_result) -> bool:
    """Return whether a file is known to have no unseen writer: it is old, or no process can write to it. Call
    it before the file is read: a process that maps the file later changes its times.
    """
    return is_old(now.st_ctime_ns) or not has_writers(descriptor)


def read_stable(
    descent: Descent, path: bytes, read: Callable[[int, int], tuple[T, int]]
) -> StableRead[T] | Problem:
    """Read a file until its stat is the same before and after, at most `TRIES` times.

    `read(descriptor, size)` reads it from start to end, and returns its result and the number of bytes read.
    It is called again for each try. An `OSError` of the file becomes a problem; other exceptions are passed on.
    """
    above, name = split(path)
    for _ in range(TRIES):
        try:
            with Opened(os.open(name, OPEN_FLAGS, dir_fd=descent.at(above))) as descriptor:
                before = os.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    break
                no_writer = has_no_writer(descriptor, before)
                value, size = read(descriptor, before.st_size)
                after = os.fstat(descriptor)
        except OSError as error:
            if error.errno in _GONE:
                break
            if error.errno in (errno.EMFILE, errno.ENFILE):  # says nothing about the file
                raise
            return Problem(path, f"it can't be read: {error.strerror or error}")
        if size == after.st_size and same_times(before, after):
            return StableRead(value, after, no_writer)
    else:
        return Problem(path, f"it was changed while it was read, {TRIES} times in a row", changing=True)
    return Problem(path, "it was removed, or became something else, while dsv was at work", changing=True)


def hash_content(descriptor: int, size: int) -> tuple[FileId, int]:
    """Return the file id of a whole file, whatever the position in it, and its size in bytes."""
    if size <= _PIECE:
        data = os.pread(descriptor, size + 1, 0)  # one byte more, to see that this was all
        if len(data) == size:
            return FileId.hash(data), size
    hasher, total = blake3(), 0
    while piece := os.pread(descriptor, _PIECE, total):
        hasher.update(piece)
        total += len(piece)
    return FileId(hasher.digest()), total


def row_of(info: os.stat_result) -> bytes:
    try:
        return ROW.pack(info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_mode)
    except struct.error:  # a time that does not fit in 64 bits of ns: its low bits also show changes
        mtime, ctime = (_signed(value) for value in (info.st_mtime_ns, info.st_ctime_ns))
        return ROW.pack(info.st_ino & (1 << 64) - 1, info.st_size, mtime, ctime, info.st_mode)


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
