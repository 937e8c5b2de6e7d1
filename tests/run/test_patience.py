"""A job that waits in the queue of one pool too long, and an engine whose answers get lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event
from typing import cast

import pytest

from dsv.engines.base import Ended, Engine, JobStatus
from dsv.engines.supervise import Outcome
from dsv.model.run import JobRef, RunState
from dsv.model.run_end import EndCause
from dsv.runs.pools import patience
from dsv.runs.pools.patience import Patience
from dsv.runs.pools.turns import GaveUp
from tests.waiting import PATIENCE

REF = JobRef("slurm", "20261120-132145-1f2e3d4c", "c", "7:/job")
WAITS = JobStatus(RunState.QUEUED)
GONE = JobStatus(RunState.NOT_LAUNCHED)
CANCELLED = Outcome(Ended(exit_code=137, launched=False, cause=EndCause.CANCELLED))


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


def left(queue: Queue, until: Event) -> GaveUp | None:
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", queue), REF)
    assert until.wait(PATIENCE)
    return waiting.left(CANCELLED)


def test_a_job_that_was_taken_back_goes_on_even_if_the_answer_to_that_got_lost() -> None:
    queue = Queue(iter([WAITS]), None)
    assert left(queue, queue.over) == GaveUp("no GPU is free") and queue.asked == 1


def test_a_job_is_seen_to_be_taken_back_when_the_engine_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "_AGAIN", 0.0)
    queue = Queue(iter([WAITS, None, GONE]), None)
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", queue), REF)
    assert waiting._thread is not None
    waiting._thread.join(PATIENCE)
    assert not waiting._thread.is_alive()
    assert waiting.left(CANCELLED) == GaveUp("no GPU is free")


def test_a_job_that_somebody_stopped_while_it_was_taken_back_does_not_go_on() -> None:
    """Whoever of the two ended it: the run is over, and goes to no other pool."""
    stopped = Ended(exit_code=137, launched=False, cause=EndCause.CANCELLED, stopped="ann on n2 (dsv stop)")
    queue = Queue(iter([WAITS]), JobStatus(RunState.NOT_LAUNCHED, 137, stopped))
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", queue), REF)
    assert queue.over.wait(PATIENCE)
    assert waiting.left(Outcome(stopped)) is None
    late = Queue(iter([WAITS]), GONE)  # it was stopped once it had been taken back
    waiting = Patience(0.0, "no GPU is free")
    waiting.begin(cast("Engine", late), REF)
    assert late.over.wait(PATIENCE)
    assert waiting.left(Outcome(stopped)) is None


def test_a_job_that_somebody_cancelled_does_not_go_on() -> None:
    refused = Queue(iter([WAITS, WAITS]), WAITS)
    assert left(refused, refused.over) is None
    before = Queue(iter([GONE]), None)
    waiting = Patience(0.0)
    waiting.begin(cast("Engine", before), REF)
    assert waiting._thread is not None
    waiting._thread.join(PATIENCE)
    assert waiting.left(CANCELLED) is None and before.asked == 0
