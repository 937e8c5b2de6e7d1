"""A store that could not be opened: every request raises what kept it from being opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from dsv.errors import DsvError
from dsv.store.base import LARGEST, Buffer, Item, Put


class Unavailable:
    """In place of a store that is not needed by everything that is done."""

    ordered_listing = True
    conditional = True

    def __init__(self, url: str, reason: DsvError) -> None:
        self.url = url
        self.reason = reason

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self._fail()

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self._fail()

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        self._fail()

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        self._fail()

    def folders(self, prefix: str) -> Sequence[str]:
        self._fail()

    def modified(self, key: str) -> float:
        self._fail()

    def delete(self, key: str) -> None:
        self._fail()

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        pass

    def _fail(self) -> NoReturn:
        raise self.reason
