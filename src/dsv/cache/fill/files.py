"""Write a tree's files: create them exclusively, link or copy those of other commits, sync them to the disk.

Everything is done relative to a descriptor of the tree's top folder, one component at a time and never
through a symlink. So a writer stays in the tree that it joined, whatever happens to any path: rules W1, W2
and S1 to S3 of docs/internals/cache-protocol.md.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from dsv.cache.fill.directory import FillDirectory, end_unpublished
from dsv.cache.fill.parts import ReferencePlan
from dsv.cache.fill.reservations import refusal
from dsv.cache.root import FILE_TIME, CachePlace, CacheRoot
from dsv.errors import DsvError, Unreachable
from dsv.files import system
from dsv.files.attributes import ignoring, refresh
from dsv.files.descriptors import Opened
from dsv.files.folders import FOLDER_FLAGS, FolderRights, make_folder, umask
from dsv.files.small_files import FULL, write_sparse
from dsv.files.syncer import Syncer
from dsv.files.system import begin_write_back
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.transfer.stable_read import hash_content
from dsv.values.ids import FileId

_TIMES = (FILE_TIME * 10**9, FILE_TIME * 10**9)
_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FOLDERS = max(4, min(128, os.sysconf("SC_OPEN_MAX") // 32))  # of a tree
_LOOKS = 5
_PAUSE = 0.05  # seconds after the second look; each further pause is longer by the same amount
LARGE_PIECE = 256 << 10  # bytes from which on the disk is asked to begin writing at once
Buffer = bytes | bytearray | memoryview


class FillRights(FolderRights, frozen=True):
    """Modes and group that give new files and folders the rights of the cache's root."""

    file: int = 0
    executable: int = 0
    mend: bool = False
    """A umask interferes, so modes are set by fchmod after the creation."""
    sync: bool = False
    """Each file is synced before it is closed."""

    @classmethod
    def of(cls, root: CacheRoot, *, sync: bool = False) -> FillRights:
        """Return the rights that give this process's files those of the cache's root. Raises `OSError`."""
        mode, file, group = root.rights
        # True if the group is right at birth, or does not matter.
        born = mode & stat.S_ISGID or os.getegid() == group or not mode & 0o070
        mend = bool(mode & umask())
        return cls(
            given=mode,
            free=0,
            group=None if born else group,
            plain=bool(born) and not mend,
            file=file,
            executable=file | (file & 0o444) >> 2,
            mend=mend,
            sync=sync,
        )


class Folders:
    """Descriptors of a tree's folders; the last used ones stay open. Not thread-safe.

    `before_close` is called before the close of a descriptor that other threads may still use.
    """

    def __init__(
        self, top: int, rights: FillRights, drafts: int = -1, before_close: Callable[[], None] | None = None
    ) -> None:
        """top: a descriptor of the tree, which the caller owns. drafts: a private folder in which to make
        folders that need another mode than they are created with; -1: a missing folder is `FileNotFoundError`
        and not made.
        """
        self._top = top
        self._rights = rights
        self._drafts = drafts
        self._before_close = before_close
        self._open: dict[bytes, int] = {}
        self._last: tuple[bytes, int] = (b"", top)

    def of(self, path: bytes) -> tuple[int, bytes]:
        """Return the descriptor of an entry's folder, and the entry's name in it. Raises `OSError`."""
        folder, _, name = path.rpartition(b"/")
        if folder == self._last[0]:
            return self._last[1], name
        descriptor = self.open(folder)
        self._last = (folder, descriptor)
        return descriptor, name

    def open(self, folder: bytes) -> int:
        """Return the descriptor of a folder, which this object owns. Raises `OSError`."""
        for attempt in range(_LOOKS):
            try:
                return self._find(folder, anew=attempt > 0)
            except OSError as error:
                if (
                    self._drafts < 0
                    or error.errno not in (errno.ENOENT, errno.ESTALE)
                    or attempt == _LOOKS - 1
                ):
                    raise
            # A folder above it was replaced by another process's equal one, as `_make` may do, after it was
            # opened here. Or an NFS client remembers that it is missing, although `_make` has found it.
            self.forget(folder + b"/")
            time.sleep(_PAUSE * attempt)
        raise AssertionError("unreachable")

    def _find(self, folder: bytes, *, anew: bool = False) -> int:
        missing: list[bytes] = []
        while folder and folder not in self._open:
            missing.append(folder)
            folder = folder.rpartition(b"/")[0]
        known = self._top
        if folder:
            known = self._open[folder] = self._open.pop(folder)  # the last one to be closed
        while missing:
            folder = missing.pop()
            name = folder.rpartition(b"/")[2]
            if name == b"..":  # another user has put it into a plan
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
            if anew:
                refresh(known)
            if self._drafts >= 0:
                self._make(known, name)
            known = os.open(name, FOLDER_FLAGS, dir_fd=known)
            if len(self._open) >= _OPEN_FOLDERS:
                oldest = next(iter(self._open))
                self._close(self._open.pop(oldest))
                if self._last[0] == oldest:
                    self._last = (b"", self._top)
            self._open[folder] = known
        return known

    def forget(self, path: bytes) -> None:
        """Look up this entry's folders again next time: one was replaced by another process's equal one."""
        while path:
            path = path.rpartition(b"/")[0]
            descriptor = self._open.pop(path, None)
            if descriptor is not None:
                self._close(descriptor)
        self._last = (b"", self._top)

    def close(self) -> None:
        if self._before_close is not None:
            self._before_close()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._last = (b"", self._top)

    def _close(self, descriptor: int) -> None:
        if self._before_close is not None:
            self._before_close()
        os.close(descriptor)

    def _make(self, parent: int, name: bytes) -> None:
        """Make a folder with its final rights at once: with others it could lock out users permanently."""
        if not self._rights.plain:
            with contextlib.suppress(FileNotFoundError):
                os.stat(name, dir_fd=parent, follow_symlinks=False)
                return
        make_folder(parent, name, self._rights, self._drafts)


def create_file(
    folder: int, name: bytes | str, pieces: Iterable[Buffer], rights: FillRights, *, executable: bool
) -> None:
    """Create a file with this content. Raises `FileExistsError`, `OSError`."""
    descriptor = fill_file(new_file(folder, name, rights, executable=executable), pieces, [])
    finish_file(descriptor, rights, executable=executable)


def new_file(folder: int, name: bytes | str, rights: FillRights, *, executable: bool) -> int:
    """Create a file and return its descriptor. Raises `FileExistsError` if it exists, or another `OSError`."""
    return os.open(name, _CREATE, rights.executable if executable else rights.file, dir_fd=folder)


def fill_file(descriptor: int, pieces: Iterable[Buffer], holes: list[int]) -> int:
    """Write the pieces to a new file, and add the bytes in holes to the list; return its descriptor, or close it on
    failure. Raises `OSError`."""
    try:
        holes.append(write_sparse(descriptor, _written_back(descriptor, pieces)))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _written_back(descriptor: int, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the pieces, and let the disk begin with each large one after it was written."""
    at = 0
    for piece in pieces:
        yield piece
        if len(piece) >= LARGE_PIECE:
            begin_write_back(descriptor, at, len(piece))
        at += len(piece)


def finish_file(descriptor: int, rights: FillRights, *, executable: bool) -> None:
    """Set a file's time and rights, and close it, which on NFS sends the bytes and reports a full disk."""
    with Opened(descriptor):
        if rights.group is not None:
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, -1, rights.group)
        if rights.mend:
            os.fchmod(descriptor, rights.executable if executable else rights.file)
        os.utime(descriptor, ns=_TIMES)
        if rights.sync:
            os.fsync(descriptor)


def _is_as_filled(found: os.stat_result, size: int, *, executable: bool) -> bool:
    """Return whether a reference's file is unchanged since its fill, as far as its inode shows."""
    return (
        found.st_size == size
        and found.st_mtime_ns == _TIMES[0]
        and bool(found.st_mode & 0o100) == executable
        and stat.S_ISREG(found.st_mode)
    )


NO_LINK = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
"""link(2): at the limit of links, another device, another user's file (fs.protected_hardlinks), not supported."""
_NO_REFERENCE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)
"""Errors for an evicted or foreign reference."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Taken(enum.Enum):
    """LINKED: no room used. COPIED: room used, maybe of shared blocks, but nothing was fetched. NO: fetch it."""

    LINKED = enum.auto()
    COPIED = enum.auto()
    NO = enum.auto()


class Links:
    """The references of one fill, opened when first asked for. `take` is thread-safe, `folder_of` is not."""

    def __init__(
        self,
        root: CacheRoot,
        references: Sequence[ReferencePlan],
        rights: FillRights,
        drafts: int,
        before_close: Callable[[], None],
    ) -> None:
        """drafts: descriptor of a private folder on the same file system, which the caller owns.
        before_close: see `Folders`. A descriptor closed during a `take` may become that of another folder
        with a file of that name.
        """
        self._root = root
        self._references = references
        self._rights = rights
        self._drafts = drafts
        self._before_close = before_close
        self._folders: dict[int, Folders | None] = {}
        self._opened = contextlib.ExitStack()
        self._clones = True

    def folder_of(self, reference: int, path: bytes) -> tuple[int, bytes] | None:
        """Return the reference's folder that has this path, and the name in it; None if it is gone."""
        if reference not in self._folders:
            self._folders[reference] = self._open(reference)
        folders = self._folders[reference]
        try:
            return None if folders is None else folders.of(path)
        except OSError as error:
            if error.errno not in _NO_REFERENCE:
                raise
            return None

    def open_folder(self, reference: int, folder: bytes) -> int | None:
        """Return the reference's folder; None if it is gone. Raises `OSError`."""
        found = self.folder_of(reference, folder + b"/" if folder else b"")
        return None if found is None else found[0]

    def take_all(
        self, source: int, target: int, names: Sequence[bytes], sizes: Sequence[int], kinds: bytes
    ) -> list[int]:
        """Link files of one folder into another; return indexes for `take`. Raises `OSError`, also EEXIST."""
        failed: list[int] = []
        stat_, link = os.stat, os.link
        for at, (name, size, kind) in enumerate(zip(names, sizes, kinds, strict=True)):
            try:
                found = stat_(name, dir_fd=source, follow_symlinks=False)
                if not _is_as_filled(found, size, executable=kind == Kind.EXECUTABLE):
                    failed.append(at)
                    continue
                link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in NO_LINK and error.errno not in _NO_REFERENCE:
                    raise
                failed.append(at)
        return failed

    def identity(self, source: tuple[int, bytes], entry: Entry) -> tuple[int, int] | None:
        """Return device and inode of a reference's file; None if it was changed or is gone. Raises `OSError`."""
        try:
            found = os.stat(source[1], dir_fd=source[0], follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_REFERENCE:
                raise
            return None
        same = _is_as_filled(found, entry.size, executable=entry.kind is Kind.EXECUTABLE)
        return (found.st_dev, found.st_ino) if same else None

    def take(self, source: tuple[int, bytes], target: tuple[int, bytes], entry: Entry) -> Taken:
        """Make `target` the reference's file, if that is unchanged. Raises `FileExistsError`, `OSError`."""
        folder, name = source
        if self.identity(source, entry) is None:
            return Taken.NO
        try:
            os.link(name, target[1], src_dir_fd=folder, dst_dir_fd=target[0], follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in NO_LINK:
                return self._copy(source, target, entry)
            if error.errno in _NO_REFERENCE:
                return Taken.NO
            raise
        return Taken.LINKED

    def close(self) -> None:
        self._opened.close()
        self._folders.clear()

    def _open(self, reference: int) -> Folders | None:
        plan = self._references[reference]
        path = self._root.visible(CachePlace(plan.dataset, plan.name))
        with ignoring(_NO_REFERENCE):
            top = path.descriptor(os.O_RDONLY | os.O_DIRECTORY)
            self._opened.callback(os.close, top)
            folders = Folders(top, self._rights, before_close=self._before_close)
            self._opened.callback(folders.close)
            return folders
        return None

    def _copy(self, source: tuple[int, bytes], target: tuple[int, bytes], entry: Entry) -> Taken:
        """Share the blocks, or copy a small file. The chunks of a large file are checked
        and copied by the process that fetches, so that no wrong byte is ever written.
        """
        try:
            descriptor = os.open(source[1], _READ, dir_fd=source[0])
        except OSError as error:
            if error.errno not in _NO_REFERENCE:
                raise
            return Taken.NO
        executable = entry.kind is Kind.EXECUTABLE
        with Opened(descriptor):
            if self._clones and self._clone(descriptor, target, executable=executable):
                return Taken.COPIED
            self._clones = False
            if entry.size > SINGLE_CHUNK_MAX:
                return Taken.NO
            data = os.read(descriptor, entry.size + 1)
        if len(data) != entry.size or FileId.hash(data) != entry.file_id:
            return Taken.NO
        create_file(*target, (data,), self._rights, executable=executable)
        return Taken.COPIED

    def _clone(self, descriptor: int, target: tuple[int, bytes], *, executable: bool) -> bool:
        """Share blocks in a private draft, because a name in the tree must never hold less than its file."""
        draft = os.urandom(8).hex()
        mode = self._rights.executable if executable else self._rights.file
        copy = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=self._drafts)
        try:
            try:
                cloned = system.clone(descriptor, copy)
            finally:
                finish_file(copy, self._rights, executable=executable)
            if cloned:
                os.link(draft, target[1], src_dir_fd=self._drafts, dst_dir_fd=target[0])
            return cloned
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=self._drafts)


class FileState(enum.Enum):
    """MISSING: create it. WHOLE: done. BROKEN: cut short, torn or not readable by this user: replace it."""

    MISSING = enum.auto()
    WHOLE = enum.auto()
    BROKEN = enum.auto()


def examine(folder: int, name: bytes, entry: Entry, twin: tuple[int, int] | None = None) -> FileState:
    """Read and check a file of the tree; a link to `twin` (device, inode) is right. Raises `OSError`."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return FileState.MISSING
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            return FileState.BROKEN
        raise
    with Opened(descriptor):
        found = os.fstat(descriptor)
        executable = entry.kind is Kind.EXECUTABLE
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return FileState.BROKEN
        if (found.st_dev, found.st_ino) == twin:
            return FileState.WHOLE
        if bool(found.st_mode & 0o100) != executable:
            return FileState.BROKEN
        if hash_content(descriptor, entry.size) != (entry.file_id, entry.size):
            return FileState.BROKEN
        if found.st_mtime_ns != _TIMES[0]:
            with contextlib.suppress(PermissionError):  # another user's: later fills can't link to it
                os.utime(descriptor, ns=_TIMES)
        return FileState.WHOLE


STEP = 32 << 20
"""Bytes of small files between two syncs. Less would write the blocks of inodes and folders more often."""


class FillFailed(Unreachable):
    """The disk could not write part of a fill; the fill has ended."""


def _lost(directory: FillDirectory, error: OSError) -> DsvError:
    """Give up the fill whose data could not be synced to disk; return the error to raise."""
    with contextlib.suppress(OSError):  # the caller, which gets the error, gives it up too
        end_unpublished(directory)
    failure: DsvError
    if error.errno in FULL:  # some file systems report it only now
        failure = refusal(
            directory.root, directory.place, error, directory.plan.need_bytes, directory.plan.need_files
        )
    else:
        failure = FillFailed(
            f"cannot cache {directory.place}: {directory.root.path} lost what was written to it: {error.strerror}",
            subject=str(directory.place),
            hint="check the kernel's log for that disk (dmesg), then try again",
        )
    failure.__cause__ = error
    return failure


class WriteBack:
    """Syncs the file system of a fill's tree. For one thread; `close` it afterwards."""

    def __init__(self, directory: FillDirectory) -> None:
        """Start the syncer. Raises `OSError` if that fails."""
        self._directory = directory
        self._syncer = Syncer(directory.tree, directory.dead.name)
        self._begun_at = 0
        self._error: DsvError | None = None

    @property
    def lost(self) -> bool:
        return self._error is not None

    def advance(self, written: int) -> None:
        """Have the disk begin to write, if there is enough and it is idle. Raises `FillFailed`, `NoRoom`.

        written: bytes so far in files that were left in memory when they were written.
        """
        self.check()
        if written - self._begun_at >= STEP and not self._syncer.busy:
            self._begun_at = written
            self._syncer.begin()

    def finish(self) -> None:
        """Return when everything written before is on stable storage. Raises `FillFailed`, `NoRoom`."""
        if self._syncer.busy:
            self._attempt(self._syncer.wait)
        self.check()
        self._attempt(self._syncer.sync)
        self.check()

    def check(self) -> None:
        """Raises `FillFailed` or `NoRoom` if a sync has failed so far."""
        self._attempt(self._syncer.poll)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._syncer.close()

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self._error = _lost(self._directory, error)
