"""One process's part in a fill: do free parts, take over parts of dead processes, wait for living ones, publish."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from dsv.cache.claims.leases import end_leases_of
from dsv.cache.fill.directory import FillDirectory, publish
from dsv.cache.fill.files import Lost, WriteBack
from dsv.cache.fill.helper_process import Helpers, HelperSpec, default_jobs
from dsv.cache.fill.part_worker import PartWorker
from dsv.cache.fill.parts import Claim, ClaimTable, do_free_parts
from dsv.cache.fill.plan import FillRequest
from dsv.cache.fill.reservations import EnsureRoom, need_of, refusal
from dsv.cache.fill.source import StoreSource
from dsv.cache.fill.workers import Heartbeat, Reporter, Worker, read_worker, read_workers
from dsv.cache.root import CacheRoot, Place
from dsv.errors import IntegrityError, NoRoom
from dsv.fs.files import FULL, read_small
from dsv.fs.system import FileSystem
from dsv.values.paths import link_escapes, show
from dsv.values.progress import Progress
from dsv.values.units import format_count, format_lines

_ROOM_EVERY = 15.0  # seconds between two looks at the limits while filling
_RETRIES = 3  # after a full disk in the middle
_LEAST_ROOM = 64 << 20
_LEAST_FILES = 64
_LINKS_LIMIT = 1 << 30  # bytes that name the symlinks of one part
# Seconds between two looks at what the others do: the first wait, and the longest.
_POLL_LOCAL = (0.005, 0.25)
_POLL_REMOTE = (0.1, 2.0)
_T = TypeVar("_T")


class FillContext(msgspec.Struct, frozen=True):
    """The arguments of `fill`, with the file system of the cache."""

    root: CacheRoot
    request: FillRequest
    place: Place
    source: StoreSource
    ensure_room: EnsureRoom
    jobs: int | None
    progress: Progress
    helper: HelperSpec | None
    kind: FileSystem


class FillParticipant:
    """`run` it once. The caller acts on its attributes when all of its files are closed."""

    def __init__(self, context: FillContext, directory: FillDirectory, heartbeat: Heartbeat) -> None:
        self._context = context
        self._directory = directory
        self._heartbeat = heartbeat
        self._table = ClaimTable(
            directory.parts, len(directory.plan.parts), heartbeat.owner.id, context.kind, context.root.time_in
        )
        self._reporter = Reporter(context.progress, directory, heartbeat)
        self._looked_at_room = time.monotonic()
        self._helpers = Helpers()
        self._worker: PartWorker | None = None
        self._write_back: WriteBack | None = None  # on a local file system
        self.published = False
        """This process made the commit visible."""
        self.hopeless = False
        """No process can or will continue the fill, so it should be given up."""
        self.out_of_room = False
        """It should be given up unless others work on it, as half a fill keeps a full disk full."""

    @property
    def fetched(self) -> int:
        """Bytes read from the store by this process and its helpers."""
        return self._heartbeat.tally.fetched + self._helpers.fetched

    @property
    def linked(self) -> int:
        """Files linked by this process and its helpers."""
        return self._heartbeat.tally.linked + self._helpers.linked

    def run(self) -> None:
        """Return when the fill has ended. Raises `OSError`, `NoRoom`, `Lost`, and what the source raises."""
        directory, context = self._directory, self._context
        self._reporter.start()
        try:
            if not context.kind.remote:
                self._write_back = WriteBack(directory)
            self._resume(self._with_room(self._table.refresh))
            if context.helper is not None:
                jobs = context.jobs or default_jobs(directory.plan, context.kind)
                self._helpers.start(directory, context.helper, jobs)
            self._worker = self._with_room(self._begin)
            self._work(self._worker)
            if not self.published:
                self._check_disk()
        except OSError as error:
            self._check_disk()
            if error.errno in FULL:
                self.out_of_room = True
                raise self._no_room(error) from error
            raise
        except NoRoom:
            self.out_of_room = True
            raise
        except Lost:
            self.hopeless = True
            raise
        finally:
            self._helpers.stop(now=not self.published)
            if self._worker is not None:
                self._worker.close()
            if self._write_back is not None:
                self._write_back.close()
                self.hopeless = self.hopeless or self._write_back.lost
            self._reporter.finish()

    def _begin(self) -> PartWorker:
        context = self._context
        return PartWorker(
            self._directory, context.source, self._table, self._heartbeat.tally, context.kind, self._tick
        )

    def _resume(self, now: float) -> None:
        """Make room again if no process works on the fill, as its reservation has lapsed; else begin far from the
        others, so that each works on neighbouring parts."""
        others = self._others()
        if others and all(one.gone(now) for one in others):
            self._make_room()
        elif self._table.started:
            self._table.begin_at(random.randrange(max(1, len(self._directory.plan.parts))))

    def _work(self, worker: PartWorker) -> None:
        remote = self._context.kind.remote
        first, longest = _POLL_REMOTE if remote else _POLL_LOCAL
        wait = first
        while True:
            if self._table.free:
                do_free_parts(self._table, lambda claims: self._do(worker, claims), remote=remote)
            now = self._with_room(self._table.refresh)
            if self._table.confirm_done():
                self._with_room(self._publish)
                return
            if self._table.free or (worker.damaged and self._helpers.stop(now=False)):
                continue
            workers = read_workers(self._directory.workers)
            claim = self._with_room(self._claim_abandoned(workers, now))
            if claim is not None:
                self._end_leases(workers, now)
                self._do(worker, iter((claim,)))
                wait = first
                continue
            if worker.damaged:
                raise self._without(worker.damaged)
            self._reporter.wait(workers, self._table.done, now)
            time.sleep(wait)
            wait = min(wait * 1.5, longest)

    def _without(self, damaged: Mapping[bytes, IntegrityError]) -> IntegrityError:
        """Return the error for files that the store can't give, all that were met."""
        errors = [damaged[path] for path in sorted(damaged)]
        if len(errors) == 1:
            return errors[0]
        place = f"{self._directory.place.dataset_name}@{str(self._directory.place.commit)[:12]}"
        return IntegrityError(
            f"{place} is not cached, as {format_count(len(errors), 'file')} can't be read:"
            f"{format_lines([error.message for error in errors], len(errors))}",
            subject=place,
            hint="dsv verify --repair, or dsv sync where the files are; dsv export --skip-damaged writes the others",
        )

    def _claim_abandoned(self, workers: Mapping[str, Worker], now: float) -> Callable[[], Claim | None]:
        def is_gone(owner: str) -> bool:
            worker = workers.get(owner) or read_worker(self._directory.workers, owner)
            return worker is None or worker.gone(now)

        return lambda: self._table.claim_abandoned(is_gone)

    def _end_leases(self, workers: Mapping[str, Worker], now: float) -> None:
        """End the leases of processes that are gone without having said so."""
        for worker in workers.values():
            if worker.gone(now) and not worker.left:
                with contextlib.suppress(OSError):  # they expire by themselves
                    end_leases_of(self._context.root, self._directory.place, worker.owner, now)

    def _do(self, worker: PartWorker, claims: Iterator[Claim]) -> None:
        def do() -> None:
            worker.run(worker.unfinished, check=True)
            worker.run(claims)

        self._with_room(do)

    def _with_room(self, step: Callable[[], _T]) -> _T:
        """Do one step of the work. If the disk is full in the middle, make room and do it again, a few times."""
        for _ in range(_RETRIES):
            try:
                return step()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._make_room_after(error)
        return step()

    def _tick(self) -> None:
        self._reporter.update()
        if self._write_back is not None and self._worker is not None:
            self._write_back.advance(self._worker.small)
        if time.monotonic() - self._looked_at_room > _ROOM_EVERY:
            self._make_room()

    def _make_room(self, least_bytes: int = 0, least_files: int = 0) -> None:
        """Apply the limits, which hold while filling too: others fill the disk. Raises `NoRoom`."""
        size, files = self._left()
        directory = self._directory
        self._context.ensure_room(
            need_of(directory.place, directory.plan, max(size, least_bytes), max(files, least_files))
        )
        self._looked_at_room = time.monotonic()

    def _make_room_after(self, error: OSError) -> None:
        """Ask for more of what has run out: bytes, or names for files alone. Raises `NoRoom`."""
        disk = os.statvfs(self._context.root.path)
        if error.errno == errno.ENOSPC and disk.f_files > 0 and disk.f_favail < _LEAST_FILES:
            self._make_room(least_files=_LEAST_FILES)
        else:
            self._make_room(least_bytes=_LEAST_ROOM)

    def _no_room(self, error: OSError) -> NoRoom:
        size, files = self._directory.plan.need_bytes, self._directory.plan.need_files
        with contextlib.suppress(OSError):
            size, files = self._left()
        return refusal(self._context.root, self._directory.place, error, size, files)

    def _left(self) -> tuple[int, int]:
        """Return the bytes and inodes that the whole fill still needs."""
        plan, mine, others = self._directory.plan, self._heartbeat.tally, self._others()
        written = mine.written + sum(one.written for one in others)
        made = mine.made + sum(one.made for one in others)
        unplanned = 0 if self._worker is None else self._worker.unplanned
        return max(0, plan.need_bytes + unplanned - written), max(0, plan.need_files - made)

    def _others(self) -> list[Worker]:
        workers = read_workers(self._directory.workers)
        return [worker for owner, worker in workers.items() if owner != self._heartbeat.owner.id]

    def _check_disk(self) -> None:
        """Raise the error of the disk, if the fill ended because that lost something."""
        if self._write_back is not None:
            self._write_back.check()

    def _publish(self) -> None:
        """Make the commit visible, with everything on stable storage.

        Over NFS each file was when it was closed, elsewhere on a remote file system with each part; on a local one
        `WriteBack` sees to it here.
        """
        try:
            _check_links(self._directory)
            if self._write_back is not None:
                self._write_back.finish()
            self.published = publish(self._directory, self._heartbeat.owner)
        except IntegrityError:
            self.hopeless = True
            raise
        if not self.published:
            self.hopeless = self._directory.is_open()  # an earlier fill is visible; nobody needs this one


def _check_links(directory: FillDirectory) -> None:
    links: dict[bytes, bytes] = {}
    directory.root.look_up_anew(directory.folder)
    if directory.links.is_dir():
        directory.root.time_in(directory.links)
        for part in range(len(directory.plan.parts)):  # each by its name: over NFS a listing may lack some
            found = read_small(directory.links / str(part), _LINKS_LIMIT)
            if found is not None:
                fields = found.split(b"\0")
                links.update(zip(fields[::2], fields[1::2], strict=True))
    escaping = link_escapes(links)
    if escaping:
        raise IntegrityError(
            f"{directory.place} has a symlink that leaves the dataset: {show(escaping[0])}",
            subject=str(directory.place),
            hint="no dsv writes that: ask who else writes to the store; dsv log DATASET shows other commits",
        )
