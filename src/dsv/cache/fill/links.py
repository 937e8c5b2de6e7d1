"""Taking files from other cached commits: a hard link, or shared blocks, or a copy of checked bytes."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
from collections.abc import Callable, Sequence

from blake3 import blake3

from dsv.cache.fill.create_files import Folders, Rights, create_file, finish_file, has_time, set_time
from dsv.cache.fill.parts import DonorPlan
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.fs import system
from dsv.values.ids import FileId

# link(2): at the limit of links, another device, another user's file (fs.protected_hardlinks), not supported.
NO_LINK = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
# What an evicted or foreign donor gives.
_NO_DONOR = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


_BLOCK = 1 << 20


class Taken(enum.Enum):
    """LINKED: no room used. COPIED: the room of the file was used, though not fetched. NO: fetch it."""

    LINKED = enum.auto()
    COPIED = enum.auto()
    NO = enum.auto()


class Links:
    """The donors of one fill, opened when first asked for. `folder_of` is not for several threads, `take` is."""

    def __init__(
        self,
        root: CacheRoot,
        donors: Sequence[DonorPlan],
        rights: Rights,
        drafts: int,
        before_close: Callable[[], None],
    ) -> None:
        """`drafts`: descriptor of a private folder on the same file system; the caller's. before_close: see `Folders`.
        A descriptor that is closed under a `take` may be another folder's by then, with a file of the same name."""
        self._root = root
        self._donors = donors
        self._rights = rights
        self._drafts = drafts
        self._before_close = before_close
        self._folders: dict[int, Folders | None] = {}
        self._tops: list[int] = []
        self._clones = True

    def folder_of(self, donor: int, path: bytes) -> tuple[int, bytes] | None:
        """The donor's folder that has this path, and the name in it; None if it is no longer there."""
        if donor not in self._folders:
            self._folders[donor] = self._open(donor)
        folders = self._folders[donor]
        try:
            return None if folders is None else folders.of(path)
        except OSError as error:
            if error.errno not in _NO_DONOR:
                raise
            return None

    def open_folder(self, donor: int, folder: bytes) -> int | None:
        """The donor's folder; None if it is no longer there. Raises `OSError`."""
        found = self.folder_of(donor, folder + b"/" if folder else b"")
        return None if found is None else found[0]

    def take_all(
        self, source: int, target: int, names: Sequence[bytes], sizes: Sequence[int], kinds: bytes
    ) -> list[int]:
        """Links files of one folder into another; returns the places of those that can't be, for `take`.

        Raises `FileExistsError`, `OSError`.
        """
        failed: list[int] = []
        stat_, link = os.stat, os.link
        for at, (name, size, kind) in enumerate(zip(names, sizes, kinds, strict=True)):
            try:
                found = stat_(name, dir_fd=source, follow_symlinks=False)
                right_kind = bool(found.st_mode & 0o100) == (kind == Kind.EXECUTABLE)
                if not (
                    right_kind and found.st_size == size and has_time(found) and stat.S_ISREG(found.st_mode)
                ):
                    failed.append(at)
                    continue
                link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in NO_LINK and error.errno not in _NO_DONOR:
                    raise
                failed.append(at)
        return failed

    def identity(self, source: tuple[int, bytes], entry: Entry) -> tuple[int, int] | None:
        """Device and inode of a donor's file; None if it is not as it was filled. Raises `OSError`."""
        try:
            found = os.stat(source[1], dir_fd=source[0], follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_DONOR:
                raise
            return None
        as_filled = stat.S_ISREG(found.st_mode) and found.st_size == entry.size and has_time(found)
        if not as_filled or bool(found.st_mode & 0o100) != (entry.kind is Kind.EXECUTABLE):
            return None
        return found.st_dev, found.st_ino

    def take(self, source: tuple[int, bytes], target: tuple[int, bytes], entry: Entry) -> Taken:
        """Makes `target` the donor's file, if that is still as it was filled. Raises `FileExistsError`, `OSError`."""
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
            if error.errno in _NO_DONOR:
                return Taken.NO
            raise
        return Taken.LINKED

    def close(self) -> None:
        for folders in self._folders.values():
            if folders is not None:
                folders.close()
        for top in self._tops:
            os.close(top)
        self._folders.clear()
        self._tops.clear()

    def _open(self, donor: int) -> Folders | None:
        plan = self._donors[donor]
        try:
            top = os.open(
                self._root.visible(Place(plan.dataset, plan.name)),
                os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
            )
        except OSError as error:
            if error.errno not in _NO_DONOR:
                raise
            return None
        self._tops.append(top)
        return Folders(top, self._rights, before_close=self._before_close)

    def _copy(self, source: tuple[int, bytes], target: tuple[int, bytes], entry: Entry) -> Taken:
        """Shared blocks cost nothing. A copy is made of small files only: a large one's chunks are checked and
        copied by the process that fetches, so that no wrong byte is ever written."""
        try:
            descriptor = os.open(source[1], _READ, dir_fd=source[0])
        except OSError as error:
            if error.errno not in _NO_DONOR:
                raise
            return Taken.NO
        executable = entry.kind is Kind.EXECUTABLE
        try:
            if self._clones and self._clone(descriptor, target, executable=executable):
                return Taken.LINKED
            self._clones = False
            if entry.size > SINGLE_CHUNK_MAX:
                return Taken.NO
            data = os.read(descriptor, entry.size + 1)
        finally:
            os.close(descriptor)
        if len(data) != entry.size or FileId.hash(data) != entry.file_id:
            return Taken.NO
        create_file(*target, (data,), self._rights, executable=executable)
        return Taken.COPIED

    def _clone(self, descriptor: int, target: tuple[int, bytes], *, executable: bool) -> bool:
        """By way of a private draft, as a name in the tree must never hold less than its file."""
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


class State(enum.Enum):
    """MISSING: create it. WHOLE: done. BROKEN: cut short, torn or not readable by this user: replace it."""

    MISSING = enum.auto()
    WHOLE = enum.auto()
    BROKEN = enum.auto()


def examine(folder: int, name: bytes, entry: Entry, twin: tuple[int, int] | None = None) -> State:
    """Reads and checks what is there for this file; a link to `twin` (device, inode) is right as it is.

    Raises `OSError`.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return State.MISSING
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            return State.BROKEN
        raise
    try:
        found = os.fstat(descriptor)
        executable = entry.kind is Kind.EXECUTABLE
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return State.BROKEN
        if (found.st_dev, found.st_ino) == twin:
            return State.WHOLE
        if bool(found.st_mode & 0o100) != executable or _hash(descriptor) != entry.file_id:
            return State.BROKEN
        if not has_time(found):
            with contextlib.suppress(PermissionError):  # another user's: it just can't be linked to later
                set_time(descriptor)
        return State.WHOLE
    finally:
        os.close(descriptor)


def _hash(descriptor: int) -> bytes:
    digest = blake3()
    while data := os.read(descriptor, _BLOCK):
        digest.update(data)
    return digest.digest()
