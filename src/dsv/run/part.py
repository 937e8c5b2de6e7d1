"""A part of a run: one node in one attempt."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from dsv.run.staged import Staged

TIMED_OUT: Final = 124
"""The exit code, as of `timeout`, if the time limit ended the run but the command exited with 0."""


Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)]
"""Not more than 64 bits, because some readers can't handle more."""


_INEXACT_MS: Final = 2000
"""Smaller differences of clocks are ignored: clusters report times in whole seconds."""


class EndCause(StrEnum):
    """The cause of a job's end. An engine gives the one that fits best, and details in `error`."""

    EXITED = "exited"
    """The command ended by itself: see its exit code, and `exit_signal` if a signal ended it."""
    OUT_OF_MEMORY = "out-of-memory"
    """It used more than `--memory`, or the machine had no more."""
    TIME_LIMIT = "time-limit"
    """It took longer than `--time`, or than its queue permits."""
    CANCELLED = "cancelled"
    """A user or a signal ended it: see `cancelled_by`."""
    EVICTED = "evicted"
    """A cluster removed it: its node was drained, or ran short of disk or memory."""
    PREEMPTED = "preempted"
    """A cluster ended it in favour of a more important job."""
    NODE_LOST = "node-lost"
    """The machine that ran it doesn't answer any more."""
    IMAGE_NOT_PULLED = "image-not-pulled"
    """Its image could not be fetched, so the command never began."""
    UNSCHEDULABLE = "unschedulable"
    """The cluster reports that no machine can ever run it."""
    NOT_STARTED = "not-started"
    """The command never began, for another reason."""
    LEASE_LOST = "lease-lost"
    """dsv ended it because the lease on its data was lost."""
    LOST_SIGHT = "lost-sight"
    """Its end is unknown: its engine forgot it, or dsv was killed."""

    @property
    def is_disruption(self) -> bool:
        """True if the job did not cause its end, so another attempt may succeed."""
        return self in (EndCause.EVICTED, EndCause.PREEMPTED, EndCause.NODE_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What dsv on a node knows of a run's data once it is there; all None without a report."""

    cache_hit: bool | None = None
    stage_seconds: float | None = None
    stage_bytes: Int | None = None

    @classmethod
    def of(cls, staged: Collection[Staged]) -> NodeReport:
        return cls(
            cache_hit=all(each.hit for each in staged),
            stage_seconds=round(sum(each.seconds for each in staged), 3) or None,
            stage_bytes=sum(each.fetched_bytes for each in staged),
        )

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii") + b"\n"

    @classmethod
    def decode(cls, text: str) -> NodeReport:
        """Decode a report, of an older or newer dsv too; an empty one if it is missing or cut short."""
        with suppress(msgspec.DecodeError, RecursionError):
            return _REPORT.decode(text)
        return cls()

    @property
    def fields(self) -> dict[str, Any]:
        """What is known, by the names of the fields."""
        return {name: value for name, value in asdict(self).items() if value is not None}


_REPORT = msgspec.json.Decoder(NodeReport)
REPORT: Final = "DSV_NODE_REPORT"
"""The variable with the file that `dsv with` on a node writes its report to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart(NodeReport):
    """One node in one attempt. A run on one machine has one part for each attempt."""

    node: Int = 0
    """Counts from 0."""
    attempt: Int = 1
    """Counts from 1."""
    host: str | None = None
    """The name of the node."""
    started_ms: Int | None = None
    ended_ms: Int | None = None
    end: EndCause | None = None
    """None while the part runs."""
    exit_code: Int | None = None
    exit_signal: str | None = None
    cancelled_by: str | None = None
    error: str | None = None
    """Details of the end, in the engine's words."""

    @property
    def succeeded(self) -> bool:
        return self.end is EndCause.EXITED and self.exit_code == 0


def deciding_part(parts: Iterable[RunPart]) -> RunPart | None:
    """Return the part that decides the run's end: the last attempt's first failure, or node 0 without one.

    The failure of a node ends the other nodes, so later failures are consequences. Of failures at the same
    time, SIGTERM and SIGKILL count last, because they are how the others end. A cancelled part counts only if
    no other part failed. None while a node of the last attempt runs and none has failed.
    """
    known = list(parts)
    last = max((part.attempt for part in known), default=0)
    of_last = sorted((part for part in known if part.attempt == last), key=lambda part: part.node)
    failed = [part for part in of_last if part.end is not None and not part.succeeded]
    if failed:
        return min(failed, key=_order_of_failure)
    if not of_last or any(part.end is None for part in of_last):
        return None
    return of_last[0]


def on_one_clock(
    parts: Iterable[RunPart], after_ms: int, before_ms: int | None = None
) -> tuple[RunPart, ...]:
    """Return parts with times by the clock of these two times: the clocks of hosts may be wrong.

    after_ms: when the job was submitted; before_ms: when its end was seen. If times of a host lie outside,
    all its times are moved by the same amount, so their differences stay the same.
    """
    known = list(parts)
    moved = {
        host: _error_of_clock(known, host, after_ms, before_ms) for host in {part.host for part in known}
    }
    return tuple(
        replace(
            part,
            started_ms=None if part.started_ms is None else part.started_ms - moved[part.host],
            ended_ms=None if part.ended_ms is None else part.ended_ms - moved[part.host],
        )
        for part in known
    )


def ended_at(parts: Iterable[RunPart]) -> int | None:
    """Return the time at which a job ended, if each node of the last attempt reports it."""
    known = list(parts)
    last = max((part.attempt for part in known), default=0)
    if not known or any(part.ended_ms is None for part in known if part.attempt == last):
        return None
    return max(part.ended_ms for part in known if part.ended_ms is not None)


def _error_of_clock(parts: list[RunPart], host: str | None, after_ms: int, before_ms: int | None) -> int:
    times = [time for each in parts if each.host == host for time in (each.started_ms, each.ended_ms) if time]
    if times and before_ms is not None and max(times) > before_ms + _INEXACT_MS:
        return max(times) - before_ms
    if times and min(times) < after_ms - _INEXACT_MS:
        return min(times) - after_ms
    return 0


def may_try_again(part: RunPart) -> bool:
    """Check that another attempt makes sense: not after a cancellation or a time limit, nor if the command
    never began, because it would fail again."""
    if part.end is None or part.succeeded:
        return False
    return part.end.is_disruption or part.end in (EndCause.EXITED, EndCause.OUT_OF_MEMORY)


def exit_signal(code: int | None) -> str | None:
    """Return the name of the signal for an exit code of 128 + n; None for any other exit code."""
    if code is None or code <= 128:
        return None
    with suppress(ValueError):
        return Signals(code - 128).name
    return None


def _order_of_failure(part: RunPart) -> tuple[bool, float, bool, int]:
    ended = float("inf") if part.ended_ms is None else part.ended_ms
    killed = part.end is EndCause.EXITED and part.exit_signal in ("SIGTERM", "SIGKILL")
    return part.end is EndCause.CANCELLED, ended, killed, part.node
