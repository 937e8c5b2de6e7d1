"""Which packs are verified next, and when each was verified last: noted in the store, for all machines.

The packs are taken in slices, by the first hex digits of their ids. A machine takes a slice that was verified longest
ago, any of those that were at the same time, so two machines at once seldom take one. What others have noted meanwhile
is read with each note. Times are those of the notes in the store, by its clock.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from contextlib import suppress

from dsv.errors import DsvError, IntegrityError
from dsv.format import keys
from dsv.format.columns import from_little, little
from dsv.format.records import MAX_DIGITS, Verified, Writer
from dsv.repo.errors import may_write, read_record
from dsv.repo.repository import Repository
from dsv.store.base import Put, parsed
from dsv.values.ids import Nonce

_PACKS = 64
"""Packs of a slice, about."""
_KEPT = 8
"""Records that stay, as somebody may have listed an older one."""


class Schedule:
    def __init__(self, repository: Repository, writer: Writer) -> None:
        self._repository = repository
        self._writer = writer
        self._store = repository.store
        self._last = -1
        self._listed: list[int] = []
        self.digits = 1
        self.times = array("I", bytes(4 * 16))
        """When each slice was verified, in seconds since 1970; 0: never."""
        self.read()

    def read(self) -> None:
        """Read the last record. If it is damaged, everything counts as not verified."""
        while True:
            listed = self._store.list(keys.VERIFIED_PREFIX)
            self._listed = sorted(parsed(keys.parse_gc_verified_key, listed))
            self._last = self._listed[-1] if self._listed else -1
            if self._last < 0:
                return
            key = keys.gc_verified_key(self._last)
            try:
                found = read_record(Verified.decode, self._store, key)
                written = int(self._store.modified(key))
            except IntegrityError:
                return
            except DsvError:
                if keys.gc_verified_key(self._last) in [item.key for item in self._store.list(key)]:
                    raise
                continue  # a later one was written, and this one deleted
            times = from_little("I", memoryview(found.times))
            for one in found.fresh:
                times[one] = written
            self._take(found.digits, times)
            return

    def _take(self, digits: int, times: array[int]) -> None:
        while digits < self.digits:
            digits, times = digits + 1, array("I", [time for time in times for _ in range(16)])
        self.digits, self.times = digits, times

    def fit(self, packs: int) -> None:
        """Make the slices small enough for so many packs."""
        digits = self.digits
        while digits < MAX_DIGITS and packs > _PACKS * 16**digits:
            digits += 1
        times = self.times
        for _ in range(digits - self.digits):
            times = array("I", [time for time in times for _ in range(16)])
        self.digits, self.times = digits, times

    def order(self, left: Iterable[int]) -> list[int]:
        """Return these slices, those that were verified longest ago first."""
        drawn = [(self.times[one], random.random(), one) for one in left]
        return [one for _, _, one in sorted(drawn)]

    def prefix(self, slice_: int) -> str:
        return keys.pack_search_prefix(f"{slice_:0{self.digits}x}")

    def note(self, done: Iterable[int]) -> None:
        """Note that these slices were verified just now, and take over what others have noted."""
        done, digits = sorted(set(done)), self.digits
        while True:
            self.read()
            times = self.times
            if self.digits != digits:  # another machine has made the slices smaller
                scale = 16 ** (self.digits - digits)
                done = [one * scale + part for one in done for part in range(scale)]
                digits = self.digits
            record = Verified(
                self.digits, bytes(little(times)), tuple(done), Nonce.random(), self._repository.clock(),
                self._writer.author, self._writer.tool,
            )  # fmt: skip
            key = keys.gc_verified_key(self._last + 1)
            with may_write(self._store.url):
                won = self._store.put_if_absent(key, record.encode()) is Put.WON
            if won:
                break
        for old in self._listed[: -_KEPT + 1]:
            with suppress(DsvError):
                self._store.delete(keys.gc_verified_key(old))
        self.read()

    def oldest(self) -> int:
        """Return the time before which no pack was verified last; 0 if some never were."""
        return min(self.times)
