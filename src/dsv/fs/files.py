"""Small files: written whole or not at all, read while others replace them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dsv.fs.folders import sync_folder

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STALE_TRIES = 3


def replace_file(
    path: Path, *pieces: bytes | bytearray | memoryview, mode: int | None = None, sync: bool = True
) -> None:
    """Puts the pieces in the place of the file, which may be missing. A symlink in its place is replaced.

    mode: what it gets whatever the umask; None for what the umask leaves of 0666. sync: after a crash there is the old
    file or the new one, whole; without it, a power cut may leave the new one empty. Raises `OSError`.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(temporary, _CREATE, 0o666 if mode is None else 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor, no path)
            if mode is not None:
                os.fchmod(descriptor, mode)
            for piece in pieces:
                file.write(piece)
            file.flush()
            if sync:
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def read_file(path: Path) -> bytes:
    """The file's content. An NFS client that still knew the one which was replaced just now asks again.

    Raises `OSError`.
    """
    for _ in range(_STALE_TRIES):
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return path.read_bytes()


def write_once(path: Path, data: bytes) -> bool:
    """Makes a file with this content if its name is free; False if somebody else was first.

    By link(2), which is exact on NFS too: where its answer was lost, the link count tells. A file system
    without hard links gets an exclusive creation, where for a moment others may see an empty file.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        temporary.write_bytes(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink == 2
        except OSError:
            return _create(path, data)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _create(path: Path, data: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True
