"""Opening a store by URL, whole or split, and counting the requests to it.

A split store (in two places) has names, which need one winner, and data, whose keys are random or derived
from it. The names need a folder or a bucket with put-if-absent, the data does not: writing one of its keys
twice writes the same bytes. The records of runs, which may differ, are looked for first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsv.errors import DsvError, Unreachable, Unsupported, UsageError
from dsv.format.keys import needs_winner
from dsv.stores.base import LARGEST, Bytes, ListedObject, PutResult, StoreBackend, forwarded
from dsv.stores.retry import Retrying

if TYPE_CHECKING:
    from pathlib import Path

    from dsv.stores.options import StoreOptions

SCHEMES: Final = ("file", "memory", "s3", "gs", "az")
BELOW: Final = "./"
"""Begins a location below that of the data, whatever URL the data has."""


class RequestCounts(msgspec.Struct, frozen=True):
    """Calls, including failed ones, and bytes of those that succeeded."""

    gets: int = 0
    ranges: int = 0
    puts: int = 0
    won: int = 0
    """The puts that created an object."""
    lists: int = 0
    """The listings, not their pages."""
    listed: int = 0
    """The rows that were taken from listings."""
    deletes: int = 0
    bytes_up: int = 0
    """The bytes of all puts, including lost ones, as they were sent."""
    bytes_down: int = 0

    @property
    def requests(self) -> int:
        return self.gets + self.ranges + self.puts + self.lists + self.deletes

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        return RequestCounts(
            *(getattr(self, name) - getattr(earlier, name) for name in self.__struct_fields__)
        )


class OpenStore:
    """One store for its callers. It owns its halves, which may be used directly, without counts."""

    ordered_listing: bool = forwarded("names", "ordered_listing")
    """Of the names; `data` has its own."""
    conditional: bool = forwarded("data", "conditional")

    def __init__(
        self,
        data: StoreBackend,
        names: StoreBackend | None = None,
        open_names: Callable[[str], StoreBackend] | None = None,
    ) -> None:
        """names: None if the store is not split. They may move while it is open, as `read_layout` finds out.

        open_names: opens the location that they have moved to.
        """
        self.url = data.url
        self.data = data
        self.names = data if names is None else names
        self.before_close: list[Callable[[], None]] = []
        """Called when the store is closed, while it can still be read."""
        self.refusal: DsvError | None = None
        """Raised by every write to a store that is opened only for reading; None for any other."""
        self.has_mirrors = False
        """Once packs can't be reached, they are not asked for again: mirrors have their contents."""
        self._away: Unreachable | None = None
        self._open_names = open_names
        self._left: list[StoreBackend] = []
        self._counts = dict.fromkeys(RequestCounts.__struct_fields__, 0)
        self._lock = threading.Lock()

    @property
    def counts(self) -> RequestCounts:
        """The counts until now, which later calls do not change."""
        with self._lock:
            return RequestCounts(**self._counts)

    @property
    def names(self) -> StoreBackend:
        return self._names

    @names.setter
    def names(self, names: StoreBackend) -> None:
        self._names = names
        if isinstance(self.data, Retrying):
            self.data.needs_condition = not self.is_split

    @property
    def is_split(self) -> bool:
        return self._names is not self.data

    def open_names(self, place: str) -> StoreBackend:
        """Open a location that names have moved to, or will; `./PART` is below the data's own location."""
        if self._open_names is None:
            raise Unsupported(f"the names of {self.url} have moved to {place}", subject=self.url)
        below = place.startswith(BELOW)
        return self._open_names(f"{self.data.url.rstrip('/')}/{place[len(BELOW) :]}" if below else place)

    def follow(self, names: StoreBackend) -> None:
        """Use these names from now on. Those left stay open for callers that still use them."""
        if self.is_split:
            self._left.append(self.names)
        self.names = names

    def _place_of(self, key: str) -> StoreBackend:
        """Return the half that keeps a key, or all keys with a prefix."""
        return self._names if needs_winner(key) else self.data

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self._add(gets=1)
        data = self._place_of(key).get(key, limit)
        self._add(bytes_down=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self._add(ranges=1)
        if self._away is not None:
            raise self._away
        try:
            data = self._place_of(key).get_range(key, start, length)
        except Unreachable as error:
            if self.has_mirrors:
                self._away = error
            raise
        self._add(bytes_down=len(data))
        return data

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self._add(puts=1)
        if self.refusal is not None:
            raise self.refusal
        put = self._place_of(key).put_if_absent(key, data)
        self._add(bytes_up=len(data), won=int(put is PutResult.WON))
        return put

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        self._add(lists=1)
        return self._rows(self._place_of(prefix).list(prefix, start_after))

    def _rows(self, rows: Iterator[ListedObject]) -> Iterator[ListedObject]:
        for item in rows:
            self._add(listed=1)
            yield item

    def folders(self, prefix: str) -> Sequence[str]:
        self._add(lists=1)
        found = self._place_of(prefix).folders(prefix)
        self._add(listed=len(found))
        return found

    def modified(self, key: str) -> float:
        return self._place_of(key).modified(key)

    def delete(self, key: str) -> None:
        self._add(deletes=1)
        if self.refusal is not None:
            raise self.refusal
        self._place_of(key).delete(key)

    def free_bytes(self) -> int | None:
        return self.data.free_bytes()

    def close(self) -> None:
        while self.before_close:
            self.before_close.pop()()
        for one in [*self._left, *([self.names] if self.is_split else []), self.data]:
            one.close()

    def _add(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count


def split_of(store: StoreBackend) -> OpenStore | None:
    """Return the store if it is split, else None."""
    return store if isinstance(store, OpenStore) and store.is_split else None


def names_of(store: StoreBackend) -> StoreBackend:
    """Return the half of a store that has its names; the store itself if it is no `OpenStore`."""
    return store.names if isinstance(store, OpenStore) else store


class Unavailable:
    """A store that fails every request, instead of one that not every command needs."""

    ordered_listing = True
    conditional = True

    def __init__(self, url: str, reason: DsvError) -> None:
        self.url = url
        self.reason = reason

    def failure(self, key: str) -> DsvError:
        """Return the error for a request for a key, or for all keys with a prefix."""
        return self.reason

    def _fail(self, *args: Any, **named: Any) -> Any:
        raise self.failure(str([*args, *named.values()][0]))

    get = get_range = put_if_absent = list = folders = modified = delete = _fail

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        pass


def open_store(
    url: str,
    options: StoreOptions | None = None,
    *,
    create: bool = False,
    names: str | None = None,
    notice: Callable[[str], None] | None = None,
) -> OpenStore:
    """Open the store that `url` names, with retries.

    names: where its names are kept, if elsewhere; a URL or folder like the other.
    notice: see `Retrying`.

    `url` is an absolute path, `file:///path`, `s3://bucket/prefix`, `gs://…`, `az://container/prefix` or
    `memory://name`. `create` makes a directory store's folder, but not that of its names; buckets are never made. No
    request is sent. Raises UsageError for any other URL, Denied without credentials, Unreachable for an absent folder.
    """
    from dsv.stores.options import StoreOptions

    known = options or StoreOptions()
    data = Retrying(open_raw(url, known, create=create), notice=notice)
    later = partial(open_names, options=known, notice=notice)
    if names is None:
        return OpenStore(data, None, later)
    try:
        return OpenStore(data, later(names), later)
    except BaseException:
        data.close()
        raise


def open_names(
    names: str, options: StoreOptions, *, create: bool = False, notice: Callable[[str], None] | None = None
) -> StoreBackend:
    """Open the names, even if they can't be reached: the caller may need only the data."""
    try:
        return Retrying(open_raw(names, options, create=create), notice=notice)
    except Unreachable as error:
        hint = f"is it mounted? ls -ld {names}; if it has moved: dsv config stores.NAME.names LOCATION"
        return Unavailable(names, Unreachable(error.message, subject=names, hint=hint))


def check_location(url: str, *, is_store: bool = True) -> str:
    """Return the scheme of a URL. Raises `UsageError` for one with a secret, and for that of no store."""
    if any(one in url for one in "@?#;"):
        from dsv.values.secrets import hide_in_urls  # takes a while to import

        if (shown := hide_in_urls(url)) != url:
            raise UsageError(
                f"{shown} has a secret in it, and others can read the URLs of stores and of their servers",
                subject=shown,
                hint="credentials belong into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a profile",
            )
    scheme = "file" if url.startswith("/") else url.partition("://")[0]
    if is_store and (scheme == url or scheme not in SCHEMES):
        hint = "name an absolute folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
        raise UsageError(f"{url} is not a store", subject=url, hint=hint)
    return scheme


def open_raw(url: str, options: StoreOptions, *, create: bool = False) -> StoreBackend:
    """Return the store without retries, for tests and for wrappers that belong below them."""
    scheme = check_location(url)
    if (folder := local_folder(url)) is not None:
        from dsv.stores.directory import DirectoryStore

        return DirectoryStore(folder, create=create)
    if scheme == "memory":
        from dsv.stores.memory import MemoryStore

        return MemoryStore.named(url.removeprefix("memory://"))
    from dsv.stores import clients  # the library is imported when the first object store is opened

    return {"s3": clients.open_s3, "gs": clients.open_gcs, "az": clients.open_azure}[scheme](url, options)


def local_folder(url: str) -> Path | None:
    """Return the folder of a store on a file system; None for any other store. Raises `UsageError`."""
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    if url.startswith("/"):
        return Path(url)
    if not url.startswith("file://"):
        return None
    split = urlsplit(url)
    if split.netloc not in ("", "localhost") or not split.path.startswith("/"):
        raise UsageError(f"{url} is not a folder of this machine", subject=url, hint="file:///absolute/path")
    return Path(unquote(split.path))
