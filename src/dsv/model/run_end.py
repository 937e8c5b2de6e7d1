"""How a run, and each part of it, came to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from signal import Signals
from typing import Final

TIMED_OUT: Final = 124
"""The exit code of a run that its time limit ended, and whose command called that a success; as of `timeout`."""

_INEXACT_MS: Final = 2000
"""Clocks that differ by less are taken for equal: clusters tell times in whole seconds."""


class EndCause(StrEnum):
    """Why a job ended. There is no other cause: an engine says the one that fits best, and the rest in `error`."""

    EXITED = "exited"
    """The command ended by itself: its exit code says how, and `exit_signal` if a signal did it."""
    OUT_OF_MEMORY = "out-of-memory"
    """It used more than `--memory`, or the machine had no more."""
    TIME_LIMIT = "time-limit"
    """It took longer than `--time`, or than its queue permits."""
    CANCELLED = "cancelled"
    """Somebody ended it: `cancelled_by` says who."""
    EVICTED = "evicted"
    """A cluster took its place away: a node was drained, or ran short of disk or memory for others."""
    PREEMPTED = "preempted"
    """A cluster gave its place to a more important job."""
    NODE_LOST = "node-lost"
    """The machine that ran it doesn't answer any more."""
    IMAGE_NOT_PULLED = "image-not-pulled"
    """Its image could not be fetched, so the command never began."""
    UNSCHEDULABLE = "unschedulable"
    """No machine can ever run it, as the cluster says."""
    NOT_STARTED = "not-started"
    """The command never began, for another reason."""
    LEASE_LOST = "lease-lost"
    """dsv ended it, as nobody could vouch for its data any more."""
    LOST_SIGHT = "lost-sight"
    """Nobody knows how it ended: its engine forgot it, or dsv was killed."""

    @property
    def is_disruption(self) -> bool:
        """Whether the job had no part in its end, so that another attempt may well succeed."""
        return self in (EndCause.EVICTED, EndCause.PREEMPTED, EndCause.NODE_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """What one node did in one attempt. A run on one machine has one part for each attempt.

    node: its number from 0; attempt: from 1; host: what the node is called; end: None while it goes on; error: what
    else is to be said of the end, in the engine's words.
    """

    node: int = 0
    attempt: int = 1
    host: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    end: EndCause | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    cancelled_by: str | None = None
    error: str | None = None
    cache_hit: bool | None = None
    stage_seconds: float | None = None
    stage_bytes: int | None = None

    @property
    def succeeded(self) -> bool:
        return self.end is EndCause.EXITED and self.exit_code == 0


def deciding_part(parts: Iterable[RunPart]) -> RunPart | None:
    """The part that says how the run ended: of the last attempt, the one that failed first; node 0 if all succeeded.

    A node that fails takes the others along, so what came later is a consequence. Of those that failed at the same
    moment, one that was not simply killed counts: to be killed is what happens to the others. One that somebody ended
    counts only if no other has failed. None while a node of the last attempt goes on and none has failed.
    """
    found = list(parts)
    last = max((each.attempt for each in found), default=0)
    of_last = sorted((each for each in found if each.attempt == last), key=lambda each: each.node)
    failed = [each for each in of_last if each.end is not None and not each.succeeded]
    if failed:
        return min(failed, key=_order_of_failure)
    if not of_last or any(each.end is None for each in of_last):
        return None
    return of_last[0]


def on_one_clock(
    parts: Iterable[RunPart], after_ms: int, before_ms: int | None = None
) -> tuple[RunPart, ...]:
    """The parts of a job, whose hosts may have wrong clocks, with times of the clock that gave these two.

    after_ms: when the job was submitted; before_ms: when its end was seen. The times of a host that do not lie between
    them are all moved by the same amount, so differences stay as they were.
    """
    found = list(parts)
    moved = {
        host: _error_of_clock(found, host, after_ms, before_ms) for host in {each.host for each in found}
    }
    return tuple(
        replace(
            each,
            started_ms=None if each.started_ms is None else each.started_ms - moved[each.host],
            ended_ms=None if each.ended_ms is None else each.ended_ms - moved[each.host],
        )
        for each in found
    )


def ended_at(parts: Iterable[RunPart]) -> int | None:
    """When a job ended, if each node of the last attempt tells that."""
    found = list(parts)
    last = max((each.attempt for each in found), default=0)
    if not found or any(each.ended_ms is None for each in found if each.attempt == last):
        return None
    return max(each.ended_ms for each in found if each.ended_ms is not None)


def _error_of_clock(parts: list[RunPart], host: str | None, after_ms: int, before_ms: int | None) -> int:
    times = [time for each in parts if each.host == host for time in (each.started_ms, each.ended_ms) if time]
    if times and before_ms is not None and max(times) > before_ms + _INEXACT_MS:
        return max(times) - before_ms
    if times and min(times) < after_ms - _INEXACT_MS:
        return min(times) - after_ms
    return 0


def may_try_again(part: RunPart) -> bool:
    """Whether a further attempt makes sense after this end. Not if somebody ended it or its time was over, nor if the
    command never began, which it would not the next time either."""
    if part.end is None or part.succeeded:
        return False
    return part.end.is_disruption or part.end in (EndCause.EXITED, EndCause.OUT_OF_MEMORY)


def exit_signal(code: int | None) -> str | None:
    """The name of the signal that an exit code of 128 + n stands for; None for any other exit code."""
    if code is None or code <= 128:
        return None
    try:
        return Signals(code - 128).name
    except ValueError:
        return None


def _order_of_failure(part: RunPart) -> tuple[bool, float, bool, int]:
    ended = float("inf") if part.ended_ms is None else part.ended_ms
    killed = part.end is EndCause.EXITED and part.exit_signal in ("SIGTERM", "SIGKILL")
    return part.end is EndCause.CANCELLED, ended, killed, part.node
