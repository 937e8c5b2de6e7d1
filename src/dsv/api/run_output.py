"""Copying the output of a run to a folder here, from where the job wrote it or from the store."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from dsv.errors import Conflict, IntegrityError, NoRoom, NotFound, UsageError
from dsv.format.tree import Kind
from dsv.fs.errors import about
from dsv.fs.folders import sync_folder
from dsv.fs.process import host_name
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.repo.tree.read import TreeReader
from dsv.run.active_runs import this_machine
from dsv.run.record import RunRecord
from dsv.transfer.download import Fetcher, Wanted
from dsv.values.ids import CommitId
from dsv.values.names import Rev, Target
from dsv.values.paths import folders_above, show
from dsv.values.progress import Progress
from dsv.values.units import format_bytes

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """An output that was copied."""

    source: str
    """The folder that it came from, or the target in the store."""
    files: int
    bytes: int
    left_out: tuple[str, ...] = ()
    """Paths that could not be copied, with the reasons."""
    known: bool = False
    """All of it was in the folder already."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One path of an output."""

    path: bytes
    kind: Kind
    size: int = 0
    target: bytes | None = None
    """Of a symlink."""
    mode: int = 0o644
    mtime_ns: int | None = None
    """Of a file in a folder; a copy gets the same."""
    wanted: Wanted | None = None
    """Of a file in the store."""

    @property
    def is_file(self) -> bool:
        return self.kind in (Kind.FILE, Kind.EXECUTABLE)

    @property
    def shape(self) -> tuple[bytes, bool, int, bytes | None]:
        return self.path, self.kind is Kind.EMPTY_DIRECTORY, self.size, self.target

    def at(self, folder: Path) -> Path:
        return folder / os.fsdecode(self.path)


@dataclass(frozen=True, slots=True)
class Source:
    """An output, in a folder that can be seen from here or in the store."""

    name: str
    items: Sequence[_Item]
    left_out: tuple[str, ...]
    place: Path | Objects

    def copied(self, *, known: bool = False) -> Copied:
        files = [item for item in self.items if item.is_file]
        return Copied(self.name, len(files), sum(item.size for item in files), self.left_out, known)

    def is_same(self, folder: Path) -> bool:
        """Check that this folder has this output and nothing else."""
        if folder.is_symlink() or not folder.is_dir():
            return False
        items, left_out = _list(folder)
        if left_out or [item.shape for item in items] != [item.shape for item in self.items]:
            return False
        return all(self._has(folder, item) for item in self.items if item.is_file)

    def is_begun(self, folder: Path) -> bool:
        """Check that an interrupted copy in this folder has nothing that is no part of the output any more."""
        above = {(folder, True) for item in self.items for folder in folders_above(item.path)}
        known = above | {(item.path, item.kind is Kind.EMPTY_DIRECTORY) for item in self.items}
        items, left_out = _list(folder)
        return not left_out and {(item.path, item.kind is Kind.EMPTY_DIRECTORY) for item in items} <= known

    def _has(self, folder: Path, item: _Item) -> bool:
        """Check that the file is there with this content, and with its time if it comes from a folder."""
        try:
            info = item.at(folder).lstat()
        except OSError:
            return False
        if not stat.S_ISREG(info.st_mode) or info.st_size != item.size:
            return False
        if item.mtime_ns not in (None, info.st_mtime_ns):
            return False
        here = _hash(item.at(folder))
        if isinstance(self.place, Path):
            return here == _hash(item.at(self.place))
        return item.wanted is not None and here == item.wanted.entry.file_id

    def write(self, folder: Path, draft: Path, progress: Progress) -> None:
        """Make in the folder what is not there yet; symlinks last, so that nothing is written through one.

        draft: where a file lies until it is whole, on the same file system. Raises `NoRoom` before it writes one.
        """
        missing = []
        for item in self.items:
            path = item.at(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            if item.kind is Kind.EMPTY_DIRECTORY:
                path.mkdir(exist_ok=True)
            elif item.is_file and not self._has(folder, item):
                missing.append(item)
                continue
            progress.advance(files=1, bytes=item.size)
        needed, free = sum(item.size for item in missing), shutil.disk_usage(folder).free
        if needed > free:
            raise NoRoom(
                f"the output needs {format_bytes(needed)} more, and its disk has {format_bytes(free)}",
                subject=str(folder),
                hint=f"df -h {folder.parent.parent}",
            )

        def save(item: _Item, pieces: Iterable[bytes]) -> None:
            _write(item.at(folder), draft, item, pieces)
            progress.advance(files=1, bytes=item.size, transferred=item.size)

        if isinstance(self.place, Path):
            for item in missing:
                path = item.at(self.place)
                with about(path), _open(path) as file:
                    save(item, _unchanging(file, item, self.place))
        else:
            by_path = {item.path: item for item in missing}
            wanted = [item.wanted for item in missing if item.wanted is not None]
            for one, pieces in Fetcher(self.place).files(wanted):
                save(by_path[one.entry.path], map(bytes, pieces))
        for item in self.items:
            if item.target is not None:
                path = item.at(folder)
                path.unlink(missing_ok=True)
                path.symlink_to(os.fsdecode(item.target))


def _unchanging(file: BinaryIO, item: _Item, folder: Path) -> Iterator[bytes]:
    """Yield what the file holds. Raise `Conflict` at its end if it has changed since the folder was listed."""
    while piece := file.read(_PIECE):
        yield piece
    info = os.fstat(file.fileno())
    if (info.st_size, info.st_mtime_ns) != (item.size, item.mtime_ns):
        raise Conflict(
            f"{show(item.path)} in {folder} changed while it was copied",
            subject=str(item.at(folder)),
            hint="run the same command again",
        )


def _items_of_tree(objects: Objects, commit: CommitId) -> list[_Item]:
    tree = TreeReader(objects, commit)
    found = list(tree.below(b""))
    if any(entry.kind is Kind.SYMLINK for entry, _ in found):
        tree.check_links(tree.links())
    return [
        _Item(
            entry.path,
            entry.kind,
            entry.size,
            entry.target,
            0o755 if entry.kind is Kind.EXECUTABLE else 0o644,
            wanted=Wanted(entry, where) if entry.is_file else None,
        )
        for entry, where in sorted(found, key=lambda each: each[0].path)
        if objects.erasures.of(entry) is None
    ]


def _list(folder: Path) -> tuple[list[_Item], tuple[str, ...]]:
    """List a folder by its paths; and what can't be copied."""
    items: list[_Item] = []
    left_out: list[str] = []

    def fail(error: OSError) -> None:
        raise error

    top = os.fsencode(folder)
    for place, folders, files in os.walk(top, onerror=fail):
        if not folders and not files and place != top:
            items.append(_Item(os.path.relpath(place, top), Kind.EMPTY_DIRECTORY))
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118 (bytes: a name need not be text)
            info, relative = os.lstat(path), os.path.relpath(path, top)
            if stat.S_ISLNK(info.st_mode):
                items.append(_Item(relative, Kind.SYMLINK, target=os.readlink(path)))  # noqa: PTH115
            elif stat.S_ISREG(info.st_mode):
                mode = stat.S_IMODE(info.st_mode) & 0o777
                kind = Kind.EXECUTABLE if mode & stat.S_IXUSR else Kind.FILE
                items.append(_Item(relative, kind, info.st_size, None, mode | 0o600, info.st_mtime_ns))
            elif not stat.S_ISDIR(info.st_mode):
                left_out.append(f"{show(relative)}: it is no file, folder or symlink")
    return sorted(items, key=lambda item: item.path), tuple(left_out)


def _write(path: Path, draft: Path, item: _Item, pieces: Iterable[bytes]) -> None:
    """Write a file, which gets its name once it is whole, on the disk, and was read again."""
    hasher, size = blake3(), 0
    with draft.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            hasher.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    if size != item.size or _hash(draft) != hasher.digest():
        raise IntegrityError(f"{show(item.path)} was not written as it was read", subject=str(path))
    draft.chmod(item.mode)
    if item.mtime_ns is not None:
        os.utime(draft, ns=(item.mtime_ns, item.mtime_ns))
    draft.replace(path)


def _hash(path: Path) -> bytes:
    hasher = blake3()
    with _open(path) as file:
        while piece := file.read(_PIECE):
            hasher.update(piece)
    return hasher.digest()


def _open(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0)


def copy_output(repository: Repository, record: RunRecord, to: Path, progress: Progress) -> Copied:
    """Copy the output to a folder, which appears when it is whole.

    A copy that was interrupted continues, from the folder beside it in which it lies until then. Raises `Conflict` if
    the run has not ended, or if the folder has something else in it; `NotFound` if the output can't be had from here.
    """
    if not record.state.is_terminal:
        raise Conflict(
            f"run {record.run} has not ended, and still writes to its output",
            subject=record.run,
            hint=f"dsv wait {record.run}",
        )
    source = _source(repository, record)
    with about(to):
        whole = Path(os.path.abspath(to))  # noqa: PTH100 (a symlink is the caller's to resolve)
        # On a file server two machines may copy to one place, and each sees only its own locks.
        machine = blake3(this_machine().encode()).hexdigest()[:12]
        partial = whole.parent / f".{whole.name}.{record.run}.{machine}.part"
        if _has_anything(whole):
            if whole.parent == whole or not source.is_same(whole):
                raise _in_the_way(to)
            shutil.rmtree(partial, ignore_errors=True)  # of one that was killed right at its end
            return source.copied(known=True)
        if whole.is_dir() and whole.samefile(
            "."
        ):  # the copy takes the place of an empty folder, which is gone then
            raise UsageError(
                f"{whole} is the folder that you are in, which the copy can't replace",
                subject=str(whole),
                hint=f"dsv runs {record.run} --out {record.run}",
            )
        whole.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(mode=0o700, exist_ok=True)
        with _alone(partial, record):
            tree = partial / "tree"
            if tree.exists() and not source.is_begun(tree):
                shutil.rmtree(tree)
            tree.mkdir(exist_ok=True)
            progress.start(len(source.items), sum(item.size for item in source.items))
            source.write(tree, partial / "draft", progress)
            progress.finish()
            known = _put_in_place(tree, whole, source, to)
            sync_folder(whole.parent)
            shutil.rmtree(partial)
    return source.copied(known=known)


def _put_in_place(tree: Path, whole: Path, source: Source, to: Path) -> bool:
    """Rename the whole copy. True if another machine has put the same output there meanwhile."""
    try:
        tree.rename(whole)
        return False
    except OSError as error:
        if source.is_same(whole):
            return True
        if isinstance(error, FileExistsError | NotADirectoryError) or _has_anything(whole):
            raise _in_the_way(to) from error
        raise


def _source(repository: Repository, record: RunRecord) -> Source:
    kept = record.output
    if kept is not None and kept.tree is not None:
        name = str(Target(record.dataset, Rev(kept.tree)))
        items = _items_of_tree(repository.objects, CommitId.parse(kept.tree))
        return Source(name, items, kept.left_out, repository.objects)
    folder = Path(record.out)
    # A folder of the run's own has its id in its path; any other may be another one on another machine.
    if (record.host == host_name() or record.run in folder.parts) and folder.is_dir():
        with about(folder):
            return Source(str(folder), *_list(folder), folder)
    why = f", and is not in the store: {kept.error}" if kept is not None and kept.error else ""
    raise NotFound(
        f"the output of run {record.run} is in {record.out} on {record.host}, which can't be seen from here{why}",
        subject=record.run,
        hint=f"on {record.host}: dsv runs {record.run} --out DIR",
    )


@contextmanager
def _alone(partial: Path, record: RunRecord) -> Iterator[None]:
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another dsv is copying the output of run {record.run} there", subject=str(partial)
            ) from error
        yield
    finally:
        os.close(descriptor)


def _in_the_way(to: Path) -> Conflict:
    return Conflict(
        f"{show(os.fsencode(to))} is there already, and is not this output",
        subject=str(to),
        hint="name a folder that is not there",
    )


def _has_anything(folder: Path) -> bool:
    if not os.path.lexists(folder):
        return False
    return folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())
