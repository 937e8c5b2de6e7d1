"""Deletion of folders in the trash, with an exact count of the room that it frees.

Paths are relative to descriptors of folders, opened without following links, so a link that another user
makes leads nowhere. Several threads remove a folder's files: over NFS each removal is a round trip.

A file that this host has open on NFS only gets another name, `.nfs...`, which can't be removed before it is
closed. It stays, with the folders above it, for a later sweep.

Several processes may remove the same tree. A process that is overtaken gets ENOENT or, in a folder that
another NFS host removed while it was open here, ESTALE: both mean that the name is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec

from dsv.cache.record import Extent
from dsv.cache.root import FILE_TIME
from dsv.files.attributes import GONE, unless_gone
from dsv.files.descriptors import Opened
from dsv.files.folders import FOLDER_FLAGS
from dsv.files.shared_path import SharedPath

_THREADS = 8
_BATCH = 512
_TRIES = 20
_DEEPEST = 100  # levels of nested folders, whose descriptors are all open at once
_SHOWN = 5  # names of foreign files that are kept for the report


class Removed(msgspec.Struct):
    """What a removal freed, without folders. No fill wrote the `foreign` files."""

    files: int = 0
    room: Extent = msgspec.field(default_factory=Extent)
    shared: dict[int, int] = msgspec.field(default_factory=dict)
    """Bytes of disk of the files that others still link, by inode."""
    foreign: int = 0
    foreign_paths: list[str] = msgspec.field(default_factory=list)


class Remover:
    """Removes trees, or with `dry` only counts what removing them one after the other would free."""

    def __init__(self, *, dry: bool = False) -> None:
        self._dry = dry
        self._turn = threading.Lock()
        self._links: dict[tuple[int, int], int] = {}
        self.removed = Removed()
        """The result of the last `remove`, even if it failed."""
        self._deep: list[str] = []
        self._top = -1  # descriptor of the parent of the removed folder

    def remove(self, path: SharedPath) -> Removed:
        """Remove a folder, if it exists. Files open on NFS by this host stay in it. Raises `OSError`."""
        self.removed = Removed()
        if not self._dry:
            self._links = {}  # earlier removals have changed the link counts themselves
        try:
            parent = path.parent.descriptor(os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return self.removed
        self._deep, self._top = [path.name], parent
        with Opened(parent), ThreadPoolExecutor(_THREADS, thread_name_prefix="dsv-remove") as pool:
            while self._deep:
                self._folder(parent, self._deep.pop(), "", pool)
        return self.removed

    def _folder(self, parent: int, last: str, shown: str, pool: ThreadPoolExecutor | None) -> bool:
        """Remove a folder, again while a late host adds to it. False if a file in it is open on this host."""
        for attempt in range(_TRIES):
            emptied = True
            try:
                with Opened(os.open(last, FOLDER_FLAGS, dir_fd=parent)) as folder:
                    emptied = self._empty(folder, shown, pool)
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
        """Empty an open folder; a pool takes subfolders if they are many. False if a file is open here."""
        names: list[str] = []
        subfolders: list[str] = []
        _open_up(folder)
        with unless_gone(), os.scandir(folder) as entries:
            for entry in entries:
                (subfolders if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
        if shown.count("/") == _DEEPEST:
            self._lift(folder, subfolders)
            subfolders = []
        went: list[bool] = []
        if pool is None:
            went.append(self._files(folder, shown, names))
            went += [self._folder(folder, last, f"{shown}{last}/", None) for last in subfolders]
            return all(went)
        batches = (names[at : at + _BATCH] for at in range(0, len(names), _BATCH))
        jobs: list[Future[bool]] = []
        # Also after an error no job may go on: they use the descriptor of the folder, which the caller closes.
        try:
            jobs.extend(pool.submit(self._files, folder, shown, batch) for batch in batches)
            if len(subfolders) >= _THREADS:
                jobs.extend(
                    pool.submit(self._folder, folder, last, f"{shown}{last}/", None) for last in subfolders
                )
            else:
                went += [self._folder(folder, last, f"{shown}{last}/", pool) for last in subfolders]
        except RuntimeError:  # "can't start new thread", when the job is in the queue already
            pool.shutdown(cancel_futures=True)
            jobs = []
            raise
        finally:
            wait(jobs)
        went += [job.result() for job in jobs]  # of every job, so that no error is lost
        return all(went)

    def _lift(self, folder: int, subfolders: list[str]) -> None:
        """Move folders that are nested too deeply to the top, to be removed there. Not counted when dry."""
        for last in [] if self._dry else subfolders:
            name = f"deep-{os.urandom(8).hex()}"
            with unless_gone():
                os.rename(last, name, src_dir_fd=folder, dst_dir_fd=self._top)
                self._deep.append(name)

    def _files(self, folder: int, shown: str, names: list[str]) -> bool:
        """Remove files. Return False if one stays because it is open on this host."""
        files = freed_bytes = freed_files = 0
        all_went = True
        foreign: list[str] = []
        for name in names:
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not self._dry:
                    os.unlink(name, dir_fd=folder)
            except OSError as error:
                if error.errno in GONE:
                    continue  # another process removed it
                if not is_held(name, error):
                    raise
                all_went = False
                continue
            files += 1
            if status.st_nlink == 1 or self._last_link(status):
                freed_bytes += status.st_blocks * 512
                freed_files += 1
            if status.st_mtime_ns != FILE_TIME * 10**9 and stat.S_ISREG(status.st_mode):
                foreign.append(shown + name)
        with self._turn:
            removed = self.removed
            removed.files += files
            removed.room += Extent(freed_bytes, freed_files)
            removed.foreign += len(foreign)
            removed.foreign_paths.extend(foreign[: _SHOWN - len(removed.foreign_paths)])
        return all_went

    def _last_link(self, found: os.stat_result) -> bool:
        """Return whether all links of a file are removed now, counted from the removal of the first."""
        key = (found.st_dev, found.st_ino)
        with self._turn:
            left = self._links.get(key, found.st_nlink) - 1
            self._links[key] = left
            self.removed.shared[found.st_ino] = found.st_blocks * 512
            if left == 0:
                del self._links[key], self.removed.shared[found.st_ino]
            return left == 0


def is_held(name: str, error: OSError) -> bool:
    """Return whether a file stays because this host has it open, which an NFS client shows by its name."""
    return error.errno == errno.EBUSY and name.startswith(".nfs")


def _open_up(folder: int) -> None:
    """Make a folder of this user writable if a umask or chmod forbids to empty it."""
    with contextlib.suppress(OSError):
        found = os.fstat(folder)
        if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
            os.fchmod(folder, stat.S_IMODE(found.st_mode) | 0o700)
