"""Calls that may hang in the kernel, as nothing that waits for a file server can be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Patient:
    """Makes calls in threads of its own, so that callers can wait with a timeout.

    A call may continue after its caller's timeout, but its thread does not keep the process alive.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._most = threads
        self._started = 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """For one thread to ask. `Future.result(timeout)` waits, and raises `TimeoutError` or what the call raised."""
        future: Future[T] = Future()
        self._calls.put(lambda: _answer(future, call))
        if self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """End the threads once they have made the calls that were asked for, without waiting for that."""
        for _ in range(self._started):
            self._calls.put(None)
        self._started = self._most

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _answer(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 (whoever waits gets it)
        future.set_exception(error)
