"""What the operating system's errors mean in a cache, and whether a folder is dsv's own."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from dsv.errors import Conflict, Denied, DsvError, NoRoom, NotFound, Unreachable
from dsv.fs.files import FULL, GONE
from dsv.values.units import format_bytes


def explain(error: OSError, path: Path | str, doing: str = "use") -> DsvError:
    """The error of dsv's that an operating system's error at `path` in a cache is."""
    what, subject = f"cannot {doing} {path}: {error.strerror or error}", str(path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "ask the cache's owner for the right to write, or use --cache DIR"
        return Denied(what, subject=subject, hint=hint)
    if error.errno in FULL:
        return NoRoom(f"{what}; {free_room(path)}", subject=subject, hint="dsv evict --dry-run")
    if error.errno == errno.ENOTDIR and _is_below_a_file(Path(path)):
        return NotFound(what, subject=subject)
    if error.errno in GONE:  # others remove folders while they are empty
        return Unreachable(what, subject=subject, hint="the cache is being changed by others: try again")
    return Unreachable(what, subject=subject)


def free_room(path: Path | str) -> str:
    """What the file system of `path`, or of the nearest folder above it, says that it has left, in words."""
    nearest = next((one for one in (Path(path), *Path(path).parents) if one.exists()), Path(path))
    try:
        found = os.statvfs(nearest)
    except OSError as error:
        return f"how much is free is unknown ({error.strerror})"
    free = f"{format_bytes(found.f_bavail * found.f_frsize)} are free"
    return f"{free} and {found.f_favail} inodes are free" if found.f_files else free


def _is_below_a_file(path: Path) -> bool:
    nearest = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
    return not nearest.is_dir()


def own_folder(path: Path) -> bool:
    """Whether a folder of dsv's own is there, which is no symlink. Raises `Conflict` for a symlink, `OSError`."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISLNK(mode):
        raise no_symlink(path)
    return stat.S_ISDIR(mode)


def no_symlink(path: Path) -> Conflict:
    """The error for a symlink in place of one of dsv's own folders: what is filled there would be elsewhere and not be
    counted, and what is deleted there would be somebody's."""
    return Conflict(
        f"{path} is a symlink, and dsv follows none in place of its own folders",
        subject=str(path),
        hint=f"ask who made it (ls -l {path}), then: rm {path}",
    )
