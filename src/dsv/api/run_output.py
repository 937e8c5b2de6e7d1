"""The kept output of a run: what it commits, and copies of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from blake3 import blake3

from dsv.api.context import Context
from dsv.api.run_trees import Sources, commit_sources
from dsv.errors import Conflict, DsvError, IntegrityError, NoRoom, NotFound, UsageError
from dsv.files.descent import Descent, join, remove_tree, split
from dsv.files.descriptors import Opened
from dsv.files.errors import about, as_error
from dsv.files.folders import check_folding, sync_folder
from dsv.files.process import host_name
from dsv.files.small_files import write_sparse
from dsv.format.tree import Kind
from dsv.periodic import now_ms
from dsv.repo.job_notes import FOLDER
from dsv.repo.objects.objects import Objects
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.run.active_runs import this_machine
from dsv.run.dirs import PARAMS_FILE
from dsv.run.record import MOST_OUTPUT_FILES, OUTPUT_OF_RUN, OutputFile, RunOutput, RunRecord
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.stable_read import Problem, hash_content
from dsv.values.ids import CommitId, FileId
from dsv.values.names import BranchName, DatasetName, Rev, Target
from dsv.values.paths import folders_above, show, sort_key
from dsv.values.progress import Progress
from dsv.values.units import format_bytes
from dsv.workspace.scan.scanner import walk

OUTPUT_BRANCH: Final = BranchName("output")
"""The branch in the commit's fields. No such branch exists."""


_NAMED: Final = 50
"""How many left out paths the record names."""


def commit_output(
    context: Context,
    repository: Callable[[], Repository],
    dataset: DatasetName,
    folder: Path,
    record: RunRecord,
    opened: ExitStack,
) -> RunOutput:
    """Commit the output of a run, except paths that no commit can hold, and return the commit or the error. For a
    branch or equal runs, equal results have to be equal: then without the `params.json` that the job was given.

    opened: gets the session that keeps the commit; close it when the record that names it is being sent.
    """
    note = context.progress.note
    note("sending the output to the store")
    try:
        found, problems = _output_sources(folder)
        if record.once is not None or (record.output is not None and record.output.into is not None):
            params, given = folder / PARAMS_FILE, json.dumps(record.params).encode() + b"\n"
            if any(path == b"params.json" and len(given) == source.size for path, source in found):
                found = [item for item in found if item[0] != b"params.json" or params.read_bytes() != given]
        commit, commit_id, session = commit_sources(
            context,
            repository(),
            found,
            problems.extend,
            dataset=dataset,
            branch=OUTPUT_BRANCH,
            author=context.writer.author,
            time_ms=now_ms(),
            message=f"{OUTPUT_OF_RUN}{record.run}",
        )
    except DsvError as error:
        return RunOutput(error=error.message)
    except OSError as error:
        return RunOutput(error=as_error(error, folder).message)
    opened.callback(session.close)
    left_out = _left_out(problems)
    if left_out:
        note(f"left out of the output in the store: {'; '.join(_left_out(problems, 3))}")
    return RunOutput(
        commit_id.hex(), commit.files, commit.bytes, left_out, root=commit.root.hex(), largest=_largest(found)
    )


def _largest(found: Sources) -> tuple[OutputFile, ...]:
    entries = [entry for path, source in found if (entry := source.entry(path)) is not None and entry.file_id]
    return tuple(
        OutputFile(
            entry.path.decode("utf-8", "backslashreplace"), entry.size, str(FileId(entry.file_id or b""))
        )
        for entry in nlargest(MOST_OUTPUT_FILES, entries, key=lambda entry: entry.size)
    )


def _output_sources(folder: Path) -> tuple[Sources, list[Problem]]:
    """Return the files of the tree, and the paths that it can't hold."""
    walked, scan = walk(folder, ignoring=(), check_links=True)
    found = [item for item in walked if not _is_note(item[0])]
    reserved = [Problem(path, "no commit holds that name") for path in scan.reserved]
    apart = [Problem(path, "it is a dsv store or cache") for path in scan.apart]
    return found, [*scan.problems, *reserved, *apart]


def _is_note(path: bytes) -> bool:
    """Check that a path is one of the job's notes, which are no output."""
    return path.partition(b"/")[0] == FOLDER.encode()


def _left_out(problems: list[Problem], most: int = _NAMED) -> tuple[str, ...]:
    lines = [f"{show(problem.path)}: {problem.reason}" for problem in problems[:most]]
    return (*lines, f"and {len(problems) - most} more") if len(problems) > most else tuple(lines)


_PIECE = 1 << 20
_LONGEST_NAME = 200
"""Bytes of a name to which others are added."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class CopiedOutput:
    source: str
    """The folder that it was copied from, or the target in the store."""
    files: int
    bytes: int
    left_out: tuple[str, ...] = ()
    """Paths that could not be copied, with the reasons."""
    known: bool = False
    """The folder already had all of it."""


@dataclass(frozen=True, slots=True)
class _Item:
    path: bytes
    kind: Kind
    size: int = 0
    target: bytes | None = None
    mode: int = 0o644
    mtime_ns: int | None = None
    """For a file in a folder; its copy gets the same."""
    wanted: WantedFile | None = None
    """For a file in the store."""

    @property
    def is_file(self) -> bool:
        return self.kind in (Kind.FILE, Kind.EXECUTABLE)

    @property
    def shape(self) -> tuple[bytes, bool, int, bytes | None]:
        return self.path, self.kind is Kind.EMPTY_DIRECTORY, self.size, self.target

    def at(self, folder: Path) -> Path:
        return folder / os.fsdecode(self.path)


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """An output, in a visible folder or in the store."""

    name: str
    items: Sequence[_Item]
    left_out: tuple[str, ...]
    place: Path | Objects

    def copied(self, *, known: bool = False) -> CopiedOutput:
        files = [item for item in self.items if item.is_file]
        return CopiedOutput(self.name, len(files), sum(item.size for item in files), self.left_out, known)

    def is_same(self, folder: Path) -> bool:
        """Return whether this folder has this output and nothing else."""
        if folder.is_symlink() or not folder.is_dir():
            return False
        items, left_out = _list(folder)
        if left_out or [item.shape for item in items] != [item.shape for item in self.items]:
            return False
        return all(self._has(folder, item) for item in self.items if item.is_file)

    def is_begun(self, folder: Path) -> bool:
        """Return whether an interrupted copy in this folder has only paths of the output."""
        above = {(folder, True) for item in self.items for folder in folders_above(item.path)}
        known = above | {(item.path, item.kind is Kind.EMPTY_DIRECTORY) for item in self.items}
        items, left_out = _list(folder)
        return not left_out and {(item.path, item.kind is Kind.EMPTY_DIRECTORY) for item in items} <= known

    def _has(self, folder: Path, item: _Item) -> bool:
        """Return whether the file exists with this content, and with its time if it is from a folder."""
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
        """Make the missing paths in the folder; symlinks last, so that nothing is written through them.

        draft: path of an incomplete file, on the same file system. Raises `NoRoom` before a file is written.
        """
        missing = []
        check_folding(folder, folder.parent, sorted((item.path for item in self.items), key=sort_key))
        with Descent(folder) as descent:
            for item in self.items:
                is_folder = item.kind is Kind.EMPTY_DIRECTORY
                descent.at(item.path if is_folder else split(item.path)[0], make=True)
                if item.is_file and not self._has(folder, item):
                    missing.append(item)
                else:
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
                with about(path), Opened(os.open(path, _READ)) as file:
                    save(item, _unchanging(file, item, self.place))
        else:
            by_path = {item.path: item for item in missing}
            wanted = [item.wanted for item in missing if item.wanted is not None]
            for one, pieces in Fetcher(self.place).files(wanted):
                save(by_path[one.entry.path], map(bytes, pieces))
        for item in self.items:
            path, target = item.at(folder), os.fsdecode(item.target or b"")
            if target and not (path.is_symlink() and os.readlink(path) == target):  # noqa: PTH115 (not its spelling)
                draft.unlink(missing_ok=True)
                draft.symlink_to(target)
                draft.replace(path)


def _unchanging(file: int, item: _Item, folder: Path) -> Iterator[bytes]:
    """Yield a file's content. Raises `Conflict` at its end if it has changed since the listing."""
    while piece := os.read(file, _PIECE):
        yield piece
    info = os.fstat(file)
    if (info.st_size, info.st_mtime_ns) != (item.size, item.mtime_ns):
        raise Conflict(
            f"{show(item.path)} in {folder} changed while it was copied",
            subject=str(item.at(folder)),
            hint="run the same command again",
        )


def _items_of_tree(objects: Objects, commit: CommitId) -> list[_Item]:
    tree = TreeReader(objects, commit)
    entries = list(tree.below(b""))
    if any(entry.kind is Kind.SYMLINK for entry, _ in entries):
        tree.check_links(tree.links())
    return [
        _Item(
            entry.path,
            entry.kind,
            entry.size,
            entry.target,
            0o755 if entry.kind is Kind.EXECUTABLE else 0o644,
            wanted=WantedFile(entry, where) if entry.is_file else None,
        )
        for entry, where in sorted(entries, key=lambda pair: pair[0].path)
        if objects.erasures.of(entry) is None
    ]


def _list(folder: Path) -> tuple[list[_Item], tuple[str, ...]]:
    """Return the items of a folder, sorted by path, and the paths that can't be copied."""
    items: list[_Item] = []
    left_out: list[str] = []

    with Descent(folder) as descent:
        for place, descriptor, entries in descent.walk():
            if not entries and place and not _is_note(place):
                items.append(_Item(place, Kind.EMPTY_DIRECTORY))
            for one in () if _is_note(place) else entries:
                name, info = os.fsencode(one.name), one.stat(follow_symlinks=False)
                relative = join(place, name)
                if stat.S_ISLNK(info.st_mode):
                    target = os.readlink(name, dir_fd=descriptor)
                    items.append(_Item(relative, Kind.SYMLINK, target=target))
                elif stat.S_ISREG(info.st_mode):
                    mode = stat.S_IMODE(info.st_mode) & 0o777
                    kind = Kind.EXECUTABLE if mode & stat.S_IXUSR else Kind.FILE
                    items.append(_Item(relative, kind, info.st_size, None, mode | 0o600, info.st_mtime_ns))
                elif not stat.S_ISDIR(info.st_mode):
                    left_out.append(f"{show(relative)}: it is not a file, folder or symlink")
    return sorted(items, key=lambda item: item.path), tuple(left_out)


def _write(path: Path, draft: Path, item: _Item, pieces: Iterable[bytes]) -> None:
    """Write a file; it gets its name when it is complete, on disk, and was read back."""
    hasher, size = blake3(), 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for piece in pieces:
            hasher.update(piece)
            size += len(piece)
            yield piece

    with draft.open("wb", buffering=0) as file:
        write_sparse(file.fileno(), hashed())
        os.fsync(file.fileno())
    if size != item.size or _hash(draft) != hasher.digest():
        raise IntegrityError(f"{show(item.path)} was not written as it was read", subject=str(path))
    draft.chmod(item.mode)
    if item.mtime_ns is not None:
        os.utime(draft, ns=(item.mtime_ns, item.mtime_ns))
    draft.replace(path)


def _hash(path: Path) -> bytes:
    with Opened(os.open(path, _READ)) as file:
        return hash_content(file, os.fstat(file).st_size)[0]


def copy_output(repository: Repository, record: RunRecord, to: Path, progress: Progress) -> CopiedOutput:
    """Copy the output to a folder, which appears when it is complete.

    An interrupted copy is continued from its folder beside the target. Raises `Conflict` if the run has not
    ended, or the folder has other content; `NotFound` if the output can't be reached from here.
    """
    if not record.state.is_terminal:
        raise Conflict(
            f"run {record.run} has not ended, and still writes to its output",
            subject=record.run,
            hint=f"dsv wait {record.run}",
        )
    source = _output_of(repository, record)
    with about(to):
        whole = Path(os.path.abspath(to))  # noqa: PTH100 (a symlink is the caller's to resolve)
        # On a file server, two machines may copy to one folder, and each sees only its own locks.
        machine = blake3(this_machine().encode()).hexdigest()[:12]
        name = os.fsdecode(os.fsencode(whole.name)[:_LONGEST_NAME])
        partial = whole.parent / f".{name}.{record.run}.{machine}.part"
        longest = max(source.items, key=lambda item: len(item.path), default=_Item(b"", Kind.FILE))
        with suppress(FileNotFoundError):  # another error shows that the system takes no such path
            longest.at(partial / "tree").lstat()
        if _has_anything(whole):
            if whole.parent == whole or not source.is_same(whole):
                raise _in_the_way(to)
            with suppress(OSError):
                remove_tree(partial)  # of a copy that was killed right at its end
            return source.copied(known=True)
        # The copy replaces an empty folder, which then no longer exists.
        if whole.is_dir() and whole.samefile("."):
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
                remove_tree(tree)
            tree.mkdir(exist_ok=True)
            progress.start(len(source.items), sum(item.size for item in source.items))
            source.write(tree, partial / "draft", progress)
            progress.finish()
            known = _put_in_place(tree, whole, source, to)
            sync_folder(whole.parent)
            remove_tree(partial)
    return source.copied(known=known)


def serve_output(repository: Repository, record: RunRecord, to: Path, progress: Progress) -> None:
    """Give a folder the output that the store has of a run. Each path that is missing or differs appears when it is
    whole, and others stay. Raises `Conflict` if a folder is in the way of a file, or the reverse."""
    source = _output_of(repository, record)
    to.mkdir(parents=True, exist_ok=True)
    progress.start(len(source.items), sum(item.size for item in source.items))
    with about(to), TemporaryDirectory(prefix=".dsv-", dir=to) as drafts:
        try:
            source.write(to, Path(drafts) / "draft", progress)
        except (NotADirectoryError, IsADirectoryError) as error:
            raise _in_the_way(Path(os.fsdecode(error.filename2 or error.filename or to))) from error
        for item in source.items:
            if item.is_file and (item.at(to).stat().st_mode ^ item.mode) & stat.S_IXUSR:
                item.at(to).chmod(item.mode)
    progress.finish()


def _put_in_place(tree: Path, whole: Path, source: KeptOutput, to: Path) -> bool:
    """Rename the complete copy. Return True if another machine has put the same output there first."""
    try:
        tree.rename(whole)
        return False
    except OSError as error:
        if source.is_same(whole):
            return True
        if isinstance(error, FileExistsError | NotADirectoryError) or _has_anything(whole):
            raise _in_the_way(to) from error
        raise


def _output_of(repository: Repository, record: RunRecord) -> KeptOutput:
    kept = record.output
    if kept is not None and kept.tree is not None:
        name = str(Target(record.dataset, Rev(kept.tree)))
        items = _items_of_tree(repository.objects, CommitId.parse(kept.tree))
        return KeptOutput(name, items, kept.left_out, repository.objects)
    folder = Path(record.out)
    # A run's own folder has its id in the path; any other path may be a different folder on another machine.
    if (record.host == host_name() or record.run in folder.parts) and folder.is_dir():
        with about(folder):
            return KeptOutput(str(folder), *_list(folder), folder)
    why = f", and is not in the store: {kept.error}" if kept is not None and kept.error else ""
    raise NotFound(
        f"the output of run {record.run} is in {record.out} on {record.host}, which can't be seen from here{why}",
        subject=record.run,
        hint=f"on {record.host}: dsv runs {record.run} --out DIR",
    )


@contextmanager
def _alone(partial: Path, record: RunRecord) -> Iterator[None]:
    with Opened(os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another dsv is copying the output of run {record.run} there", subject=str(partial)
            ) from error
        yield


def _in_the_way(to: Path) -> Conflict:
    return Conflict(
        f"{show(os.fsencode(to))} already exists, and is not this output",
        subject=str(to),
        hint="choose a path that does not exist",
    )


def _has_anything(folder: Path) -> bool:
    try:
        folder.lstat()
    except FileNotFoundError:
        return False
    return folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())
