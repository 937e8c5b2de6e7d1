"""A store in two places: the names, which need one winner, and the data, whose keys are random or derived from it.

A bucket that knows no put-if-absent, or ignores it, can keep the data: writing one of its keys twice writes the same
bytes. The names lie in a folder or another bucket that can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv.model.keys import needs_winner
from dsv.store.base import LARGEST, Buffer, Item, Put, Store


class SplitStore:
    """One store to those who use it. It owns both places."""

    def __init__(self, names: Store, data: Store) -> None:
        self.names = names
        self.data = data
        self.url = data.url

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
        """Where a key, or all that begin with a prefix, are kept."""
        return self.names if needs_winner(key) else self.data

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        return self.place_of(key).get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        return self.place_of(key).get_range(key, start, length)

    def put_if_absent(self, key: str, data: Buffer) -> Put:
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
        self.names.close()
        self.data.close()


def split_of(store: Store) -> SplitStore | None:
    """The two places of a store, below whatever wraps it; None for a store in one place."""
    found: object = store
    while not isinstance(found, SplitStore):
        found = getattr(found, "inner", None)
        if found is None:
            return None
    return found
