"""A store that fails on purpose, where and how a plan says: for tests of what holds after a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from dsv.stores.base import LARGEST, Busy, Bytes, ListedObject, NoAnswer, PutResult, StoreBackend, cut_short
from tests.stores.wrapper import Wrapper

_T = TypeVar("_T")


class Crash(BaseException):
    """The process ended here. No handler of errors sees it, as none would see a kill."""


class Kind(Enum):
    """How a call fails. `AFTER` kinds have their effect on the store first."""

    CRASH_BEFORE = "crash before the effect"
    CRASH_AFTER = "crash after the effect"
    LOST_ANSWER = "the effect happens, the answer is lost"
    NEVER_ARRIVED = "no effect and no answer, which the caller can't tell from a lost one"
    REFUSED = "connection refused"
    ERROR_500 = "500 before the effect"
    ERROR_500_AFTER = "500 after the effect"
    ERROR_503 = "503, no effect"
    TRUNCATED = "a read's body ends half way, and the client notices"
    SHORT = "a read of a whole object yields its first half, and nobody notices"
    FLIPPED = "a read yields one flipped bit"
    SLOW = "the call takes `seconds` longer"


class Operation(Enum):
    """The operations of a store; a plan may be limited to some of them."""

    GET = "get"
    RANGE = "get_range"
    PUT = "put_if_absent"
    LIST = "list"
    DELETE = "delete"


class Fault(msgspec.Struct, frozen=True):
    """One failure. `seconds` is for SLOW alone."""

    kind: Kind
    seconds: float = 0.0


class Faulty(Wrapper):
    """Fails the n-th call (from 1) as `plan[n]` says, or every call as `always` says.

    With `only`, other operations are neither counted nor failed. After a crash the store is dead: every
    further call from any thread crashes too, so nothing is written behind a killed process's back. A
    listing counts when it is asked for; `calls` is how many calls there were, and `log` what they were.
    """

    def __init__(
        self,
        inner: StoreBackend,
        plan: Mapping[int, Fault] | None = None,
        *,
        always: Fault | None = None,
        only: Collection[Operation] = tuple(Operation),
    ) -> None:
        super().__init__(inner)
        self._plan = dict(plan or {})
        self._always = always
        self._only = frozenset(only)
        self._lock = threading.Lock()
        self.crashed = False
        self.log: list[tuple[Operation, str]] = []

    @property
    def calls(self) -> int:
        return len(self.log)

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        fault = self._begin(Operation.GET, key)
        data = self._apply(fault, key, lambda: self.inner.get(key, limit))
        if fault is not None and fault.kind is Kind.TRUNCATED:
            raise cut_short(self.url, key, 0, len(data), len(data) // 2)
        if fault is not None and fault.kind is Kind.SHORT:
            return data[: len(data) // 2]
        return _flipped(data) if fault is not None and fault.kind is Kind.FLIPPED else data

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        fault = self._begin(Operation.RANGE, key)
        data = self._apply(fault, key, lambda: self.inner.get_range(key, start, length))
        if fault is not None and fault.kind in (Kind.TRUNCATED, Kind.SHORT):
            raise cut_short(self.url, key, start, length, length // 2)
        return memoryview(_flipped(data)) if fault is not None and fault.kind is Kind.FLIPPED else data

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        fault = self._begin(Operation.PUT, key)
        return self._apply(fault, key, lambda: self.inner.put_if_absent(key, data))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        fault = self._begin(Operation.LIST, prefix)
        if fault is None:
            return self.inner.list(prefix, start_after)
        return iter(self._apply(fault, prefix, lambda: [*self.inner.list(prefix, start_after)]))

    def folders(self, prefix: str) -> Sequence[str]:
        return self._apply(self._begin(Operation.LIST, prefix), prefix, lambda: self.inner.folders(prefix))

    def delete(self, key: str) -> None:
        self._apply(self._begin(Operation.DELETE, key), key, lambda: self.inner.delete(key))

    def _begin(self, operation: Operation, key: str) -> Fault | None:
        """Counts the call, and says how it is to fail."""
        with self._lock:
            if self.crashed:
                raise Crash(f"the process is dead: {operation.value} {key}")
            if operation not in self._only:
                return None
            self.log.append((operation, key))
            fault = self._plan.get(len(self.log), self._always)
            if fault is not None and fault.kind is Kind.CRASH_BEFORE:
                self.crashed = True
                raise Crash(f"before {operation.value} {key}")
            return fault

    def _apply(self, fault: Fault | None, subject: str, effect: Callable[[], _T]) -> _T:
        """The effect, surrounded by what every operation may suffer."""
        if fault is None:
            return effect()
        kind = fault.kind
        if kind is Kind.SLOW:
            time.sleep(fault.seconds)
        if kind is Kind.NEVER_ARRIVED:
            raise NoAnswer(f"{self.url} did not answer about {subject}", subject=subject)
        if kind is Kind.REFUSED:
            raise NoAnswer(f"{self.url} refused the connection", subject=subject, maybe_done=False)
        if kind in (Kind.ERROR_500, Kind.ERROR_503):
            raise Busy(f"{self.url} could not serve {subject}: {kind.value[:3]}", subject=subject)
        result = effect()
        if kind is Kind.CRASH_AFTER:
            with self._lock:
                self.crashed = True
            raise Crash(f"after {subject}")
        if kind is Kind.LOST_ANSWER:
            raise NoAnswer(f"{self.url} did not answer about {subject}", subject=subject)
        if kind is Kind.ERROR_500_AFTER:
            raise Busy(f"{self.url} could not serve {subject}: 500", subject=subject)
        return result


def _flipped(data: Bytes) -> bytes:
    """The data with the lowest bit of its middle byte changed."""
    changed = bytearray(data)
    if changed:
        changed[len(changed) // 2] ^= 1
    return bytes(changed)
