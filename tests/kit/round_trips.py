"""Counts round trips: how long work would take if each request took one unit of time, and nothing else took any.

Calls that dsv makes at the same time are made one after the other here, and each begins at the unit at which a
connection would have been free. So the count is the same on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from dsv.repo.objects.ranges import ReadThreads
from dsv.stores import base
from dsv.stores.base import LARGEST, ListedObject
from dsv.stores.memory import MemoryStore


@dataclass
class RoundTrips:
    now: int = 0
    requests: int = 0

    def ask(self) -> None:
        self.now += 1
        self.requests += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Begin at 0, and count what happens in the block."""
        self.now = self.requests = 0
        with (
            mock.patch.object(base, "_ask", self._together),
            mock.patch.object(ReadThreads, "pool", lambda _, connections: _Pool(self, [0] * connections)),
            mock.patch.object(ReadThreads, "wait_for", lambda _, future: future.waited()),
        ):
            yield

    def _together(self, calls: Sequence[Callable[[], Any]], *, first_failure_ends: bool) -> list[Any]:
        connections = [self.now] * min(len(calls), base._CONNECTIONS)
        was_busy = getattr(base._this_thread, "busy", False)
        base._this_thread.busy = len(calls) >= base._CONNECTIONS
        answers = []
        try:
            for call in calls:
                self.now = heapq.heappop(connections)
                answers.append(call())
                heapq.heappush(connections, self.now)
        finally:
            base._this_thread.busy = was_busy
        self.now = max(connections)
        return answers


@dataclass
class _Pool:
    trips: RoundTrips
    connections: list[int]

    def submit(self, call: Callable[..., Any], *arguments: Any) -> _Future:
        now, self.trips.now = self.trips.now, max(self.trips.now, heapq.heappop(self.connections))
        answer = call(*arguments)
        heapq.heappush(self.connections, self.trips.now)
        future = _Future(self.trips, self.trips.now, answer)
        self.trips.now = now
        return future


@dataclass
class _Future:
    trips: RoundTrips
    end: int
    answer: Any

    def done(self) -> bool:
        return self.end <= self.trips.now

    def cancel(self) -> None: ...

    def waited(self) -> Any:
        self.trips.now = max(self.trips.now, self.end)
        return self.answer


class DistantStore(MemoryStore):
    """A store in memory whose requests are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.trips = RoundTrips()

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self.trips.ask()
        return super().get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self.trips.ask()
        return super().get_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        self.trips.ask()
        return super().list(prefix, start_after)

    def folders(self, prefix: str) -> Sequence[str]:
        self.trips.ask()
        return super().folders(prefix)
