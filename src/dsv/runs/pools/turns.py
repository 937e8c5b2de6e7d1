"""Waiting for a turn: in the queue of one pool after the other, and never in two at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeVar

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


def take_turns(
    pools: Sequence[str], wait: float, stay: Callable[[str, float | None], _T | GaveUp]
) -> tuple[_T, tuple[PassedOver, ...]]:
    """Waits at the first pool, then at the next, and so on; at the last for as long as it takes.

    stay: waits at a pool for at most so many seconds (None: without end). It returns what the run goes on with once the
    job begins there; or `GaveUp`, once it is certain that it won't. So the job is never at two pools: with an engine
    that holds jobs back that means to submit it, and to leave only if `is_taken_back`. Raises `LaunchError` if each
    pool gave up.
    """
    passed: list[PassedOver] = []
    for number, pool in enumerate(pools, 1):
        found = stay(pool, None if number == len(pools) else wait)
        if not isinstance(found, GaveUp):
            return found, tuple(passed)
        passed.append(PassedOver(pool, found.reason))
    raise no_pool(passed)


def is_taken_back(status: JobStatus | None) -> bool:
    """What `Engine.withdraw` has to answer before the job may be submitted anywhere else."""
    return status is not None and status.state in (RunState.CUT_OFF, RunState.NOT_LAUNCHED)


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
