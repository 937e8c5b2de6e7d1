"""What an earlier claimer of a part left behind: whole files stay, others are replaced by whole ones.

Nothing in the tree is ever unlinked or truncated. A file that is whole stays whole whatever its first writer still
does, as every writer writes right bytes only; and one that is not is replaced by renaming a whole one over it, from a
private folder that the next claimer of the part removes for good first, so that a late rename finds nothing.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
import time
from pathlib import Path

from blake3 import blake3

from dsv.cache.filling.writer import has_time, set_time
from dsv.cache.removal import is_held
from dsv.model.entry import Entry, Kind

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_BLOCK = 1 << 20
# How long a folder is emptied again and again while its owner still adds to it. Each file that it adds was written and
# synced first, so that a few rounds do.
_BAR_SECONDS = 10.0


class State(enum.Enum):
    """MISSING: create it. WHOLE: done. BROKEN: cut short, torn or not readable by this user: replace it."""

    MISSING = enum.auto()
    WHOLE = enum.auto()
    BROKEN = enum.auto()


def examine(folder: int, name: bytes, entry: Entry, twin: tuple[int, int] | None = None) -> State:
    """Reads and checks what is there for this file; a link to `twin` (device, inode) is right as it is.

    Raises `OSError`.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return State.MISSING
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            return State.BROKEN
        raise
    try:
        found = os.fstat(descriptor)
        executable = entry.kind is Kind.EXECUTABLE
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return State.BROKEN
        if (found.st_dev, found.st_ino) == twin:
            return State.WHOLE
        if bool(found.st_mode & 0o100) != executable or _hash(descriptor) != entry.file_id:
            return State.BROKEN
        if not has_time(found):
            with contextlib.suppress(PermissionError):  # another user's: it just can't be linked to later
                set_time(descriptor)
        return State.WHOLE
    finally:
        os.close(descriptor)


def bar_drafts(folder: Path, part: int, below: int) -> None:
    """Removes the private folders of this part's generations under `below`, and sees to it that they can't come back.

    Rule W3 of docs/cache-protocol.md: nothing that these do later can replace a file of the tree. Raises `OSError`;
    ENOTEMPTY if one of them keeps adding to its folder.
    """
    for generation in range(1, below):
        _bar(folder / draft_name(part, generation))


def draft_name(part: int, generation: int) -> str:
    return f"{part}.{generation}"


def _bar(folder: Path) -> None:
    """Puts a symlink to nowhere in place of the folder, whether that is there or would be made later."""
    deadline = time.monotonic() + _BAR_SECONDS
    while True:
        try:
            folder.symlink_to("taken-over")
            return
        except FileExistsError:
            if folder.is_symlink():
                return
        try:
            names = os.listdir(folder)  # noqa: PTH208 (names, not paths)
            for name in names:
                try:
                    (folder / name).unlink()
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if not is_held(name, error):
                        raise
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if names and all(name.startswith(".nfs") for name in names):
                # Held open on this very host. Under that name it is not what its owner would rename; what else that one
                # may still rename has the right bytes, as any draft's.
                return
            if time.monotonic() > deadline:
                raise


def _hash(descriptor: int) -> bytes:
    digest = blake3()
    while data := os.read(descriptor, _BLOCK):
        digest.update(data)
    return digest.digest()
