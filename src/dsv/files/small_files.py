"""Small files: written whole or not at all, read while others replace them."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from dsv.files.attributes import refresh
from dsv.files.descriptors import Opened
from dsv.files.folders import sync_folder
from dsv.files.shared_path import AnyPath, SharedPath, open_at

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STALE_TRIES = 3
_TRIES = 20
_ZEROS: Final = bytes(64 << 10)
_T = TypeVar("_T")
_P = TypeVar("_P", Path, SharedPath)
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
GONE: Final = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
"""Errors for a path that another process removed; ESTALE for an open file on NFS."""
FORGOTTEN: Final = (errno.EIO, errno.EBADF, errno.ETIMEDOUT)
"""NFS errors for files that were open when the client was cut off for longer than the server's lease: EIO of
a sync or close, EBADF of a write (Linux 6), and with the mount option `softerr` ETIMEDOUT of any call. Such a
descriptor is lost. The file can be opened again by its name if it still has one."""


def replace_file(
    path: AnyPath, *pieces: bytes | bytearray | memoryview, mode: int | None = None, sync: bool = True
) -> None:
    """Replace the file, which may be missing, by these pieces. A symlink at `path` is replaced too.

    mode: set whatever the umask; None for 0666 minus the umask. sync: after a crash, the whole old or new
    file is there; without it, a power cut may leave the new file empty. Raises `OSError`.
    """
    temporary: Any = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        write_new(temporary, *pieces, mode=mode, sync=sync)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def rewrite_file(path: Path, *pieces: bytes) -> None:
    """Do as `replace_file`, but keep the mode of a file that is there, and a symlink to it."""
    path = Path(os.path.realpath(path))
    replace_file(path, *pieces, mode=path.stat().st_mode & 0o777 if path.exists() else None)


def put_file(path: Path, content: bytes) -> None:
    """Replace the file by way of `.NAME.part`, which the next call replaces if this one is killed."""
    draft = path.with_name(f".{path.name}.part")
    draft.unlink(missing_ok=True)
    write_new(draft, content)
    draft.replace(path)
    sync_folder(path.parent)


def write_new(
    path: AnyPath, *pieces: bytes | bytearray | memoryview, mode: int | None = None, sync: bool = True
) -> None:
    """Make a new file. mode, sync: as for `replace_file`. Raises `FileExistsError`, `OSError`."""
    descriptor = open_at(path, _CREATE, 0o666 if mode is None else 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor, no path)
        if mode is not None:
            os.fchmod(descriptor, mode)
        for piece in pieces:
            file.write(piece)
        file.flush()
        if sync:
            os.fsync(descriptor)


def replace_link(path: Path, target: str) -> None:
    """Make or replace a symlink. Raises `OSError`, and `FileExistsError` if something else is at `path`."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    temporary.symlink_to(target)
    try:
        if path.is_symlink():
            temporary.replace(path)
        else:
            os.link(temporary, path, follow_symlinks=False)  # fails if anything exists by now
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_sparse(descriptor: int, pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """Write the pieces to an empty file, but leave holes where blocks of them are zero: they take no room. Return
    the bytes in holes."""
    ends_in_hole, holes = False, 0
    for piece in pieces:
        if len(piece) < len(_ZEROS):  # like most files
            write_all(descriptor, piece)
            ends_in_hole = ends_in_hole and not piece
            continue
        view, begin = memoryview(piece), 0
        for at in range(0, len(view) - len(_ZEROS) + 1, len(_ZEROS)):
            if not view[at] and _ZEROS.startswith(view[at : at + len(_ZEROS)]):  # mostly one look says no
                write_all(descriptor, view[begin:at])
                begin = at + len(_ZEROS)
                holes += len(_ZEROS)
                os.lseek(descriptor, len(_ZEROS), os.SEEK_CUR)
        write_all(descriptor, view[begin:])
        ends_in_hole = begin == len(view) and (begin > 0 or ends_in_hole)
    if ends_in_hole:
        os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
    return holes


def sync_data(descriptor: int) -> None:
    """Wait until the data of a file is on disk, and so much of its metadata as reading it needs."""
    getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has no fdatasync


def read_file(path: AnyPath, limit: int = -1) -> bytes:
    """Return the file's content, of at most `limit` bytes. Try again if an NFS client finds it replaced (ESTALE).
    Raises `OSError`."""
    for attempt in range(_STALE_TRIES):
        try:
            with os.fdopen(open_at(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                return file.read(limit)
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == _STALE_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def write_once(path: Path, data: bytes) -> bool:
    """Make a file with this content if its name is free; False if another process was first.

    By link(2), which is exact on NFS too: the link count shows the result if the answer is lost. A file
    system without hard links gets an exclusive creation, and others may see an empty file for a moment.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        temporary.write_bytes(data)
        try:
            return link_once(temporary, path)
        except OSError:
            with path.open("xb") as file:
                file.write(data)
            return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)


def read_small(path: AnyPath, limit: int = 1 << 20) -> bytes | None:
    """Return the content of a small file; None if it is missing, longer than `limit`, or not a regular file.
    Raises `OSError`.

    Opening asks the server for the file's current state (close-to-open). A file that was replaced (ESTALE),
    or a handle that the server has forgotten, is opened again.
    """
    for attempt in range(_TRIES):
        try:
            # Another user may have put a pipe there, and opening that must not hang.
            with Opened(open_at(path, os.O_RDONLY | os.O_NONBLOCK)) as descriptor:
                return _read_up_to(descriptor, limit)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            if error.errno not in (errno.ESTALE, *FORGOTTEN) or attempt == _TRIES - 1:
                raise
            time.sleep(0.01 * attempt)
    return None


def open_plain(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError`, also for a pipe or a device, which may never end. follow: a
    symlink"""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_json(path: AnyPath, decoder: msgspec.json.Decoder[_T], limit: int = 1 << 20) -> _T | None:
    """Return a small file decoded; None if it can't be read or decoded as such. Raises `OSError`."""
    data = read_small(path, limit)
    try:
        return None if data is None else decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def _read_up_to(descriptor: int, limit: int) -> bytes | None:
    """Return None for a longer file or no regular one. Caches have thousands: buffers of `limit` cost time."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
        return None
    data = piece = os.read(descriptor, found.st_size + 1)
    while piece and len(data) != found.st_size:  # it has changed, or some file systems give it in pieces
        piece = os.read(descriptor, limit + 1)
        data += piece
        if len(data) > limit:
            return None
    return data


def list_names(folder: AnyPath, *, asked: bool = False) -> list[str]:
    """Return the sorted names in a folder without the hidden ones; empty if it is missing. Raises `OSError`.

    The server is asked, unless the caller has `asked` it just now by `refresh`. Only the answer that the
    folder itself is missing may be from the cache of an NFS client.
    """
    for attempt in range(_TRIES):
        try:
            if attempt or not asked:
                refresh(folder)
            return sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == _TRIES - 1:
                raise
            time.sleep(0.01 * attempt)
    return []


def link_once(draft: _P, path: _P) -> bool:
    """Give a new file its name if that is free; False if it is taken. Raises `OSError`.

    A LINK that is sent again because its answer was lost finds its own work; the link count shows this.
    """
    try:
        path.hardlink_to(draft)
        return True
    except FileExistsError:
        return link_count(draft) > 1


def link_count(path: AnyPath) -> int:
    """Return the link count of a file, as the server has it now."""
    with Opened(open_at(path, os.O_RDONLY)) as descriptor:
        return os.fstat(descriptor).st_nlink


def what_it_is(mode: int) -> str:
    """Return why a file of this type can't be in a tree."""
    for test, name in (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if test(mode):
            return f"it is {name}"
    return "it is neither a file, a folder nor a symlink"
