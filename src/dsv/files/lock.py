"""A lock for one sync at a time in a workspace, on a local disk or on NFS, without flock.

A folder holds numbered files, one for each time that the lock was taken. The highest number is the lock, and
`NUMBER.free` beside it marks it as released. A process takes the lock by making the next number, which only
one of several can do (put-if-absent by link). The highest number is never removed, so numbers never repeat,
and a process that acted on an old listing finds a higher number when it lists again after its own success.

A killed holder is detected at once on its own host, where its process no longer exists. For other hosts it is
dead after `STALE_AFTER` seconds without a heartbeat: it writes the file server's time into the lock when it
takes it, and into `NUMBER.alive` every few seconds. The times are contents, not the mtime of a file, because
an NFS client may date a file by its own clock (see `files.attributes.server_time`), and a host whose clock is a
minute slow would lose a lock that it holds.
"""

from __future__ import annotations

import contextlib
import errno
import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec

from dsv.errors import Conflict
from dsv.files.attributes import server_time
from dsv.files.errors import about
from dsv.files.process import Fate, Process, host_name
from dsv.files.small_files import read_file, replace_file, write_once
from dsv.periodic import NEVER, Periodic

HEARTBEAT_EVERY = 10.0  # seconds
STALE_AFTER = 60.0  # seconds: several heartbeats, so that no holder loses its lock to a busy file server
_ATTEMPTS = 16
_FREE = ".free"
_ALIVE = ".alive"


class LockOwner(msgspec.Struct, frozen=True):
    """The process that took the lock. Two owners are the same only if their `id` is."""

    id: str
    system: str
    """`system`, `pid` and `started` are described at `files.process.Process`."""
    pid: int
    started: int
    host: str
    """For people to read, never compared."""
    action: str
    """The owner's command, for messages."""
    taken: float = 0.0
    """Seconds since 1970 by the file server's clock; 0 in locks of versions that did not record it."""

    @classmethod
    def here(cls, action: str, taken: float = 0.0) -> LockOwner:
        """Return a new owner: this process, for `action`."""
        here = Process.here()
        return cls(os.urandom(16).hex(), here.kernel, here.pid, here.start, host_name(), action, taken)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> LockOwner | None:
        """Return None unless the data is a complete owner's record."""
        with suppress(msgspec.DecodeError):
            return _OWNER.decode(data)
        return None

    def fate(self) -> Fate:
        """Return whether the process runs, if this process can know it."""
        return Process(self.system, self.pid, self.started).fate()


_OWNER = msgspec.json.Decoder(LockOwner)


class LockHeld(msgspec.Struct, frozen=True):
    """Another process has the lock. `owner` is None if its record can't be read."""

    owner: LockOwner | None

    def refusal(self, place: Path | str) -> Conflict:
        who = "another command"
        if self.owner is not None:
            who = f"{self.owner.action} (process {self.owner.pid} on {self.owner.host})"
        return Conflict(
            f"{who} is at work in {place}",
            subject=str(place),
            hint="wait for it to end, then run the command again",
        )


class Lock(AbstractContextManager["Lock"]):
    """A lock that this process holds. Release it, or use it in a `with`. A killed process loses its lock."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._path = folder / _name(number)
        self._number = number
        self._released = False
        self._lost = False
        self._heartbeat = Periodic("dsv-lock", self._say_alive, first=HEARTBEAT_EVERY)
        self._heartbeat.start()

    @classmethod
    def take(cls, folder: Path, action: str) -> Lock | LockHeld:
        """Return the lock, or its holder. `action` names the owner in messages, such as `dsv sync`."""
        with about(folder):
            folder.mkdir(exist_ok=True)
            owner = LockOwner.here(action, server_time(folder))
            for _ in range(_ATTEMPTS):
                numbers, free = _listing(folder)
                top = max(numbers, default=0)
                if top and top not in free:
                    holder = _holder(folder, top)
                    if holder is not None:
                        return holder
                if not write_once(folder / _name(top + 1), owner.encode()):
                    continue
                numbers, _ = _listing(folder)
                if max(numbers) > top + 1:
                    continue  # the listing was old: others have taken and released the lock since
                _remove_to(folder, top)
                return cls(folder, top + 1)
        return LockHeld(None)

    def check(self) -> None:
        """Raises `Conflict` if another host took over the lock, because this one sent no heartbeat."""
        with about(self._folder):
            if self._lost or max(_listing(self._folder)[0], default=0) != self._number:
                raise Conflict(
                    f"another host took over {self._folder.parent.parent}, as this command sent no heartbeat "
                    f"for {STALE_AFTER:.0f} seconds",
                    subject=str(self._folder.parent.parent),
                    hint="dsv status",
                )

    def release(self) -> None:
        """Release the lock. Further calls do nothing."""
        if not self._released:
            self._released = True
            self._heartbeat.stop()
            try:
                (self._folder / (_name(self._number) + _FREE)).touch()
            except OSError:  # the folder or disk is gone: the end of this process frees the lock too
                self._lost = True

    def __exit__(self, *_: object) -> None:
        self.release()

    def _say_alive(self) -> float:
        # A server may be unreachable for a moment; the next heartbeat may succeed.
        with contextlib.suppress(OSError):
            if not self._path.exists():
                self._lost = True
                return NEVER
            alive = self._path.with_name(self._path.name + _ALIVE)
            replace_file(alive, str(server_time(self._folder)).encode())
        return HEARTBEAT_EVERY


def _name(number: int) -> str:
    return f"{number:08d}"


def _remove_to(folder: Path, top: int) -> None:
    for path in folder.iterdir():
        number = path.name.partition(".")[0]
        if number.isdecimal() and int(number) <= top:
            path.unlink(missing_ok=True)


def _listing(folder: Path) -> tuple[list[int], set[int]]:
    """Return the taken numbers and the released ones."""
    names = [path.name for path in folder.iterdir()]
    numbers = [int(name) for name in names if name.isdecimal()]
    free = {int(name.removesuffix(_FREE)) for name in names if name.endswith(_FREE) and name[:1] != "."}
    return numbers, free


def _holder(folder: Path, number: int) -> LockHeld | None:
    """Return the holder of this number; None if its process is dead."""
    path = folder / _name(number)
    try:
        # Opening it, unlike stat, makes an NFS client ask the server for the content.
        owner = LockOwner.decode(read_file(path))
        fate = Fate.UNKNOWN if owner is None else owner.fate()
        if fate is Fate.UNKNOWN and server_time(folder) - _last_heartbeat(path, owner) > STALE_AFTER:
            fate = Fate.DEAD
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None  # released and taken again since the listing; the next one shows it
        raise
    return None if fate is Fate.DEAD else LockHeld(owner)


def _last_heartbeat(path: Path, owner: LockOwner | None) -> float:
    """Return the time of the holder's last heartbeat. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return float(read_file(path.with_name(path.name + _ALIVE)))
    return owner.taken if owner is not None and owner.taken else path.stat().st_mtime
