from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from dsv.stores.base import both, together
from tests.kit.threads import grant
from tests.waiting import PATIENCE


def test_they_are_made_at_the_same_time() -> None:
    """Each waits for all the others to have begun."""
    meeting = threading.Barrier(2, timeout=PATIENCE)
    assert both(lambda: (meeting.wait(), "one")[1], lambda: (meeting.wait(), 2)[1]) == ("one", 2)
    larger = threading.Barrier(8, timeout=PATIENCE)
    calls = [partial(lambda number: (larger.wait(), number)[1], number) for number in range(8)]
    assert together(calls) == list(range(8))


def test_the_first_ones_error_counts_and_all_have_ended_by_then() -> None:
    ended = []

    def fails(name: str, after: threading.Event, then: threading.Event) -> None:
        after.wait(PATIENCE)
        then.set()
        ended.append(name)
        raise ValueError(name)

    one, other, begin = threading.Event(), threading.Event(), threading.Event()
    begin.set()
    with pytest.raises(ValueError, match="first"):
        both(lambda: fails("first", other, one), lambda: fails("second", begin, other))
    assert ended == ["second", "first"]


def test_after_a_failure_nothing_further_is_begun() -> None:
    begun: list[int] = []

    def call(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        time.sleep(0.001)
        return number

    calls: list[Callable[[], int]] = [partial(call, number) for number in range(5_000)]
    with pytest.raises(ValueError, match="three"):
        together(calls)
    assert len(begun) < len(calls)


def test_nothing_and_one_thing_take_no_thread() -> None:
    assert together([]) == []
    assert together([threading.current_thread]) == [threading.main_thread()]


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_where_the_system_grants_fewer_threads_everything_is_asked_all_the_same(
    granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's limit of processes, or of memory: "can't start new thread"."""
    started = grant(granted, monkeypatch)
    assert together([partial(str, number) for number in range(40)]) == [str(number) for number in range(40)]
    started.clear()
    assert both(lambda: "one", lambda: both(lambda: 2, lambda: 3)) == ("one", (2, 3))
    started.clear()
    with pytest.raises(ZeroDivisionError):
        both(lambda: 1 // 0, lambda: 1)
