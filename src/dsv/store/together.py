"""Asking a store several things at once: the answers then take one round trip, and not one each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")

_CONNECTIONS: Final = 16


def both(one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
    """What the two calls return, made at the same time. Raises what `one` raised, else what `other` did.

    Both have ended when this returns or raises.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="dsv-ask") as pool:
        second = pool.submit(other)
        first = one()
        return first, second.result()


def together(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """What each of the calls returns, in their order; some are made at the same time. Raises the first one's error."""
    if len(calls) < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(len(calls), _CONNECTIONS), thread_name_prefix="dsv-ask") as pool:
        return list(pool.map(lambda call: call(), calls))
