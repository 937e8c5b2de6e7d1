"""A metadata object with the locator that travelled behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from dsv.model.locator import Locator

T = TypeVar("T")
FindLocator = Callable[[], Locator | None]


class Located(Generic[T]):
    """An object, checked, and its locator if there is one. That is read when it is first asked for: most are not."""

    __slots__ = ("__weakref__", "_locator", "value")

    def __init__(self, value: T, locator: Locator | FindLocator | None) -> None:
        self.value = value
        self._locator = locator

    @property
    def locator(self) -> Locator | None:
        if callable(self._locator):
            self._locator = self._locator()
        return self._locator

    def find_locator(self) -> Locator | None:
        return self.locator
