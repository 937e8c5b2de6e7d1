from __future__ import annotations

import threading

from dsv.periodic import NEVER, Periodic
from tests.waiting import PATIENCE


def test_work_is_done_again_and_again_until_it_is_stopped() -> None:
    done = threading.Semaphore(0)

    def work() -> float:
        done.release()
        return 0.001

    periodic = Periodic("test", work)
    periodic.start()
    for _ in range(3):
        assert done.acquire(timeout=PATIENCE)
    assert periodic.stop()
    assert periodic.stopping
    while done.acquire(blocking=False):
        pass
    assert not done.acquire(timeout=0.05)
    assert periodic.stop()


def test_a_long_wait_is_cut_short_by_the_stop() -> None:
    periodic = Periodic("test", lambda: NEVER, first=3600)
    periodic.start()
    assert periodic.stop()


def test_work_that_need_not_be_done_again_ends_the_thread() -> None:
    called = threading.Event()

    def work() -> float:
        called.set()
        return NEVER

    periodic = Periodic("test", work)
    periodic.start()
    assert called.wait(PATIENCE)
    assert periodic.stop()


def test_work_that_hangs_is_not_waited_for_longer_than_asked() -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> float:
        entered.set()
        leave.wait()
        return NEVER

    periodic = Periodic("test", work)
    periodic.start()
    assert entered.wait(PATIENCE)
    assert not periodic.stop(timeout=0.01)
    leave.set()
    assert periodic.stop()


def test_one_that_was_never_started_can_be_stopped() -> None:
    assert Periodic("test", lambda: NEVER).stop()


def test_it_can_be_stopped_by_its_own_work() -> None:
    ended = threading.Event()

    def work() -> float:
        periodic.stop()
        ended.set()
        return 0.0

    periodic = Periodic("test", work)
    periodic.start()
    assert ended.wait(PATIENCE)
