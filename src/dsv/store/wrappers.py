"""Wrappers of a store: the base class, counting of requests, and a store that cannot be opened."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import msgspec

from dsv.errors import DsvError
from dsv.store.base import LARGEST, Bytes, Item, Put, Store


class Wrapper:
    """A store that hands every call to `inner`, which it owns."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    @url.setter
    def url(self, value: str) -> None:
        self.inner.url = value

    @property
    def ordered_listing(self) -> bool:
        return self.inner.ordered_listing

    @ordered_listing.setter
    def ordered_listing(self, value: bool) -> None:
        self.inner.ordered_listing = value

    @property
    def conditional(self) -> bool:
        return self.inner.conditional

    @conditional.setter
    def conditional(self, value: bool) -> None:
        self.inner.conditional = value

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        return self.inner.get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self.inner.get_range(key, start, length)

    def put_if_absent(self, key: str, data: Bytes) -> Put:
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        return self.inner.list(prefix, start_after)

    def folders(self, prefix: str) -> Sequence[str]:
        return self.inner.folders(prefix)

    def modified(self, key: str) -> float:
        return self.inner.modified(key)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()

    def close(self) -> None:
        self.inner.close()


class Counts(msgspec.Struct, frozen=True):
    """Calls that were made, failed ones included, and bytes of those that succeeded.

    `won` of `puts` created an object; `bytes_up` counts every put's body, lost ones too, as it was sent.
    `lists` counts listings, not their pages; `listed` the rows that were taken from them.
    """

    gets: int = 0
    ranges: int = 0
    puts: int = 0
    won: int = 0
    lists: int = 0
    listed: int = 0
    deletes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def requests(self) -> int:
        return self.gets + self.ranges + self.puts + self.lists + self.deletes

    def __sub__(self, earlier: Counts) -> Counts:
        """Return the counts since `earlier`."""
        return Counts(*(getattr(self, name) - getattr(earlier, name) for name in self.__struct_fields__))


class Counting(Wrapper):
    """Below Retrying it counts requests as the store sees them, above it as the program makes them.

    before_close: called when the store is closed, while it can still be read.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.before_close: list[Callable[[], None]] = []
        self._counts = dict.fromkeys(Counts.__struct_fields__, 0)
        self._lock = threading.Lock()

    @property
    def counts(self) -> Counts:
        """A value as of now, which later calls do not change."""
        with self._lock:
            return Counts(**self._counts)

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self._add(gets=1)
        data = self.inner.get(key, limit)
        self._add(bytes_down=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self._add(ranges=1)
        data = self.inner.get_range(key, start, length)
        self._add(bytes_down=len(data))
        return data

    def put_if_absent(self, key: str, data: Bytes) -> Put:
        self._add(puts=1)
        put = self.inner.put_if_absent(key, data)
        self._add(bytes_up=len(data), won=int(put is Put.WON))
        return put

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        self._add(lists=1)
        return self._rows(self.inner.list(prefix, start_after))

    def folders(self, prefix: str) -> Sequence[str]:
        self._add(lists=1)
        found = self.inner.folders(prefix)
        self._add(listed=len(found))
        return found

    def delete(self, key: str) -> None:
        self._add(deletes=1)
        self.inner.delete(key)

    def _rows(self, rows: Iterator[Item]) -> Iterator[Item]:
        for item in rows:
            self._add(listed=1)
            yield item

    def close(self) -> None:
        while self.before_close:
            self.before_close.pop()()
        super().close()

    def _add(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count


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

    def put_if_absent(self, key: str, data: Bytes) -> Put:
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
