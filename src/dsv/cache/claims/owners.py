"""Who holds a claim: a random id, and enough about the process to see at once, on its own host, that it died.

Host names and pids are no identity: two hosts may share both. The id decides; the rest only lets a process of
the same kernel, which alone can know, skip the wait for an expiry.
"""

from __future__ import annotations

import functools
import os
import platform
import pwd
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One holder of claims. Two are the same only if their `id` is.

    kernel: boot id and the namespaces in which `pid` and `start` mean something; "" where that is unknown.
    start: the process's start in clock ticks since boot, so that a reused pid is not taken for the old one.
    host, user: for people to read, never compared.
    """

    id: str
    host: str = ""
    user: str = ""
    kernel: str = ""
    pid: int = 0
    start: int = 0

    @classmethod
    def new(cls) -> Owner:
        """A new owner in this process; ask for one per claim or worker, and again after a fork."""
        pid = os.getpid()
        return cls(
            id=os.urandom(16).hex(),
            host=platform.node(),
            user=user_name(),
            kernel=_kernel(),
            pid=pid,
            start=_start(pid) or 0,
        )

    def same_process(self, other: Owner) -> bool:
        """False only where it is known that these are claims of two processes."""
        return (self.kernel, self.pid, self.start) == (other.kernel, other.pid, other.start)

    def surely_dead(self) -> bool:
        """True only where this kernel knows that the process is gone; False: alive, or not for us to know."""
        if not self.kernel or self.kernel != _kernel() or self.pid <= 0 or not self.start:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # another user's process; its /proc entry may be hidden from us, and then nothing is known
        except OSError:
            return False
        start = _start(self.pid)
        return start is not None and start != self.start


def user_name() -> str:
    """The user's name, or the uid where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


@functools.cache
def _kernel_of(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [Path("/proc/self/ns/pid").stat().st_ino]
        time = Path("/proc/self/ns/time")  # shifts the start times that /proc shows
        if time.exists():
            spaces.append(time.stat().st_ino)
    except OSError:
        return ""
    return ":".join([boot, *map(str, spaces)])


def _kernel() -> str:
    return _kernel_of(os.getpid())


def _start(pid: int) -> int | None:
    """Start of a process in ticks; 0 for one that only waits to be reaped, None where it can't be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
