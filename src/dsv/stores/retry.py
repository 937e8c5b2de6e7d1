"""Retries, and finding out the outcome of a write whose answer was lost.

A busy server (500, 503) is asked again after growing, jittered waits. One that does not answer is given up
within 30 seconds. A put that was refused, or whose answer was lost, reads the key back: if it has the same
bytes, this writer's own put arrived.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Final, TypeVar

import msgspec

from dsv.errors import Denied, DsvError, NotFound, OutcomeUnknown, Unreachable, Unsupported
from dsv.format.keys import PACK_PREFIX
from dsv.periodic import NEVER, Periodic
from dsv.stores.base import (
    LARGEST,
    Busy,
    Bytes,
    CutShortError,
    ListedObject,
    NoAnswer,
    PutResult,
    StoreBackend,
    TooLargeError,
    cut_short,
    forwarded,
)

_T = TypeVar("_T")


class RetryPolicy(msgspec.Struct, frozen=True):
    """The number of attempts, and the time between them. Times are seconds."""

    busy_attempts: int = 7
    """All calls while the server says that it is busy."""
    cut_short_attempts: int = 3
    """All reads of a body that ends too soon."""
    silent_attempts: int = 2
    """The fewest calls to a server that does not answer. With the client's timeout for one small call (14 s)
    its silence is reported within 30 s."""
    silent_until: float = 15.0
    """If calls fail faster than that, further ones start until then."""
    refused_until: float = 5.0
    """The same if nothing listens or the host is unknown, which seldom goes away by itself."""
    first_wait: float = 0.2
    longest_wait: float = 8.0

    def wait(self, attempt: int, chance: float) -> float:
        """Return the wait after the `attempt`-th failure (from 1); `chance`, in [0, 1), spreads callers."""
        longest = min(self.longest_wait, self.first_wait * 2.0 ** (attempt - 1))
        return longest * (0.5 + 0.5 * chance)


PATIENT: Final = RetryPolicy()
SILENT: Final = 4.0
"""Seconds without an answer after which a person is told, once, what is being waited for."""
_UNANSWERED: Final = (NoAnswer, OutcomeUnknown, CutShortError)
_REMEMBERED: Final = 30.0
"""Seconds for which the end of an object that is cut short is remembered: it may be repaired."""
_BULK: Final = 1 << 20
"""From this size on, a transfer may take longer than that without anything being wrong."""


class _Trial:
    """The failures of one operation so far."""

    def __init__(
        self, policy: RetryPolicy, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self.begin: float | None = clock()
        self._failures = 0

    def progressed(self) -> None:
        """Note progress: later failures are counted from zero."""
        self.begin = None
        self._failures = 0

    def failed(self, error: DsvError) -> None:
        """Wait before the next attempt, or raise `error` if no further one is allowed."""
        self._failures += 1
        if self.begin is None:
            self.begin = self._clock()
        wait = self._policy.wait(self._failures, _chance())
        if isinstance(error, Busy):
            enough = self._failures >= self._policy.busy_attempts
        elif isinstance(error, CutShortError):
            enough = self._failures >= self._policy.cut_short_attempts
        else:
            refused = isinstance(error, NoAnswer) and not error.maybe_done
            limit = self._policy.refused_until if refused else self._policy.silent_until
            late = self._clock() + wait - self.begin > limit
            enough = late and self._failures >= self._policy.silent_attempts
        if enough:
            raise error
        self._sleep(wait)


class Retrying:
    """A store, or half of a split one, with retries."""

    ordered_listing: bool = forwarded("inner", "ordered_listing")
    conditional: bool = forwarded("inner", "conditional")

    def __init__(
        self,
        inner: StoreBackend,
        policy: RetryPolicy = PATIENT,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        """notice: takes a line for a person, from a thread of its own."""
        self.inner = inner
        self.url = inner.url
        self.needs_condition = True
        """If False, a server that begins to refuse the condition of a write is asked without it."""
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self._ends: dict[str, tuple[int, float]] = {}
        """Where objects end that are too short, and when that was found out."""
        self._notice = notice
        self._trials: set[_Trial] = set()
        """Those under way, except of what may take long without anything being wrong."""
        self._watch = Periodic("dsv-silence", self.look, first=SILENT)
        if notice is not None:
            with suppress(RuntimeError):  # the system grants no more threads
                self._watch.start()

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()

    def close(self) -> None:
        self._watch.stop()
        self.inner.close()

    def look(self) -> float:
        """Tell, once, that a request has no answer for long. Return the seconds until this is asked again."""
        now = self._clock()
        begun = min((one.begin for one in list(self._trials) if one.begin is not None), default=now)
        if self._notice is None or now - begun < SILENT:
            return 1.0
        self._notice(f"waiting for {self.url}: no usable answer for {SILENT:.0f} s")
        return NEVER

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        return self._repeated(lambda: self.inner.get(key, limit), key.startswith(PACK_PREFIX))

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Like the inner store's. An object that ends at the same place twice is cut short, not its answer."""
        before: int | None = None

        def read() -> memoryview | CutShortError:
            nonlocal before
            end, when = self._ends.get(key, (start + length, 0.0))
            if length and start + length > end and self._clock() - when < _REMEMBERED:
                return cut_short(self.url, key, start, length, max(0, end - start))
            try:
                return self.inner.get_range(key, start, length)
            except CutShortError as error:
                if error.end != before:
                    before = error.end
                    raise
                self._ends[key] = before, self._clock()
                return error

        found = self._repeated(read, length >= _BULK)
        if isinstance(found, CutShortError):
            raise found
        return found

    def folders(self, prefix: str) -> Sequence[str]:
        return self._repeated(lambda: self.inner.folders(prefix))

    def modified(self, key: str) -> float:
        return self._repeated(lambda: self.inner.modified(key))

    def delete(self, key: str) -> None:
        self._repeated(lambda: self.inner.delete(key))

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        """Put until the outcome is known. Raises OutcomeUnknown if it stays unknown."""
        unsure = looking = False
        with self._trial(len(data) >= _BULK) as trial:
            while True:
                try:
                    if looking:  # the last answer was lost: its effect is read first, to send nothing twice
                        looking = False
                        there = self._there(key, data)
                        if there is not None:
                            return there
                    if self._put(key, data) is PutResult.WON:
                        return PutResult.WON
                    there = self._repeated(lambda: self._there(key, data))
                except _UNANSWERED as error:
                    unsure = looking = unsure or not isinstance(error, NoAnswer) or error.maybe_done
                    try:
                        trial.failed(error)
                    except _UNANSWERED as last:  # not Ctrl-C or SIGTERM, which end the wait
                        raise (_unknown(self.url, key, last) if unsure else last) from error
                except (Denied, Unreachable) as error:
                    raise (_unknown(self.url, key, error) if unsure else error) from error
                else:
                    if there is not None:
                        return there
                    # Refused, and yet absent: another writer's put was under way and failed.
                    busy = f"{self.url} refused {key} for a writer that never finished"
                    trial.failed(Busy(busy, subject=key))

    def _put(self, key: str, data: Bytes) -> PutResult:
        try:
            return self.inner.put_if_absent(key, data)
        except Unsupported:
            if self.needs_condition or not self.conditional:
                raise
        self.conditional = False
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        """Continue an interrupted listing after the last key, or begin again if keys are unsorted."""
        trial = _Trial(self._policy, self._clock, self._sleep)
        last = start_after
        seen: set[str] = set()
        while True:
            try:
                rows = self.inner.list(prefix, last if self.ordered_listing else start_after)
                with self._trial():  # the first answer is waited for
                    first = next(rows, None)
                for item in () if first is None else chain([first], rows):
                    if self.ordered_listing:
                        last = item.key
                    elif item.key in seen:
                        continue
                    else:
                        seen.add(item.key)
                    trial.progressed()
                    yield item
            except NoAnswer as error:
                trial.failed(error)
            else:
                return

    def _there(self, key: str, data: Bytes) -> PutResult | None:
        """Return WON if the key has these bytes, LOST if it has others, None if it is absent."""
        try:
            stored = self.inner.get(key, len(data))
        except NotFound:
            return None
        except TooLargeError:
            return PutResult.LOST
        return PutResult.WON if stored == data else PutResult.LOST

    def _repeated(self, operation: Callable[[], _T], is_bulk: bool = False) -> _T:
        with self._trial(is_bulk) as trial:
            while True:
                try:
                    return operation()
                except (NoAnswer, CutShortError) as error:
                    trial.failed(error)

    @contextmanager
    def _trial(self, is_bulk: bool = False) -> Iterator[_Trial]:
        """Yield the trial of one operation. `look` sees it, unless it moves much data."""
        trial = _Trial(self._policy, self._clock, self._sleep)
        if not is_bulk:
            self._trials.add(trial)
        try:
            yield trial
        finally:
            self._trials.discard(trial)


def _unknown(url: str, key: str, error: DsvError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"whether {key} was written to {url} is not known: {error.message}",
        subject=key,
        hint=error.hint or "run the same command again: it finds out by itself",
    )


def _chance() -> float:
    """Return a number in [0, 1). Importing `random` takes 20 ms, and every command imports this module."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
