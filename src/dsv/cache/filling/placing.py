"""Putting one file after the other into a fill's tree, several at once where each is a round trip."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dsv.cache.fill_state.claim_table import Claim
from dsv.cache.fill_state.fill_directory import FillDirectory
from dsv.cache.filling import existing
from dsv.cache.filling.contents import Item, LinkRun
from dsv.cache.filling.existing import State
from dsv.cache.filling.links import Links, Taken
from dsv.cache.filling.pool import Pool
from dsv.cache.filling.writer import Folders, Rights, create_file, finish_file, start_file
from dsv.fs import system
from dsv.model.chunking import SINGLE_CHUNK_MAX
from dsv.model.entry import Entry, Kind

_REMOTE_THREADS = 16
_LINKS_EACH = 32  # by one thread at a time
# A name that is taken, a folder that another's equal one replaced, or drafts that a later claimer has barred: the part
# is looked through again, if it still is this claimer's.
_LOOK_AGAIN = (errno.EEXIST, errno.ENOENT, errno.ESTALE, errno.ENOTDIR)


@dataclass(slots=True)
class Job:
    """A claimed part on its way.

    check: look at what is there first. open: files asked for and not yet written. passed: all were asked for.
    again: look it through once more. replace: paths of broken files. unlinked: what could not be linked
    with its run; failed: nor by itself; copied: what took room instead. symlinks: paths and targets, in turn.
    """

    claim: Claim
    check: bool
    open: int = 0
    passed: bool = False
    again: bool = False
    replace: set[bytes] = field(default_factory=set)
    unlinked: list[Item] = field(default_factory=list)
    failed: list[Item] = field(default_factory=list)
    copied: list[Item] = field(default_factory=list)
    symlinks: list[bytes] = field(default_factory=list)
    drafts: int = -1


class Placer:
    """Writes into the tree of one fill. Used from one thread; `settle` before what it did counts."""

    def __init__(self, directory: FillDirectory, kind: system.FileSystem) -> None:
        """Raises `OSError`."""
        self._directory = directory
        self._rights = Rights.of(directory.root, sync=kind.sync_each)
        self._stack = contextlib.ExitStack()
        self.pool = Pool(_REMOTE_THREADS if kind.remote else 0)
        self._stack.callback(self.pool.close)
        try:
            self.top = self._open(directory.tree)
            own = directory.drafts / os.urandom(8).hex()
            directory.make_folder(own)
            drafts = self._open(own)
            # Two, as one follows what is asked for and the other what arrives.
            self.asked = Folders(self.top, self._rights, drafts, self.pool.settle)
            self._stack.callback(self.asked.close)
            self._arriving = Folders(self.top, self._rights, drafts, self.pool.settle)
            self._stack.callback(self._arriving.close)
            self._links = Links(directory.root, directory.plan.donors, self._rights, drafts, self.pool.settle)
            self._stack.callback(self._links.close)
        except OSError:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def make_folder(self, job: Job, path: bytes) -> None:
        try:
            self.asked.open(path)
        except OSError as error:
            _look_again(job, error)

    def make_symlink(self, job: Job, entry: Entry) -> None:
        assert entry.target is not None
        target = entry.target
        job.symlinks += (entry.path, target)
        found = self._find(job, self.asked, entry.path)
        if found is None:
            return
        folder, name = found

        def make() -> None:
            with contextlib.suppress(FileExistsError):  # an earlier claimer's, and its content is its name's
                os.symlink(target, name, dir_fd=folder)

        self._run(job, make)

    def make_empty(self, job: Job, entry: Entry) -> None:
        target = self._find(job, self.asked, entry.path)
        executable = entry.kind is Kind.EXECUTABLE
        if target is not None:
            self._run(job, lambda: create_file(*target, (), self._rights, executable=executable))

    def take(self, job: Job, item: Item) -> None:
        """Links the donor's file, or else adds the item to the job's `copied` or `failed`."""
        assert item.donor is not None and item.entry.file_id is not None
        entry, file_id = item.entry, item.entry.file_id
        source = self._links.folder_of(item.donor, item.donor_path)
        if source is None:
            job.failed.append(item)
            return
        target = self._find(job, self.asked, entry.path)
        if target is None:
            return
        executable = entry.kind is Kind.EXECUTABLE

        def link() -> None:
            taken = self._links.take(source, target, entry.size, file_id, executable=executable)
            if taken is Taken.NO:
                job.failed.append(item)
            elif taken is Taken.COPIED:
                job.copied.append(item)

        self._run(job, link)

    def take_run(self, job: Job, run: LinkRun) -> None:
        """Links them all; those that can't be are looked at one by one, in `take_failed`."""
        source = self._links.open_folder(run.donor, run.folder)
        if source is None:
            job.failed.extend(run.item(at) for at in range(len(run.names)))
            return
        try:
            target = self.asked.open(run.folder)
        except OSError as error:
            _look_again(job, error)
            return
        step = _LINKS_EACH if self.pool.threads else len(run.names)
        for start in range(0, len(run.names), step):
            self._run(job, self._link_all(job, run, source, target, slice(start, start + step)))

    def _link_all(self, job: Job, run: LinkRun, source: int, target: int, which: slice) -> Callable[[], None]:
        def link() -> None:
            found = self._links.take_all(source, target, run.names[which], run.sizes[which], run.kinds[which])
            job.unlinked.extend(run.item(which.start + at) for at in found)

        return link

    def take_failed(self, job: Job) -> None:
        """What `take_run` could not link."""
        for item in job.unlinked:
            self.take(job, item)
        job.unlinked.clear()

    def write(self, job: Job, entry: Entry, pieces: Iterable[bytes]) -> None:
        """Creates the file, or replaces the broken one, from verified pieces."""
        if not self.pool.threads and not job.replace:
            try:
                folder, name = self._arriving.of(entry.path)
                create_file(folder, name, pieces, self._rights, executable=entry.kind is Kind.EXECUTABLE)
            except OSError as error:
                _look_again(job, error)
            return
        executable = entry.kind is Kind.EXECUTABLE
        broken = entry.path in job.replace
        try:
            target = self._arriving.of(entry.path)
            place = (self._draft_folder(job), os.urandom(8).hex().encode()) if broken else target
        except OSError as error:
            _look_again(job, error)
            return

        def finish(descriptor: int) -> None:
            finish_file(descriptor, self._rights, executable=executable)
            if broken:
                os.rename(place[1], target[1], src_dir_fd=place[0], dst_dir_fd=target[0])

        if self.pool.threads and entry.size <= SINGLE_CHUNK_MAX:
            data = b"".join(pieces)
            self._run(
                job,
                lambda: finish(start_file(*place, (data,), self._rights, executable=executable)),
                entry.size,
            )
            return
        try:
            descriptor = start_file(*place, pieces, self._rights, executable=executable)
        except OSError as error:
            _look_again(job, error)
            return
        self._run(job, lambda: finish(descriptor))

    def examine(self, job: Job, items: Iterable[Item], pace: Callable[[], None]) -> dict[bytes, State]:
        """What is there of these files already. Raises `OSError`."""
        states: dict[bytes, State] = {}
        for item in items:
            pace()
            target = self._find(job, self.asked, item.entry.path) if item.entry.is_file else None
            if target is not None:
                self._run(job, self._look(item, target, states))
        self.pool.drain()
        return states

    def _look(self, item: Item, target: tuple[int, bytes], states: dict[bytes, State]) -> Callable[[], None]:
        entry = item.entry
        folder, name = target
        source = None if item.donor is None else self._links.folder_of(item.donor, item.donor_path)

        def look() -> None:
            executable = entry.kind is Kind.EXECUTABLE
            twin = None if source is None else self._links.identity(source, entry.size, executable=executable)
            states[entry.path] = existing.examine(folder, name, entry, twin)

        return look

    def _find(self, job: Job, folders: Folders, path: bytes) -> tuple[int, bytes] | None:
        """The folder of this path, and the name in it; None if it has to be looked up anew."""
        try:
            return folders.of(path)
        except OSError as error:
            _look_again(job, error)
            return None

    def forget_folders(self) -> None:
        """Looks all folders up anew."""
        self.asked.close()
        self._arriving.close()

    def end(self, job: Job) -> None:
        """Closes what the job has open."""
        if job.drafts >= 0:
            os.close(job.drafts)
            job.drafts = -1

    def _draft_folder(self, job: Job) -> int:
        if job.drafts < 0:
            path = self._directory.drafts / existing.draft_name(job.claim.part, job.claim.generation)
            self._directory.make_folder(path)
            job.drafts = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return job.drafts

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _run(self, job: Job, task: Callable[[], None], size: int = 0) -> None:
        def run() -> None:
            try:
                task()
            except OSError as error:
                _look_again(job, error)

        self.pool.run(run, size)


def _look_again(job: Job, error: OSError) -> None:
    """Has the job's part looked through once more if that may help; else raises the error."""
    if error.errno not in _LOOK_AGAIN:
        raise error
    job.again = True
