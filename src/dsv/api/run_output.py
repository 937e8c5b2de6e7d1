"""Copying the output of a run to a folder here: from the folder that the job wrote to, or from the store."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from dsv.api.output_source import Copied, FolderSource, Item, Source, TreeSource
from dsv.errors import Conflict, NoRoom, NotFound, UsageError
from dsv.fs.errors import about
from dsv.fs.folders import sync_folder
from dsv.fs.process import host_name
from dsv.model.ids import CommitId
from dsv.model.paths import show
from dsv.model.progress import Progress
from dsv.model.run import RunRecord
from dsv.model.units import format_bytes
from dsv.repo.repository import Repository
from dsv.runs.marks import this_machine


def copy_output(repository: Repository, record: RunRecord, to: Path, progress: Progress) -> Copied:
    """Copies the output to a folder, which appears when it is whole.

    A copy that was interrupted goes on, from the folder beside it in which it lies until then. Raises `Conflict` if the
    run has not ended, or if the folder has something else in it; `NotFound` if the output can't be had from here.
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
        partial = whole.parent / f".{whole.name}.{record.run}.{_machine()}.part"
        if _has_anything(whole):
            if whole.parent == whole or not _is_copy(source, whole):
                raise _in_the_way(to)
            shutil.rmtree(partial, ignore_errors=True)  # of one that was killed right at its end
            return source.copied(known=True)
        _check_not_here(whole, record)
        whole.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(mode=0o700, exist_ok=True)
        with _alone(partial, record):
            tree = partial / "tree"
            tree.mkdir(exist_ok=True)
            _clear(tree, {item.path for item in source.items})
            _check_room(source.items, tree)
            progress.start(len(source.items), sum(item.size for item in source.items))
            source.write(tree, partial / "draft", progress)
            progress.finish()
            known = _put_in_place(tree, whole, source, to)
            sync_folder(whole.parent)
            shutil.rmtree(partial)
    return source.copied(known=known)


def _machine() -> str:
    """Part of the name of a draft. On a file server two machines may copy to one place, and a lock on a folder of
    theirs is one of each machine alone."""
    return blake3(this_machine().encode()).hexdigest()[:12]


def _put_in_place(tree: Path, whole: Path, source: Source, to: Path) -> bool:
    """Whether another machine has put the same output there meanwhile."""
    try:
        tree.rename(whole)
        return False
    except OSError as error:
        if _is_copy(source, whole):
            return True
        if isinstance(error, FileExistsError | NotADirectoryError) or _has_anything(whole):
            raise _in_the_way(to) from error
        raise


def _is_copy(source: Source, folder: Path) -> bool:
    return not folder.is_symlink() and folder.is_dir() and source.is_same(folder)


def _check_not_here(whole: Path, record: RunRecord) -> None:
    """The copy takes the place of an empty folder, and who is in that would be left in one that is gone."""
    if whole.is_dir() and whole.samefile("."):
        raise UsageError(
            f"{whole} is the folder that you are in, which the copy can't replace",
            subject=str(whole),
            hint=f"dsv runs {record.run} --out {record.run}",
        )


def _source(repository: Repository, record: RunRecord) -> Source:
    kept = record.output
    if kept is not None and kept.tree is not None:
        return TreeSource(repository, record, CommitId.parse(kept.tree))
    folder = Path(record.out)
    # A folder of the run's own has its id in its path; any other may be another one on another machine.
    if (record.host == host_name() or record.run in folder.parts) and folder.is_dir():
        return FolderSource(folder)
    why = f", and is not in the store: {kept.error}" if kept is not None and kept.error else ""
    raise NotFound(
        f"the output of run {record.run} is in {record.out} on {record.host}, which can't be seen from here{why}",
        subject=record.run,
        hint=f"on {record.host}: dsv runs {record.run} --out DIR",
    )


def _clear(partial: Path, wanted: set[bytes]) -> None:
    """Removes what an earlier copy left there and is no part of the output any more."""
    parents = {parent for path in wanted for parent in _above(path)}
    top = os.fsencode(partial)
    for place, folders, files in os.walk(top, topdown=False):
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118
            relative = os.path.relpath(path, top)
            is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
            if relative in parents if is_folder else relative in wanted:
                continue
            if is_folder and relative not in wanted:
                Path(os.fsdecode(path)).rmdir()
            elif not is_folder:
                Path(os.fsdecode(path)).unlink()


def _above(path: bytes) -> Iterator[bytes]:
    while (path := os.path.dirname(path)) != b"":  # noqa: PTH120
        yield path


def _check_room(items: Iterable[Item], partial: Path) -> None:
    there = sum(
        info.st_size for path in partial.rglob("*") if not stat.S_ISDIR((info := path.lstat()).st_mode)
    )
    needed, free = sum(item.size for item in items) - there, shutil.disk_usage(partial).free
    if needed > free:
        raise NoRoom(
            f"the output needs {format_bytes(needed)} more, and its disk has {format_bytes(free)}",
            subject=str(partial.parent),
            hint=f"df -h {partial.parent.parent}",
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
