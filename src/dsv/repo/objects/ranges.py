"""Reading many small objects that are stored close together as few ranges, before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from dsv.errors import IntegrityError, NotFound, Unreachable
from dsv.format import keys
from dsv.format.locator import Location
from dsv.stores.base import CutShortError, StoreBackend, StoreMissing
from dsv.values.ids import PackId

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from dsv.repo.objects.externals import Externals

Item = TypeVar("Item")
Read = TypeVar("Read")

# Reading this many unneeded bytes costs less than another request.
GAP = 64 << 10
# About the memory that the Python objects of one item take: of tiny items they are the largest part by far.
ITEM = 1 << 10
# Items of at least this many bytes on average are worth a check in the thread that has read them.
_LARGE = 256 << 10


class Span(msgspec.Struct, Generic[Item]):
    """One ranged read: bytes `start` to `end` of a pack, and its wanted items, each with its turn."""

    pack: PackId
    start: int
    end: int
    items: list[tuple[int, Location, Item]]
    moved: bool = False
    """The items were first looked for in another pack, which is missing."""
    data: memoryview | None = None
    """Its bytes, when they have been read."""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def weight(self) -> int:
        """The bytes that it takes in memory, with its items."""
        return self.size + ITEM * len(self.items)

    def growth(self, where: Location) -> int | None:
        """Return by how many bytes this location would extend it; None if the location is too far away."""
        first, last = where.offset, _end(where)
        if first > self.end + GAP or last + GAP < self.start:
            return None
        return max(0, self.start - first) + max(0, last - self.end)

    def add(self, turn: int, where: Location, item: Item) -> None:
        self.start, self.end = min(self.start, where.offset), max(self.end, _end(where))
        self.items.append((turn, where, item))


def spans(wanted: Iterable[tuple[Location, Item]], limit: int) -> Iterator[Span[Item]]:
    """Join items that are close together in one pack. Only consecutive items that weigh at most `limit`
    together are joined (or one item that weighs more).

    Edited files are often in many packs by turns, so a span may hold items between which others are due.
    Spans are yielded in the order of their first items, and all spans of one `limit` before the next. Pure.
    """
    window: list[Span[Item]] = []
    latest: dict[PackId, Span[Item]] = {}
    weight = 0
    for turn, (where, item) in enumerate(wanted):
        span = latest.get(where.pack)
        growth = None if span is None else span.growth(where)
        more = ITEM + (where.stored + where.tail if growth is None else growth)
        if window and weight + more > limit:
            yield from window
            window, latest, weight = [], {}, 0
            span, growth, more = None, None, ITEM + where.stored + where.tail
        if span is None or growth is None:
            span = latest[where.pack] = Span(where.pack, where.offset, _end(where), [])
            window.append(span)
        span.add(turn, where, item)
        weight += more
    yield from window


class ReadThreads:
    """The threads that read from one store, started when they are first needed. Its owner closes it.

    A generator only borrows them. If it owned them and were abandoned, the garbage collector would wait for
    their end in whatever code it interrupts, and that may hold the lock that the wait needs.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._interrupted = False

    def pool(self, connections: int) -> ThreadPoolExecutor:
        """Return a pool of this many threads, shared by all callers that ask for this number."""
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            found = self._pools.get(connections)
            if found is None:
                found = self._pools[connections] = ThreadPoolExecutor(connections, "dsv-read")
            return found

    def wait_for(self, future: Future[Read]) -> Read:
        """Return the result. If a signal ends this wait, `close` does not wait for an unresponsive store."""
        from concurrent.futures import wait

        try:
            wait((future,))
        except BaseException:
            self._interrupted = True
            raise
        return future.result()

    def close(self) -> None:
        """Cancel reads that have not begun, and wait for those that have. Later reads start new threads."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=not self._interrupted, cancel_futures=True)


class RangeReader:
    """Reads spans over several connections, with about `budget` bytes in memory.

    Packs of edited files are used by turns, so a span may be read long before its last item is due. Only what
    is not read yet counts as a request.
    """

    def __init__(
        self,
        store: StoreBackend,
        threads: ReadThreads,
        externals: Externals | None = None,
        *,
        connections: int = 8,
        budget: int = 64 << 20,
        arrived: Callable[[Location, Any, memoryview], None] | None = None,
    ) -> None:
        """externals: reads contents outside the store; None if none are wanted. arrived: called with large items and
        their stored bytes, by the thread that has read them."""
        self._store = store
        self._threads = threads
        self._externals = externals
        self._connections = connections
        self._budget = budget
        self._arrived = arrived
        self.fetched_bytes = 0
        """Includes gaps between the wanted spans."""
        self._gone: set[PackId] = set()

    def read(
        self,
        wanted: Iterable[Span[Item]],
        elsewhere: Callable[[Location, Item], Location | None] = lambda where, item: None,
    ) -> Iterator[tuple[Location, Item, memoryview | None]]:
        """Yield each item in its turn, with its stored bytes (and its locator's), or None if the store has no
        such pack or range: the location was wrong.

        elsewhere: returns another location of an item whose pack is missing. Items that gc has copied to one
        pack are then read together again.
        """
        reading: list[tuple[int, int, Span[Item], Future[memoryview | None]]] = []  # a heap, by turn
        pending: deque[Future[memoryview | None]] = deque()
        held = 0
        source = iter(wanted)
        upcoming = next(source, None)
        if upcoming is None:
            return
        pool = self._threads.pool(self._connections)
        try:
            while upcoming is not None or reading:
                while pending and pending[0].done():
                    pending.popleft()
                while upcoming is not None and (
                    not reading
                    or upcoming.items[0][0] < reading[0][0]
                    or (len(pending) < 2 * self._connections and held + upcoming.weight <= self._budget)
                ):
                    pending.append(pool.submit(self._fetch, upcoming))
                    heappush(reading, (upcoming.items[0][0], 0, upcoming, pending[-1]))
                    held += upcoming.weight
                    upcoming = next(source, None)
                _, place, span, future = reading[0]
                if not place:
                    span.data = self._threads.wait_for(future)
                    if span.data is None and not span.moved and span.pack in self._gone:
                        heappop(reading)
                        held -= span.weight
                        for other in _moved(span, elsewhere):
                            first = pool.submit(self._fetch, other)
                            heappush(reading, (other.items[0][0], 0, other, first))
                            held += other.weight
                        continue
                    self.fetched_bytes += 0 if span.data is None else span.size
                data = span.data
                _, where, item = span.items[place]
                at, length = where.offset - span.start, where.stored + where.tail
                is_there = data is not None and at + length <= len(data)
                yield where, item, data[at : at + length] if data is not None and is_there else None
                if place + 1 < len(span.items):
                    heapreplace(reading, (span.items[place + 1][0], place + 1, span, future))
                else:
                    heappop(reading)
                    held -= span.weight
                    span.data = None  # `spans` may still refer to it
        finally:
            for *_, abandoned in reading:
                abandoned.cancel()

    def _fetch(self, span: Span[Item]) -> memoryview | None:
        data = self._read_span(span)
        if data is not None and self._arrived is not None and span.size >= _LARGE * len(span.items):
            for _, where, item in span.items:
                at = where.offset - span.start
                self._arrived(where, item, data[at : at + where.stored])
        return data

    def _read_span(self, span: Span[Item]) -> memoryview | None:
        if span.pack in self._gone:
            return None
        if self._externals is not None and span.pack.is_external:
            wanted = [where for _, where, _ in span.items]
            return self._externals.span(span.pack, span.start, span.size, wanted)
        try:
            return self._left_of(span)
        except StoreMissing:
            return None
        except NotFound:
            self._gone.add(span.pack)
            return None
        except IntegrityError:
            return None
        except Unreachable:
            if getattr(self._store, "has_mirrors", False):
                return None
            raise

    def _left_of(self, span: Span[Item]) -> memoryview:
        """Return the bytes of the span, up to the end of its pack if that is cut short."""
        key = keys.pack_key(span.pack)
        try:
            return memoryview(self._store.get_range(key, span.start, span.size))
        except CutShortError as error:
            if error.end <= span.start:
                raise
            return memoryview(self._store.get_range(key, span.start, error.end - span.start))


def _moved(span: Span[Item], elsewhere: Callable[[Location, Item], Location | None]) -> Iterator[Span[Item]]:
    """Yield spans for other locations of a span's items. An item without another keeps its own."""
    found: list[tuple[Location, tuple[int, Item]]] = []
    left: list[tuple[int, Location, Item]] = []
    for turn, where, item in span.items:
        place = elsewhere(where, item)
        if place is None:
            left.append((turn, where, item))
        else:
            found.append((place, (turn, item)))
    if left:
        yield Span(span.pack, span.start, span.end, left, moved=True)
    for other in spans(found, max(span.weight, 1)):
        items = [(turn, place, item) for _, place, (turn, item) in other.items]
        yield Span(other.pack, other.start, other.end, items, moved=True)


def _end(where: Location) -> int:
    return where.offset + where.stored + where.tail
