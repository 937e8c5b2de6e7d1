"""One process's part in a fill: do free parts, take over parts of dead processes, wait for living ones, publish."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from dsv.cache.claims.leases import end_leases_of
from dsv.cache.fill.directory import FillDirectory, publish
from dsv.cache.fill.files import Lost, WriteBack
from dsv.cache.fill.helper_process import Helpers, default_jobs
from dsv.cache.fill.part_worker import FillEnded, PartWorker
from dsv.cache.fill.parts import Claim, ClaimTable, do_free_parts
from dsv.cache.fill.request import FillContext
from dsv.cache.fill.reservations import need_of, refusal
from dsv.cache.fill.workers import Heartbeat, Reporter, Worker, read_worker, read_workers
from dsv.errors import IntegrityError, NoRoom
from dsv.fs.files import FULL, GONE, read_small
from dsv.values.paths import link_escapes, show

_ROOM_EVERY = 15.0  # seconds between two looks at the limits while filling
_RETRIES = 3  # after a full disk in the middle
_LEAST_ROOM = 64 << 20
_LEAST_FILES = 64
_LINKS_LIMIT = 1 << 30  # bytes that name the symlinks of one part
# Seconds between two looks at what the others do: the first wait, and the longest.
_POLL_LOCAL = (0.005, 0.25)
_POLL_REMOTE = (0.1, 2.0)
_T = TypeVar("_T")


class FillParticipant:
    """`run` it once.

    fetched, linked: what this process and its helpers did. published: this process made it visible. hopeless: no
    process can or will continue it, so it should be given up. out_of_room: it should be unless others work on it, as a
    half fill keeps a full disk full. The caller acts on these when all of its files are closed.
    """

    def __init__(self, context: FillContext, directory: FillDirectory, heartbeat: Heartbeat) -> None:
        self._context = context
        self._directory = directory
        self._heartbeat = heartbeat
        self._table = ClaimTable(
            directory.parts, len(directory.plan.parts), heartbeat.owner.id, context.kind, context.root.time_in
        )
        self._reporter = Reporter(context.progress, directory, heartbeat)
        self._looked_at_room = time.monotonic()
        self._helpers: Helpers | None = None
        self._worker: PartWorker | None = None
        self._write_back: WriteBack | None = None  # on a local file system
        self.published = False
        self.hopeless = False
        self.out_of_room = False

    @property
    def fetched(self) -> int:
        return self._heartbeat.tally.fetched + (0 if self._helpers is None else self._helpers.fetched)

    @property
    def linked(self) -> int:
        return self._heartbeat.tally.linked + (0 if self._helpers is None else self._helpers.linked)

    def run(self) -> None:
        """Returns when this process published; raises `FillEnded` if it ended otherwise, `NoRoom`, and more."""
        directory, context = self._directory, self._context
        self._reporter.start()
        try:
            if not context.kind.remote:
                self._write_back = WriteBack(directory)
            now = self._with_room(self._table.refresh)
            self._resume(now)
            self._helpers = Helpers(directory, context.helper, self._jobs())
            self._worker = worker = self._with_room(self._begin)
            self._work(worker)
        except FillEnded:
            self._check_disk()
            raise
        except OSError as error:
            self._check_disk()
            if error.errno in GONE and not directory.is_open():
                raise FillEnded from error
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
            self._stop_helpers(now=not self.published)
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

    def _work(self, worker: PartWorker) -> None:
        first, longest = _POLL_REMOTE if self._context.kind.remote else _POLL_LOCAL
        wait = first
        while True:
            if self._table.free:
                do_free_parts(
                    self._table, lambda claims: self._do(worker, claims), remote=self._context.kind.remote
                )
            now = self._with_room(self._table.refresh)
            if self._table.confirm_done():
                self._with_room(self._publish)
                return
            if self._table.free:
                continue
            workers = read_workers(self._directory.workers)
            claim = self._with_room(self._claim_abandoned(workers, now))
            if claim is not None:
                self._end_leases(workers.values(), now)
                self._do(worker, iter((claim,)))
                wait = first
                continue
            self._reporter.wait(workers, self._table.done, now)
            time.sleep(wait)
            wait = min(wait * 1.5, longest)

    def _claim_abandoned(self, workers: Mapping[str, Worker], now: float) -> Callable[[], Claim | None]:
        def is_gone(owner: str) -> bool:
            worker = workers.get(owner) or read_worker(self._directory.workers, owner)
            return worker is None or worker.gone(now)

        return lambda: self._table.claim_abandoned(is_gone)

    def _end_leases(self, workers: Iterable[Worker], now: float) -> None:
        """Those of processes that are gone without having said so."""
        for worker in workers:
            if worker.gone(now) and not worker.left:
                with contextlib.suppress(OSError):  # they expire by themselves
                    end_leases_of(self._context.root, self._directory.place, worker.owner, now)

    def _do(self, worker: PartWorker, claims: Iterator[Claim]) -> None:
        def do() -> None:
            worker.run(worker.unfinished, check=True)
            worker.run(claims)

        self._with_room(do)

    def _with_room(self, step: Callable[[], _T]) -> _T:
        """Does one step of the work; if the disk is full in the middle, makes room and does it again, a few times."""
        for _ in range(_RETRIES):
            try:
                return step()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._make_room_after(error)
        return step()

    def _check_disk(self) -> None:
        """If a fill ended because the disk lost something, that is the error to report."""
        if self._write_back is not None:
            self._write_back.check()

    def _tick(self) -> None:
        self._reporter.update()
        if self._write_back is not None:
            self._write_back.advance(self._heartbeat.tally.small)
        if time.monotonic() - self._looked_at_room > _ROOM_EVERY:
            self._make_room()

    def _make_room(self, least_bytes: int = 0, least_files: int = 0) -> None:
        """The limits hold while filling, too: others fill the disk. Raises `NoRoom`."""
        size, files = self._left()
        self._context.ensure_room(
            need_of(
                self._directory.place, self._directory.plan, max(size, least_bytes), max(files, least_files)
            )
        )
        self._looked_at_room = time.monotonic()

    def _make_room_after(self, error: OSError) -> None:
        """Asks for more of what has run out: bytes, or names for files alone. Raises `NoRoom`."""
        disk = os.statvfs(self._context.root.path)
        no_names = error.errno == errno.ENOSPC and disk.f_files > 0 and disk.f_favail < _LEAST_FILES
        self._make_room(
            least_bytes=0 if no_names else _LEAST_ROOM,
            least_files=_LEAST_FILES if no_names else 0,
        )

    def _left(self) -> tuple[int, int]:
        """Bytes and inodes that the whole fill still needs."""
        plan, mine = self._directory.plan, self._heartbeat.tally
        others = self._others()
        written = mine.written + sum(one.written for one in others)
        made = mine.made + sum(one.made for one in others)
        unplanned = 0 if self._worker is None else self._worker.unplanned
        return max(0, plan.need_bytes + unplanned - written), max(0, plan.need_files - made)

    def _resume(self, now: float) -> None:
        """The reservation of a fill that no process works on has lapsed, so room is made for it again."""
        others = self._others()
        if others and all(one.gone(now) for one in others):
            self._make_room()
        elif self._table.started:
            # Far from the others, so that each works on neighbouring parts.
            self._table.begin_at(random.randrange(max(1, len(self._directory.plan.parts))))

    def _others(self) -> list[Worker]:
        workers = read_workers(self._directory.workers)
        return [worker for owner, worker in workers.items() if owner != self._heartbeat.owner.id]

    def _jobs(self) -> int:
        if self._context.helper is None:
            return 1
        return self._context.jobs or default_jobs(self._directory.plan, self._context.kind)

    def _publish(self) -> None:
        """Before the rename everything is on stable storage: over NFS each file was when it was closed, elsewhere on
        a remote file system with each part; on a local one `WriteBack` sees to it here."""
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
            raise FillEnded

    def _no_room(self, error: OSError) -> NoRoom:
        size, files = self._directory.plan.need_bytes, self._directory.plan.need_files
        with contextlib.suppress(OSError):
            size, files = self._left()
        return refusal(self._context.root, self._directory.place, error, size, files)

    def _stop_helpers(self, *, now: bool) -> None:
        if self._helpers is not None:
            self._helpers.stop(now=now)


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
