"""Reading small files that another host may replace meanwhile, and what the errors of that mean."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from pathlib import Path

from dsv.errors import Conflict, Denied, DsvError, NoRoom, NotFound, Unreachable
from dsv.fs.attributes import refresh
from dsv.model.units import format_bytes

_TRIES = 20
GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
"""What is said of a path that another removed; an NFS server says ESTALE of what was open."""
FORGOTTEN = (errno.EIO, errno.EBADF, errno.ETIMEDOUT)
"""What an NFS client says of files that were open when it was cut off for longer than the server's lease: EIO of a sync
and a close, EBADF of a write (Linux 6); with the mount option `softerr` ETIMEDOUT of anything. They are lost to this
process, and no more than that: opened again by their names, if they still have these, they work."""


def read_small(path: Path, limit: int = 1 << 20) -> bytes | None:
    """The whole of a small file; None if there is none, or one longer than `limit`, or something that is no file.
    Raises `OSError`.

    Opening asks the server for the file's present state (close-to-open), and a handle that was replaced
    meanwhile (ESTALE) is looked up again, as is one that the server has forgotten.
    """
    for attempt in range(_TRIES):
        try:
            with open(path, "rb", opener=_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return None
                data = file.read(limit + 1)
            return data if len(data) <= limit else None
        except FileNotFoundError:
            return None
        except (NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            if error.errno not in (errno.ESTALE, *FORGOTTEN) or attempt == _TRIES - 1:
                raise
            time.sleep(0.01 * attempt)
    return None


def _at_once(path: str, flags: int) -> int:
    """Another user may have put a pipe there, and opening that must not hang."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def list_names(folder: Path) -> list[str]:
    """Names in a folder, without the hidden ones, sorted; none if it is missing. Raises `OSError`.

    The server is asked; but that the folder itself is missing an NFS client may know from memory (see `record.reach`).
    """
    for attempt in range(_TRIES):
        try:
            refresh(folder)
            return sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == _TRIES - 1:
                raise
            time.sleep(0.01 * attempt)
    return []


def explain(error: OSError, path: Path | str, doing: str = "use") -> DsvError:
    """The error of dsv's that an operating system's error at `path` in a cache is."""
    what, subject = f"cannot {doing} {path}: {error.strerror or error}", str(path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "ask the cache's owner for the right to write, or use --cache DIR"
        return Denied(what, subject=subject, hint=hint)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoom(f"{what}; {free_room(path)}", subject=subject, hint="dsv evict --dry-run")
    if error.errno == errno.ENOTDIR and _is_below_a_file(Path(path)):
        return NotFound(what, subject=subject)
    if error.errno in GONE:  # others remove folders while they are empty
        return Unreachable(what, subject=subject, hint="others change this cache now: try again")
    return Unreachable(what, subject=subject)


def free_room(path: Path | str) -> str:
    """What the file system of `path`, or of the nearest folder above it, says that it has left, in words."""
    nearest = next((one for one in (Path(path), *Path(path).parents) if one.exists()), Path(path))
    try:
        found = os.statvfs(nearest)
    except OSError as error:
        return f"how much is free is unknown ({error.strerror})"
    free = f"{format_bytes(found.f_bavail * found.f_frsize)} are free"
    return f"{free} and {found.f_favail} files can still be made" if found.f_files else free


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
    """The error of a symlink in place of a folder of dsv's own: what is filled there would lie elsewhere, uncounted,
    and what is deleted there would be somebody's.
    """
    return Conflict(
        f"{path} is a symlink, and in place of a folder of dsv's own none is followed",
        subject=str(path),
        hint=f"ask who made it (ls -l {path}), then: rm {path}",
    )


def link_count(path: Path) -> int:
    """The number of names of a file, asked of the server anew."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_nlink
    finally:
        os.close(descriptor)


def umask() -> int:
    """This process's umask, read without changing it: other threads create files meanwhile."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    return 0o777  # unknown: as if nothing got through
