"""Many small file operations in flight at once, where each of them is a round trip to a file server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

# Small files whose content waits to be written; more would only cost memory.
_IN_FLIGHT_BYTES = 64 << 20


class Pool:
    """Threads that run tasks in any order. With 0 threads each task runs at once, in the caller.

    The first error of a task is raised to the caller at its next `run` or `drain`.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._tasks_open = 0
        self._bytes_open = 0
        self._error: BaseException | None = None
        self._started: list[threading.Thread] = []

    def run(self, task: Callable[[], None], size: int = 0) -> None:
        """Runs it some time; blocks while much is in flight. `size`: bytes that it holds in memory."""
        if not self.threads:
            task()
            return
        with self._state:
            while self._error is None and (
                self._tasks_open >= 2 * self.threads
                or (self._tasks_open and self._bytes_open + size > _IN_FLIGHT_BYTES)
            ):
                self._state.wait()
            self._raise()
            if len(self._started) < min(self.threads, self._tasks_open + 1):
                self._start()
            self._tasks_open += 1
            self._bytes_open += size
            self._tasks.put((task, size))

    def drain(self) -> None:
        """Returns when nothing is in flight."""
        with self._state:
            while self._tasks_open:
                self._state.wait()
            self._raise()

    def settle(self) -> None:
        """Returns when nothing is in flight; an error is kept for the next `run` or `drain`."""
        with self._state:
            while self._tasks_open:
                self._state.wait()

    def clear(self) -> None:
        """Returns when nothing is in flight; an error that nobody has heard of is dropped."""
        self.settle()
        self._error = None

    def close(self) -> None:
        """Waits for what is in flight; errors that nobody asked for are dropped."""
        for _ in self._started:
            self._tasks.put(None)
        for thread in self._started:
            thread.join()
        self._started.clear()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _start(self) -> None:
        """Raises `RuntimeError` if the system gives none, and there is none yet to do the work."""
        thread = threading.Thread(target=self._work, name="dsv-write", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._started:
                raise
            return
        self._started.append(thread)

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            task, size = item
            error: BaseException | None = None
            try:
                task()
            except BaseException as raised:  # noqa: BLE001 (handed to the caller)
                error = raised
            with self._state:
                self._tasks_open -= 1
                self._bytes_open -= size
                self._error = self._error or error
                self._state.notify_all()
