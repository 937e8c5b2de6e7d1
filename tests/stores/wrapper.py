"""The base class of stores that change what another store does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dsv.errors import Denied
from dsv.stores.base import LARGEST, Bytes, ListedObject, PutResult, StoreBackend


class Wrapper:
    """A store that hands every call to `inner`, which it owns."""

    def __init__(self, inner: StoreBackend) -> None:
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

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
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


class Watched(Wrapper):
    """Calls `before` ahead of each request, with its kind and its key or prefix."""

    def __init__(self, inner: StoreBackend, before: Callable[[str, str], object]) -> None:
        super().__init__(inner)
        self.before = before

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self.before("get", key)
        return self.inner.get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self.before("get_range", key)
        return self.inner.get_range(key, start, length)

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self.before("put", key)
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        self.before("list", prefix)
        return self.inner.list(prefix, start_after)

    def folders(self, prefix: str) -> Sequence[str]:
        self.before("folders", prefix)
        return self.inner.folders(prefix)

    def delete(self, key: str) -> None:
        self.before("delete", key)
        self.inner.delete(key)


class ReadOnly(Wrapper):
    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        raise Denied(f"writing {key} was refused", subject=key)
