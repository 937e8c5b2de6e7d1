"""Many operations at once: a caller that waits for them is woken, whatever happens to them."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from dsv.cache.fill.place_files import Pool


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


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_where_the_system_grants_fewer_threads_those_do_everything(
    granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) >= granted:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    pool, done = Pool(8), list[int]()
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
