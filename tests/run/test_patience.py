"""A job that waits in the queue of one pool too long, and an engine whose answers get lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from threading import Event
from typing import cast

import pytest

from dsv.run import pools
from dsv.run.engines import attach as foreground
from dsv.run.engines.attach import Foreground
from dsv.run.engines.base import Ended, Engine, JobPlan, JobStatus, NoPlaceYet
from dsv.run.engines.output import JobOutput
from dsv.run.part import EndCause
from dsv.run.pools import Patience
from dsv.run.record import JobRef, RunState
from tests.waiting import PATIENCE, until

REF = JobRef("slurm", "20261120-132145-1f2e3d4c", "c", "7:/job")
WAITS = JobStatus(RunState.QUEUED)
GONE = JobStatus(RunState.NOT_LAUNCHED)
CANCELLED = Ended(exit_code=137, launched=False, cause=EndCause.CANCELLED)


@dataclass
class Queue:
    """says: what it answers, one after the other, and the last for good. withdrawn: what it answers to that."""

    says: Iterator[JobStatus | None]
    withdrawn: JobStatus | None
    asked: int = 0
    over: Event = field(default_factory=Event)
    queues = True

    def status(self, ref: JobRef) -> JobStatus | None:
        found = next(self.says, None)
        if found is None:
            self.over.set()
        return found

    def withdraw(self, ref: JobRef) -> JobStatus | None:
        self.asked += 1
        self.over.set()
        return self.withdrawn


def left(queue: Queue, until: Event) -> str | None:
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", queue), REF)
    assert until.wait(PATIENCE)
    return waiting.left(CANCELLED)


def test_a_job_that_was_taken_back_moves_on_even_if_the_answer_was_lost() -> None:
    queue = Queue(iter([WAITS]), None)
    assert left(queue, queue.over) == "no GPU is free" and queue.asked == 1


def test_a_job_is_seen_to_be_taken_back_when_the_engine_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "_AGAIN", 0.0)
    queue = Queue(iter([WAITS, None, GONE]), None)
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", queue), REF)
    assert waiting._thread is not None
    waiting._thread.join(PATIENCE)
    assert not waiting._thread.is_alive()
    assert waiting.left(CANCELLED) == "no GPU is free"


def test_a_job_that_was_stopped_while_it_was_taken_back_does_not_move_on() -> None:
    """Whoever of the two ended it: the run is over, and goes to no other pool."""
    stopped = Ended(exit_code=137, launched=False, cause=EndCause.CANCELLED, stopped="ann@n2")
    queue = Queue(iter([WAITS]), JobStatus(RunState.NOT_LAUNCHED, 137, stopped))
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", queue), REF)
    assert queue.over.wait(PATIENCE)
    assert waiting.left(stopped) is None
    late = Queue(iter([WAITS]), GONE)  # it was stopped once it had been taken back
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", late), REF)
    assert late.over.wait(PATIENCE)
    assert waiting.left(stopped) is None


def test_a_job_that_was_cancelled_does_not_move_on() -> None:
    refused = Queue(iter([WAITS, WAITS]), WAITS)
    assert left(refused, refused.over) is None
    before = Queue(iter([GONE]), None)
    waiting = Patience(0.0)
    waiting.begin(cast("Engine", before), REF)
    assert waiting._thread is not None
    waiting._thread.join(PATIENCE)
    assert waiting.left(CANCELLED) is None and before.asked == 0


class Full(Queue):
    """Has no place for the job until it was asked so often."""

    places_after = 3

    ref = REF

    def submit(self, plan: JobPlan, output: JobOutput, cancelled: Event) -> Full:
        self.asked += 1
        if self.asked < self.places_after:
            raise NoPlaceYet("the quota is used up")
        return self

    def begin(self, *given: object) -> None:
        self.over.set()


def submitted(engine: Full, patience: Patience) -> Foreground:
    plan = cast("JobPlan", None)
    return Foreground(
        cast("Engine", engine), plan, JobOutput(None, None), lambda: None, lambda ref: None, patience.refused
    )


def test_a_full_engine_is_asked_again_until_it_takes_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "_PAUSES", (0.01, 0.01))
    engine = Full(iter([]), None)
    submitted(engine, Patience())
    assert engine.over.wait(PATIENCE) and engine.asked == 3


def test_a_job_moves_to_the_next_pool_if_the_engine_stays_full() -> None:
    waiting = Patience(0.0, "no GPU is free")
    job = submitted(Full(iter([]), None), waiting)
    until(lambda: job.ended is not None)
    assert job.ended is not None and not job.ended.taken
    assert waiting.left(job.ended) == "the quota is used up"


def test_a_signal_ends_the_wait_for_a_full_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "_PAUSES", (10_000.0, 10_000.0))
    waiting = Patience(10_000.0)
    engine = Full(iter([]), None)
    job = submitted(engine, waiting)
    until(lambda: engine.asked == 1)
    job.signal(signal.SIGTERM)
    until(lambda: job.ended is not None)
    assert job.ended is not None and not job.ended.launched
    assert waiting.left(replace(job.ended, signal=signal.SIGTERM)) is None
