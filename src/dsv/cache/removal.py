"""Deleting what was taken out of sight, and counting exactly what that frees.

Everything goes through descriptors of folders opened without following links, so a link that somebody puts
in the way leads nowhere. Files of a folder are removed by several threads: over NFS each removal is a round trip.

A file that this host has open on NFS only gets another name, `.nfs...`, until it is closed, and that name can't be
removed. It stays, with the folders above it, for a later sweep.

Several processes may remove the same tree at once. Whoever is overtaken finds nothing (ENOENT) or, in a folder that
another host of NFS removed while it was open here, a stale handle (ESTALE): both mean that it is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from dsv.cache.record import Extent
from dsv.cache.root import FILE_TIME
from dsv.fs.attributes import GONE, unless_gone

_THREADS = 8
_BATCH = 512
_TRIES = 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 100  # folders below each other, whose descriptors are open at once
_SHOWN = 5  # names of foreign files that are kept for the report


class Removed(msgspec.Struct):
    """The result of a removal."""

    files: int = 0
    room: Extent = msgspec.field(default_factory=Extent)  # that is free now
    foreign: int = 0  # files that no fill put there
    foreign_paths: list[str] = msgspec.field(default_factory=list)  # some of these


class Remover:
    """Removes trees, or with `dry` only counts what removing them one after the other would free."""

    def __init__(self, *, dry: bool = False) -> None:
        self._dry = dry
        self._turn = threading.Lock()
        self._links: dict[tuple[int, int], int] = {}
        self.removed = Removed()
        """The result of the last `remove`, also if it failed."""
        self._deep: list[str] = []
        self._top = -1  # descriptor of the parent of what is removed

    def remove(self, path: Path) -> Removed:
        """Remove the folder with everything in it, or what is there of it. Raises `OSError`.

        What this host has open on NFS stays, and the folder with it.
        """
        self.removed = Removed()
        if not self._dry:
            self._links = {}  # the file system counts from here
        try:
            parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self.removed
        self._deep, self._top = [path.name], parent
        try:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="dsv-remove") as pool:
                while self._deep:
                    self._folder(parent, self._deep.pop(), "", pool)
        finally:
            os.close(parent)
        return self.removed

    def _folder(self, parent: int, last: str, shown: str, pool: ThreadPoolExecutor | None) -> bool:
        """Remove a folder; a host that was cut off may still add to it, so it is emptied until it goes.

        False if it stays, as something in it is open on this host.
        """
        for attempt in range(_TRIES):
            emptied = True
            try:
                folder = os.open(last, _FOLDER, dir_fd=parent)
                try:
                    emptied = self._empty(folder, shown, pool)
                finally:
                    os.close(folder)
                if not self._dry:
                    os.rmdir(last, dir_fd=parent)
                return True
            except OSError as error:
                if error.errno in GONE:
                    return True
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not emptied:
                    return False
                if attempt == _TRIES - 1:
                    raise
                time.sleep(0.02 * attempt)
        return False

    def _empty(self, folder: int, shown: str, pool: ThreadPoolExecutor | None) -> bool:
        """Remove what is in an open folder; a pool takes whole subfolders if there are many of them.

        False if something could not be removed, as it is open on this host.
        """
        names: list[str] = []
        subfolders: list[str] = []
        _open_up(folder)
        with unless_gone(), os.scandir(folder) as found:
            for one in found:
                (subfolders if one.is_dir(follow_symlinks=False) else names).append(one.name)
        if shown.count("/") == _DEEPEST:
            self._lift(folder, subfolders)
            subfolders = []
        went: list[bool] = []
        if pool is None:
            went.append(self._files(folder, shown, names))
            went += [self._folder(folder, last, f"{shown}{last}/", None) for last in subfolders]
            return all(went)
        batches = (names[at : at + _BATCH] for at in range(0, len(names), _BATCH))
        jobs = [pool.submit(self._files, folder, shown, batch) for batch in batches]
        if len(subfolders) >= _THREADS:
            jobs += [pool.submit(self._folder, folder, last, f"{shown}{last}/", None) for last in subfolders]
        else:
            went += [self._folder(folder, last, f"{shown}{last}/", pool) for last in subfolders]
        went += [job.result() for job in jobs]  # of each: an error must not go unheard
        return all(went)

    def _lift(self, folder: int, subfolders: list[str]) -> None:
        """Move folders that lie too deep up to the top, to be removed from there; when dry they are not counted."""
        for last in [] if self._dry else subfolders:
            name = f"deep-{os.urandom(8).hex()}"
            with unless_gone():
                os.rename(last, name, src_dir_fd=folder, dst_dir_fd=self._top)
                self._deep.append(name)

    def _files(self, folder: int, shown: str, names: list[str]) -> bool:
        """Return False if one of them stays, as it is open on this host."""
        files = freed_bytes = freed_files = 0
        all_went = True
        foreign: list[str] = []
        for one in names:
            try:
                found = os.stat(one, dir_fd=folder, follow_symlinks=False)
                if not self._dry:
                    os.unlink(one, dir_fd=folder)
            except OSError as error:
                if error.errno in GONE:
                    continue  # another removes the same
                if not is_held(one, error):
                    raise
                all_went = False
                continue
            files += 1
            if found.st_nlink == 1 or self._last_link(found):
                freed_bytes += found.st_blocks * 512
                freed_files += 1
            if found.st_mtime_ns != FILE_TIME * 10**9 and stat.S_ISREG(found.st_mode):
                foreign.append(shown + one)
        with self._turn:
            removed = self.removed
            removed.files += files
            removed.room += Extent(freed_bytes, freed_files)
            removed.foreign += len(foreign)
            removed.foreign_paths.extend(foreign[: _SHOWN - len(removed.foreign_paths)])
        return all_went

    def _last_link(self, found: os.stat_result) -> bool:
        """Check that all links of a file that had several are gone now, counted from its first one's removal."""
        key = (found.st_dev, found.st_ino)
        with self._turn:
            left = self._links.get(key, found.st_nlink) - 1
            self._links[key] = left
            if left == 0:
                del self._links[key]
            return left == 0


def is_held(name: str, error: OSError) -> bool:
    """Check that a file could not be removed because this host has it open: an NFS client's name for it."""
    return error.errno == errno.EBUSY and name.startswith(".nfs")


def _open_up(folder: int) -> None:
    """Let a folder of ours be emptied that forbids it (by a umask or chmod)."""
    with contextlib.suppress(OSError):
        found = os.fstat(folder)
        if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
            os.fchmod(folder, stat.S_IMODE(found.st_mode) | 0o700)
