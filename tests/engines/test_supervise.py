"""The wait for a job's end, by a job that only seems to be there."""

from __future__ import annotations

import signal
import threading

import pytest

from dsv.run.engines import attach as module
from dsv.run.engines.attach import Left, Signals, supervise
from dsv.run.engines.base import Ended
from dsv.run.engines.output import JobOutput


class Unreachable:
    """The job of a cluster that does not answer."""

    ended: Ended | None = None

    def __init__(self) -> None:
        self.kills = 0

    def signal(self, number: int) -> None:
        pass

    def kill(self) -> None:
        self.kills += 1


class Job(Unreachable):
    """It ends at SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[int] = []

    def signal(self, number: int) -> None:
        self.got.append(number)
        if number == signal.SIGTERM:
            self.ended = Ended(exit_code=143, launched=True)


def test_a_job_that_cannot_be_killed_is_left_by_one_more_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN", 0.05)
    handle, signals = Unreachable(), Signals()
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        if "send" in text and "again" in text:  # a person reads that, and presses Ctrl-C
            threading.Timer(0.01, signals.send, [signal.SIGINT]).start()

    signals.send(signal.SIGINT)
    outcome = supervise(
        handle,
        JobOutput(None, None),
        signals,
        lost=lambda: None,
        note=note,
        hung_up=lambda: None,
        grace=lambda: 0.0,
    )
    assert (outcome.exit_code, outcome.signal) == (128 + signal.SIGINT, signal.SIGINT)
    assert outcome.may_live and not outcome.seen
    assert handle.kills > 1
    assert [text.rpartition("; ")[2] for text in said] == [
        "send it again to kill it now",
        "send the signal again to leave it running",
    ]


def test_a_job_that_goes_on_alone_is_left_unless_it_is_to_end() -> None:
    handle, signals = Unreachable(), Signals()
    asked: list[bool] = []

    def leave() -> bool:
        asked.append(True)
        return len(asked) > 1

    with pytest.raises(Left):
        supervise(handle, JobOutput(None, None), signals, lost=lambda: None, note=lambda _: None, leave=leave)
    assert len(asked) == 2 and handle.kills == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_comes_while_a_job_is_left_reaches_it(number: int) -> None:
    handle, signals = Job(), Signals()
    asked: list[bool] = []

    def leave() -> bool:
        signals.send(number if not asked else signal.SIGTERM)
        asked.append(True)
        return True

    outcome = supervise(
        handle, JobOutput(None, None), signals, lost=lambda: None, note=lambda _: None, leave=leave
    )
    assert outcome.signal == signal.SIGTERM
    assert handle.got == list(dict.fromkeys([number, signal.SIGTERM]))
