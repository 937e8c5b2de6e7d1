"""Processes: their identity across restarts of a host, users, hosts, and the number of processors."""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import os
import pwd
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import subprocess

_ZOMBIE = -1


class Fate(enum.Enum):
    """The state of a process, as far as it is known here."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It runs, or ran, under another kernel or in another pid namespace."""


class Process(msgspec.Struct, frozen=True):
    """One process of one boot of one kernel."""

    kernel: str
    """The boot id and the namespaces in which `pid` and `start` are valid; empty if unknown."""
    pid: int
    start: int
    """The process's start in clock ticks since boot, as pids are reused; 0 if unknown."""

    @classmethod
    def here(cls) -> Process:
        """Return this process. Call it again after a fork."""
        pid = os.getpid()
        return cls(_kernel(pid), pid, max(_start(pid) or 0, 0))

    def fate(self) -> Fate:
        """Return whether it runs, as far as this process can know. A zombie counts as dead."""
        if not self.kernel or self.kernel != _kernel(os.getpid()) or self.pid <= 0 or not self.start:
            return Fate.UNKNOWN
        start = _start(self.pid)
        if start is None:
            return Fate.UNKNOWN if _exists(self.pid) else Fate.DEAD
        return Fate.ALIVE if start == self.start else Fate.DEAD


class Watched:
    """A process of this kernel, of any user."""

    def __init__(self, pid: int, start: int = 0) -> None:
        """`start` is `Process.start`; 0 for the process that has this pid now."""
        self.descriptor: int | None = None
        """A pidfd, readable once the process has ended; None if it can't be opened."""
        with contextlib.suppress(OSError):
            self.descriptor = os.pidfd_open(pid)  # before its start is read, so that both are of one process
        self.process = Process(_kernel(os.getpid()), pid, start or max(_start(pid) or 0, 0))
        self._was_another = bool(start) and self.process.fate() is Fate.DEAD

    def has_ended(self) -> bool:
        """Return whether it has ended, even if it waits to be reaped. True only if this kernel knows it."""
        if self._was_another:
            return True
        if self.descriptor is not None:
            return bool(select.select([self.descriptor], [], [], 0)[0])
        return self.process.fate() is Fate.DEAD or not _exists(self.process.pid)

    def program(self) -> str:
        """Return the name of its program, for people; "" if it can't be read."""
        try:
            return Path(f"/proc/{self.process.pid}/comm").read_text(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def user_name(uid: int | None = None) -> str:
    """Return a user's name, by default this process's; `uid-1234` without a name, as in many containers."""
    if uid is None:
        uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def host_name() -> str:
    """Return the host's name for people to read. Never compare it."""
    return os.uname().nodename


@functools.cache
def _kernel(pid: int) -> str:
    """Return `Process.kernel` of this process. `pid` is its own: after a fork, the cache does not match."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [Path("/proc/self/ns/pid").stat().st_ino]
        time = Path("/proc/self/ns/time")  # shifts the start times that /proc shows
        if time.exists():
            spaces.append(time.stat().st_ino)
    except OSError:
        return ""
    return ":".join([boot, *map(str, spaces)])


def _start(pid: int) -> int | None:
    """Return a process's start; -1 if it ended and waits to be reaped, None if it can't be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _ZOMBIE if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's process, whose folder in /proc may be hidden from us
    return True


def processors() -> int:
    """Return the number of processors for this process; a batch system may restrict it."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def why_not_started(
    command: str, number: int, environ: Mapping[str, str], cwd: Path | None = None
) -> tuple[int, str]:
    """Return the exit code and the reason, as a shell has them, for an error of exec: 127 if no file was
    found, 126 if it exists and can't be run, 125 if the system had no room for it.

    The error is EACCES also for a command that does not exist, if this user may not enter a folder of PATH.
    """
    missing = number in (errno.ENOENT, errno.ENOTDIR)
    if "/" in command:
        missing = missing and not os.path.lexists(Path(cwd or ".", command))
    elif missing or number == errno.EACCES:
        files = (Path(cwd or ".", folder, command) for folder in os.get_exec_path(environ))
        missing = not any(os.path.isfile(file) for file in files)  # noqa: PTH113 (Path.is_file raises EACCES)
    if missing:
        return 127, f"command not found: {command}"
    no_room = number in (errno.E2BIG, errno.ENOMEM, errno.EAGAIN)
    return 125 if no_room else 126, f"{command} can't be run: {os.strerror(number)}"


def start_program(module: str, order: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start a module of dsv as a process, which calls `read_order`. Its stdin is a pipe, which stays open.

    The order is sent through the pipe, because it may hold secrets, which a list of processes would show.
    Raises `OSError`. options: of `Popen`.
    """
    import pickle
    import subprocess

    # -P: files in the current folder are data, whatever their names. utf8: both processes decode names alike.
    program = [sys.executable, "-P", "-X", f"utf8={sys.flags.utf8_mode}", "-m", module]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, **options)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(pickle.dumps([one for one in sys.path if one]) + pickle.dumps(order))
        process.stdin.flush()
    return process


def read_order() -> Any:
    """Return the order that this process was started with. Import from where its parent does."""
    import pickle

    with open(0, "rb", closefd=False) as given:
        sys.path[:] = pickle.load(given)
        return pickle.load(given)
