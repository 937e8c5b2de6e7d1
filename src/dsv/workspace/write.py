"""Carrying out a plan: writing what a commit has to paths of a workspace.

Removals are first, then writes, in tree order, one path at a time. After a kill, every path is old, new, or
missing where a folder made way for it, and the next run does the rest. A path that changed since the plan was
made is left alone and reported.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from pathlib import Path

from dsv.files.descent import Descent, remove_tree, split
from dsv.files.descriptors import Opened
from dsv.files.errors import about
from dsv.files.folders import is_there
from dsv.files.small_files import write_sparse
from dsv.format.locator import Location
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import PathChange
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.stable_read import OPEN_FLAGS, ROW, hash_content, row_of
from dsv.values.ids import CommitId
from dsv.values.progress import Progress
from dsv.values.units import format_count
from dsv.workspace.open import Loan, LocalCopies
from dsv.workspace.plan import Act, CheckoutPlan, CheckoutPlanner, CheckoutResult, Goal, Step, WorkspaceFiles
from dsv.workspace.scan.folder import TEMPORARY
from dsv.workspace.scan.result import WorkspaceScan
from dsv.workspace.scan.scanner import scan_workspace
from dsv.workspace.scan.state import Patches

_RUN_FILES = 8192
_RUN_BYTES = 256 << 20

Asked = tuple[Entry, Location | None]
Fill = Callable[[int], object]
"""Writes verified content to an empty file, which is open for reading and writing."""
ContentsOf = Callable[[Iterator[Asked]], Iterator[Fill]]
"""Yields the content of each file that is asked for, in that order."""


class CommitContents:
    """The contents of one commit's files, from copies on this machine or the store. Must be closed."""

    def __init__(self, fetcher: Fetcher, copies: LocalCopies | None, commit: CommitId) -> None:
        self._fetcher, self._copies, self._commit = fetcher, copies, commit
        self._loan: Loan | None = None
        self.files = self.bytes = 0
        """Counts of copied files and bytes."""
        self._failed = 0

    def close(self) -> None:
        if self._loan is not None:
            self._loan.close()
            self._loan = None

    def of(self, asked: Iterator[Asked]) -> Iterator[Fill]:
        """Yield the content of each file, to be used before the next one is asked for."""
        while run := _next_run(asked):
            loan = None
            if self._copies is not None:
                loan = self._loan = self._copies.lend(self._commit, [entry for entry, _ in run])
            if loan is None:
                yield from self._fetched(chain(run, asked))
                return
            fetched = self._fetched(each for at, each in enumerate(run) if not loan.has(at))
            for at, each in enumerate(run):
                yield partial(self._copy, loan, at, each) if loan.has(at) else next(fetched)
            self.close()

    def _fetched(self, asked: Iterable[Asked]) -> Iterator[Fill]:
        for _, pieces in self._fetcher.files(WantedFile(entry, where) for entry, where in asked):
            yield fill_from(pieces)

    def _copy(self, loan: Loan, at: int, asked: Asked, descriptor: int) -> None:
        if loan.take(at, descriptor):
            self.files += 1
            self.bytes += asked[0].size
        else:
            self._failed += 1
            next(self._fetched([asked]))(descriptor)

    def note(self, progress: Progress) -> None:
        """Report copies that could not be used."""
        if self._failed:
            progress.note(
                f"{format_count(self._failed, 'cached file')} could not be used and came from the store; "
                "dsv cached --check repairs damaged ones"
            )


def fill_from(pieces: Iterable[bytes]) -> Fill:
    return partial(write_sparse, pieces=pieces)


def _next_run(asked: Iterator[Asked]) -> list[Asked]:
    run: list[Asked] = []
    room = _RUN_BYTES
    for each in asked:
        run.append(each)
        room -= each[0].size
        if len(run) == _RUN_FILES or room < 0:
            break
    return run


class FileWriter:
    """Plans the changes of a goal and makes them. The caller holds the workspace's lock."""

    def __init__(self, scan: WorkspaceScan, goal: Goal, progress: Progress) -> None:
        self._scan = scan
        self._state = scan.state
        self._goal = goal
        self._progress = progress
        self._made = CheckoutResult()
        self._gone = set(scan.state.gone)
        self._removed: list[bytes] = []
        self._folders: list[PathChange] = []
        self._cleared: set[bytes] = set()
        self._removes = True  # until a plan shows otherwise

    def plan(self) -> CheckoutPlan:
        """Return the plan. Reads files if their stats are not enough. Writes nothing."""
        with Descent(self._scan.root) as descent:
            plan = CheckoutPlanner(self._goal, WorkspaceFiles(self._scan, descent)).plan()
        self._removes = plan.absent > 0
        self._made = CheckoutResult(resolved=plan.resolved, merged=plan.merged)
        return plan

    def check_copies(self, copy_of: Callable[[Entry], object]) -> None:
        """Call `copy_of` for each content that a plan without conflicts would write. Writes nothing."""
        with Descent(self._scan.root) as descent:
            planner = CheckoutPlanner(self._goal, WorkspaceFiles(self._scan, descent))
            for change in self._goal.changes():
                step = planner.decide(change)
                beside = None if step.beside is None else step.beside[0]
                written = None if step.act in (Act.KEEP, Act.STAY, Act.CHMOD) else change.after
                for entry in (beside, written):
                    if entry is not None and entry.is_file and entry.size:
                        copy_of(entry)

    def apply(self, contents: ContentsOf) -> CheckoutResult:
        """Make the changes. If no path was left, the state mirrors the base afterwards; the caller saves it."""
        exact, self._state.exact = self._scan.exact, None
        assert exact
        with Descent(self._scan.root) as descent, CheckoutWriter(self._scan.root) as writer:
            self._disk = WorkspaceFiles(self._scan, descent)
            self._planner = CheckoutPlanner(self._goal, self._disk)
            self._writer = writer
            self._patches = Patches(self._state, trusted=self._scan.keeps_ids)
            if self._removes:
                self._remove()
            self._write(contents)
            for path in self._removed:
                self._patches.removed(path)
            self._patches.flush()
        if not self._made.left:
            self._scan_again()
        return self._made

    def _scan_again(self) -> None:
        """Scan again: new folders are listed, and those that should be empty are checked."""
        base = self._goal.follow or self._scan.base
        self._state.set_exact(base, self._gone)
        if self._goal.follow is not None:
            self._state.provisional = False
        # The state mirrors the base, so no entries are asked for.
        scan_workspace(self._scan.root, self._state, base, lambda: ())
        for change in self._folders:
            in_base = self._goal.base_of(change) == change.after
            if self._patches.folder(change.path, in_base=in_base) and in_base:
                self._state.gone.discard(change.path)

    def _steps(self, *, removing: bool) -> Iterator[Step]:
        """Yield the steps that remove, or all others. Removed paths are not looked at again: a file without a
        trusted stat would have to be read."""
        for change in self._goal.changes():
            if (change.after is None) == removing:
                step = self._planner.decide(change)
                yield step
                if step.beside is not None:  # neither the commit nor the base has anything at that name
                    entry, location = step.beside
                    yield Step(Act.CREATE, PathChange(entry.path, None, None, location), made=entry)

    def _remove(self) -> None:
        folders: set[bytes] = set()
        for step in self._steps(removing=True):
            if step.act is Act.KEEP:
                self._lack(step.change)
            elif step.act is Act.STAY:
                self._stay(step.change)
            if step.act is not Act.REMOVE:
                continue
            path, before = step.change.path, step.change.before
            was_folder = before is not None and before.kind is Kind.EMPTY_DIRECTORY
            if step.row is None and (was_folder or self._disk.is_folder(path)):
                folders.add(path)
            elif self._writer.remove(path, step.row):
                self._removed.append(path)
                folders.add(split(path)[0])
                self._made.removed += 1
            else:
                self._made.left.append(path)
                continue
            self._lack(step.change)
        self._writer.remove_folders(folders)

    def _write(self, contents: ContentsOf) -> None:
        waiting: deque[Step] = deque()
        for content in contents(self._to_fetch(waiting)):
            step = waiting.popleft()
            entry = step.entry
            assert entry is not None
            self._done(step, self._file(step, entry, content))
            self._progress.advance(files=1, bytes=entry.size)

    def _to_fetch(self, waiting: deque[Step]) -> Iterator[Asked]:
        for step in self._steps(removing=False):
            if self._patches.is_full:
                self._patches.flush()
                self._disk.names.clear()
            if step.act is Act.STAY:
                self._stay(step.change)
                continue
            entry = step.entry
            assert entry is not None
            if step.act is Act.KEEP:
                self._keep(step.change, entry)
            elif step.act is Act.CHMOD:
                self._chmod(step, entry)
            elif step.content is not None:
                self._done(step, self._file(step, entry, fill_from((step.content,))))
                self._progress.advance(files=1)
            elif not self._make_way(step):
                self._made.left.append(step.change.path)
            elif entry.is_file and entry.size:
                waiting.append(step)
                yield entry, step.change.location
            else:
                self._done(step, self._small(step, entry))
                self._progress.advance(files=1)

    def _small(self, step: Step, entry: Entry) -> bytes | None:
        if entry.kind is Kind.SYMLINK:
            return self._writer.link(entry, step.row, replace=step.act is Act.REPLACE)
        if entry.is_file:
            return self._file(step, entry, fill_from(()))
        if step.act is Act.REPLACE and not self._writer.remove(entry.path, step.row):
            return None
        if not self._writer.folder(entry.path):
            return None
        self._patches.removed(entry.path)
        self._folder_made(step.change)
        return b""

    def _chmod(self, step: Step, entry: Entry) -> None:
        """Change a mode. The next scan sees another stat, and the next status checks the content again."""
        if self._writer.chmod(entry, step.row):
            self._made.replaced += 1
            self._stay(step.change)
        else:
            self._made.left.append(entry.path)
        self._progress.advance(files=1)

    def _file(self, step: Step, entry: Entry, content: Fill) -> bytes | None:
        return self._writer.file(entry, content, step.row, replace=step.act is Act.REPLACE)

    def _make_way(self, step: Step) -> bool:
        """Remove an empty folder in the way, or for a forced step anything at or above the path."""
        path = step.change.path
        if step.forced:
            foreign = self._disk.foreign_above(path)
            if foreign is not None and foreign not in self._cleared:
                if not self._writer.remove(foreign, None):
                    return False
                self._cleared.add(foreign)
        if self._disk.is_folder(path):
            return self._writer.clear(path, everything=step.forced)
        return True

    def _done(self, step: Step, row: bytes | None) -> None:
        entry = step.entry
        assert entry is not None
        if row is None:
            self._made.left.append(entry.path)
            return
        if step.act is Act.CREATE:
            self._made.created += 1
        else:
            self._made.replaced += 1
        if entry.is_file and entry.size > SINGLE_CHUNK_MAX and entry.recipe_id is None:
            self._stay(step.change)  # its upload computes the recipe; the scan that follows sees another stat
        elif row:
            self._gone.discard(entry.path)
            self._patches.written(entry, row, self._goal.base_of(step.change))

    def _keep(self, change: PathChange, entry: Entry) -> None:
        if self._disk.row(entry.path) is not None:
            self._stay(change)
        elif self._writer.folder(entry.path):  # it may have been removed with what was in it
            self._folder_made(change)

    def _stay(self, change: PathChange) -> None:
        """Keep the file here, as a local change if the commit becomes the base and has something else."""
        if self._disk.row(change.path) is None:
            self._lack(change)
        else:
            self._disk.relate(change.path, self._goal.base_of(change))
            self._gone.discard(change.path)

    def _lack(self, change: PathChange) -> None:
        """Note a path that is not on disk. The base may have it, or lack it once the commit is the base."""
        if self._goal.base_of(change) is not None:
            self._gone.add(change.path)
            return
        self._gone.discard(change.path)
        folder = self._state.folder(change.path)
        if folder is not None and folder.own:  # it may be made again, for what is in it then
            self._state.edit(change.path).own = 0

    def _folder_made(self, change: PathChange) -> None:
        """Note a new folder. The scan that follows finds out whether it is empty, as it is in the base."""
        self._folders.append(change)
        if self._goal.base_of(change) is not None:
            self._gone.add(change.path)


_FLAGS = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


_STAT_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC


class CheckoutWriter(AbstractContextManager["CheckoutWriter"]):
    """Writes below one root, and follows no symlink. Reports unexpected paths, and leaves them alone.

    Files appear complete: each is written beside its path under a name that scans ignore, then linked or
    renamed. New files get their mode from the umask, and group and access lists from their folder. Contents
    are not synced: after a power cut the state recognizes a file that lost its content by its size.
    """

    def __init__(self, root: Path) -> None:
        self._descent = Descent(root)
        self._several: tuple[int, int] | None = None
        """The file that was last found as expected, if it has several names."""
        self._ctimes: dict[tuple[int, int], int] = {}
        """The ctime that such a file got when one of its names was removed here; its other names show it."""

    def __exit__(self, *_: object) -> None:
        self._descent.close()

    def file(self, entry: Entry, fill: Fill, expected: bytes | None, *, replace: bool) -> bytes | None:
        """Write a file; return its row, or None if its path was not as `expected`. fill: writes the content
        to the descriptor of an empty file, open for reading and writing."""
        above, name = split(entry.path)
        temporary = TEMPORARY + os.urandom(8).hex().encode()
        with about(entry.path):
            mode = 0o777 if entry.kind is Kind.EXECUTABLE else 0o666
            descriptor = os.open(temporary, _FLAGS, mode, dir_fd=self._descent.at(above, make=True))
            try:
                with Opened(descriptor):
                    fill(descriptor)
                folder = self._descent.at(above)
                # After closing: an NFS server stamps the file then.
                written = os.stat(temporary, dir_fd=folder, follow_symlinks=False)
                if replace:
                    if not self._expected(entry.path, expected):
                        return None
                    with self._taking(folder, name):
                        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                elif not _put(folder, temporary, name):
                    return None
                temporary = b""
                now = os.stat(name, dir_fd=folder, follow_symlinks=False)
            finally:
                if temporary:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=self._descent.at(above))
            same = (now.st_ino, now.st_size, now.st_mtime_ns) == (
                written.st_ino,
                written.st_size,
                written.st_mtime_ns,
            )
            return row_of(now) if same or _holds(folder, name, entry) else None

    def chmod(self, entry: Entry, expected: bytes | None) -> bool:
        """Let all users who may read a file execute it too, or none; False if it is not as expected."""
        above, name = split(entry.path)
        with about(entry.path):
            if not self._expected(entry.path, expected):
                return False
            with Opened(os.open(name, OPEN_FLAGS, dir_fd=self._descent.at(above))) as descriptor:
                now = os.fstat(descriptor)
                if expected is not None and row_of(now) != expected:
                    return False
                mode = stat.S_IMODE(now.st_mode)
                runs = entry.kind is Kind.EXECUTABLE
                os.fchmod(descriptor, mode | (mode & 0o444) >> 2 if runs else mode & ~0o111)
            return True

    def link(self, entry: Entry, expected: bytes | None, *, replace: bool) -> bytes | None:
        """Make a symlink. Returns what `file` returns."""
        above, name = split(entry.path)
        assert entry.target is not None
        with about(entry.path):
            folder = self._descent.at(above, make=True)
            try:
                if replace:
                    if not self._expected(entry.path, expected):
                        return None
                    temporary = TEMPORARY + os.urandom(8).hex().encode()
                    os.symlink(entry.target, temporary, dir_fd=folder)
                    with self._taking(folder, name):
                        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    os.symlink(entry.target, name, dir_fd=folder)
            except FileExistsError:
                return None
            return row_of(os.stat(name, dir_fd=folder, follow_symlinks=False))

    def folder(self, path: bytes) -> bool:
        """Make a folder and those above it; False if something else is in the way."""
        with about(path):
            try:
                self._descent.at(path, make=True)
            except (NotADirectoryError, FileExistsError):
                return False
            return True

    def remove(self, path: bytes, expected: bytes | None) -> bool:
        """Remove a file or symlink; False if it is not the expected one, True if nothing is there."""
        above, name = split(path)
        self._several = None
        with about(path):
            try:
                if expected is not None and not self._expected(path, expected):
                    return not is_there(self._descent.at(above), name)
                folder = self._descent.at(above)
                with self._taking(folder, name):
                    os.unlink(name, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):
                return True
            except IsADirectoryError:
                return False
            except PermissionError:
                found = os.stat(name, dir_fd=self._descent.at(above), follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    raise
                return False  # as macOS answers for a folder
            return True

    def remove_folders(self, paths: Iterable[bytes]) -> None:
        """Remove the folders that are empty, and then those above them that are empty."""
        waiting = sorted(set(paths), key=lambda path: path.count(b"/"))
        seen: set[bytes] = set()
        while waiting:
            path = waiting.pop()
            if not path or path in seen:
                continue
            seen.add(path)
            above, name = split(path)
            with contextlib.suppress(OSError):  # not empty, or gone
                os.rmdir(name, dir_fd=self._descent.at(above))
                waiting.append(above)
                waiting.sort(key=lambda each: each.count(b"/"))

    def clear(self, path: bytes, *, everything: bool) -> bool:
        """Remove an empty folder at the path, or with `everything` anything there."""
        above, name = split(path)
        with about(path):
            try:
                folder = self._descent.at(above)
                if not everything:
                    os.rmdir(name, dir_fd=folder)
                    return True
                try:
                    os.unlink(name, dir_fd=folder)
                except (IsADirectoryError, PermissionError):  # macOS raises the latter for a folder
                    remove_tree(name, folder)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            finally:
                self._descent.forget()
            return True

    def _expected(self, path: bytes, expected: bytes | None) -> bool:
        """Return whether the path is unchanged since the plan was made; None: anything may be there."""
        above, name = split(path)
        self._several = None
        try:
            now = os.stat(name, dir_fd=self._descent.at(above), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if expected is None:
            return True
        row, file = row_of(now), (now.st_dev, now.st_ino)
        ours = self._ctimes.get(file) == now.st_ctime_ns
        same = row == expected or (ours and _without_ctime(row) == _without_ctime(expected))
        self._several = file if same and now.st_nlink > 1 else None
        return same

    @contextlib.contextmanager
    def _taking(self, folder: int, name: bytes) -> Iterator[None]:
        """Remember the ctime of the file at the name, if it has others, after this block has taken it away."""
        file, self._several = self._several, None
        if file is None:
            yield
            return
        with Opened(os.open(name, _STAT_FLAGS, dir_fd=folder)) as descriptor:
            yield
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == file:
                self._ctimes[file] = found.st_ctime_ns


def _without_ctime(row: bytes) -> tuple[int, ...]:
    inode, size, mtime, _, mode = ROW.unpack(row)
    return inode, size, mtime, mode


def _put(folder: int, temporary: bytes, name: bytes) -> bool:
    """Rename a temporary file to `name`, which must be free; False if it is not."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if is_there(folder, name):
            return False
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    os.unlink(temporary, dir_fd=folder)
    return True


def _holds(folder: int, name: bytes, entry: Entry) -> bool:
    """Read a file that may be ours with another inode: sshfs gives each name of a file one of its own."""
    with Opened(os.open(name, OPEN_FLAGS, dir_fd=folder)) as descriptor:
        return hash_content(descriptor, entry.size) == (entry.file_id, entry.size)
