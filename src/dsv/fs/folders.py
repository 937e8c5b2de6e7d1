"""Folders that a group shares: made with their rights at once, and made durable."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsv.fs.attributes import ask_again

TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST)
"""What a rename answers if its target is a folder that isn't empty."""
_READABLE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Rights:
    """The mode of new folders: the bits that each has, and those about which the umask of its maker decides."""

    given: int = 0
    free: int = 0o777

    def mode(self, born: int) -> int:
        """The mode of a folder that mkdir made with `born`."""
        return self.given | (born & self.free)


def make_folder(parent: int, name: str, rights: Rights) -> None:
    """Makes a folder in an open one. One that is there already is fine. It is not durable yet: see `sync_folder`.

    It appears with its rights. If its maker dies half way, nothing is left that locks the group out, but at most an
    empty folder with a hidden name. It may replace an empty folder that another has just made: whoever was to create
    something in that one gets ENOENT, and looks the path up again. Raises `OSError`.
    """
    if not rights.given:
        with suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=parent)
        return
    draft = f".{os.urandom(16).hex()}"  # beside it, to inherit what it would
    os.mkdir(draft, 0o777, dir_fd=parent)
    try:
        born = stat.S_IMODE(os.stat(draft, dir_fd=parent, follow_symlinks=False).st_mode)
        os.chmod(draft, rights.mode(born), dir_fd=parent)
        os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.rmdir(draft, dir_fd=parent)
        if not isinstance(error, OSError) or not (error.errno in TAKEN or _is_there(parent, name)):
            raise


def _is_there(parent: int, name: str) -> bool:
    """Asked after a refused rename: in a sticky folder even another user's empty folder stays."""
    ask_again(parent)
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def sync_folder(folder: int | Path) -> None:
    """Makes the names in a folder survive a power cut. One that can't be read or synced is left alone.

    folder: its path, or any descriptor of it. Raises `OSError`.
    """
    try:
        path, above = (".", folder) if isinstance(folder, int) else (folder, None)
        readable = os.open(path, _READABLE, dir_fd=above)
    except PermissionError:
        return
    try:
        os.fsync(readable)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(readable)


def make_durable(folder: Path) -> None:
    """Makes a folder and whichever parents are missing, each synced. Raises `OSError`."""
    if not folder.parent.is_dir():
        make_durable(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
        sync_folder(folder.parent)
