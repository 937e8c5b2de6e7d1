"""Runs that a cluster has without a process here, as the process of their sweep follows them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv.errors import Unreachable
from dsv.run import sweep as module
from dsv.run.listing import RunView
from dsv.run.record import JobRef, RunId, RunRecord, RunState
from dsv.run.record_store import Spool
from dsv.run.sweep import SweepDriver
from tests.run.shop import STORE
from tests.run.test_record import RECORD
from tests.waiting import until

QUEUED = replace(
    RECORD, state=RunState.QUEUED, engine="slurm", job=JobRef("slurm", RECORD.run, "c@h", "7:/job"),
    exit_code=None, ended_ms=None, env=(),
)  # fmt: skip
ENDED = replace(QUEUED, state=RunState.NOT_LAUNCHED, exit_code=125)


@dataclass
class Sweep:
    """A sweep of one run, which a cluster has, and what its process says and does."""

    state: Path
    stored: list[RunRecord | Exception] = field(default_factory=lambda: [QUEUED])
    """What the store answers, in order; the last answer stays."""
    ended: bool = False
    answers: bool = True
    asked: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    seen: list[RunView] = field(default_factory=list)
    process: int | None = 0

    def driver(self) -> SweepDriver:
        any_: Any = SimpleNamespace(turn=1)
        any_.seat, any_.begun, any_.going = SimpleNamespace(of=1), {1}, ()
        notes: Any = SimpleNamespace(is_over=lambda turn: True)
        driver = SweepDriver(
            any_, self.state, 1, notes, show=self.show, start=any_, watch=lambda _, view: self.seen.append(view),
            note=self.said.append, settle=self.settle, end=self.end,
        )  # type: ignore[arg-type]  # fmt: skip
        started: Any = SimpleNamespace(poll=lambda: self.process)
        driver._begun, driver._going = {1}, {1: (QUEUED.run, started)}
        return driver

    def show(self, run: RunId) -> RunView:
        record = self.stored[0] if len(self.stored) == 1 else self.stored.pop(0)
        if isinstance(record, Exception):
            raise record
        return RunView(record, sent=True)

    def settle(self, views: Sequence[RunView]) -> Sequence[RunView]:
        return [RunView(ENDED if self.ended else view.record, sent=True) for view in views]

    def end(self, record: RunRecord, grace: float) -> bool:
        assert record.job == QUEUED.job
        self.asked.append(grace)
        self.ended = self.answers
        return self.answers

    def until_over(self, driver: SweepDriver) -> None:
        """Go on as `drive` does."""

        def step() -> bool:
            driver._look()
            driver._ask()
            return not (driver._going or driver._left)

        until(step, "the end of the sweep")


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(module, "_ASK", (0.01, 0.02))
    monkeypatch.setattr(module, "_AWAY", 0.05)
    return Sweep(tmp_path)


def test_a_run_that_is_left_after_ctrl_c_is_ended(sweep: Sweep) -> None:
    driver = sweep.driver()
    sweep.process = None
    driver._look()
    driver._heed(signal.SIGINT)
    assert list(driver._going) == [1] and sweep.asked == []
    sweep.process = 0
    sweep.until_over(driver)
    assert [view.record for view in sweep.seen] == [ENDED] and sweep.asked == [20]


def test_a_run_whose_cluster_is_away_is_ended_once_it_answers(sweep: Sweep) -> None:
    sweep.answers = False
    driver = sweep.driver()
    driver._look()
    driver._heed(signal.SIGINT)

    driver._ask()
    until(lambda: len(sweep.asked) > 2, "further questions")
    sweep.answers = True
    sweep.until_over(driver)
    assert [view.record for view in sweep.seen] == [ENDED] and set(sweep.asked) == {20}
    assert sweep.said[1:] == [f"run {QUEUED.run} is ended once its cluster answers"]


def test_a_second_ctrl_c_ends_left_runs_at_once(sweep: Sweep) -> None:
    sweep.answers = False
    driver = sweep.driver()
    driver._look()
    for _ in range(2):
        driver._heed(signal.SIGINT)
        driver._ask()
    until(lambda: 0 in sweep.asked, "a request without grace")
    sweep.answers = True
    sweep.until_over(driver)
    assert sweep.asked[0] == 20 and [view.record for view in sweep.seen] == [ENDED]


def test_a_run_that_is_left_while_the_store_is_away_stays_in_the_sweep(sweep: Sweep) -> None:
    away = Unreachable("no answer")
    sweep.stored = [away, away, QUEUED]
    driver = sweep.driver()
    driver._look()
    assert list(driver._going) == [1] and sweep.seen == []
    until(lambda: driver._look() or driver._left, "the record")
    assert sweep.said == [f"run {QUEUED.run} is looked for once the store answers: no answer"]
    sweep.ended = True
    sweep.until_over(driver)
    assert [view.record for view in sweep.seen] == [ENDED]


def test_a_run_whose_end_waits_here_is_not_waited_for_while_the_store_is_away(sweep: Sweep) -> None:
    Spool(sweep.state, STORE).keep_end(ENDED, None, None)
    sweep.stored = [Unreachable("no answer")]
    driver = sweep.driver()
    driver._look()
    assert not driver._going and "can't be read: no answer" in sweep.said[0]
