"""The type of a cache's file system, and system calls that Python lacks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

# statfs(2) f_type of file systems where a change is a message to another machine.
_NFS = 0x6969
_REMOTE = {
    _NFS,
    0xFF534D42,  # CIFS
    0xFE534D42,  # SMB 2 and later
    0x00C36400,  # Ceph
    0x65735546,  # FUSE: sshfs, JuiceFS, s3fs; a local one only loses a little by being taken for remote
    0x0BD00BD0,  # Lustre
    0x47504653,  # GPFS
    0x19830326,  # BeeGFS
    0x01021997,  # 9p
    0x5346414F,  # AFS
}
_FICLONE = 0x40049409
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE


class FileSystem(msgspec.Struct, frozen=True):
    """The properties of a file system."""

    remote: bool
    """Each create is a round trip, and other hosts may see the same files."""
    sync_each: bool
    """Files are synced one by one, as NFS does at every close; otherwise all at once."""


def kind_of(path: Path) -> FileSystem:
    """Of the file system that `path` is on; unknown ones count as local. Raises `OSError`."""
    found = magic(path)
    return FileSystem(remote=found in _REMOTE, sync_each=found == _NFS)


def name_of(path: Path) -> str:
    """Return what the kernel calls the file system that `path` is on, such as `ext4` or `nfs4`; empty if it doesn't
    say. Raises `OSError`."""
    device = path.stat().st_dev
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return rest.split()[0]
    return ""


def sync(descriptor: int) -> None:
    """Write all that is dirty on the descriptor's file system to stable storage. Raises `OSError`.

    On Linux since 5.8 it also reports what an earlier write-back could not write.
    """
    if sys.platform != "linux":
        os.sync()
        return
    if _libc().syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def begin_write_back(descriptor: int, start: int, size: int) -> None:
    """Has the kernel begin to write these dirty bytes to the disk, so that a later `sync` waits for less.

    It promises nothing, and what fails is reported by that `sync`.
    """
    if sys.platform == "linux" and hasattr(_libc(), "sync_file_range"):
        _libc().sync_file_range(
            descriptor, ctypes.c_int64(start), ctypes.c_int64(size), ctypes.c_uint(_RANGE_WRITE)
        )


def clone(source: int, destination: int) -> bool:
    """Make the empty file `destination` share the blocks of `source`; False where that can't be. Raises `OSError`."""
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(destination, _FICLONE, source)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE):
            raise
        return False
    return True


@functools.cache
def boot() -> str:
    """This kernel's boot; "" where that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def magic(path: Path) -> int:
    """Return what statfs(2) calls the type of the file system; 0 where that is not known. Raises `OSError`."""
    if sys.platform != "linux":
        return 0
    buffer = ctypes.create_string_buffer(512)  # struct statfs has 120 bytes; f_type is its first long
    if _libc().statfs(os.fsencode(path), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
