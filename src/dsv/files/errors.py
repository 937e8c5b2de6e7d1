"""Translation of the operating system's errors into dsv's errors about a workspace."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsv.errors import Denied, DsvError, NoRoom, Unreachable, Unsupported
from dsv.values.paths import show

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def how_full(path: bytes | str | os.PathLike[str]) -> str:
    """Return the command that shows what the file system of a path lacks: bytes or inodes."""
    folder = Path(os.fsdecode(path)).absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    with suppress(OSError):
        found = os.statvfs(folder)
        if found.f_files and not found.f_favail:
            return f"df -i {shlex.quote(str(folder))}"
    return f"df -h {shlex.quote(str(folder))}"


@contextmanager
def about(what: bytes | str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError of the body into an error that names `what`, a path."""
    try:
        yield
    except OSError as error:
        raise as_error(error, what) from error


def as_error(error: OSError, what: bytes | str | os.PathLike[str]) -> DsvError:
    """Return the error to raise instead; unknown errors count as a file system that does not answer."""
    subject = os.fsencode(what)
    name, reason = show(subject), error.strerror or str(error)
    text = subject.decode("utf-8", "backslashreplace")
    if error.errno in _FULL:
        return NoRoom(f"{name} could not be written: {reason}", subject=text, hint=how_full(subject))
    if error.errno in _DENIED:
        return Denied(f"{name} was refused: {reason}", subject=text, hint=f"ls -ld {name}")
    if error.errno == errno.ENAMETOOLONG:
        return Unsupported(
            f"{name} is too long for this file system", subject=text, hint="choose a shorter path"
        )
    return Unreachable(f"{name} could not be used: {reason}", subject=text)
