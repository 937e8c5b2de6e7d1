"""Many operations at once: a caller that waits for them is woken, whatever happens to them."""

from __future__ import annotations

import threading

import pytest
from tests.waiting import PATIENCE

from dsv.cache.fill.place_files import Pool


def test_an_error_is_raised_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(4)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            pool.run(lambda: None)
    pool.settle()
    done: list[int] = []
    pool.run(lambda: done.append(1))
    pool.close()
    assert done == [1]


def test_a_thread_less_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(4)
    go, done = threading.Event(), list[int]()

    def task(number: int) -> None:
        go.wait(PATIENCE)
        done.append(number)

    pool.run(lambda: task(0))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for number in range(1, 5):
            pool.run(lambda number=number: task(number))  # type: ignore[misc]
    go.set()
    pool.drain()
    pool.close()
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_an_error_is_heard_once_or_dropped_on_demand() -> None:
    pool = Pool(2)

    def fail() -> None:
        raise OSError("no")

    pool.run(fail)
    pool.settle()
    with pytest.raises(OSError, match="no"):
        pool.drain()
    pool.drain()
    pool.run(fail)
    pool.clear()
    pool.drain()
    pool.close()
