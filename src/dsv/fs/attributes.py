"""Asking an NFS server again, where the client would answer from what it remembers.

A Linux NFS client remembers for up to a minute that a name was absent, and what a directory held. A forced
statx(2) of the directory makes it ask for the directory's change attribute, and forget both if that moved.
Elsewhere the call costs a microsecond and changes nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_FORCE_SYNC: Final = 0x2000
_STATX_BASIC_STATS: Final = 0x7FF
_STATX_SIZE: Final = 256


@cache
def _statx() -> Any:
    """libc's statx, or None where there is none (macOS, an old libc)."""
    try:
        function = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def ask_again(descriptor: int) -> None:
    """Makes the kernel fetch the attributes of this open directory or file from its server.

    Best effort: a failure is left for the operation that follows to meet.
    """
    function = _statx()
    if function is not None:
        buffer = ctypes.create_string_buffer(_STATX_SIZE)
        function(descriptor, b"", _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC, _STATX_BASIC_STATS, buffer)
    else:
        os.fstat(descriptor)


@contextmanager
def unless_gone() -> Iterator[None]:
    """Ends the body in silence where a file or folder is not there, or not any more.

    Of an open folder that was removed the kernel says ENOENT, and ESTALE where another host of NFS removed it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
