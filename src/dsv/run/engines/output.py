"""The output of a job, on its way to the terminal and into the log.

For each of the two streams one thread reads and one writes, with a bounded queue between them. A slow terminal slows
the job, as a pipe does. A stuck one can be let go of, so that it keeps no job from ending. If the terminal's reader
has gone (`| head`), the job goes on and its log stays whole.
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

from dsv.run.engines.log import LogKeeper, Rejoin

READ_SIZE: Final = 1 << 16
QUEUE_SIZE: Final = 4 << 20
"""Bytes of one stream that may wait for the terminal."""
TAIL_SIZE: Final = 4 << 10
LAST_READ: Final = 5.0
"""Seconds for which a stream is read on after the job's end, once all that the job wrote has been read: a process that
got away from the job may hold it open, and go on writing."""


class _Stream:
    """One stream, read from one source after another. `sink` is the caller's descriptor; None discards the data."""

    def __init__(self, name: str, sink: int | None, log: LogKeeper | None) -> None:
        self.tail = b""
        self.rejoin = Rejoin(0, b"")
        self._name = name
        self._sink = sink
        self._log = log
        self._change = Condition()
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._dropping = sink is None
        self._writing = False
        self._source: IO[bytes] | None = None
        self._given_up = False
        self._count = 0  # bytes of the job's, since it was attached
        self._taken = 0  # bytes out of all pipes
        self._passed = 0  # those of them that are in the queue, or were dropped
        self._owed: int | None = None  # once the job is over: how far what it wrote itself reaches
        self._since = 0.0

    def start(self, source: IO[bytes], *, again: bool) -> None:
        """again: the source begins with what was read before. The one before must have been read."""
        self.rejoin = Rejoin(self._count, self.tail) if again else Rejoin(0, b"")
        if not again:
            self._count, self.tail = 0, b""
        with self._change:
            self._source, writing, self._writing = source, self._writing, True
        Thread(target=self._read, args=(source,), name=f"dsv-{self._name}-reader", daemon=True).start()
        if not writing:
            Thread(target=self._write, name=f"dsv-{self._name}-writer", daemon=True).start()

    def let_go(self) -> None:
        with self._change:
            self._dropping = True
            self._queue.clear()
            self._queued = 0
            self._change.notify_all()

    def job_ended(self) -> None:
        with self._change:
            self._since = monotonic()
            self._owed = self._taken + (0 if self._source is None else _waiting(self._source))

    def settled(self) -> bool:
        """Check that all of it was read, and written or dropped."""
        with self._change:
            over = self._owed is not None and self._passed >= self._owed
            if self._source is not None and over and monotonic() - self._since > LAST_READ:
                self._given_up = True
                self._change.notify_all()
            return self.was_read() and (not self._writing or self._dropping)

    def was_read(self) -> bool:
        return self._source is None or self._given_up

    def _read(self, source: IO[bytes]) -> None:
        with source:
            ready = select.poll()
            ready.register(source, select.POLLIN)
            while ready.poll() and (data := self._take(source)):
                fresh = self.rejoin.take(data)
                self._count += len(fresh)
                self.tail = (self.tail + fresh)[-TAIL_SIZE:]
                if self._log is not None and fresh:
                    self._log.add(fresh, self._name)
                self._enqueue(fresh, len(data))
        with self._change:
            self._source = None
            self._change.notify_all()

    def _take(self, source: IO[bytes]) -> bytes:
        """Read the next bytes, counted in the moment in which they leave the pipe: `job_ended` counts what is in it."""
        with self._change:
            data = b"" if self._given_up else os.read(source.fileno(), READ_SIZE)
            self._taken += len(data)
        return data

    def _enqueue(self, data: bytes, taken: int) -> None:
        with self._change:
            self._change.wait_for(lambda: self._dropping or self._queued < QUEUE_SIZE)
            if self._owed is not None and self._passed < self._owed:
                self._since = monotonic()  # the job's own: what comes after that earns no more time
            self._passed += taken
            if not self._dropping and not self._given_up:
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

    def _next(self) -> bytes | None:
        with self._change:
            self._change.wait_for(lambda: self._queue or self.was_read())
            if not self._queue:
                self._writing = False
                self._change.notify_all()
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
    """The destinations of a job's stdout and stderr. Their descriptors stay open."""

    def __init__(self, stdout: int | None, stderr: int | None, log: LogKeeper | None = None) -> None:
        self._stdout = _Stream("stdout", stdout, log)
        self._stderr = _Stream("stderr", stderr, log)

    def tell(self, stderr: IO[bytes]) -> None:
        """Show the messages of an engine before the job begins. Call it again only when they were read."""
        self._stderr.start(stderr, again=False)

    def attach(self, stdout: IO[bytes], stderr: IO[bytes], *, again: bool = False) -> None:
        """Begin to read these two, which are closed when they end. Those before them must have been read.

        again: both begin anew with the job's first byte, and what was read of it is passed over; see `fits`.
        """
        self._stdout.start(stdout, again=again)
        self._stderr.start(stderr, again=again)

    @property
    def fits(self) -> bool:
        """True if what was attached again continued where the reading had ended; if not, nothing of it was taken."""
        return self._stdout.rejoin.fits and self._stderr.rejoin.fits

    def let_go(self) -> None:
        """Stop waiting for the terminal. The log still gets everything."""
        self._stdout.let_go()
        self._stderr.let_go()

    def job_ended(self) -> None:
        """Count a stream that nothing comes from for a while as ended from now on."""
        self._stdout.job_ended()
        self._stderr.job_ended()

    def settled(self, seconds: float) -> bool:
        """Wait for at most so long until all was read, and has reached the terminal or never will."""
        return _wait(lambda: self._stdout.settled() and self._stderr.settled(), seconds)

    def was_read(self, seconds: float) -> bool:
        """Wait for at most so long until both streams have ended."""
        return _wait(lambda: self._stdout.was_read() and self._stderr.was_read(), seconds)

    def last_line(self) -> str:
        """Return the last line on stderr that says something: the reason, if a launch has failed."""
        lines = [line.strip() for line in self._stderr.tail.decode("utf-8", "replace").splitlines()]
        said = [line for line in lines if line and not line.startswith(("See '", "Run '"))]
        return said[-1] if said else ""


def _waiting(source: IO[bytes]) -> int:
    """Return the number of bytes in a pipe."""
    try:
        answer = fcntl.ioctl(source, termios.FIONREAD, bytes(4))
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
