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
    until its next call, and must not raise. first: seconds before the first call."""

    def __init__(self, name: str, work: Callable[[], float], *, first: float = 0.0) -> None:
        self._work = work
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
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
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait = self._first
        while wait != NEVER and not self._stop.wait(wait):
            wait = self._work()


def now_ms() -> int:
    """Return milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
