"""Choosing a pool from facts, asking for the facts, and waiting for a turn."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import DsvError, LaunchError, Unreachable
from dsv.run.active_runs import Marks, RunRecords
from dsv.run.engines.base import JobStatus
from dsv.run.engines.process import ProcessEngine
from dsv.run.part import EndCause
from dsv.run.pools import (
    GaveUp,
    PoolChoice,
    PoolFacts,
    Prefer,
    Stop,
    ask_all,
    choose_pool,
    is_taken_back,
)
from dsv.run.record import RunState
from dsv.run.resources import Capacity, GpuCount, NodeRoom, PassedOver, Resources, fit
from dsv.run.supervisor import run
from tests.run.shop import SCANS, STORE, Shop
from tests.waiting import PATIENCE

WANTED = Resources(gpus=8)
_OTHER = "it can begin as well, and doesn't have the data cached"


def facts(pool: str, free: int = 8, total: int = 8, **more: object) -> PoolFacts:
    capacity = Capacity((NodeRoom("n", (GpuCount("A100", free, total),)),))
    return PoolFacts(pool=pool, capacity=fit(WANTED, capacity), **more)  # type: ignore[arg-type]


FREE, CACHED = facts("free"), facts("cached", cached=True)
FULL, FULL_CACHED = facts("full", free=0), facts("full-cached", free=0, cached=True)
SMALL = facts("small", total=4, free=4)
DOWN = PoolFacts(pool="down", error=Unreachable("no answer in 10 s"))
REFUSED = facts("refused", refused="the process engine runs no images")
NO_ROOM = facts("no-room", no_room="1 TB is needed")

NOW = {
    "full": "0 of 8 GPUs are free",
    "full-cached": "0 of 8 GPUs are free",
    "small": "no machine of it has 8 GPUs",
    "down": "unreachable: no answer in 10 s",
    "refused": "the process engine runs no images",
    "no-room": "no room in its cache: 1 TB is needed",
    "free": _OTHER,
}


def over(*pools: str) -> tuple[PassedOver, ...]:
    return tuple(PassedOver(pool, NOW[pool]) for pool in pools)


@pytest.mark.parametrize(
    ("given_", "prefer", "expected"),
    [
        ([FREE], Prefer.CACHED, PoolChoice("free")),
        ([FREE, CACHED], Prefer.CACHED, PoolChoice("cached", over("free"), ("free",))),
        ([FREE, CACHED], Prefer.ORDER, PoolChoice("free", (), ("cached",))),
        ([CACHED, FREE], Prefer.CACHED, PoolChoice("cached", (), ("free",))),
        # If it doesn't begin there after all, the others come next.
        ([FULL, FREE], Prefer.CACHED, PoolChoice("free", over("full"), ("full",))),
        # Data in a pool that can't begin now doesn't make the job wait.
        ([FULL_CACHED, FREE], Prefer.CACHED, PoolChoice("free", over("full-cached"), ("full-cached",))),
        ([DOWN, SMALL, REFUSED, NO_ROOM, FREE], Prefer.CACHED,
         PoolChoice("free", over("down", "small", "refused", "no-room"))),
        # None can begin: it waits at the first that ever can, and then at the others.
        ([FULL, FULL_CACHED], Prefer.CACHED, PoolChoice("full", (), ("full-cached",), NOW["full"])),
        ([DOWN, FULL, SMALL, FULL_CACHED], Prefer.CACHED,
         PoolChoice("full", over("down"), ("full-cached",), NOW["full"])),
    ],
)  # fmt: skip
def test_the_choice(given_: list[PoolFacts], prefer: Prefer, expected: PoolChoice) -> None:
    assert choose_pool(given_, prefer) == expected


def test_no_pool_can_ever_run_it() -> None:
    reasons = "; ".join(f"{each.pool}: {each.reason}" for each in over("down", "small"))
    with pytest.raises(LaunchError, match=re.escape(reasons)):
        choose_pool([DOWN, SMALL])


_ALL = (FREE, CACHED, FULL, FULL_CACHED, SMALL, DOWN, REFUSED, NO_ROOM)


@given(
    st.permutations(_ALL).flatmap(lambda order: st.integers(1, len(order)).map(lambda n: order[:n])),
    st.sampled_from(Prefer),
)
def test_a_job_begins_if_any_pool_can_begin_it(order: list[PoolFacts], prefer: Prefer) -> None:
    able = [each for each in order if each.never is None]
    ready = [each for each in able if each.not_now is None]
    if not able:
        with pytest.raises(LaunchError):
            choose_pool(order, prefer)
        return
    choice = choose_pool(order, prefer)
    assert (choice.reason is None) is bool(ready)
    assert choice.pool in {each.pool for each in ready or able}
    names = [each.pool for each in order]
    assert [each.pool for each in choice.passed_over] == names[: names.index(choice.pool)]
    assert all(each.reason for each in choice.passed_over)


def unreachable(pool: str, error: DsvError) -> PoolFacts:
    return PoolFacts(pool=pool, error=error)


def test_pools_are_asked_at_once_and_one_that_hangs_is_left_behind() -> None:
    """Each waits for the others, so that asking them one after the other would never end."""
    never = threading.Event()

    def asking(together: threading.Barrier) -> Callable[[str], PoolFacts]:
        def ask(pool: str) -> PoolFacts:
            if pool == "hangs":
                never.wait()
                return facts(pool)
            together.wait(PATIENCE)
            if pool == "fails":
                raise Unreachable("the token was revoked")
            return facts(pool)

        return ask

    answers = {}
    try:
        for seconds in (1, 10, 100):  # until the machine is fast enough for those that answer
            ask = asking(threading.Barrier(3))
            asked = ask_all(["a", "hangs", "fails", "b"], ask, unreachable, float(seconds))
            answers = {each.pool: each for each in asked}
            if sum(each.problem == f"no answer in {seconds} s" for each in asked) == 1:
                break
    finally:
        never.set()
    assert list(answers) == ["a", "hangs", "fails", "b"]
    assert answers["hangs"].problem == f"no answer in {seconds} s"
    assert answers["fails"].problem == "the token was revoked"
    assert answers["a"] == facts("a") and answers["b"] == facts("b")


def test_what_goes_wrong_with_one_pool_is_its_own_matter() -> None:
    def ask(pool: str) -> PoolFacts:
        if pool == "odd":
            raise ZeroDivisionError
        return facts(pool)

    odd, fine = ask_all(["odd", "fine"], ask, unreachable)
    assert (odd.problem, fine) == ("ZeroDivisionError", facts("fine"))


@pytest.mark.parametrize("state", list(RunState))
def test_only_a_job_that_will_never_begin_may_move(state: RunState) -> None:
    assert is_taken_back(JobStatus(state)) is (state in (RunState.CUT_OFF, RunState.NOT_LAUNCHED))
    assert not is_taken_back(None), "nobody knows"


def test_a_run_that_no_pool_took_is_recorded_as_not_launched(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise LaunchError("it takes no jobs")

    class Two:
        pools: Mapping[str, float | None] = MappingProxyType({"a": 60.0, "b": None})

        def enter(self, name: str, *given: object) -> Stop:
            if name != "a":
                raise GaveUp("it is closed")
            return Stop(spec, shop.data, None)

    monkeypatch.setattr(ProcessEngine, "submit", refuse)
    spec, records = shop.request("true"), RunRecords(shop.place.state, STORE, shop.runs)
    with pytest.raises(LaunchError, match="a: it takes no jobs; b: it is closed"):
        run(spec, place=shop.place, staging=shop.data, records=records, route=Two())
    (stored,) = shop.runs.listing(SCANS)
    record = shop.runs.read(stored)
    assert (record.state, record.end) == (RunState.NOT_LAUNCHED, EndCause.NOT_STARTED)
    assert "b: it is closed" in (record.error or "")
    assert Marks(shop.place.state, STORE).known() == []
    assert [each.released for each in shop.data.leases] == [True]  # of the pool that was left
