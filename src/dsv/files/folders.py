"""Folders that a group shares: making them with their rights at once, and making them durable."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from dsv.errors import Denied, Unsupported
from dsv.files.attributes import ask_again, ignoring
from dsv.files.descriptors import Opened
from dsv.files.errors import as_error
from dsv.files.shared_path import AnyPath, SharedPath, open_at
from dsv.values.paths import fold_clashes, found_otherwise, show
from dsv.values.toml import BINDING

TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST)
"""Errors of a rename to a folder that isn't empty."""
FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags to open a folder that is no symlink."""
_READABLE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def bound_folder(start: Path, *, unreadable: bool = False) -> Path | None:
    """Return the nearest folder, from `start` upwards, that is bound to a dataset; None below a workspace that
    this user can't read, also if a readable one is around it. unreadable: return that one as well."""
    for folder in (start, *start.parents):
        config = folder / BINDING
        try:
            # From Python 3.14 on, `is_file` hides an unreadable folder.
            if stat.S_ISREG(config.stat().st_mode):
                return folder
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                continue
            found = as_error(error, config)
            if not isinstance(found, Denied):
                raise found from error
            if os.path.lexists(config.parent):
                return folder if unreadable else None
    return None


class FolderRights(msgspec.Struct, frozen=True):
    """Mode and group of new folders."""

    given: int = 0
    """Bits that each folder gets."""
    free: int = 0o777
    """Bits that the umask may clear."""
    group: int | None = None
    """The group to set if the process may do so; None for the default."""
    plain: bool = False
    """mkdir alone results in these rights."""

    def mode(self, born: int) -> int:
        """Return the mode for a folder that mkdir made with mode `born`."""
        return self.given | (born & self.free)


def make_folder(parent: int, name: str | bytes, rights: FolderRights, drafts: int | None = None) -> None:
    """Make a folder in an open folder, unless it exists. It is not durable yet: see `sync_folder`.

    It appears with its rights. A killed maker locks nobody out: it leaves at most an empty folder with a
    hidden name, in `drafts` or beside it. It may replace an empty folder that another process has just made:
    creating something in that one fails with ENOENT, and its path must be looked up again. Raises `OSError`.
    """
    if rights.plain or not rights.given:
        with suppress(FileExistsError):
            os.mkdir(name, rights.given & 0o777 or rights.free, dir_fd=parent)
        return
    above = parent if drafts is None else drafts  # beside it, a draft inherits the same
    draft = f".{os.urandom(16).hex()}"
    os.mkdir(draft, 0o777 if rights.free else 0o700, dir_fd=above)
    try:
        _give_rights(above, draft, rights)
        os.rename(draft, name, src_dir_fd=above, dst_dir_fd=parent)
    except BaseException as error:
        with suppress(OSError):
            os.rmdir(draft, dir_fd=above)
        if not isinstance(error, OSError) or not (error.errno in TAKEN or is_there(parent, name)):
            raise
        ask_again(parent)  # else an NFS client may still believe that it is missing


def _give_rights(above: int, draft: str, rights: FolderRights) -> None:
    """Set group and mode of a new folder, by its descriptor: in a shared folder, its name may lead elsewhere by
    now. Raises `OSError`."""
    with Opened(os.open(draft, FOLDER_FLAGS, dir_fd=above)) as folder:
        if os.listdir(folder):  # noqa: PTH208 (a descriptor; somebody has given its name to another folder)
            raise PermissionError(
                errno.EPERM, "another process has replaced a folder that was just made", draft
            )
        if rights.group is not None:
            with suppress(PermissionError):  # this user is not a member: the mode alone must do
                os.fchown(folder, -1, rights.group)
        os.fchmod(folder, rights.mode(stat.S_IMODE(os.fstat(folder).st_mode)))


def is_there(parent: int, name: str | bytes) -> bool:
    """Return whether an open folder has a name, after it was refused: a sticky folder keeps others' folders."""
    ask_again(parent)
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def make_shared_folder(folder: AnyPath) -> int:
    """Make the folder with its parent's rights, whatever the umask: a cache is shared. Return its mode."""
    if isinstance(folder, SharedPath) and not folder.below:
        return make_shared_folder(folder.root)
    try:
        return folder.stat().st_mode
    except FileNotFoundError:
        mode = make_shared_folder(folder.parent) & 0o2777
    with open_folder(folder.parent) as parent:
        make_folder(parent, folder.name, FolderRights(given=mode, free=0))
    return mode


def open_folder(folder: AnyPath) -> Opened:
    """Return a context with a descriptor of a folder. Raises `OSError`."""
    return Opened(open_at(folder, _READABLE))


def sync_folder(folder: int | AnyPath) -> None:
    """Make the names in a folder survive a power cut. Skip a folder that can't be read or synced.

    folder: its path, or any descriptor of it. Raises `OSError`.
    """
    try:
        readable = (
            os.open(".", _READABLE, dir_fd=folder) if isinstance(folder, int) else open_at(folder, _READABLE)
        )
    except PermissionError:
        return
    with Opened(readable), ignoring((errno.EINVAL, errno.EOPNOTSUPP)):
        os.fsync(readable)


def make_durable(folder: Path, mode: int = 0o777) -> None:
    """Make a folder with this mode, less the umask, and its missing parents, each synced. Raises `OSError`."""
    if not folder.parent.is_dir():
        make_durable(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode)
        sync_folder(folder.parent)


def umask() -> int:
    """Return this process's umask without changing it, because other threads may create files."""
    if sys.platform == "linux":
        with suppress(OSError):
            for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    return 0o777  # unknown: assume that it clears all bits


def check_folding(folder: Path, drafts: AnyPath, paths: Iterable[bytes]) -> None:
    """Raises `Unsupported` if paths of a tree would overwrite each other in this folder. `drafts` is a folder
    on the same file system, for the trial. Raises `OSError`."""
    refuse_clashes(str(folder), how_folded(drafts), paths)


def refuse_clashes(place: str, folded: tuple[bool, bool], paths: Iterable[bytes]) -> None:
    """Raises `Unsupported` if paths, in tree order, would have one name at a place. folded: as `how_folded`."""
    clashes = fold_clashes(paths, spelling=folded[0], ends=folded[1]) if any(folded) else ()
    if clashes:
        one, other = clashes[0]
        more = f", and {len(clashes) - 1} more pairs" if len(clashes) > 1 else ""
        raise Unsupported(
            f"{show(one)} and {show(other)} are one name in {place}{more}; nothing was written",
            subject=place,
            hint="use a folder on a file system that tells all names apart, or rename one: dsv mv",
        )


def how_folded(folder: AnyPath) -> tuple[bool, bool]:
    """Return whether names in a folder are found by other spellings, and with a dot or a space at their end.
    Tries it with a folder in it. Raises `OSError`."""
    probe = folder / f".dsv-fold-{os.urandom(8).hex()}-a\xe9"
    probe.mkdir(0o700)
    try:
        return found_otherwise(probe.name, lambda name: (folder / name).is_dir())
    finally:
        probe.rmdir()


def is_listed(folder: int, name: bytes) -> bool:
    """Return whether an open folder has this very name; False if it has only one that its file system takes for
    the same. Raises `OSError`, `FileNotFoundError` too."""
    ask_again(folder)
    if name in map(os.fsencode, os.listdir(folder)):
        return True
    os.stat(name, dir_fd=folder, follow_symlinks=False)
    return False
