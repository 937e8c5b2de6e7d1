"""Signals for the job, caught and queued until they are passed on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from dsv.errors import Interrupted

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They ask a job to end."""
TELLING: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""They only tell a job something, such as Slurm's warning before the time limit."""


class Signals:
    """A queue of signal numbers. `wake` ends a wait without a signal."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._raises = False

    def send(self, number: int) -> None:
        self._queue.put(number)

    def wake(self) -> None:
        self._queue.put(None)

    def next(self, seconds: float) -> int | None:
        """The next signal; None after so many seconds, or after `wake`."""
        try:
            return self._queue.get(timeout=seconds)
        except Empty:
            return None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Meanwhile the process's signals come here. Outside the main thread it changes nothing.

        Signals that the caller ignores (under nohup, in the background of a script) stay ignored.
        """
        with _handled((*ENDING, *TELLING), self._handle):
            yield

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Within `caught`: meanwhile those that ask for an end raise `Interrupted`, as there is no job to get them."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._raises and number in ENDING:
            raise Interrupted(f"it was interrupted by {signal.Signals(number).name}")
        self._queue.put(number)


@contextmanager
def spared() -> Iterator[None]:
    """Meanwhile the signals that only tell a job something do nothing: there is no job yet, or none any more.

    They are handled and not ignored, because child processes inherit what is ignored. `Signals.caught` inside of this
    takes precedence.
    """
    with _handled(TELLING, lambda number, frame: None):
        yield


@contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    try:
        for number in numbers:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
