"""What a job writes, on its way to the terminal and into the log.

For each of its two streams one thread reads and one writes, with a bounded queue between them: a terminal
that is slow slows the job, as a pipe would, but one that is stuck can be let go of, so that it keeps no job
from ending. When the terminal's reader has gone (`| head`), the job goes on and its log stays whole.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import termios
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic, sleep
from typing import IO, Final

from dsv.engines.log import LogKeeper

READ_SIZE: Final = 1 << 16
QUEUE_SIZE: Final = 4 << 20
"""Bytes of one stream that may wait for the terminal."""
TAIL_SIZE: Final = 4 << 10
LAST_READ: Final = 5.0
"""Seconds for which a stream is read on once the job has ended and all that it wrote was read: what got away from
the job may hold it open, and go on writing."""


class _Stream:
    """One stream. sink: a descriptor of the caller's, None to drop it."""

    def __init__(self, sink: int | None, log: LogKeeper | None) -> None:
        self.tail = b""
        self._name = ""
        self._sink = sink
        self._log = log
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._change = Condition()
        self._reading = False
        self._writing = False
        self._dropping = sink is None
        self._full = False
        self._left: int | None = None  # once it is over: bytes that the job has left in the pipe
        self._in_hand = True  # and whether some of its bytes may be on their way from there into the queue
        self._since = 0.0
        self._reads = 0
        self._seen = -1
        self._source: IO[bytes] | None = None

    def start(self, source: IO[bytes], name: str) -> None:
        self._source = source
        self._name = name
        self._reading = self._writing = True
        Thread(target=self._read, args=(source,), name=f"dsv-{name}-reader", daemon=True).start()
        Thread(target=self._write, name=f"dsv-{name}-writer", daemon=True).start()

    def let_go(self) -> None:
        with self._change:
            self._dropping = True
            self._queue.clear()
            self._queued = 0
            self._change.notify_all()

    def job_ended(self) -> None:
        with self._change:
            self._since = monotonic()
            self._left = _waiting(self._source)

    def settled(self) -> bool:
        """Whether all of it was read, and written or dropped."""
        with self._change:
            if self._reading and self._left is not None and self._ran_out():
                self._reading = False
                self._change.notify_all()
            return not self._reading and (not self._writing or self._dropping)

    def _ran_out(self) -> bool:
        """Whether the rest, if there will be any, is of something that got away from the job."""
        if monotonic() - self._since <= LAST_READ:
            return False
        if self._all_came():
            return True
        # Seen twice: what has just left the pipe may not be in the queue yet.
        quiet = not self._full and not _waiting(self._source)
        seen, self._seen = self._seen, self._reads if quiet else -1
        return quiet and seen == self._reads

    def _all_came(self) -> bool:
        return self._left is not None and self._left <= 0 and not self._in_hand

    def was_read(self) -> bool:
        return not self._reading

    def _read(self, source: IO[bytes]) -> None:
        with source:
            while (data := os.read(source.fileno(), READ_SIZE)) and self._reading:
                self._reads += 1
                if self._log is not None:
                    self._log.add(data, self._name)
                self.tail = (self.tail + data)[-TAIL_SIZE:]
                self._enqueue(data)
        with self._change:
            self._reading = False
            self._change.notify_all()

    def _enqueue(self, data: bytes) -> None:
        with self._change:
            self._full = self._queued >= QUEUE_SIZE
            self._change.wait_for(lambda: self._dropping or self._queued < QUEUE_SIZE)
            if self._full and not self._all_came():  # what comes after the job's own earns no more time
                self._since = monotonic()
            self._full = False
            if self._in_hand:
                self._in_hand = self._left is None
            elif self._left is not None:
                self._left -= len(data)
            if not self._dropping:
                self._queue.append(data)
                self._queued += len(data)
                self._change.notify_all()

    def _write(self) -> None:
        while (data := self._next()) is not None:
            try:
                self._send(data)
            except (
                OSError
            ):  # the terminal is gone, or its disk full: the job is worth more than the view of it
                self.let_go()
        with self._change:
            self._writing = False
            self._change.notify_all()

    def _next(self) -> bytes | None:
        with self._change:
            self._change.wait_for(lambda: self._queue or not self._reading)
            if not self._queue:
                return None
            data = self._queue.popleft()
            self._queued -= len(data)
            self._change.notify_all()
            return data

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._dropping:
            assert self._sink is not None  # without one nothing is queued
            try:
                view = view[os.write(self._sink, view) :]
            except BlockingIOError:  # a terminal that somebody has set so
                select.select([], [self._sink], [], 1.0)


class Output:
    """Where a job's stdout and stderr go. The descriptors stay the caller's."""

    def __init__(self, stdout: int | None, stderr: int | None, log: LogKeeper | None = None) -> None:
        self._stdout = _Stream(stdout, log)
        self._stderr = _Stream(stderr, log)

    def attach(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Begins reading these two, which are closed when they end. Once only."""
        self._stdout.start(stdout, "stdout")
        self._stderr.start(stderr, "stderr")

    def let_go(self) -> None:
        """Waits for the terminal no more. The log still gets everything."""
        self._stdout.let_go()
        self._stderr.let_go()

    def job_ended(self) -> None:
        """From now on a stream that nothing comes from for a while counts as ended."""
        self._stdout.job_ended()
        self._stderr.job_ended()

    def settled(self, seconds: float) -> bool:
        """Waits for at most so long; whether all was read, and has reached the terminal or never will."""
        return _wait(lambda: self._stdout.settled() and self._stderr.settled(), seconds)

    def was_read(self, seconds: float) -> bool:
        """Waits for at most so long; whether both streams have come to their end."""
        return _wait(lambda: self._stdout.was_read() and self._stderr.was_read(), seconds)

    def last_line(self) -> str:
        """The last line on stderr that says something: the reason, if a launch has failed."""
        lines = [line.strip() for line in self._stderr.tail.decode("utf-8", "replace").splitlines()]
        said = [line for line in lines if line and not line.startswith(("See '", "Run '"))]
        return said[-1] if said else ""


def _waiting(source: IO[bytes] | None) -> int:
    """How many bytes are in a pipe."""
    try:
        answer = b"" if source is None else fcntl.ioctl(source, termios.FIONREAD, bytes(4))
    except (OSError, ValueError):  # closed meanwhile
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = monotonic() + seconds
    pause = 0.001
    while not condition():
        if monotonic() >= deadline:
            return False
        sleep(pause)
        pause = min(2 * pause, 0.05)
    return True
