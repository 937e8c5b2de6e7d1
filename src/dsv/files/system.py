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

# f_type of statfs(2) of the file systems on which a change is a message to another machine.
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
_MALLOC = ((-8, 1), (-3, 32 << 20), (-1, 128 << 20))
"""One heap for all threads (M_ARENA_MAX), with buffers below 32 MiB (M_MMAP_THRESHOLD), which may have 128 MiB free at
its end (M_TRIM_THRESHOLD)."""


class FileSystem(msgspec.Struct, frozen=True):
    remote: bool
    """Each create is a round trip, and other hosts may see the same files."""
    sync_each: bool
    """Files are synced one by one, as NFS does at every close; otherwise all at once."""


def kind_of(path: Path) -> FileSystem:
    """Return the properties of the file system of `path`; unknown ones count as local. Raises `OSError`."""
    found = magic(path)
    return FileSystem(remote=found in _REMOTE, sync_each=found == _NFS)


def name_of(path: Path) -> str:
    """Return the type of the file system of `path`, such as `ext4`; empty if unknown. Raises `OSError`."""
    device = path.stat().st_dev
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return rest.split()[0]
    return ""


def sync(descriptor: int) -> None:
    """Write all dirty data of the descriptor's file system to stable storage. Raises `OSError`.

    Since Linux 5.8 this also reports data that an earlier write-back could not write.
    """
    if sys.platform != "linux":
        os.sync()
        return
    if _libc().syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def begin_write_back(descriptor: int, start: int, size: int) -> None:
    """Make the kernel begin to write these dirty bytes to the disk, so that a later `sync` takes less time.

    This guarantees nothing, and that `sync` reports failures.
    """
    if sys.platform == "linux" and hasattr(_libc(), "sync_file_range"):
        _libc().sync_file_range(
            descriptor, ctypes.c_int64(start), ctypes.c_int64(size), ctypes.c_uint(_RANGE_WRITE)
        )


def reuse_freed_memory() -> None:
    """Have malloc hand out freed buffers again, in a process of dsv's own: a setting of the whole process.

    Without this, glibc keeps a heap for each thread and gives large buffers back to the kernel, which has to clear
    new pages for the next one. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and hasattr(_libc(), "mallopt"):
        for parameter, value in _MALLOC:
            _libc().mallopt(parameter, value)


def clone(source: int, destination: int) -> bool:
    """Make the empty file `destination` share the blocks of `source`; False if it can't. Raises `OSError`."""
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
    """Return the id of this kernel's boot; "" if unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def magic(path: Path) -> int:
    """Return the file system's type, as f_type of statfs(2); 0 if unknown. Raises `OSError`."""
    if sys.platform != "linux":
        return 0
    buffer = ctypes.create_string_buffer(512)  # struct statfs has 120 bytes; f_type is its first long
    if _libc().statfs(os.fsencode(path), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
