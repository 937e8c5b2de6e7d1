"""Waiting in the queue of one pool after the other, and never in two at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic
from typing import Final, TypeAlias, TypeVar

from dsv.errors import LaunchError
from dsv.run.engines.base import Ended, Engine, JobStatus
from dsv.run.record import EndCause, JobRef, RunState
from dsv.run.resources import PassedOver
from dsv.values.units import format_duration

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


_AGAIN: Final = 5.0
"""Seconds until an engine is asked once more that gave no answer."""
_WAITING: Final = (RunState.SUBMITTED, RunState.QUEUED)


@dataclass(slots=True)
class Patience:
    """With one job at one pool. seconds: how long it may wait there before it begins; None for as long as it takes, as
    there is no other pool. reason: why it could not begin at once."""

    seconds: float | None = None
    reason: str = "it did not begin"
    _left: GaveUp | None = None
    # Whether it was to be taken back, and the engine has not said what came of that.
    _unanswered: bool = False
    _over: Event = field(default_factory=Event)
    _thread: Thread | None = None
    _since: float | None = None

    def refused(self, reason: str) -> bool:
        """The engine has no place for the job, for this reason. Whether it may be asked again."""
        if self._since is None:
            self._since = monotonic()
        if self.seconds is None or monotonic() - self._since < self.seconds:
            return True
        self._left = waited(reason, self.seconds)
        return False

    def begin(self, engine: Engine, ref: JobRef) -> None:
        """The engine has the job, and the time runs."""
        if self.seconds is not None and engine.queues:
            self._thread = Thread(target=self._watch, args=(engine, ref), name="dsv-patience", daemon=True)
            self._thread.start()

    def left(self, ended: Ended) -> GaveUp | None:
        """Why the job is to go on to another pool, now that it is over here. None if this was its end."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.seconds is None or ended.signal is not None or ended.launched:
            return None
        if ended.cause is EndCause.LEASE_LOST:
            return None
        if ended.stopped is not None:
            return None  # by somebody on another machine, for instance
        if not ended.taken and self._left is not None:
            return self._left
        if not ended.taken or ended.cause is EndCause.UNSCHEDULABLE:
            return GaveUp(ended.reason or "it can't run the job")
        if self._left is None and self._unanswered and ended.cause is EndCause.CANCELLED:
            return waited(self.reason, self.seconds)
        return self._left

    def _watch(self, engine: Engine, ref: JobRef) -> None:
        assert self.seconds is not None  # else nobody watches
        deadline = (self._since or monotonic()) + self.seconds
        while not self._over.wait(max(0.0, deadline - monotonic())):
            status = engine.status(ref)
            ours = self._unanswered
            if status is not None and status.state in _WAITING:
                status = engine.withdraw(ref)
                ours, self._unanswered = True, status is None
            if ours and is_taken_back(status):
                self._left = waited(self.reason, self.seconds)
                return
            if status is not None and status.state not in _WAITING:
                return  # it has begun, or somebody else ended it
            deadline = monotonic() + _AGAIN
