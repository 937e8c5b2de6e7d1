"""A store in two places: the names, which need one winner, and the data, whose keys are random or derived from it.

A bucket that knows no put-if-absent, or ignores it, can keep the data: writing one of its keys twice writes the same
bytes, and the records of runs, which may differ, are looked for first. The names lie in a folder or another bucket that
has put-if-absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from dsv.errors import Unsupported
from dsv.format.keys import needs_winner
from dsv.store.base import LARGEST, Bytes, Item, Put, Store
from dsv.store.wrappers import Wrapper

BELOW: Final = "./"
"""Begins a place that lies below that of the data, whatever that is called."""


class DataPlace(Wrapper):
    """The place of the data. While the names are elsewhere no key of it needs a winner, so a server that begins to
    refuse the condition of a write is asked without."""

    names_elsewhere = False

    def put_if_absent(self, key: str, data: Bytes) -> Put:
        try:
            return self.inner.put_if_absent(key, data)
        except Unsupported:
            if not self.names_elsewhere or not self.conditional:
                raise
        self.conditional = False
        return self.inner.put_if_absent(key, data)


class SplitStore:
    """One store to those who use it, in one place or two. It owns its places.

    names: None for a store in one place. Names may move while the store is open, which `repo.names_place` finds out;
    open_names: opens the place that they have moved to.
    """

    def __init__(
        self, names: Store | None, data: Store, open_names: Callable[[str], Store] | None = None
    ) -> None:
        self._data = DataPlace(data)
        self.data: Store = self._data
        self.names = self.data if names is None else names
        self.url = data.url
        self._open_names = open_names
        self._left: list[Store] = []

    @property
    def names(self) -> Store:
        return self._names

    @names.setter
    def names(self, names: Store) -> None:
        self._names = names
        self._data.names_elsewhere = self.is_split

    @property
    def is_split(self) -> bool:
        return self._names is not self.data

    def open_names(self, place: str) -> Store:
        """A place that names have moved to, or are to; `./PART` lies below the data's own place."""
        if self._open_names is None:
            raise Unsupported(f"the names of {self.url} have moved to {place}", subject=self.url)
        below = place.startswith(BELOW)
        return self._open_names(f"{self.data.url.rstrip('/')}/{place[len(BELOW) :]}" if below else place)

    def follow(self, names: Store) -> None:
        """From now on the names are there. The place that they have left stays open for those who still ask it."""
        if self.is_split:
            self._left.append(self.names)
        self.names = names

    @property
    def ordered_listing(self) -> bool:
        """Of the names; what is told of the data's listings stays with it."""
        return self.names.ordered_listing

    @ordered_listing.setter
    def ordered_listing(self, value: bool) -> None:
        self.names.ordered_listing = value

    @property
    def conditional(self) -> bool:
        return self.data.conditional

    @conditional.setter
    def conditional(self, value: bool) -> None:
        self.data.conditional = value

    def place_of(self, key: str) -> Store:
        """Return where a key, or all that begin with a prefix, are kept."""
        return self.names if needs_winner(key) else self.data

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        return self.place_of(key).get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self.place_of(key).get_range(key, start, length)

    def put_if_absent(self, key: str, data: Bytes) -> Put:
        return self.place_of(key).put_if_absent(key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        return self.place_of(prefix).list(prefix, start_after)

    def folders(self, prefix: str) -> Sequence[str]:
        return self.place_of(prefix).folders(prefix)

    def modified(self, key: str) -> float:
        return self.place_of(key).modified(key)

    def delete(self, key: str) -> None:
        self.place_of(key).delete(key)

    def free_bytes(self) -> int | None:
        return self.data.free_bytes()

    def close(self) -> None:
        for one in [*self._left, *([self.names] if self.is_split else []), self.data]:
            one.close()


def split_of(store: Store) -> SplitStore | None:
    """The two places of a store, found below its wrappers; None for a store in one place."""
    found = places_of(store)
    return found if found is not None and found.is_split else None


def places_of(store: Store) -> SplitStore | None:
    """The one or two places of a store, found below its wrappers; None if it was not opened as such."""
    found: object = store
    while not isinstance(found, SplitStore):
        found = getattr(found, "inner", None)
        if found is None:
            return None
    return found


def names_of(store: Store) -> Store:
    """The place of the names of a store, or the store itself if it was not opened as one or two places."""
    places = places_of(store)
    return store if places is None else places.names
