"""A store in this process's memory, for tests and experiments."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from dsv.stores.base import (
    LARGEST,
    Bytes,
    ListedObject,
    PutResult,
    absent,
    check_folder,
    check_key,
    check_prefix,
    check_range,
    cut_short,
    too_large,
)

_shared: dict[str, MemoryStore] = {}
_shared_lock = threading.Lock()


class MemoryStore:
    """A dict with the store protocol. Nothing is shared between processes."""

    def __init__(self, name: str = "") -> None:
        self.url = f"memory://{name}"
        self.ordered_listing = True
        self.conditional = True
        self._objects: dict[str, bytes] = {}
        self._keys: list[str] = []
        self._lock = threading.Lock()

    @staticmethod
    def named(name: str) -> MemoryStore:
        """Return the one store of this name in this process, created at the first call."""
        with _shared_lock:
            return _shared.setdefault(name, MemoryStore(name))

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        value = self._value(key)
        if len(value) > limit:
            raise too_large(self.url, key, limit)
        return value

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        check_range(start, length)
        if length == 0:
            return memoryview(b"")
        value = memoryview(self._value(key))[start : start + length]
        if len(value) != length:
            raise cut_short(self.url, key, start, length, len(value))
        return value

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        check_key(key)
        value = bytes(data)
        with self._lock:
            if key in self._objects:
                return PutResult.LOST
            self._objects[key] = value
            insort(self._keys, key)
        return PutResult.WON

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        check_prefix(prefix)
        with self._lock:
            begin = bisect_left(self._keys, prefix)
            if start_after is not None:
                begin = max(begin, bisect_right(self._keys, start_after))
            rows = []
            for key in self._keys[begin:]:
                if not key.startswith(prefix):
                    break
                rows.append(ListedObject(key, len(self._objects[key])))
        return iter(rows)

    def folders(self, prefix: str) -> Sequence[str]:
        check_folder(prefix)
        keys = (item.key[len(prefix) :] for item in self.list(prefix))
        return sorted({key.partition("/")[0] for key in keys if "/" in key})

    def modified(self, key: str) -> float:
        """Return the present time, because no times are stored."""
        self._value(key)
        return time.time()

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def free_bytes(self) -> int | None:
        return None

    def _value(self, key: str) -> bytes:
        check_key(key)
        with self._lock:
            value = self._objects.get(key)
        if value is None:
            raise absent(self.url, key)
        return value

    def close(self) -> None:
        """Keep the objects: another opening of the same name still sees them."""
