"""The processes of a fill: a small file for each, with its heartbeat and its progress."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping

import msgspec

from dsv.cache.claims import LeaseOwner
from dsv.cache.fill.directory import FillDirectory
from dsv.cache.leases import SILENCE
from dsv.cache.root import CacheRoot
from dsv.files.attributes import ignoring
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import FORGOTTEN, list_names, read_small
from dsv.files.system import FileSystem
from dsv.periodic import Periodic
from dsv.values.progress import Progress
from dsv.values.units import format_duration

HEARTBEAT_LOCAL = 1.0  # seconds between two of them, if only this host can see them
HEARTBEAT_REMOTE = 4.0  # seconds, if other hosts can
EXPIRY = SILENCE  # seconds until other hosts take over; with their polling well below a minute
_RECORD_SIZE = 1024  # bytes; rewritten in place, because a rename would leave readers with a stale handle


class Worker(msgspec.Struct):
    """One process of a fill, and its progress. The worker threads write this process's own."""

    owner: LeaseOwner
    last_beat: float = msgspec.field(name="beat")
    """The time of the last heartbeat, in seconds since 1970 by the server's clock."""
    left: bool = False
    """True if it has stopped by itself."""
    entries: int = 0
    """Entries of the commit that it finished."""
    bytes: int = 0
    """Bytes of these."""
    written: int = 0
    """Bytes in blocks that it added to the disk."""
    made: int = 0
    """Inodes that it added."""
    fetched: int = 0
    """Bytes that it read from the store."""
    linked: int = 0
    """Files that it linked."""

    def gone(self, now: float) -> bool:
        """Return whether its unfinished parts may be taken over; `now` by the server's clock."""
        return self.left or now - self.last_beat > EXPIRY or self.owner.surely_dead()


_WORKER = msgspec.json.Decoder(Worker)


class Heartbeat:
    """This process's record in a fill's `workers` folder, renewed by a thread until `stop`."""

    def __init__(self, root: CacheRoot, kind: FileSystem) -> None:
        self.owner = LeaseOwner.new()
        self.tally = Worker(self.owner, 0.0)
        self._root = root
        self._folder = root.temporary
        self._sync = kind.remote
        self._period = HEARTBEAT_REMOTE if kind.remote else HEARTBEAT_LOCAL
        self._descriptor = -1
        self._periodic = Periodic("dsv-heartbeat", self._say_alive, first=self._period)

    def enlist(self, folder: SharedPath) -> None:
        """Put the record into a `workers` folder, before the fill appears or a claim. Raises `OSError`."""
        self._folder = folder
        # It appears with its content and its rights, because others read it as soon as it has a name.
        draft = self._root.temporary / f".worker-{self.owner.id}"
        self._descriptor = draft.descriptor(os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.fchmod(self._descriptor, self._root.rights.file | 0o200)  # so that it can be opened again
            self._write(left=False)
            draft.rename(folder / self.owner.id)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def start(self, folder: SharedPath) -> None:
        """Start the heartbeat; `folder` is where the record is now."""
        self._folder = folder
        self._periodic.start()

    def stop(self) -> None:
        """Record that this process has left, unless the fill has ended."""
        self._periodic.stop()
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._write(left=True)
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):  # it may report a known loss again
                os.close(descriptor)

    def _say_alive(self) -> float:
        with contextlib.suppress(OSError):  # the server is away, or the fill has ended: others decide
            self._write(left=False)
        return self._period

    def _write(self, *, left: bool) -> None:
        self.tally.left = left
        if not left:  # a process that leaves needs no time, and on a full disk there may be no way to get it
            self.tally.last_beat = self._root.time_in(self._folder)
        data = msgspec.json.encode(self.tally).ljust(_RECORD_SIZE)
        with ignoring((*FORGOTTEN, errno.ESTALE)):
            self._put(data)
            return
        lost = self._descriptor
        self._descriptor = (self._folder / self.owner.id).descriptor(os.O_WRONLY)
        with contextlib.suppress(OSError):  # it may report a known loss again
            os.close(lost)
        self._put(data)

    def _put(self, data: bytes) -> None:
        os.pwrite(self._descriptor, data, 0)
        if self._sync:
            os.fsync(self._descriptor)


def read_worker(folder: SharedPath, owner: str) -> Worker | None:
    """Return a worker; None if it is missing or can't be decoded. Raises `OSError`."""
    for _ in range(3):  # it may be read while it is written
        data = read_small(folder / owner)
        if data is None:
            return None
        with contextlib.suppress(msgspec.DecodeError):
            return _WORKER.decode(data)
    return None


def read_workers(folder: SharedPath) -> dict[str, Worker]:
    """Return all of a fill's workers, by owner id. Raises `OSError`."""
    found = {name: read_worker(folder, name) for name in list_names(folder)}
    return {name: worker for name, worker in found.items() if worker is not None}


_LOOK_EVERY = 0.5  # seconds between two looks at what others have done
_NOTE_EVERY = 10.0


class Reporter:
    """Reports the progress of this process, its helpers and other hosts. For one thread."""

    def __init__(self, progress: Progress, directory: FillDirectory, heartbeat: Heartbeat) -> None:
        self._progress = progress
        self._directory = directory
        self._heartbeat = heartbeat
        self._others: list[Worker] = []
        self._reported: tuple[int, ...] = (0, 0, 0)  # entries, bytes, bytes fetched
        self._looked = 0.0
        self._noted = time.monotonic()

    def start(self) -> None:
        self._look(read_workers(self._directory.workers))
        self._progress.start(self._directory.plan.entries, self._directory.plan.bytes)
        self.update()

    def update(self) -> None:
        """Report progress. This is cheap; call it often."""
        if time.monotonic() - self._looked > _LOOK_EVERY:
            with contextlib.suppress(OSError):
                self._look(read_workers(self._directory.workers))
        self._tell()

    def wait(self, workers: Mapping[str, Worker], parts_done: int, now: float) -> None:
        """Report progress and, from time to time, for which processes this one waits."""
        self._look(workers)
        self._tell()
        if time.monotonic() - self._noted > _NOTE_EVERY:
            self._noted = time.monotonic()
            at_work = [one for one in self._others if not one.gone(now)]
            who = ", ".join(sorted({f"{one.owner.user}@{one.owner.host}" for one in at_work})) or "nobody"
            silent = max(0.0, now - max((one.last_beat for one in at_work), default=now))
            self._progress.note(
                f"waiting for {who} to cache {self._directory.place}: {parts_done} of "
                f"{len(self._directory.plan.parts)} parts, last seen {format_duration(silent)} ago; after "
                f"{format_duration(EXPIRY)} of silence this host takes over"
            )

    def finish(self) -> None:
        self._progress.finish()

    def _look(self, workers: Mapping[str, Worker]) -> None:
        self._others = [one for name, one in workers.items() if name != self._heartbeat.owner.id]
        self._looked = time.monotonic()

    def _tell(self) -> None:
        """Report progress. A part that was taken over is counted by two workers, but reported once."""
        plan, everybody = self._directory.plan, [*self._others, self._heartbeat.tally]
        entries = min(plan.entries, sum(one.entries for one in everybody))
        size = min(plan.bytes, sum(one.bytes for one in everybody))
        done = (entries, size, sum(one.fetched for one in everybody))
        before, self._reported = self._reported, tuple(map(max, done, self._reported))
        more = [new - old for new, old in zip(self._reported, before, strict=True)]
        if any(more):
            self._progress.advance(*more)
