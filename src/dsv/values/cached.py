"""A property that is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cached(Generic[T]):  # noqa: N801 (a decorator)
    """Like `functools.cached_property`, without the lock that all instances share before Python 3.12: a
    process that is forked while another thread holds it could wait for it forever. Threads may compute a
    value twice."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        value: T = instance.__dict__.setdefault(self._name, self._make(instance))
        return value
