"""Who holds a workspace's lock: a random id, and what tells at once, on its own host, that the process died.

Host names and pids are no identity: two hosts may share both, and so may two containers of one host.
"""

from __future__ import annotations

import enum
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import msgspec


class Fate(enum.Enum):
    """What can be said of a process from here."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It runs, or ran, under another kernel or in another pid namespace."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One holder. Two are the same only if their `id` is.

    system: boot id and pid namespace, within which `pid` means something; empty where that can't be known.
    started: the process's start in clock ticks since boot: pids are used again.
    host: for people to read, never compared.
    """

    id: str
    system: str
    pid: int
    started: int
    host: str
    action: str

    @classmethod
    def here(cls, action: str) -> Owner:
        """A new owner in this process, which is about to do `action`."""
        pid = os.getpid()
        return cls(os.urandom(16).hex(), _system(), pid, _started(pid) or 0, platform.node(), action)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Owner | None:
        """None for what is no owner's record, or only the first part of one."""
        try:
            return _OWNER.decode(data)
        except msgspec.DecodeError:
            return None

    def fate(self) -> Fate:
        """Whether the process runs, where this process can know it."""
        if not self.system or self.system != _system() or self.pid <= 0 or not self.started:
            return Fate.UNKNOWN
        started = _started(self.pid)
        if started is None:
            return Fate.UNKNOWN if _exists(self.pid) else Fate.DEAD
        return Fate.ALIVE if started == self.started else Fate.DEAD


_OWNER = msgspec.json.Decoder(Owner)


def _system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}:{Path('/proc/self/ns/time').stat().st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process started; -1 for one that ended and waits to be reaped, None where that can't be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
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
