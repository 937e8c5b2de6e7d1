"""The clock of this machine, and work that a thread repeats, such as renewing a claim or taking a sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], int]

NEVER: Final = float("inf")
"""The result of `work` that should not be called again."""


class Periodic:
    """Calls `work` in a thread of its own until it is stopped or the process ends. `work` returns the seconds
    until its next call, and must not raise; `stop` drops it, so that no cycle keeps an owner whose method it
    is. first: seconds before the first call."""

    def __init__(self, name: str, work: Callable[[], float], *, first: float = 0.0) -> None:
        self._work = work
        self._first = first
        self._stop = threading.Event()
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """True if `stop` was called, for work that takes long."""
        return self._stop.is_set()

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread and wait for the work under way. May be called again, or without `start`.

        timeout: seconds to wait at most, for work that may hang in the kernel. Returns False if it still
        runs.
        """
        self._stop.set()
        self._work = _nothing
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _run(self) -> None:
        wait = self._first
        while wait != NEVER and not self._stop.wait(wait):
            wait = self._work()


def _nothing() -> float:
    return NEVER


def now_ms() -> int:
    """Return milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
