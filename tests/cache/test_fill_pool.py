"""Many operations at once: a caller that waits for them is woken, whatever happens to them."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from tests.kit.threads import grant

from dsv.cache.fill import place_files
from dsv.cache.fill.place_files import TaskPool


def test_an_error_is_raised_once_or_dropped_on_demand() -> None:
    pool = TaskPool(2)

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


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_where_the_system_grants_fewer_threads_those_do_everything(
    granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant(granted, monkeypatch)
    pool, done = TaskPool(8), list[int]()
    if granted:
        for number in range(40):
            pool.run(partial(done.append, number))
        pool.drain()
        assert sorted(done) == list(range(40))
    else:
        with pytest.raises(RuntimeError, match="new thread"):
            pool.run(partial(done.append, 0))
        assert not done
    pool.close()


def test_a_thread_that_is_just_ending_a_task_does_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started, waiting = threading.Thread.start, [], threading.Event()
    run = place_files._run

    def limited(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def not_idle_at_once(*args: Any) -> None:
        run(*args)
        waiting.wait()

    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(place_files, "_run", not_idle_at_once)
    pool, done = TaskPool(8), list[int]()
    try:
        pool.run(partial(done.append, 1))
        pool.drain()
        pool.run(partial(done.append, 2))
    finally:
        waiting.set()
    pool.drain()
    pool.close()
    assert done == [1, 2]
