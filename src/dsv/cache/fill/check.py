"""Check of cached files against their ids, and repair of what is wrong from the store."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from dsv.cache.fill.files import FileState, FillRights, Folders, create_file, examine
from dsv.cache.fill.source import StoreSource
from dsv.cache.root import CachePlace, CacheRoot
from dsv.files.attributes import refresh
from dsv.files.descriptors import Opened
from dsv.files.folders import open_folder
from dsv.files.shared_path import SharedPath
from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.download import WantedFile
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.paths import PathSet, folders_above
from dsv.values.progress import Progress

_THREADS = 8
_AHEAD = 256  # files being read or waiting for it
_NOT_A_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Wrong(msgspec.Struct, frozen=True):
    """A path that differs from the commit."""

    entry: Entry
    where: Location | None
    problem: str
    identity: tuple[int, int] | None = None
    links: int = 0
    """Other names of that file, which are wrong too."""

    @property
    def path(self) -> bytes:
        return self.entry.path


class Checked(msgspec.Struct):
    """The result of the check of one cached commit."""

    path: Path
    place: CachePlace
    files: int = 0
    wrong: list[Wrong] = msgspec.field(default_factory=list)
    repaired: int = 0
    strange: list[bytes] = msgspec.field(default_factory=list)
    """Paths that were never committed."""
    left: list[bytes] = msgspec.field(default_factory=list)
    """Those of `strange` that a repair has not removed."""
    expected: set[bytes] = msgspec.field(default_factory=set)
    problem: str | None = None
    """Why it could not be checked."""
    bytes: int = 0

    @property
    def dataset(self) -> DatasetName:
        return self.place.dataset_name

    @property
    def commit(self) -> CommitId:
        return self.place.commit

    @property
    def foreign(self) -> int:
        return len(self.strange)

    @property
    def removed(self) -> int:
        return len(self.strange) - len(self.left)

    @property
    def still_wrong(self) -> bool:
        return self.problem is not None or self.repaired < len(self.wrong) or bool(self.left)


def check(
    root: CacheRoot, place: CachePlace, tree: TreeReader, selection: PathSet, progress: Progress
) -> Checked:
    """Read every file of a visible commit, which a lease keeps. Raises `OSError`."""
    result = Checked(root.visible(place).path, place)
    jobs: deque[Future[Entry | Wrong]] = deque()

    def drain() -> None:
        for job in jobs:
            job.exception()

    def note(looked: Entry | Wrong) -> None:
        entry = looked.entry if isinstance(looked, Wrong) else looked
        if isinstance(looked, Wrong):
            result.wrong.append(looked)
        result.files += entry.is_file
        result.bytes += entry.size
        progress.advance(1, entry.size)

    with (
        Opened(root.visible(place).descriptor(os.O_RDONLY | os.O_DIRECTORY)) as top,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="dsv-check") as pool,
        closing(Folders(top, FillRights.of(root), before_close=drain)) as folders,
    ):
        for entry, where in _chosen(tree, selection, result.expected):
            try:
                jobs.append(pool.submit(_look, root, *folders.of(entry.path), entry, where))
            except OSError as error:
                if error.errno not in _NOT_A_FOLDER:
                    raise
                jobs.append(pool.submit(Wrong, entry, where, "is missing"))
            if len(jobs) > _AHEAD:
                note(jobs.popleft().result())
        while jobs:
            note(jobs.popleft().result())
    result.strange = result.left = _find_foreign(root.visible(place), result.expected)
    return result


def repair(
    root: CacheRoot,
    place: CachePlace,
    source: StoreSource,
    result: Checked,
    known: dict[object, SharedPath],
    *,
    remove_foreign: bool,
) -> None:
    """Replace what is wrong by verified content from the store, each path atomically.

    remove_foreign: also delete paths that were never committed.
    known: over several places, which path replaced which file, so that a file that several commits share is
    fetched once.

    Raises `OSError`, and what the source raises.
    """
    visible = root.visible(place)
    rights = FillRights.of(root, sync=True)  # on any file system, because it is visible at once
    files: list[Wrong] = []
    for wrong in result.wrong:
        entry, path = wrong.entry, _at(visible, wrong.entry.path)
        _make_way(root, visible, path)
        if entry.is_file:
            twin = known.get((wrong.identity, entry.file_id, entry.kind))
            if twin is None or not _replace_by_link(root, twin, path):
                files.append(wrong)
                continue
        elif entry.kind is Kind.SYMLINK:
            with _replacing(root, path) as draft:
                draft.symlink_to(entry.target or b"")
        else:
            if path.exists():
                _put_away(root, path)
            root.make_directory(path)
        result.repaired += 1
    stream = source.files(WantedFile(wrong.entry, wrong.where) for wrong in files)
    for wrong, (_, pieces) in zip(files, stream, strict=True):
        path = _at(visible, wrong.entry.path)
        with _replacing(root, path) as draft, open_folder(root.temporary) as folder:
            create_file(folder, draft.name, pieces, rights, executable=wrong.entry.kind is Kind.EXECUTABLE)
        if wrong.identity is not None:
            known[(wrong.identity, wrong.entry.file_id, wrong.entry.kind)] = path
        result.repaired += 1
    if result.strange:
        if remove_foreign:
            _remove_foreign(visible, result)
        left = set(_find_foreign(visible, result.expected))
        result.left = [path for path in result.strange if path in left]


def _chosen(
    tree: TreeReader, selection: PathSet, expected: set[bytes]
) -> Iterator[tuple[Entry, Location | None]]:
    for entry, where in tree.within(selection):
        if tree.objects.erasures.of(entry) is None:
            expected.add(entry.path)
            yield entry, where


def _look(root: CacheRoot, folder: int, name: bytes, entry: Entry, where: Location | None) -> Entry | Wrong:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return Wrong(entry, where, "is missing")
    identity = (found.st_dev, found.st_ino)
    if not entry.is_file:
        if entry.kind is Kind.EMPTY_DIRECTORY:
            right = stat.S_ISDIR(found.st_mode)
        else:
            right = stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=folder) == entry.target
        return entry if right else Wrong(entry, where, "is something else")
    if not stat.S_ISREG(found.st_mode):
        return Wrong(entry, where, "is something else")
    if found.st_size != entry.size:
        problem = f"has {found.st_size} bytes instead of {entry.size}"
        return Wrong(entry, where, problem, identity, found.st_nlink - 1)
    if bool(found.st_mode & 0o100) != (entry.kind is Kind.EXECUTABLE):
        return Wrong(entry, where, "has the wrong executable bit", identity, found.st_nlink - 1)
    fault = _read(root, folder, name, entry)
    return entry if fault is None else Wrong(entry, where, fault, identity, found.st_nlink - 1)


def _read(root: CacheRoot, folder: int, name: bytes, entry: Entry) -> str | None:
    """Return what is wrong about a file's content. Raises `OSError`, but not for bytes that can't be read.

    A server that is away, or that has forgotten what this host had open, also gives EIO. The first then fails
    for the cache's folder too. After the second the file can be read when it is opened again.
    """
    for last in (False, True):
        try:
            return None if examine(folder, name, entry) is FileState.WHOLE else "has other content"
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            refresh(root.top)
            if last:
                return f"can't be read: {error.strerror}"
    raise AssertionError("unreachable")


def _find_foreign(visible: SharedPath, expected: set[bytes]) -> list[bytes]:
    """Return every path that is neither an entry nor a folder of one, in order."""
    inner = _folders_of(expected)
    strange: list[bytes] = []
    left = [b""]
    while left:
        below = left.pop()
        entries = _at(visible, below).entries() if below else visible.entries()
        here = below + b"/" if below else b""
        paths = [(here + os.fsencode(entry.name), entry.is_dir) for entry in entries]
        strange += [path for path, is_dir in paths if not is_dir and path not in expected]
        left += [path for path, is_dir in paths if is_dir]
        if not entries and below and below not in expected and below not in inner:
            strange.append(below)
    return sorted(strange)


def _remove_foreign(visible: SharedPath, result: Checked) -> None:
    """Delete these paths, and the folders above them that no entry needs. Raises `OSError`."""
    needed = _folders_of(result.expected) | result.expected
    for path in _find_foreign(visible, result.expected):
        place = _at(visible, path)
        if place.is_dir():
            place.rmdir()
        else:
            place.unlink(missing_ok=True)
        while (path := path.rpartition(b"/")[0]) and path not in needed and not _at(visible, path).entries():
            _at(visible, path).rmdir()


def _folders_of(paths: set[bytes]) -> set[bytes]:
    return {folder for path in paths for folder in folders_above(path)}


def _at(visible: SharedPath, path: bytes) -> SharedPath:
    return visible / os.fsdecode(path)


def _make_way(root: CacheRoot, visible: SharedPath, path: SharedPath) -> None:
    """Make the folders above the path; move away files in their place, and a folder in the path's place."""
    parts = path.below.removeprefix(f"{visible.below}/").split("/")
    for count in range(1, len(parts)):
        above = visible / "/".join(parts[:count])
        if above.exists() and not above.is_dir():
            _put_away(root, above)
    root.make_directory(path.parent)
    if path.is_dir():
        _put_away(root, path)


def _put_away(root: CacheRoot, path: SharedPath) -> None:
    path.rename(root.trash / f"wrong-{os.urandom(8).hex()}")


def _replace_by_link(root: CacheRoot, twin: SharedPath, path: SharedPath) -> bool:
    try:
        with _replacing(root, path) as draft:
            draft.hardlink_to(twin)
    except OSError:
        return False
    return True


@contextmanager
def _replacing(root: CacheRoot, path: SharedPath) -> Iterator[SharedPath]:
    """Yield a temporary name; rename it to the path when the block has made it."""
    draft = root.temporary / os.urandom(8).hex()
    try:
        yield draft
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
