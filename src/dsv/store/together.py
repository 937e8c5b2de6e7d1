"""Asking a store several things at once: the answers then take one round trip, and not one each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")

_CONNECTIONS: Final = 16
_this_thread: Final = (
    threading.local()
)  # `busy`: as many requests as may be are under way without further ones


def both(one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
    """What the two calls return, made at the same time. Raises what `one` raised, else what `other` did.

    Both have ended by then; only a signal does not wait for them. One after the other if it is called by one of so
    many of `together` that no more should be under way.
    """
    if getattr(_this_thread, "busy", False):
        return one(), other()
    with _Threads(2) as pool:
        first, second = pool.submit(one), pool.submit(other)
        futures: list[Future[Any]] = [first, second]
        wait(futures)
    return first.result(), second.result()


def together(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """As `both`, with any number of calls; after a failure no further one is begun."""
    if len(calls) < 2:
        return [call() for call in calls]
    with _Threads(min(len(calls), _CONNECTIONS), busy=len(calls) >= _CONNECTIONS) as pool:
        futures: list[Future[_T]] = [pool.submit(call) for call in calls]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        wait(futures)
    return _answers(futures)


def _answers(futures: Sequence[Future[_T]]) -> list[_T]:
    """One that was cancelled may stand before the failure for which it was: its thread had it, but had not begun."""
    return [future.result() for future in sorted(futures, key=Future.cancelled)]


class _Threads(ThreadPoolExecutor):
    """Left without waiting: a wait for threads in the middle of a request is one that no signal ends."""

    def __init__(self, count: int, *, busy: bool = False) -> None:
        super().__init__(count, thread_name_prefix="dsv-ask", initializer=_begin, initargs=(busy,))

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=False, cancel_futures=True)


def _begin(busy: bool) -> None:
    _this_thread.busy = busy
