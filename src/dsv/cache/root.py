"""The paths and permissions of one cache, and the few functions that write to it.

docs/internals/cache-protocol.md lists the files of a cache.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from dsv.errors import Conflict, Denied, DsvError, NoRoom, NotFound, Unreachable, Unsupported, UsageError
from dsv.files.attributes import PROBE, ignoring, refresh
from dsv.files.folders import FolderRights, make_folder, open_folder, umask
from dsv.files.shared_path import AnyPath, SharedPath
from dsv.files.small_files import FORGOTTEN, FULL, GONE, link_once, list_names, read_small, write_new
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes

DOT = ".dsv"
FILE_TIME = 946_684_800
"""2000-01-01T00:00:00Z, every cached file's mtime. A file with another one was changed after its fill."""
_NAME = re.compile(r"([0-9a-f]{64})(?:\+([0-9a-f]{16}))?")
SETTINGS_FILE = "dsv-cache.toml"
"""The owner's limits, beside the datasets' folders."""


def folder_name(dataset: DatasetName) -> str:
    """Return a dataset's name as one path component: `/` is written `%2F`.

    A dataset that has the name of dsv's settings file, which is beside the datasets, gets `%2E` for its first
    dot. Case is ignored, because some file systems ignore it.
    """
    name = dataset.component
    return name.replace(".", "%2E", 1) if name.casefold() == SETTINGS_FILE else name


def dataset_of(folder: str) -> DatasetName:
    """Return the dataset whose `folder_name` is `folder`. Raises `UsageError` if there is none."""
    dataset = DatasetName.from_component(folder.replace("%2E", ".", 1))
    if folder_name(dataset) != folder:
        raise UsageError(f"{folder!r} is not the folder of a dataset", subject=folder)
    return dataset


def is_dataset(name: str) -> bool:
    """Return whether a name in the cache's root, or in a folder of its dot folder, can be a dataset's."""
    try:
        dataset_of(name)
    except UsageError:
        return False
    return True


class CachePlace(msgspec.Struct, frozen=True, order=True):
    """A visible path of a cache: `<dataset>/<name>`."""

    dataset: str
    """One path component, made by `folder_name`."""
    name: str
    """`<commit>` or `<commit>+<selection>`."""

    @classmethod
    def of(cls, dataset: str, commit: CommitId, selection: str | None = None) -> CachePlace:
        """`dataset` is the path component; `selection` is 16 hex digits, or None for the whole commit."""
        return cls(dataset, f"{commit}+{selection}" if selection else str(commit))

    @classmethod
    def parse(cls, dataset: str, name: str) -> CachePlace | None:
        """Return the place with these folder names, or None if they are not dsv's."""
        if dataset.startswith(".") or not dataset or "/" in dataset or not _NAME.fullmatch(name):
            return None
        return cls(dataset, name)

    @property
    def commit(self) -> CommitId:
        return CommitId.parse(self.name[:64])

    @property
    def selection(self) -> str | None:
        return self.name[65:] or None

    def __str__(self) -> str:
        return f"{self.dataset.replace('%2F', '/').replace('%2E', '.')}@{self.name}"

    @property
    def dataset_name(self) -> DatasetName:
        """Return the dataset's name. Raises `UsageError` if the folder's name does not stand for one."""
        return dataset_of(self.dataset)


def places_in(folder: SharedPath) -> list[CachePlace]:
    """Return the places in a dataset's folder. Raises `OSError`."""
    places = (CachePlace.parse(folder.name, name) for name in list_names(folder))
    return [place for place in places if place is not None]


def explain(error: OSError, path: AnyPath | str, doing: str = "use") -> DsvError:
    """Return dsv's error for an error of the operating system at `path` in a cache."""
    link = _symlink_in(path, error)
    if link is not None:
        return no_symlink(link)
    what, subject = f"cannot {doing} {path}: {error.strerror or error}", str(path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "ask the cache's owner for the right to write, or use --cache DIR"
        return Denied(what, subject=subject, hint=hint)
    if error.errno in FULL:
        return NoRoom(f"{what}; {free_room(path)}", subject=subject, hint="dsv evict --dry-run")
    if error.errno == errno.ENOTDIR and not nearest_folder(path).is_dir():  # below a file
        return NotFound(what, subject=subject)
    if error.errno in GONE:  # others remove folders while they are empty
        return Unreachable(what, subject=subject, hint="the cache is being changed by others: try again")
    return Unreachable(what, subject=subject)


@contextlib.contextmanager
def explaining(path: AnyPath | str, doing: str = "use") -> Iterator[None]:
    """Raises dsv's error for an error of the operating system at `path` in a cache: see `explain`."""
    try:
        yield
    except OSError as error:
        raise explain(error, path, doing) from error


def free_room(path: AnyPath | str) -> str:
    """Describe the free bytes and inodes of the file system of `path`, or of the nearest folder above it."""
    try:
        found = os.statvfs(nearest_folder(path))
    except OSError as error:
        return f"how much is free is unknown ({error.strerror})"
    free = f"{format_bytes(found.f_bavail * found.f_frsize)} are free"
    return f"{free} and {found.f_favail} inodes are free" if found.f_files else free


def nearest_folder(path: AnyPath | str) -> Path:
    """Return the nearest existing folder above a path, or it, on whose file system it will be. In a cache: its root."""
    outer = path.root if isinstance(path, SharedPath) else Path(path)
    return next((one for one in (outer, *outer.parents) if one.exists()), outer)


def own_folder(path: SharedPath) -> bool:
    """Return whether `path` is a folder. Raises `Conflict` if it is a symlink; `OSError`."""
    mode = path.mode()
    if stat.S_ISLNK(mode):
        raise no_symlink(path)
    return stat.S_ISDIR(mode)


def _symlink_in(path: AnyPath | str, error: OSError) -> Path | None:
    """Return the symlink in place of a folder below `path` that may be why an operation failed."""
    if error.errno not in (errno.ENOTDIR, errno.ELOOP) or not isinstance(error.filename, str):
        return None
    failed = Path(error.filename)
    below = [one for one in (failed, *failed.parents) if Path(str(path)) in one.parents]
    return next((one for one in reversed(below) if one.is_symlink()), None)


def no_symlink(path: AnyPath) -> Conflict:
    """Return the error for a symlink as an own folder: dsv would fill uncounted, or delete others' files."""
    return Conflict(
        f"{path} is a symlink, and dsv follows none in place of its own folders",
        subject=str(path),
        hint=f"ask who made it (ls -l {path}), then: rm {path}",
    )


_TRIES = 60
_SPARES = 4
_LOOK_AGAIN = (errno.ESTALE, errno.ENOENT)
"""The server forgot a handle, or another process removed an empty folder: look the path up again."""


class CacheRights(NamedTuple):
    directory: int
    """Mode of every directory: the root's, without the sticky bit, which would prevent sharing."""
    file: int
    """Mode of every cached file: read-only for those who may read the root."""
    group: int


class CacheRoot:
    """One cache. The constructor touches no file. `prepare` makes the folders; reading needs none."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would follow the site's own links)
        self.top = SharedPath(self.path)
        self.dot = self.top / DOT
        self.room = self.dot / "room"
        self.trash = self.dot / "trash"
        self.temporary = self.dot / "tmp"
        self.inventory = self.dot / "inventory"
        self.spares = self.dot / "spare"
        self.spare_folder = self.trash / "spare"
        self.settings_file = self.top / SETTINGS_FILE

    def __repr__(self) -> str:
        return f"CacheRoot({str(self.path)!r})"

    def visible(self, place: CachePlace) -> SharedPath:
        return self.top / place.dataset / place.name

    def claims(self, place: CachePlace) -> SharedPath:
        return self.dot / "claims" / place.dataset / place.name

    def fill(self, place: CachePlace) -> SharedPath:
        return self.dot / "fill" / place.dataset / place.name

    def store(self, store: StoreId) -> SharedPath:
        return self.dot / "stores" / str(store)

    def metadata(self, store: StoreId) -> SharedPath:
        """Return the folder of copies of immutable objects, for `Repository.open(metadata=…)`."""
        return self.store(store) / "objects"

    def binding(self, dataset: str) -> SharedPath:
        return self.dot / "datasets" / dataset

    @functools.cached_property
    def rights(self) -> CacheRights:
        """What every folder and file gets from the root. Raises `NotFound`, and others as `explain`."""
        try:
            found = self.path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise NotFound(f"there is no cache at {self.path}", subject=str(self.path)) from error
            raise explain(error, self.path) from error
        # A directory that can be listed but not entered is useless, so x follows r.
        rwx = found.st_mode & 0o777 | 0o700
        rwx |= (rwx & 0o444) >> 2
        return CacheRights(rwx | found.st_mode & stat.S_ISGID, rwx & 0o444, found.st_gid)

    def exists(self) -> bool:
        """Return whether the cache exists. Raises `Denied` or `Unreachable` if that can't be found out."""
        with explaining(self.path):
            if not self.dot.is_dir():  # another host may have made it since an NFS client found it missing
                for folder in (self.path.parent, self.top):
                    with contextlib.suppress(FileNotFoundError):
                        refresh(folder)
            return self.dot.is_dir()

    def prepare(self) -> None:
        """Make the root and its dot folder if they are missing. Raises `Denied`, `NoRoom`, `Unreachable`."""
        with explaining(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in ("tmp", "claims", "fill", "stores", "datasets", "room", "trash"):
                self.make_directory(self.dot / name)
            with ignoring(FULL):  # other processes use the missing ones
                self._make_spares()

    def _make_spares(self) -> None:
        """Make spare names, so that an eviction works on a disk without a free block or inode."""
        self.make_directory(self.spare_folder)
        self.make_directory(self.spares)
        for _ in range(_SPARES - len(self.spares.entries())):
            self.write_once(self.spares / os.urandom(8).hex(), b"")

    def make_directory(self, path: SharedPath) -> None:
        """Make `path`, below the root, and its missing parents, with the root's rights, unless it exists.

        It appears with its final mode: otherwise a process with a narrow umask that dies between mkdir and
        chmod would leave a folder that locks others out. Evictors and other fills remove empty folders above
        it, so they are made again. Raises `OSError`, and `Conflict` for a symlink.
        """
        for attempt in range(_TRIES):
            try:
                self._make_directory(path)
                return
            except OSError as error:
                self._pause_after(error, path.parent, attempt)

    def _make_directory(self, path: SharedPath) -> None:
        if own_folder(path):
            return
        if path.parent != self.top:
            self._make_directory(path.parent)
        with contextlib.ExitStack() as opened:
            parent = opened.enter_context(open_folder(path.parent))
            rights = self._rights_in(parent)
            drafts = parent  # for tmp itself, which can't hold its own draft
            if not rights.plain and path not in (self.dot, self.temporary):
                self._make_directory(self.temporary)
                drafts = opened.enter_context(open_folder(self.temporary))
            make_folder(parent, path.name, rights, drafts)

    def _rights_in(self, parent: int) -> FolderRights:
        """Return what a folder made in `parent` needs to get the root's mode and group."""
        mode, _, group = self.rights
        above = os.fstat(parent)
        passed_on = above.st_mode & stat.S_ISGID
        born_in = above.st_gid if passed_on else os.getegid()
        plain = born_in == group and passed_on == mode & stat.S_ISGID and not mode & umask()
        return FolderRights(given=mode, free=0, group=group if mode & 0o070 else None, plain=plain)

    def write_once(self, path: SharedPath, data: bytes, *, writable: bool = False) -> bool:
        """Create `path` with exactly this content, atomically and durably; False if the name was taken.

        If several write one name, exactly one wins, over NFS too (link(2)). A missing folder is made. Raises
        `OSError`; `Unsupported` if the file system has no hard links.
        """
        with self.drafted(data, writable=writable) as draft:
            return self.link_once(draft, path)

    @contextlib.contextmanager
    def drafted(self, data: bytes, *, writable: bool = False) -> Iterator[SharedPath]:
        """Write a file for `link_once` in advance, while there is room for it; delete it at the end."""
        draft = self._draft(data, self.rights.file | (0o200 if writable else 0))
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    def link_once(self, draft: SharedPath, path: SharedPath) -> bool:
        """Do what `write_once` does, with a file from `drafted`."""
        for attempt in range(_TRIES):
            try:
                return link_once(draft, path)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                    message = f"the file system of {self.path} has no hard links, which a cache needs"
                    raise Unsupported(message, subject=str(self.path)) from error
                self._look_again(error, path.parent, attempt)
        raise AssertionError("unreachable")

    def replace(self, path: SharedPath, data: bytes) -> None:
        """Replace the content of `path` atomically: readers see the old or the new. For a file of one's own.

        A reader over NFS may get ESTALE during the rename: use `read_small`. Raises `OSError`.
        """
        draft = self._draft(data, self.rights.file)
        try:
            for attempt in range(_TRIES):
                try:
                    draft.rename(path)
                    return
                except OSError as error:
                    if attempt and read_small(path) == data:  # a repeated RENAME: the first one has worked
                        return
                    self._look_again(error, path.parent, attempt)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _draft(self, data: bytes, mode: int) -> SharedPath:
        """Write and sync a file in tmp/ with this content."""
        for attempt in range(_TRIES):
            path = self.temporary / os.urandom(12).hex()
            try:
                write_new(path, data, mode=mode)
                return path
            except OSError as error:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                if error.errno not in FORGOTTEN or attempt >= 2:
                    self._look_again(error, self.temporary, attempt)
        raise AssertionError("unreachable")

    def _look_again(self, error: OSError, folder: SharedPath, attempt: int) -> None:
        """Make the folder again if another process removed it; raise `error` if that does not help."""
        self._pause_after(error, folder, attempt)
        with ignoring(_LOOK_AGAIN):  # the folder above it was just removed
            self._make_directory(folder)

    def _pause_after(self, error: OSError, folder: SharedPath, attempt: int) -> None:
        """Wait for the next try if `error` is of a vanished folder. Raises others, and the last try's."""
        if error.errno not in _LOOK_AGAIN or attempt == _TRIES - 1:
            while error.errno == errno.ENOTDIR and own_folder(folder) is False and folder.below:
                folder = folder.parent  # a symlink in place of one of these is the better error
            raise error
        if attempt > 2:
            from random import random  # takes a while to import

            time.sleep(random() * min(0.01 * attempt, 0.1))
        folder.look_up_anew()

    def now(self, folder: SharedPath | None = None) -> float:
        """Return seconds since 1970 by the file server's clock, which all hosts share; never by this host's.

        Like `server_time`, but it makes a missing `folder` (default: tmp/) and works on a full disk.
        """
        folder = folder or self.temporary
        for attempt in range(_TRIES):
            try:
                return self.time_in(folder)
            except OSError as error:
                self._look_again(error, folder, attempt)
        raise AssertionError("unreachable")

    def time_in(self, folder: SharedPath) -> float:
        """Do what `now` does, but never make the folder. Raises `OSError`: ENOENT or ESTALE if it is gone."""
        probe = folder / f"{PROBE}{os.urandom(8).hex()}"
        spare = self.put_name(probe)
        try:
            return refresh(folder) / 1e9
        finally:
            if spare:
                probe.rename(self.spares / probe.name.lstrip("."))
            else:
                probe.unlink(missing_ok=True)

    def reach(self, folder: SharedPath) -> None:
        """Make a folder if it is missing, and make sure that this host sees its current state.

        An NFS client forgets what it remembers of a folder's names when its own host changes the folder. If
        the folder was deleted but is remembered, those above it are asked for. Raises `OSError`.
        """
        self.make_directory(folder)
        self.now(folder)

    def put_name(self, path: SharedPath) -> bool:
        """Create an empty file; on a full disk rename a spare one, which needs no block and no inode.

        Return True if it used a spare file (not a link, which some file systems count as a file): the caller
        renames it back when the name is no longer needed. Raises `OSError`.
        """
        try:
            os.close(path.descriptor(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return False
        except OSError as error:
            if error.errno not in FULL:
                raise
            for spare in list_names(self.spares):
                try:
                    (self.spares / spare).rename(path)
                    return True
                except FileNotFoundError:  # another process was faster
                    path.parent.stat()  # or the folder was deleted
            raise


_LEVELS = {"claims": 2, "fill": 4}
"""How many levels below these folders are folders of dsv's own: down to the claims of one commit, and to the
folders of one fill. The trash may hold symlinks, which are removed as such. The folders of datasets and
commits are checked where they are used, by `own_folder`."""


def refuse_symlinks(root: CacheRoot) -> None:
    """Raises `Conflict` if one of dsv's own folders is a symlink; `Denied`, `Unreachable`.

    This lists a folder per dataset. A later link is not followed either; what meets it fails.
    """
    with explaining(root.dot, "look into"):
        if root.dot.is_symlink():
            raise no_symlink(root.dot)
        _check(root.dot, 1)
        for name, levels in _LEVELS.items():
            _check(root.dot / name, levels)
        for store in list_names(root.dot / "stores"):
            own = root.dot / "stores" / store
            for folder in (own, own / "objects", own / "tracking"):  # beside the last one are records
                own_folder(folder)


def _check(folder: SharedPath, levels: int) -> None:
    with ignoring(GONE):
        for entry in folder.entries():
            if entry.is_symlink:
                raise no_symlink(folder / entry.name)
            if levels > 1 and entry.is_dir:
                _check(folder / entry.name, levels - 1)


def remove_probes(folder: SharedPath) -> None:
    """Remove the files of processes that died while they asked for the time. Ignore errors."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(PROBE):
                path.unlink(missing_ok=True)
