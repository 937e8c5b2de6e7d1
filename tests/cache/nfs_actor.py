"""The program of a host in the NFS tests: `python -m tests.cache.nfs_actor CACHE NAME ROLE`.

The test and the hosts communicate by files in /mnt/out, which is no NFS and works while a host is unplugged:
`NAME.said` is what the host has done, a line for each thing; `NAME.go` is how far the test lets it continue.
"""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cache.places import make_root, place, publish

from dsv.cache.claims import Intent, read_claims
from dsv.cache.evict import evict
from dsv.cache.leases import Lease, visible_identity
from dsv.cache.policy import EvictionRequest
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheSettings
from dsv.cli.main import main

ROOT = Path("/mnt/nfs") / sys.argv[1]
OUT = Path("/mnt/out")
ALL = EvictionRequest(everything=True)


class Line:
    """To the test and back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._gone_on = 0

    def say(self, text: str) -> None:
        with (OUT / f"{self.name}.said").open("a") as file:
            file.write(f"{text}\n")

    def wait(self) -> None:
        """Wait until the test lets this host continue once more."""
        while not self.is_told():
            time.sleep(0.05)
        self._gone_on += 1

    def is_told(self) -> bool:
        """Return whether the test let this host continue more often than it has waited."""
        path = OUT / f"{self.name}.go"
        return path.exists() and len(path.read_bytes()) > self._gone_on


def holder(line: Line, ttl: str) -> None:
    """Publish a commit, hold a lease on it, and report what becomes of the lease."""
    root = make_root(ROOT)
    publish(root, place(), {"a": b"1"}, age=1e6)
    lease = Lease.take(root, place(), "run", ttl=float(ttl)).hold()
    line.say(f"confirmed {lease.confirm()}")
    known = (True, False)
    while True:
        now = (lease.secure, lease.lost.is_set())
        if now != known:
            line.say(f"secure {now[0]} lost {now[1]}")
            known = now
        if now[1]:
            return
        time.sleep(0.05)


def evictor(line: Line) -> None:
    """Evict everything that may be evicted, each time that the test asks for it."""
    root = CacheRoot(ROOT)
    while True:
        line.wait()
        result = evict(root, CacheSettings(), ALL)
        kept = "; ".join(one.reason for one in result.kept)
        line.say(f"evicted {len(result.evicted)} kept {kept} failures {len(result.failed)}")


def old_commits(line: Line, count: str) -> None:
    root = make_root(ROOT)
    for number in range(int(count)):
        publish(root, place(number), {f"f{n}": b"x" for n in range(20)}, age=1e6)
    line.say("published")


def cron(line: Line) -> None:
    """Do what the crontab line does."""
    line.say("ready")
    line.wait()
    sys.argv[1:] = ["evict", "--cache", str(ROOT)]
    sys.exit(main())


def slow_evictor(line: Line) -> None:
    """Declares its intent, looks, and is held up before the rename."""
    root = CacheRoot(ROOT)
    intent = Intent.declare(root, place(), root.now())
    line.say(f"protected {read_claims(root, place()).protecting(root.now())}")
    line.wait()
    line.say("renaming")
    line.say("evicted" if intent.rename_to_trash(root.visible(place())) else "too late")


def taker(line: Line) -> None:
    """Wait until the commit is visible, and take a lease when the test asks for it."""
    root = CacheRoot(ROOT)
    while not (root.visible(place()).path / "a").exists():
        time.sleep(0.1)
    line.say("seen")
    line.wait()
    with Lease.take(root, place(), "run") as lease:
        line.say(f"confirmed {lease.confirm()}")
        line.wait()
        line.say(f"there {_is_there(root)} lost {lease.lost.is_set()}")


def _is_there(root: CacheRoot) -> bool:
    """A server that forgot this host, because the machine stood still, refuses one request with EIO."""
    while True:
        try:
            return visible_identity(root, place()) is not None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            time.sleep(0.1)


def crowd(line: Line, what: str, seconds: str) -> None:
    """Take leases and check that nothing is evicted, or evict, as fast as possible.

    It takes at least `seconds`, and lasts until the test lets it continue; the first success is reported to the test.
    """
    root = make_root(ROOT)
    line.say("ready")
    line.wait()
    end = time.monotonic() + float(seconds)
    done = torn = 0
    while time.monotonic() < end or not line.is_told():
        before = done
        if what == "evict":
            done += len(evict(root, CacheSettings(), ALL).evicted)
        else:
            held, gone = _take(root)
            done, torn = done + held, torn + gone
        if done and not before:
            line.say("begun")
    line.say(f"done {done} torn {torn}")


def _take(root: CacheRoot) -> tuple[int, int]:
    """Return whether a lease was held, and how often the data that it protects was missing."""
    with Lease.take(root, place(), "run") as lease:
        torn = 0
        if not lease.confirm():
            try:
                publish(root, place(), {"a": b"1", "b/c": b"2"})
            except OSError:
                return 0, 0  # another published first
            torn += not lease.confirm()
        return 1, torn + sum(not (root.visible(place()).path / "b/c").exists() for _ in range(3))


ROLES: dict[str, Callable[..., None]] = {
    "holder": holder, "evictor": evictor, "slow_evictor": slow_evictor, "taker": taker, "crowd": crowd,
    "old_commits": old_commits, "cron": cron,
}  # fmt: skip

if __name__ == "__main__":
    # All hosts have one name, as machines made from one image have; only now, since the Linux client gives
    # the NFS server its name when it mounts, and two clients of one name take each other's state away.
    socket.sethostname("node")
    ROLES[sys.argv[3]](Line(sys.argv[2]), *sys.argv[4:])
