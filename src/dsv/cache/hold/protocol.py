"""How a keeper is started and spoken to: a process that holds places of a cache for as long as another lives.

It is a process in a session of its own. So it goes on renewing while the watched process is stopped, and it survives
the terminal and the process that started it. This module imports little, as the attendant imports it: that process
lives as long as the command.

    to it:      its order, one line of JSON; then `watch PID`, to watch another process instead; `done`, to end
    from it:    `held ID...`; or `gone PLACE`, if a commit was evicted first, or `failed ERRNO PATH`; later
                `lost REASON`
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Self

import msgspec
from msgspec.structs import asdict, replace

PROGRAM = "dsv.cache.hold.lease_holder"


class Order(msgspec.Struct, frozen=True):
    """places: each a dataset's component and a name. pid: the process to watch; it began at tick `start` of its
    kernel, 0 if that is unknown. program: what it runs, as people are told. replaces: ids of the leases of keepers
    that were killed, which nobody renews. run, job: the run and the batch job that the process is part of, if any."""

    root: str
    places: tuple[tuple[str, str], ...]
    pid: int
    start: int
    program: str
    replaces: tuple[str, ...] = ()
    run: str | None = None
    job: str | None = None

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str | bytes) -> Self:
        fields = json.loads(text)
        fields["places"] = tuple((dataset, name) for dataset, name in fields["places"])
        fields["replaces"] = tuple(fields["replaces"])
        return cls(**fields)

    def after(self, held: str) -> Self:
        """The order for a new keeper if the one that answered this line is killed."""
        return replace(self, replaces=(*self.replaces, *held.split()[1:]))

    def watching(self, pid: int) -> Self:
        """The same for a child of this process that is not reaped yet, so that no other process has its pid."""
        return replace(self, pid=pid, start=0)


class Keeper(msgspec.Struct):
    """A keeper that was started. pid: its process, a child of this one; commands, answers: the ends of its pipes."""

    pid: int
    commands: int
    answers: int
    _unread: bytes = b""

    @classmethod
    def start(cls) -> Self:
        """Raises `OSError`. It waits for its order, and ends if its pipes are closed before that."""
        process = subprocess.Popen(
            # -P: what lies in the folder where the command was given is data, whatever its name.
            [sys.executable, "-P", "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        keeper = cls(process.pid, os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()))
        process.stdin.close()
        process.stdout.close()
        process.returncode = 0  # no warning of Popen about a process that it did not wait for
        return keeper

    def hold(self, order: Order) -> None:
        """Its answer is still to be read."""
        self.tell(order.encode())

    def tell(self, line: str) -> None:
        """Send a line. If the keeper is gone, `answer` says so."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.commands, line.encode() + b"\n")

    def answer(self, seconds: float) -> str | None:
        """The next line of what it says, "" if it has ended, None after so long without one."""
        while b"\n" not in self._unread:
            if not select.select([self.answers], [], [], seconds)[0]:
                return None
            data = os.read(self.answers, 4096)
            if not data:
                return ""
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def close(self) -> None:
        """Close the pipes; the keeper goes on."""
        os.close(self.commands)
        os.close(self.answers)
