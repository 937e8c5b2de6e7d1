"""Stores that are closed when a test ends: a directory store holds a descriptor."""

from __future__ import annotations

from typing import Protocol, TypeVar

from dsv.stores.base import StoreBackend

S = TypeVar("S", bound=StoreBackend)


class Opened(Protocol):
    """`opened(DirectoryStore(root))` is that store; the fixture of this name closes it at the end."""

    def __call__(self, store: S) -> S: ...
