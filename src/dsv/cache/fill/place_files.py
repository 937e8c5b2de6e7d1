"""Writing single files into a fill's tree, several at once if each is a round trip to a file server."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial

import msgspec

from dsv.cache.fill.directory import FillDirectory
from dsv.cache.fill.files import (
    FileState,
    FillRights,
    Folders,
    Links,
    Taken,
    create_file,
    examine,
    fill_file,
    finish_file,
    new_file,
)
from dsv.cache.fill.parts import Claim, draft_name
from dsv.cache.fill.source import FillEntry, LinkRun
from dsv.errors import Unsupported
from dsv.files import system
from dsv.files.folders import is_listed
from dsv.files.shared_path import SharedPath
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.values.paths import show

_REMOTE_THREADS = 16
_LINKS_EACH = 32  # by one thread at a time
_LOOK_AGAIN = (errno.EEXIST, errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
"""A name is taken, a folder was replaced by another process's equal one, or a later claimer has barred the
drafts: the part is looked through again, if it still is this claimer's."""
_REPLACED = (errno.ENOENT, errno.ESTALE)
_LOOKS = 3

_IN_FLIGHT_BYTES = 64 << 20
"""Small files whose content waits to be written; more would only cost memory."""


class TaskPool:
    """Runs tasks in threads; with 0, in the caller. The next `run` or `drain` raises a task's first error."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, "dsv-write") if threads else None
        self._started = False  # whether there is a thread
        self._open: dict[Future[None], int] = {}
        self._error: BaseException | None = None

    def run(self, task: Callable[[], None], size: int = 0) -> None:
        """Queue a task; block while much is in flight. `size`: bytes that it holds in memory."""
        if self._executor is None:
            task()
            return
        while len(self._open) >= 2 * self.threads or (
            self._open and sum(self._open.values()) + size > _IN_FLIGHT_BYTES
        ):
            self._collect(FIRST_COMPLETED)
        self._raise()
        done: Future[None] = Future()
        self._open[done] = size
        try:
            self._executor.submit(_run, task, done)
            self._started = True
        except RuntimeError:  # "can't start new thread": the existing ones do it
            if not self._started:
                del self._open[done]
                raise

    def drain(self) -> None:
        """Return when nothing is in flight."""
        self.settle()
        self._raise()

    def settle(self) -> None:
        """Return when nothing is in flight; an error is kept for the next `run` or `drain`."""
        self._collect(ALL_COMPLETED)

    def clear(self) -> None:
        """Return when nothing is in flight; drop an error that was not raised."""
        self.settle()
        self._error = None

    def close(self) -> None:
        """Wait for what is in flight; drop an error that was not raised."""
        if self._executor is not None:
            self._executor.shutdown()

    def _collect(self, when: str) -> None:
        for future in wait(self._open, return_when=when).done:
            del self._open[future]
            self._error = self._error or future.exception()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _run(task: Callable[[], None], done: Future[None]) -> None:
    try:
        task()
    except BaseException as error:  # noqa: BLE001 (handed to the caller)
        done.set_exception(error)
    else:
        done.set_result(None)


class PartJob(msgspec.Struct):
    """A claimed part in progress."""

    claim: Claim
    check: bool
    """First look at the files that exist."""
    open: int = 0
    """Files requested and not yet written."""
    passed: bool = False
    """All were requested."""
    again: bool = False
    """Look it through again."""
    damaged: bool = False
    """The store can't give one of its files."""
    unplaced: list[tuple[Entry, bytes]] = msgspec.field(default_factory=list)
    """Small files whose folder was replaced, with their content."""
    replace: set[bytes] = msgspec.field(default_factory=set)
    """Paths of broken files."""
    failed: list[FillEntry] = msgspec.field(default_factory=list)
    """Items that could be neither linked nor copied."""
    copied: list[FillEntry] = msgspec.field(default_factory=list)
    """Items that were copied instead, and so take room."""
    symlinks: list[bytes] = msgspec.field(default_factory=list)
    """Paths and targets, alternating."""
    drafts: int = -1
    made: list[int] = msgspec.field(default_factory=list)
    """The size of each of its files that is not linked, with what is in `holes`, which takes no room."""
    holes: list[int] = msgspec.field(default_factory=list)


class PartWriter:
    """Writes into the tree of one fill, for one thread. What it did counts after `settle`."""

    def __init__(self, directory: FillDirectory, kind: system.FileSystem) -> None:
        """Open the folders of the tree. Raises `OSError` if that fails."""
        self._directory = directory
        self._rights = FillRights.of(directory.root, sync=kind.sync_each)
        self._stack = contextlib.ExitStack()
        self.pool = TaskPool(_REMOTE_THREADS if kind.remote else 0)
        self._stack.callback(self.pool.close)
        try:
            self.top = self._open(directory.tree)
            own = directory.drafts / os.urandom(8).hex()
            directory.make_folder(own)
            drafts = self._open(own)
            # Two, because one follows the requests and the other the arrivals.
            self.asked = Folders(self.top, self._rights, drafts, self.pool.settle)
            self._stack.callback(self.asked.close)
            self._arriving = Folders(self.top, self._rights, drafts, self.pool.settle)
            self._stack.callback(self._arriving.close)
            self._links = Links(
                directory.root, directory.plan.references, self._rights, drafts, self.pool.settle
            )
            self._stack.callback(self._links.close)
        except OSError:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def make_folder(self, job: PartJob, path: bytes) -> None:
        with _LookingAgain(job):
            self.asked.open(path)

    def make_symlink(self, job: PartJob, entry: Entry) -> None:
        assert entry.target is not None
        target = entry.target
        job.symlinks += (entry.path, target)
        found = self._find(job, self.asked, entry.path)
        if found is None:
            return
        folder, name = found

        def make() -> None:
            with contextlib.suppress(FileExistsError):  # an earlier claimer made it, with the same target
                os.symlink(target, name, dir_fd=folder)
            in_inode = len(target) < 60  # on ext4; other file systems have room for longer ones
            made = None if in_inode else os.stat(name, dir_fd=folder, follow_symlinks=False)
            job.made.append(made.st_blocks * 512 if made else 0)

        self._run(job, make)

    def make_empty(self, job: PartJob, entry: Entry) -> None:
        job.made.append(0)
        target = self._find(job, self.asked, entry.path)
        executable = entry.kind is Kind.EXECUTABLE
        if target is not None:
            self._run(job, lambda: create_file(*target, (), self._rights, executable=executable))

    def take(self, job: PartJob, item: FillEntry) -> None:
        """Link the reference's file, or else add the item to the job's `copied` or `failed`."""
        assert item.reference is not None
        source = self._links.folder_of(item.reference, item.reference_path)
        if source is None:
            job.failed.append(item)
            return
        target = self._find(job, self.asked, item.entry.path)
        if target is None:
            return

        self._run(job, lambda: self._take(job, item, source, target))

    def _take(
        self, job: PartJob, item: FillEntry, source: tuple[int, bytes], target: tuple[int, bytes]
    ) -> None:
        taken = self._links.take(source, target, item.entry)
        if taken is Taken.NO:
            job.failed.append(item)
        elif taken is Taken.COPIED:
            job.copied.append(item)

    def take_run(self, job: PartJob, run: LinkRun) -> None:
        """Do what `take` does for all files of a run."""
        source = self._links.open_folder(run.reference, run.folder)
        if source is None:
            job.failed.extend(run.item(at) for at in range(len(run.names)))
            return
        with _LookingAgain(job):
            target = self.asked.open(run.folder)
            step = _LINKS_EACH if self.pool.threads else len(run.names)
            for start in range(0, len(run.names), step):
                self._run(job, self._link_all(job, run, source, target, slice(start, start + step)))

    def _link_all(
        self, job: PartJob, run: LinkRun, source: int, target: int, which: slice
    ) -> Callable[[], None]:
        def link() -> None:
            left = self._links.take_all(source, target, run.names[which], run.sizes[which], run.kinds[which])
            for at in (which.start + each for each in left):
                self._take(job, run.item(at), (source, run.names[at]), (target, run.names[at]))

        return link

    def write(self, job: PartJob, entry: Entry, pieces: Iterable[bytes]) -> None:
        """Create the file, or replace the broken one, from verified pieces."""
        executable = entry.kind is Kind.EXECUTABLE
        broken = entry.path in job.replace
        job.made.append(entry.size)
        if self.pool.threads and entry.size <= SINGLE_CHUNK_MAX and not broken:
            self._write_small(job, entry, b"".join(pieces))
            return
        with _LookingAgain(job):
            if not broken:
                begun = fill_file(self._create(entry), pieces, job.holes)
                if self.pool.threads:
                    self._run(job, partial(finish_file, begun, self._rights, executable=executable))
                else:
                    finish_file(begun, self._rights, executable=executable)
                return
            target = self._arriving.of(entry.path)
            if not is_listed(*target):
                raise Unsupported(
                    f"{show(entry.path)} has the name of another file in {self._directory.root.path}",
                    subject=show(entry.path),
                    hint="use a cache on a file system that tells all names apart",
                )
            drafts, draft = self._draft_folder(job), os.urandom(8).hex().encode()
            begun = fill_file(new_file(drafts, draft, self._rights, executable=executable), pieces, job.holes)

            def replace() -> None:
                finish_file(begun, self._rights, executable=executable)
                os.rename(draft, target[1], src_dir_fd=drafts, dst_dir_fd=target[0])

            self._run(job, replace)

    def _create(self, entry: Entry) -> int:
        """Create a file in the current folder: another process's equal one may have replaced it."""
        for attempt in range(_LOOKS):
            try:
                target = self._arriving.of(entry.path)
                return new_file(*target, self._rights, executable=entry.kind is Kind.EXECUTABLE)
            except OSError as error:
                if error.errno not in _REPLACED or attempt == _LOOKS - 1:
                    raise
            self._arriving.forget(entry.path)
        raise AssertionError("unreachable")

    def _write_small(self, job: PartJob, entry: Entry, content: bytes) -> None:
        executable = entry.kind is Kind.EXECUTABLE
        with _LookingAgain(job, (entry, content)):
            folder, name = self._arriving.of(entry.path)

            def write() -> None:
                created = new_file(folder, name, self._rights, executable=executable)
                finish_file(fill_file(created, (content,), job.holes), self._rights, executable=executable)

            self._run(job, write, entry.size, (entry, content))

    def settle(self, job: PartJob) -> None:
        """Return when nothing is in flight. Write again what was fetched for a folder that was replaced."""
        self.pool.drain()
        for _ in range(_LOOKS):
            unplaced, job.unplaced = job.unplaced, []
            for entry, content in unplaced:
                self._arriving.forget(entry.path)
                self._write_small(job, entry, content)
            self.pool.drain()
        job.again = job.again or bool(job.unplaced)
        job.unplaced.clear()

    def examine(
        self, job: PartJob, items: Iterable[FillEntry], pace: Callable[[], None]
    ) -> dict[bytes, FileState]:
        """Return the state of each of these files in the tree. Raises `OSError`."""
        states: dict[bytes, FileState] = {}

        def look(entry: Entry, target: tuple[int, bytes], source: tuple[int, bytes] | None) -> None:
            twin = None if source is None else self._links.identity(source, entry)
            states[entry.path] = examine(*target, entry, twin)

        for item in items:
            pace()
            target = self._find(job, self.asked, item.entry.path) if item.entry.is_file else None
            if target is not None:
                source = (
                    None
                    if item.reference is None
                    else self._links.folder_of(item.reference, item.reference_path)
                )
                self._run(job, partial(look, item.entry, target, source))
        self.pool.drain()
        return states

    def _find(self, job: PartJob, folders: Folders, path: bytes) -> tuple[int, bytes] | None:
        """Return the folder of this path, and the name in it; None if it must be looked up again."""
        with _LookingAgain(job):
            return folders.of(path)
        return None

    def forget_folders(self) -> None:
        """Have all folders looked up again."""
        self.asked.close()
        self._arriving.close()

    def end(self, job: PartJob) -> None:
        if job.drafts >= 0:
            os.close(job.drafts)
            job.drafts = -1

    def _draft_folder(self, job: PartJob) -> int:
        if job.drafts < 0:
            path = self._directory.drafts / draft_name(job.claim.part, job.claim.generation)
            self._directory.make_folder(path)
            job.drafts = path.descriptor(os.O_RDONLY | os.O_DIRECTORY)
        return job.drafts

    def _open(self, path: SharedPath) -> int:
        descriptor = path.descriptor(os.O_RDONLY | os.O_DIRECTORY)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _run(
        self,
        job: PartJob,
        task: Callable[[], None],
        size: int = 0,
        content: tuple[Entry, bytes] | None = None,
    ) -> None:
        def run() -> None:
            with _LookingAgain(job, content):
                task()

        self.pool.run(run, size)


class _LookingAgain:
    """After an error that this may cure, has a job's part looked through, or the content written, again."""

    def __init__(self, job: PartJob, content: tuple[Entry, bytes] | None = None) -> None:
        self._job = job
        self._content = content

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, OSError) or error.errno not in _LOOK_AGAIN:
            return False
        if self._content is not None and error.errno in _REPLACED:
            self._job.unplaced.append(self._content)
        else:
            self._job.again = True
        return True
