"""Waits for the end of a job: passes signals on, gives the job time to end, and kills it if it doesn't."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Final

from dsv.engines.base import CANNOT_LAUNCH, Ended, Handle
from dsv.engines.guard import GRACE
from dsv.engines.output import Output
from dsv.engines.signals import TELLING, Signals
from dsv.model.run_end import TIMED_OUT, EndCause

_TICK: Final = 1.0
_AGAIN: Final = 5.0
_LAST_OUTPUT: Final = 2.0


def supervise(
    handle: Handle,
    output: Output,
    signals: Signals,
    *,
    lost: Callable[[], str | None],
    note: Callable[[str], None],
    over: Callable[[], None] = lambda: None,
    grace: Callable[[], float] = lambda: GRACE,
    expired: Callable[[], bool] = lambda: False,
    hung_up: Callable[[], None] | None = None,
) -> Ended:
    """Returns when the job is over and its output delivered.

    lost: called once a second; an answer is the reason to end the job. expired: called as often; whether the job's
    time is over, and it is to be ended. grace: the seconds that the job gets to end, called when it is told to.
    hung_up: called in place of ending the job if the terminal goes away; such a job is also left alive if it can't be
    killed and one more signal comes. over: called after the job's end and before
    its last output is delivered, which may take long. An exception in this function, for instance by Ctrl-C if signals
    are not caught, ends the job first.
    """
    try:
        ended = _until_end(handle, output, signals, lost, note, grace, expired, hung_up)
    except BaseException:
        output.let_go()
        _end_now(handle, signals)
        raise
    output.job_ended()
    over()
    _deliver(output, signals, patient=_by_itself(ended))
    return ended


def _until_end(
    handle: Handle,
    output: Output,
    signals: Signals,
    lost: Callable[[], str | None],
    note: Callable[[str], None],
    grace: Callable[[], float],
    expired: Callable[[], bool],
    hung_up: Callable[[], None] | None,
) -> Ended:
    first: int | None = None
    timed_out = False
    reason: str | None = None
    deadline: float | None = None
    kills = 0
    while (ended := handle.ended) is None:
        number = signals.next(_TICK if deadline is None else max(0.0, min(_TICK, deadline - monotonic())))
        if number in TELLING:
            handle.signal(number)
        elif number == signal.SIGHUP and hung_up is not None:
            hung_up()
        elif number is not None and kills > 1 and hung_up is not None:
            return _judged(_left_alive(128 + number), first, reason, timed_out)
        elif number is not None and first is None:
            first, seconds = number, grace()
            note(
                f"{signal.Signals(number).name} was sent to the job; it has {seconds:.0f} s to exit; "
                "send it again to kill it now"
            )
            deadline = monotonic() + seconds
            handle.signal(number)
        elif number is not None:
            deadline = monotonic()
        told_to_end = reason is not None or timed_out
        timed_out = timed_out or (first is None and reason is None and expired())
        if reason is None and (reason := lost()) is not None:
            note(f"ending the job: {reason}")
        elif timed_out and not told_to_end:
            note("ending the job: its time limit is reached")
        if (reason is not None or timed_out) and not told_to_end:
            deadline = monotonic() + grace() if deadline is None else deadline
            handle.signal(signal.SIGTERM)
        if deadline is not None and monotonic() >= deadline:
            output.let_go()
            handle.kill()
            kills += 1
            deadline = monotonic() + _AGAIN
            if kills == 2 and hung_up is not None:
                note(
                    "the job has not ended, or its cluster does not answer; send the signal again to leave it running"
                )
    if not ended.launched and first is not None:
        ended = replace(ended, exit_code=128 + first, reason="interrupted before the command began")
    return _judged(ended, first, reason, timed_out)


def _left_alive(exit_code: int) -> Ended:
    reason = "the job was left, as it could not be ended"
    return Ended(exit_code=exit_code, launched=True, seen=False, may_live=True, reason=reason)


def _judged(ended: Ended, first: int | None, lost: str | None, timed_out: bool) -> Ended:
    """The end with its cause. What dsv did itself comes before what the engine saw of it."""
    ended = replace(ended, signal=first)
    if lost is not None:
        return replace(ended, cause=EndCause.LEASE_LOST, exit_code=CANNOT_LAUNCH, reason=lost)
    if not ended.seen:
        return replace(ended, cause=EndCause.LOST_SIGHT)
    if timed_out:
        return replace(ended, cause=EndCause.TIME_LIMIT, exit_code=ended.exit_code or TIMED_OUT)
    if first is not None:
        return replace(ended, cause=EndCause.CANCELLED)
    return replace(ended, cause=ended.cause or (EndCause.EXITED if ended.launched else EndCause.NOT_STARTED))


def _by_itself(ended: Ended) -> bool:
    return ended.signal is None and ended.cause not in (EndCause.LEASE_LOST, EndCause.TIME_LIMIT)


def _deliver(output: Output, signals: Signals, *, patient: bool) -> None:
    """A slow reader gets all that the job wrote, however long that takes; a signal ends the wait."""
    if not patient and not output.settled(_LAST_OUTPUT):
        output.let_go()
    while not output.settled(0.2):
        if signals.next(0.0) not in (None, *TELLING):
            output.let_go()


def _end_now(handle: Handle, signals: Signals) -> None:
    deadline = monotonic() + 2 * _AGAIN
    while handle.ended is None and monotonic() < deadline:
        handle.kill()
        signals.next(1.0)
