"""The directory store: a plain folder, local or on NFS, with nothing to install."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from heapq import heappop, heappush, nsmallest
from pathlib import Path
from typing import Final, TypeAlias

from dsv.errors import Denied, DsvError, IntegrityError, NoRoom, Unsupported
from dsv.files.attributes import GONE, ask_again, refresh, unless_gone
from dsv.files.descriptors import Opened
from dsv.files.folders import FolderRights, make_durable, make_folder, sync_folder
from dsv.files.small_files import write_all
from dsv.stores.base import (
    LARGEST,
    Bytes,
    ListedObject,
    NoAnswer,
    PutResult,
    absent,
    check_folder,
    check_key,
    check_prefix,
    check_range,
    cut_short,
    is_component,
    too_large,
)

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_DENIED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED: Final = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
NO_HARD_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""The errors of link(2) on a file system without hard links, or without them between these folders."""


@contextmanager
def os_errors(url: str, subject: str) -> Iterator[None]:
    """Turn an OSError of the body into the store's error about `subject`, a key or the store itself."""
    try:
        yield
    except OSError as error:
        raise as_store_error(error, url, subject) from error


def as_store_error(error: OSError, url: str, subject: str) -> DsvError:
    """Return the error to raise instead of `error`. An unknown one counts as a store that does not answer."""
    where = url if subject == url else f"{subject} in {url}"
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return NoRoom(f"{where} could not be written: {reason}", subject=subject, hint=f"df -h {url}")
    if error.errno in _DENIED:
        return Denied(f"{where} was refused: {reason}", subject=subject, hint=f"ls -ld {url}")
    if error.errno in _MISPLACED:
        return IntegrityError(
            f"{where} is not a plain file in plain folders, and links inside a store are not followed",
            subject=subject,
        )
    if error.errno == errno.ENAMETOOLONG:
        return Unsupported(f"{where} has a name too long for this file system", subject=subject)
    return NoAnswer(f"{where} could not be reached: {reason}", subject=subject)


def root_missing(url: str) -> NoAnswer:
    """Return the error for a missing folder. A missing mount looks the same, so it may appear again."""
    return NoAnswer(
        f"the store's folder {url} is not there",
        subject=url,
        hint=f"check that it is mounted (ls -ld {url}); if it has moved, name its new place with --store, or for good "
        "as store in the workspace's .dsv/config.toml",
        maybe_done=False,
    )


def no_hard_links(url: str, error: OSError) -> Unsupported:
    """Return the error for a file system without link(2), which put-if-absent needs."""
    return Unsupported(
        f"{url} lies on a file system without hard links ({error.strerror}), so it can't hold a store",
        subject=url,
        hint="put the store on a local disk, NFS, or an object store (s3://bucket/prefix)",
    )


FOLDER: Final = ".tmp"
_STALE_SECONDS: Final = 24 * 3600
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


_FOLDER_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_LISTED_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that another user put there must not hang.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ATTEMPTS: Final = 30
_WALKS: Final = 3
# Finding the first of many names takes a tenth of the time of sorting all. A caller that needs few takes no more.
_FIRST: Final = 2048
_MANY: Final = 16 * _FIRST
_Folders: TypeAlias = list[str]
_LISTED_SECONDS: Final = 2.0


class _ListedFolder:
    """A folder that was just listed, kept open to read the listed files or to check that no others exist."""

    def __init__(self, folders: _Folders, descriptor: int) -> None:
        self.descriptor = descriptor
        self._folders = folders
        self._until = time.monotonic() + _LISTED_SECONDS

    def open(self, folders: _Folders, name: str, *, fresh: bool) -> int | None:
        """Open a file in it; None if another folder is given, or this one was removed. Raises `OSError`."""
        if folders != self._folders or time.monotonic() > self._until:
            return None
        if fresh:
            ask_again(self.descriptor)
        try:
            return os.open(name, _READ_FLAGS, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno == errno.ESTALE:
                return None
            if error.errno == errno.ENOENT and not os.fstat(self.descriptor).st_nlink:
                return None
            raise

    def __del__(self) -> None:
        os.close(self.descriptor)


class DirectoryStore:
    """Objects as files below `root`, which may itself be reached through links and must exist.

    The folder stays open, so a mount that goes away under a running program is an error, and never an empty
    folder to write to.
    """

    def __init__(self, root: Path | str, *, create: bool = False) -> None:
        """Open the folder; `create` makes it and its parents. Raises Unreachable if it does not exist."""
        self.root = Path(root).absolute()
        self.url = str(self.root)
        self.ordered_listing = True
        self.conditional = True
        with os_errors(self.url, self.url):
            if create:
                make_durable(self.root)
            try:
                self._root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise root_missing(self.url) from None
            mode = os.fstat(self._root).st_mode
        self._is_shared = bool(mode & stat.S_IWGRP)
        """If the group may write here, it may read all files and write all folders below, despite umasks."""
        self._is_private = not mode & (stat.S_IRWXG | stat.S_IRWXO)
        given = mode & (stat.S_IRWXG | stat.S_ISGID) if self._is_shared else 0
        self._rights = FolderRights(given=given, free=0o700 if self._is_private else 0o777)
        self._swept = False
        self._lock = threading.Lock()
        self._this_thread = threading.local()  # `listed`: the last folder that it has listed

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        with os_errors(self.url, key), self._opened(key) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise too_large(self.url, key, limit)
            data = _read(descriptor, 0, size)
        if len(data) != size:
            raise cut_short(self.url, key, 0, size, len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        check_range(start, length)
        check_key(key)
        if length == 0:
            return memoryview(b"")
        with os_errors(self.url, key), self._opened(key) as descriptor:
            data = _read(descriptor, start, length)
        if len(data) != length:
            raise cut_short(self.url, key, start, length, len(data))
        return memoryview(data)

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        folders, name = _split(check_key(key))
        with os_errors(self.url, key):
            if self._has(folders, name):
                return PutResult.LOST
            for _ in range(_ATTEMPTS):
                # The file is missing if it took a day to write and another writer has swept it.
                with unless_gone(), self._holding(data) as (holder, file, inode):
                    return self._link_in(holder, file, inode, folders, name)
                self._check_root()
                ask_again(self._root)
        raise NoAnswer(f"{key} in {self.url} could not be written: its folder keeps vanishing", subject=key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        folders, _, name = check_prefix(prefix).rpartition("/")
        base = f"{folders}/" if folders else ""
        return self._list(folders.split("/") if folders else [], base, name, start_after)

    def folders(self, prefix: str) -> Sequence[str]:
        folders = check_folder(prefix).split("/")[:-1]
        with os_errors(self.url, prefix or self.url):
            self._check_root()
            try:
                with self._folder(folders, fresh=True) as folder:
                    return _folders(folder)
            except FileNotFoundError:
                self._check_root()
        return []

    def modified(self, key: str) -> float:
        check_key(key)
        with os_errors(self.url, key), self._opened(key) as descriptor:
            return os.fstat(descriptor).st_mtime

    def delete(self, key: str) -> None:
        folders, name = _split(check_key(key))
        with os_errors(self.url, key):
            try:
                with self._folder(folders, fresh=True) as folder:
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                self._check_root()
            self._remove_empty(folders)

    def free_bytes(self) -> int | None:
        with os_errors(self.url, self.url):
            room = os.fstatvfs(self._root)
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1
        self._this_thread = threading.local()

    def _folder(self, folders: _Folders, *, fresh: bool = False, make: bool = False) -> Opened:
        """Open the folder like `_open_folder`, and close it at the end of a block."""
        return Opened(self._open_folder(folders, fresh=fresh, make=make))

    def _open_folder(self, folders: _Folders, *, fresh: bool, make: bool = False) -> int:
        """Return a descriptor of the folder. fresh: ask an NFS server again each time. make: make folders."""
        root = current = self._root
        try:
            for name in folders or (".",):
                if fresh:
                    ask_again(current)
                try:
                    below = os.open(name, _FOLDER_FLAGS, dir_fd=current)
                except FileNotFoundError:
                    if not make:
                        raise
                    make_folder(current, name, self._rights)
                    below = os.open(name, _FOLDER_FLAGS, dir_fd=current)
                if current != root:
                    os.close(current)
                current = below
            if fresh:
                ask_again(current)
        except BaseException:
            if current != root:
                os.close(current)
            raise
        return current

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """Yield a descriptor of the object's file. An absent name is looked up again: see fs.attributes."""
        folders, name = _split(check_key(key))
        try:
            descriptor = self._open_file(folders, name, fresh=False)
        except OSError as error:
            if error.errno not in GONE:
                raise
            try:
                descriptor = self._open_file(folders, name, fresh=True)
            except FileNotFoundError:
                self._check_root()
                raise absent(self.url, key) from None
        with Opened(descriptor):
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise absent(self.url, key)
            if not stat.S_ISREG(mode):
                raise IntegrityError(f"{key} in {self.url} is not a plain file", subject=key)
            yield descriptor

    def _open_file(self, folders: _Folders, name: str, *, fresh: bool) -> int:
        listed: _ListedFolder | None = getattr(self._this_thread, "listed", None)
        descriptor = None if listed is None else listed.open(folders, name, fresh=fresh)
        if descriptor is not None:
            return descriptor
        with Opened(self._open_folder(folders, fresh=fresh)) as folder:
            return os.open(name, _READ_FLAGS, dir_fd=folder)

    def _has(self, folders: _Folders, name: str) -> bool:
        """Return whether the name is known to exist, to avoid writing a large file for nothing."""
        with unless_gone(), self._folder(folders) as folder:
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._sync_above(folders, folder)
            return True
        return False

    @contextmanager
    def _holding(self, data: Bytes) -> Iterator[tuple[int, str, int]]:
        """Yield (descriptor of `.tmp`, name there of a synced file of these bytes, its inode), and remove
        that name at the end. Once it is linked, the inode distinguishes it from another writer's."""
        with Opened(self._open_temporary()) as folder:
            name = os.urandom(16).hex()
            try:
                inode = self._write(folder, name, data)
                self._sweep_once(folder)
                yield folder, name, inode
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    def _open_temporary(self) -> int:
        with suppress(FileNotFoundError):
            return os.open(FOLDER, _LISTED_FLAGS, dir_fd=self._root)
        make_folder(self._root, FOLDER, self._rights)
        return os.open(FOLDER, _LISTED_FLAGS, dir_fd=self._root)

    def _write(self, folder: int, name: str, data: Bytes) -> int:
        # Closed before it is unlinked: NFS keeps an unlinked open file under another name.
        mode = 0o400 if self._is_private else 0o444
        with Opened(os.open(name, _CREATE_FLAGS, mode, dir_fd=folder)) as descriptor:
            if self._is_shared:
                os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | stat.S_IRGRP)
            write_all(descriptor, memoryview(data).cast("B"))
            os.fsync(descriptor)
            return os.fstat(descriptor).st_ino

    def _sweep_once(self, folder: int) -> None:
        """Remove what killed writers left a day ago, by the file server's clock, once per opened store.

        A writer that was suspended for longer finds its file missing when it links, and writes it again.
        """
        with self._lock:
            if self._swept:
                return
            self._swept = True
        now = refresh(folder) / 1e9  # a file has just been made in it; see `files.attributes.server_time`
        for name in os.listdir(folder):
            with suppress(FileNotFoundError, PermissionError):
                if now - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _STALE_SECONDS:
                    os.unlink(name, dir_fd=folder)

    def _link_in(self, holder: int, file: str, inode: int, folders: _Folders, name: str) -> PutResult:
        """Link the file. Make its folder again as often as others remove or replace it while it is empty."""
        for attempt in range(_ATTEMPTS):
            with unless_gone():
                return self._link(holder, file, inode, folders, name, fresh=attempt > 0)
            os.stat(file, dir_fd=holder, follow_symlinks=False)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _link(
        self, holder: int, file: str, inode: int, folders: _Folders, name: str, *, fresh: bool = False
    ) -> PutResult:
        """Give the file its name. The name is durable afterwards, whichever writer has won."""
        with self._folder(folders, fresh=fresh, make=True) as folder:
            try:
                os.link(file, name, src_dir_fd=holder, dst_dir_fd=folder, follow_symlinks=False)
                won = True
            except FileExistsError:
                # On NFS the answer to a successful link may be lost, and the repeated call is refused.
                ask_again(folder)
                won = os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino == inode
            except OSError as error:
                if error.errno in NO_HARD_LINKS:
                    raise no_hard_links(self.url, error) from error
                raise
            self._sync_above(folders, folder)
        return PutResult.WON if won else PutResult.LOST

    def _sync_above(self, folders: _Folders, folder: int) -> None:
        """Make a name in `folder` durable, and those of all folders above, which may be new.

        Done only now: while a writer waits for the disk after making a folder, a deleter may remove it.
        """
        sync_folder(folder)
        for depth in range(len(folders) - 1, -1, -1):
            with suppress(FileNotFoundError), self._folder(folders[:depth]) as above:
                sync_folder(above)

    def _list(
        self, folders: _Folders, base: str, name: str, start_after: str | None
    ) -> Iterator[ListedObject]:
        def walk(start_after: str | None) -> Iterator[ListedObject]:
            listed = _ListedFolder(folders, self._open_folder(folders, fresh=True))
            self._this_thread.listed = listed
            return self._walk(listed.descriptor, base, name, start_after)

        with os_errors(self.url, base or self.url):
            self._check_root()
            yield from _again(walk, start_after)
            self._check_root()

    def _walk(
        self, folder: int, base: str, begins: str, start_after: str | None
    ) -> Generator[ListedObject, None, None]:
        """Yield rows below `base` in key order: a folder sorts as its name with a slash. A caller that takes
        only the first of very many rows waits for the names alone."""
        folders: list[str] = []  # a heap of folders that were seen, and follow later because of their slash
        for name in _names(folder, begins):
            while folders and folders[0] < name:
                yield from _again(partial(self._walk_below, folder, base, heappop(folders)), start_after)
            key = base + name
            if not is_component(name):
                continue  # it can't be a key, so it is not the store's
            if start_after is not None and key < start_after and not start_after.startswith(key):
                continue
            found = _look(folder, name)
            if found is None:
                continue
            if stat.S_ISDIR(found.st_mode):
                heappush(folders, f"{name}/")
            elif stat.S_ISREG(found.st_mode) and (start_after is None or key > start_after):
                yield ListedObject(key, found.st_size)
        while folders:
            yield from _again(partial(self._walk_below, folder, base, heappop(folders)), start_after)

    def _walk_below(
        self, folder: int, base: str, name: str, start_after: str | None
    ) -> Generator[ListedObject, None, None]:
        key = base + name
        if start_after is None or key > start_after or start_after.startswith(key):
            with Opened(os.open(name[:-1], _FOLDER_FLAGS, dir_fd=folder)) as below:
                ask_again(below)
                yield from self._walk(below, key, "", start_after)

    def _remove_empty(self, folders: _Folders) -> None:
        """Remove empty folders: object stores have none. A process writing into one makes it again."""
        with suppress(OSError):
            for depth in range(len(folders), 0, -1):
                with self._folder(folders[: depth - 1]) as parent:
                    os.rmdir(folders[depth - 1], dir_fd=parent)

    def _check_root(self) -> None:
        """Raises Unreachable if the store's folder itself was removed: then no key is absent."""
        if os.fstat(self._root).st_nlink == 0:
            raise root_missing(self.url)


def _split(key: str) -> tuple[_Folders, str]:
    *folders, name = key.split("/")
    return folders, name


def _again(
    walk: Callable[[str | None], Iterator[ListedObject]], start_after: str | None
) -> Iterator[ListedObject]:
    """Yield the rows after `start_after`; none if the folder does not exist.

    If another host has removed a folder that is open here, the folder may have been made again. So it is
    opened by its name again, and the walk continues after the last row.
    """
    for attempt in range(_WALKS):
        try:
            for item in walk(start_after):
                start_after = item.key
                yield item
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == _WALKS - 1:
                raise
        else:
            return


def _look(folder: int, name: str) -> os.stat_result | None:
    """Return None for a deleted name. Raises `OSError` for a link: skipping it might lose objects."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


def _names(folder: int, begins: str) -> Iterator[str]:
    """Yield all names that begin with `begins`, sorted. There may be millions, so no work is done for each
    one, and they are sorted only for a caller that takes more than the first ones."""
    names = _listed(folder)
    if begins:
        names = [name for name in names if name.startswith(begins)]
    if len(names) > _MANY:
        first = nsmallest(_FIRST, names)
        yield from first
        after = first[-1]
        names = [name for name in names if name > after]
    names.sort()
    yield from names


def _listed(folder: int) -> list[str]:
    with Opened(os.open(".", _LISTED_FLAGS, dir_fd=folder)) as readable:
        return os.listdir(readable)  # noqa: PTH208 (a descriptor)


def _folders(folder: int) -> list[str]:
    """Return the names of folders only, sorted."""
    with Opened(os.open(".", _LISTED_FLAGS, dir_fd=folder)) as readable:
        with os.scandir(readable) as entries:
            found = [entry for entry in entries if is_component(entry.name) and not entry.is_file()]
        if any(entry.is_symlink() for entry in found):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))


def _read(descriptor: int, start: int, length: int) -> bytes:
    """Return up to `length` bytes, by one call and without a copy unless the kernel answers in parts."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(descriptor, length - got, start + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)
