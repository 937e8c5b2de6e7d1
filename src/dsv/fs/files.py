"""Small files: written whole or not at all, read while others replace them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dsv.fs.errors import about

_STALE_TRIES = 3


def replace_file(path: Path, *pieces: bytes | bytearray | memoryview) -> None:
    """Puts the pieces in the place of the file: after a crash there is the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    with about(path):
        try:
            with temporary.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
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


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
