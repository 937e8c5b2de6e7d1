"""The processes of a fill: a small file for each, with its heartbeat and what it has done.

The time of a heartbeat is the file server's, read from a folder that the heartbeat itself has just changed. So no two
hosts' clocks are compared, and no file's own times are trusted (a client with a write delegation dates files itself).
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import msgspec

from dsv.cache.claims.leases import SILENCE
from dsv.cache.claims.owners import Owner
from dsv.cache.root import CacheRoot
from dsv.fs.files import FORGOTTEN, list_names, read_small
from dsv.fs.system import FileSystem
from dsv.periodic import Periodic

HEARTBEAT_LOCAL = 1.0  # seconds between two of them, if only this host can be watching
HEARTBEAT_REMOTE = 4.0
EXPIRY = SILENCE  # seconds until other hosts take over; with their polling well below a minute
_RECORD_SIZE = 1024  # bytes; rewritten in place, as a rename would leave readers with a stale handle


class Worker(msgspec.Struct, frozen=True):
    """One process of a fill. heard: the time of its last heartbeat. left: it has stopped by itself.

    entries, bytes: finished by it, of the commit; written, made: bytes in blocks and inodes that it added;
    fetched: bytes read from the store; linked: files.
    """

    owner: Owner
    heard: float = msgspec.field(name="beat")
    left: bool = False
    entries: int = 0
    bytes: int = 0
    written: int = 0
    made: int = 0
    fetched: int = 0
    linked: int = 0

    def gone(self, now: float) -> bool:
        """Whether its unfinished parts may be taken over; `now` by the server's clock."""
        return self.left or now - self.heard > EXPIRY or self.owner.surely_dead()


_WORKER = msgspec.json.Decoder(Worker)


class Tally(msgspec.Struct):
    """What this process has done so far; written by its worker threads, read by the heartbeat.

    small: bytes of `written` in files too small to send each of them to the disk at once.
    """

    entries: int = 0
    bytes: int = 0
    written: int = 0
    made: int = 0
    fetched: int = 0
    linked: int = 0
    small: int = 0


class Heartbeat:
    """This process's record in a fill's `workers` folder, renewed by a thread until `stop`."""

    def __init__(self, root: CacheRoot, kind: FileSystem) -> None:
        self.owner = Owner.new()
        self.tally = Tally()
        self._root = root
        self._folder = root.temporary
        self._sync = kind.remote
        self._period = HEARTBEAT_REMOTE if kind.remote else HEARTBEAT_LOCAL
        self._descriptor = -1
        self._heard = 0.0
        self._periodic = Periodic("dsv-heartbeat", self._say_alive, first=self._period)

    def enlist(self, folder: Path) -> None:
        """Puts the record into a `workers` folder, before the fill appears or before the first claim.

        Raises `OSError`.
        """
        self._folder = folder
        # It appears with its content and its rights: others read it as soon as it has a name.
        draft = self._root.temporary / f".worker-{self.owner.id}"
        self._descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(self._descriptor, self._root.file_mode | 0o200)  # to open it again, if need be
            self._write(left=False)
            draft.rename(folder / self.owner.id)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def start(self, folder: Path) -> None:
        """Begins with the heartbeat; `folder` is where the record is by now."""
        self._folder = folder
        self._periodic.start()

    def stop(self) -> None:
        """Tells others that this process has left, unless the fill has ended."""
        self._periodic.stop()
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._write(left=True)
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):  # it may report once more what was lost
                os.close(descriptor)

    def _say_alive(self) -> float:
        with contextlib.suppress(OSError):  # an unplugged server, or a fill that has ended: others decide
            self._write(left=False)
        return self._period

    def _write(self, *, left: bool) -> None:
        tally = self.tally
        if not left:  # who leaves needs no time, which a full disk may refuse to tell
            self._heard = self._root.time_in(self._folder)
        worker = Worker(
            owner=self.owner,
            heard=self._heard,
            left=left,
            entries=tally.entries,
            bytes=tally.bytes,
            written=tally.written,
            made=tally.made,
            fetched=tally.fetched,
            linked=tally.linked,
        )
        data = msgspec.json.encode(worker).ljust(_RECORD_SIZE)
        try:
            self._put(data)
        except OSError as error:
            if error.errno not in (*FORGOTTEN, errno.ESTALE):
                raise
            lost = self._descriptor
            self._descriptor = os.open(
                self._folder / self.owner.id, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            with contextlib.suppress(OSError):  # it may report once more that it is lost
                os.close(lost)
            self._put(data)

    def _put(self, data: bytes) -> None:
        os.pwrite(self._descriptor, data, 0)
        if self._sync:
            os.fsync(self._descriptor)


def read_worker(folder: Path, owner: str) -> Worker | None:
    """None if there is none, or none that can be read. Raises `OSError`."""
    for _ in range(3):  # it was read while it was written
        data = read_small(folder / owner)
        if data is None:
            return None
        with contextlib.suppress(msgspec.DecodeError):
            return _WORKER.decode(data)
    return None


def read_workers(folder: Path) -> dict[str, Worker]:
    """All of a fill's, by owner id. Raises `OSError`."""
    found = {name: read_worker(folder, name) for name in list_names(folder)}
    return {name: worker for name, worker in found.items() if worker is not None}
