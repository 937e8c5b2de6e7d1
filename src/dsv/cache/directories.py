"""Making one directory that a group shares."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from dsv.cache.disk import umask


def make_directory(path: Path, mode: int, group: int, drafts: Path) -> None:
    """Makes `path` with this mode and group; there already: fine.

    If it would be born with other rights, it is made in `drafts` and renamed, so that a user with a narrow umask who
    dies in between leaves nothing that locks others out. Raises `OSError`; `FileNotFoundError` without its parent.
    """
    inherits = bool(mode & stat.S_ISGID) or os.getegid() == group
    if inherits and not mode & umask():
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode & 0o777)
            _adopt(path, mode, group)
        return
    draft = drafts / f".{os.urandom(8).hex()}"
    draft.mkdir(0o700)
    _adopt(draft, mode, group)
    try:
        draft.rename(path)  # replaces an empty folder that another made meanwhile, which changes nothing
    except OSError as error:
        draft.rmdir()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _adopt(path: Path, mode: int, group: int) -> None:
    """Group and mode for a directory that this process has just made."""
    found = path.stat()
    if found.st_gid != group and mode & 0o070:
        with contextlib.suppress(PermissionError):  # not a member: the mode alone has to do
            os.chown(path, -1, group)
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)
