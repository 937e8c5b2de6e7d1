"""Signals that are for the job, caught and kept in order until somebody passes them on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those after which a job is expected to end."""
TELLING: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""Those that tell it something, such as Slurm's warning before the time is up."""


class Signals:
    """A queue of signal numbers. `wake` makes a waiter look up without one."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[int | None] = SimpleQueue()

    def send(self, number: int) -> None:
        self._queue.put(number)

    def wake(self) -> None:
        self._queue.put(None)

    def next(self, seconds: float) -> int | None:
        """The next signal; None after so long, or when woken."""
        try:
            return self._queue.get(timeout=seconds)
        except Empty:
            return None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """While this lasts, the process's signals come here. Outside the main thread it changes nothing.

        What the caller ignores (under nohup, in the background of a script) stays ignored.
        """
        with _handled((*ENDING, *TELLING), self._handle):
            yield

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._queue.put(number)


@contextmanager
def spared() -> Iterator[None]:
    """While this lasts, signals that end nothing do nothing: there is no job yet that they could tell, or none any
    more. Not ignored, which what is started here would inherit. Else as `Signals.caught`, which takes precedence.
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
