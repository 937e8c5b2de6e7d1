"""Reading many things as few ranges: what is held in memory for it stays small, however small the things are."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from dsv.model import keys
from dsv.model.codec import Codec
from dsv.model.ids import PackId
from dsv.model.location import Location
from dsv.repo.ranges import RangeReader, spans
from dsv.store.memory import MemoryStore
from tests.waiting import PATIENCE

PACK = PackId(bytes(16))
LIMIT, BUDGET = 1 << 20, 4 << 20


class Asked:
    """Neighbours in one pack, made when they are asked for; `count` says how many were."""

    def __init__(self, number: int, size: int) -> None:
        self.count = 0
        self._number = number
        self._size = size

    def __iter__(self) -> Iterator[tuple[Location, int]]:
        for at in range(self._number):
            self.count += 1
            yield Location(PACK, at * self._size, self._size, self._size, Codec.RAW), at


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_what_is_asked_for_ahead_is_bounded_by_number_and_by_bytes(size: int) -> None:
    """Around each thing there are some objects, which may well be more than its bytes."""
    number = 5 * BUDGET // (size + 1024)
    store = MemoryStore()
    content = bytes(range(256)) * (number * size // 256 + 1)
    store.put_if_absent(keys.pack_key(PACK), content[: number * size])
    asked = Asked(number, size)
    got = RangeReader(store, budget=BUDGET).read(spans(asked, LIMIT))
    for turn, (where, item, data) in enumerate(got):
        assert (item, bytes(data or b"")) == (turn, content[where.offset : where.offset + size])
        assert (asked.count - turn - 1) * (size + 1024) <= BUDGET + 2 * LIMIT
    assert turn == number - 1


def test_small_things_still_come_in_large_ranges() -> None:
    found = list(spans(Asked(10_000, 1000), 8 << 20))
    assert [len(span.items) for span in found] == [4144, 4144, 1712]


def test_a_signal_ends_it_at_once_while_the_store_is_silent() -> None:
    answer = threading.Event()

    class Silent(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> memoryview:
            interrupt.start()
            answer.wait(PATIENCE)
            return super().get_range(key, start, length)

    interrupt = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    assert threading.current_thread() is threading.main_thread()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(RangeReader(Silent()).read(spans(Asked(1, 1), LIMIT)))
        assert not answer.is_set()
        assert any(thread.name.startswith("dsv-read") for thread in threading.enumerate()), "still asking"
    finally:
        answer.set()
