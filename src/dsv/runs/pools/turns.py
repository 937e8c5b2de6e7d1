"""Waiting for a turn: in the queue of one pool after the other, and never in two at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias, TypeVar

from dsv.engines.base import JobStatus
from dsv.errors import LaunchError
from dsv.model.pool import PassedOver
from dsv.model.run import RunState
from dsv.model.units import format_duration

_T = TypeVar("_T")

_SHORTEST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 15.0


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The job doesn't wait at this pool any more, and will never begin there. reason: what for it was left."""

    reason: str


Stay: TypeAlias = Callable[[str, float | None, tuple[PassedOver, ...]], _T | GaveUp]


def take_turns(pools: Sequence[str], wait: float, stay: Stay[_T]) -> _T:
    """Waits at the first pool, then at the next, and so on; at the last for as long as it takes.

    stay: has the job run at a pool, if it begins within so many seconds (None: whenever it does), and returns what came
    of it; or `GaveUp`, once it is certain that it won't begin there. So the job is never at two pools: with an engine
    that holds jobs back that means to submit it, and to leave only if `is_taken_back`. It is told which pools were left
    before. Raises `LaunchError` if each pool gave up.
    """
    passed: tuple[PassedOver, ...] = ()
    for number, pool in enumerate(pools, 1):
        found = stay(pool, None if number == len(pools) else wait, passed)
        if not isinstance(found, GaveUp):
            return found
        passed = (*passed, PassedOver(pool, found.reason))
    raise no_pool(passed)


def is_taken_back(status: JobStatus | None) -> bool:
    """What `Engine.withdraw` has to answer before the job may be submitted anywhere else. A job that somebody stopped
    is not to begin at another pool either."""
    stopped = status is not None and status.ended is not None and status.ended.stopped is not None
    return status is not None and not stopped and status.state in (RunState.CUT_OFF, RunState.NOT_LAUNCHED)


def poll(
    why_not: Callable[[], str | None],
    seconds: float | None,
    pause: Callable[[float], None],
    clock: Callable[[], float] = monotonic,
) -> str | None:
    """Asks at growing intervals until there is no reason left why the job can't begin: None then, else the last reason
    once the time is over. pause: sleeps."""
    deadline = None if seconds is None else clock() + seconds
    interval = _SHORTEST_PAUSE
    while (reason := why_not()) is not None:
        left = None if deadline is None else deadline - clock()
        if left is not None and left <= 0:
            return reason
        pause(interval if left is None else min(interval, left))
        interval = min(interval * 1.5, _LONGEST_PAUSE)
    return None


def waited(reason: str, seconds: float | None) -> GaveUp:
    """A pool that was left after its time was over."""
    return GaveUp(reason if not seconds else f"{reason}, for {format_duration(seconds)}")


def no_pool(passed: Sequence[PassedOver]) -> LaunchError:
    """No pool can run it, for these reasons."""
    reasons = "; ".join(f"{each.pool}: {each.reason}" for each in passed)
    return LaunchError(
        f"no pool can run this: {reasons}", subject=passed[0].pool if passed else None, hint="dsv pools"
    )
