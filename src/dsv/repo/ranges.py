"""Reading many small things that lie close together as few ranges, ahead of their use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from dsv.errors import IntegrityError, NotFound
from dsv.model import keys
from dsv.model.ids import PackId
from dsv.model.location import Location
from dsv.store.base import Store

Item = TypeVar("Item")

# Reading this many bytes that nobody asked for costs less than a request of its own.
GAP = 64 << 10
# About what the objects around one wanted thing take in memory: of tiny things these are the most by far.
ITEM = 1 << 10


@dataclass(frozen=True, slots=True)
class Span(Generic[Item]):
    """One ranged read: bytes `start` to `end` of a pack, and what is wanted of it, in the order wanted."""

    pack: PackId
    start: int
    end: int
    items: list[tuple[Location, Item]]

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def weight(self) -> int:
        """Bytes that it takes in memory, with what is wanted of it."""
        return self.size + ITEM * len(self.items)


def spans(wanted: Iterable[tuple[Location, Item]], limit: int) -> Iterator[Span[Item]]:
    """Joins neighbours, in the order given, into spans of a weight of at most `limit` (or one object, if that is more).

    Only what follows closely in the same pack is joined, so the order of delivery is the order of asking. Pure.
    """
    items: list[tuple[Location, Item]] = []
    pack: PackId | None = None
    start = end = 0
    for where, item in wanted:
        first, last = where.offset, where.offset + where.stored + where.tail
        low, high = min(start, first), max(end, last)
        near = pack == where.pack and first <= end + GAP and last + GAP >= start
        if items and near and high - low + ITEM * (len(items) + 1) <= limit:
            start, end = low, high
        else:
            if items:
                assert pack is not None
                yield Span(pack, start, end, items)
            items, pack, start, end = [], where.pack, first, last
        items.append((where, item))
    if items:
        assert pack is not None
        yield Span(pack, start, end, items)


class RangeReader:
    """Fetches spans with several connections, in order, and with a weight of about `budget` bytes in memory."""

    def __init__(self, store: Store, *, connections: int = 8, budget: int = 64 << 20) -> None:
        self._store = store
        self._connections = connections
        self._budget = budget

    def read(self, wanted: Iterable[Span[Item]]) -> Iterator[tuple[Span[Item], memoryview | None]]:
        """Each span with its bytes, or None where the store has no such pack or range: the location was wrong."""
        waiting: deque[tuple[Span[Item], Future[memoryview | None]]] = deque()
        held = 0
        source = iter(wanted)
        upcoming = next(source, None)
        if upcoming is None:
            return
        pool = ThreadPoolExecutor(self._connections, thread_name_prefix="dsv-read")
        try:
            while upcoming is not None or waiting:
                while upcoming is not None and (
                    not waiting or self._has_room(len(waiting), held, upcoming.weight)
                ):
                    waiting.append((upcoming, pool.submit(self._fetch, upcoming)))
                    held += upcoming.weight
                    upcoming = next(source, None)
                span, future = waiting.popleft()
                yield span, future.result()
                held -= span.weight
        finally:
            for _, future in waiting:
                future.cancel()
            pool.shutdown(wait=True)

    def _has_room(self, queued: int, held: int, weight: int) -> bool:
        return queued < 2 * self._connections and held + weight <= self._budget

    def _fetch(self, span: Span[Item]) -> memoryview | None:
        try:
            return memoryview(self._store.get_range(keys.pack_key(span.pack), span.start, span.size))
        except (NotFound, IntegrityError):
            return None
