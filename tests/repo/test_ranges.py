"""Reading many things as few ranges: what is held in memory for it stays small, however small the things are."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.locator import Location
from dsv.repo.objects.ranges import RangeReader, ReadThreads, Span, spans
from dsv.stores.memory import MemoryStore
from dsv.values.ids import PackId
from tests.waiting import PATIENCE, until

PACK = PackId(bytes(16))
LIMIT, BUDGET = 1 << 20, 4 << 20
ROOT = Path(__file__).parents[2]


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
    got = RangeReader(store, ReadThreads(), budget=BUDGET).read(spans(asked, LIMIT))
    for turn, (where, item, data) in enumerate(got):
        assert (item, bytes(data or b"")) == (turn, content[where.offset : where.offset + size])
        assert (asked.count - turn - 1) * (size + 1024) <= BUDGET + 2 * LIMIT
    assert turn == number - 1


def test_small_things_still_come_in_large_ranges() -> None:
    found = list(spans(Asked(10_000, 1000), 8 << 20))
    assert [len(span.items) for span in found] == [4144, 4144, 1712]


def test_packs_that_are_used_by_turns_are_still_read_at_the_same_time() -> None:
    """As after many small edits: each range is needed until the end, so many are read before the first is done."""
    asked, more = 0, threading.Condition()

    class Ahead(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> memoryview:
            """Answer when one more is asked for: of requests that are made one by one none ever has an answer."""
            nonlocal asked
            with more:
                asked += 1
                more.notify_all()
                pack = keys.parse_pack_key(key)
                assert pack is not None
                assert more.wait_for(lambda: asked >= min(packs.index(pack) + 2, len(packs)), PATIENCE)
            return super().get_range(key, start, length)

    store, packs = Ahead(), [PackId(bytes([number]) * 16) for number in range(60)]
    for pack in packs:
        store.put_if_absent(keys.pack_key(pack), bytes(pack[:1]) * 3)
    wanted = [(Location(pack, at, 1, 1, Codec.RAW), pack) for at in range(3) for pack in packs]
    threads = ReadThreads()
    got = [(item, data) for _, item, data in RangeReader(store, threads).read(spans(wanted, LIMIT))]
    threads.close()
    assert got == [(pack, bytes(pack[:1])) for _ in range(3) for pack in packs]


def test_a_signal_ends_it_at_once_while_the_store_is_silent() -> None:
    answer = threading.Event()

    class Silent(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> memoryview:
            interrupt.start()
            answer.wait(PATIENCE)
            return super().get_range(key, start, length)

    interrupt = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    assert threading.current_thread() is threading.main_thread()
    threads = ReadThreads()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(RangeReader(Silent(), threads).read(spans(Asked(1, 1), LIMIT)))
        threads.close()
        assert not answer.is_set()
        assert any(thread.name.startswith("dsv-read") for thread in threading.enumerate()), "still asking"
    finally:
        answer.set()


def test_an_abandoned_read_asks_for_no_more_and_leaves_no_thread() -> None:
    asked, others = list[int](), set(threading.enumerate())
    third, answer = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> memoryview:
            asked.append(start)
            if start == 2:
                third.set()
            assert not start or answer.wait(PATIENCE)
            return super().get_range(key, start, length)

    store = Slow()
    store.put_if_absent(keys.pack_key(PACK), bytes(9))
    wanted = [Span(PACK, at, at + 1, [(at, Location(PACK, at, 1, 1, Codec.RAW), at)]) for at in range(9)]
    threads = ReadThreads()
    got = RangeReader(store, threads, connections=2).read(wanted)
    assert next(got)[1] == 0 and third.wait(PATIENCE)
    del got
    gc.collect()
    answer.set()
    threads.pool(2).submit(lambda: None).result()  # whatever waited for a thread has had one by then
    threads.close()
    assert sorted(asked) == [0, 1, 2]
    until(
        lambda: not any(one.name.startswith("dsv-read") for one in {*threading.enumerate()} - others),
        "the end of its threads",
    )


def test_the_garbage_collector_may_come_while_a_thread_starts(tmp_path: Path) -> None:
    """Python then holds the lock that waiting for the end of a thread needs."""
    done = subprocess.run(
        [sys.executable, "-c", _ABANDONED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


_ABANDONED = """
import faulthandler, gc, sys, threading
from pathlib import Path

from dsv.api.diff import diff
from dsv.values.names import Target
from tests.kit.people import Person
from tests.waiting import PATIENCE

faulthandler.dump_traceback_later(PATIENCE, exit=True)
gc.disable()
ann = Person.who_synced(Path(sys.argv[1]), {f"f{number}": b"a" * number for number in range(50)})
ann.write({f"f{number}": b"b" * number for number in range(50)})
ann.sync()
bob = Person(ann.home / "bob", ann.store)
with diff(bob.context(ann.home), Target.parse("scans@main~1"), Target.parse("scans@main")) as found:
    contents = found.contents(found.found.differences)
    next(contents)
    loop = [contents]
    loop.append(loop)  # so that the garbage collector alone finds it
    del contents, loop
    if hasattr(threading, "_maintain_shutdown_locks"):  # before Python 3.13
        maintain = threading._maintain_shutdown_locks
        threading._maintain_shutdown_locks = lambda: (gc.collect(), maintain())
    else:
        gc.collect()
    thread = threading.Thread(target=print, args=("started",))
    thread.start()
    thread.join()
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
"""
