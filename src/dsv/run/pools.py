"""Choosing the pool of a run from what the pools report, and waiting in the queue of one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event, Thread
from time import monotonic
from typing import Final, TypeAlias, TypeVar

from dsv.errors import DsvError, LaunchError, Unreachable
from dsv.run.engines.base import Ended, Engine, JobStatus
from dsv.run.record import EndCause, JobRef, RunState
from dsv.run.resources import Capacity, PassedOver, Resources, fit
from dsv.values.units import format_duration


class Prefer(StrEnum):
    CACHED = "cached"
    """Of the pools that can begin now, one that has the data."""
    ORDER = "order"
    """Of the pools that can begin now, the one that was named first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The facts about a pool, for one job."""

    pool: str
    unreachable: str | None = None
    """The reason why it gave no answer."""
    refused: str | None = None
    """The reason why its engine can't run the job at all."""
    capacity: Capacity | None = None
    """None without an answer."""
    wanted: Resources = field(default_factory=Resources)
    """The resources that the job requests there."""
    cached: bool | None = None
    """Its cache has the data; None if that is unknown."""
    no_room: str | None = None
    """The reason why the data has no room there; None if it has, or if that is unknown."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The pool chosen for a run."""

    pool: str
    begins: bool
    """The job can begin there now; otherwise it waits there."""
    passed_over: tuple[PassedOver, ...] = ()
    """The pools before it in the order, with reasons."""
    then: tuple[str, ...] = ()
    """Other pools that can run the job, to try if it doesn't begin in time."""
    reason: str | None = None
    """The reason why it can't begin now."""


_NOT_CACHED: Final = "it can begin as well, and doesn't have the data cached"


def choose_pool(facts: Sequence[PoolFacts], prefer: Prefer = Prefer.CACHED) -> Choice:
    """Choose the first pool that can begin the job now, of those one that has the data; else the first that ever can.

    facts: in the order in which the pools were named. Raise `LaunchError` if none can ever run it.
    """
    never = {each.pool: why for each in facts if (why := why_never(each)) is not None}
    able = [each for each in facts if each.pool not in never]
    if not able:
        raise no_pool([PassedOver(pool, why) for pool, why in never.items()])
    not_now = {each.pool: why for each in able if (why := why_not_now(each)) is not None}
    ready = [each for each in able if each.pool not in not_now]
    if not ready:
        first = able[0].pool
        return Choice(first, False, _before(facts, first, never), _others(able, first), not_now[first])
    cached = [each for each in ready if each.cached] if prefer is Prefer.CACHED else []
    chosen = (cached or ready)[0]
    reasons = {each.pool: _NOT_CACHED for each in ready} | never | not_now
    return Choice(chosen.pool, True, _before(facts, chosen.pool, reasons), _others(able, chosen.pool))


def why_never(facts: PoolFacts) -> str | None:
    """Return why a pool can't run the job, however long it waits there. None if it can."""
    if facts.unreachable is not None:
        return f"unreachable: {facts.unreachable}"
    if facts.refused is not None:
        return facts.refused
    if facts.no_room is not None:
        return f"no room in its cache: {facts.no_room}"
    assert facts.capacity is not None  # it was reached
    return fit(facts.wanted, facts.capacity).never


def why_not_now(facts: PoolFacts) -> str | None:
    """Return why a pool that can run the job can't begin now. None if it can."""
    assert facts.capacity is not None  # it was reached
    return fit(facts.wanted, facts.capacity).not_now


def _others(able: Sequence[PoolFacts], chosen: str) -> tuple[str, ...]:
    return tuple(each.pool for each in able if each.pool != chosen)


def _before(facts: Sequence[PoolFacts], chosen: str, why: dict[str, str]) -> tuple[PassedOver, ...]:
    """Return the pools that were named before the chosen one."""
    names = [each.pool for each in facts]
    return tuple(PassedOver(name, why[name]) for name in names[: names.index(chosen)])


_T = TypeVar("_T")
ANSWERS_WITHIN: Final = 10.0
"""Seconds for all pools together. One that needs longer is shown as unreachable, and the others as they are."""


def ask_all(
    pools: Sequence[str],
    ask: Callable[[str], _T],
    failed: Callable[[str, DsvError], _T],
    seconds: float = ANSWERS_WITHIN,
) -> list[_T]:
    """Ask all pools at the same time, and return the answers in order.

    ask: called for each pool, in a thread of its own. One that hangs (in a file server that is away) is left behind
    failed: makes the answer of a pool that raised an error, or gave no answer in time
    """
    answers: dict[str, _T] = {}

    def note(pool: str) -> None:
        try:
            answers[pool] = ask(pool)
        except DsvError as error:
            answers[pool] = failed(pool, error)
        except Exception as error:  # noqa: BLE001 (of one pool: the others are asked nevertheless)
            answers[pool] = failed(pool, Unreachable(str(error) or type(error).__name__))

    threads = [Thread(target=note, args=(pool,), name="dsv-pool", daemon=True) for pool in pools]
    for thread in threads:
        thread.start()
    deadline = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    in_time = dict(answers)
    late = Unreachable(f"no answer in {seconds:.0f} s")
    return [in_time[pool] if pool in in_time else failed(pool, late) for pool in pools]


_SHORTEST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 15.0


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A job that no longer waits at a pool, and will never begin there."""

    reason: str


Stay: TypeAlias = Callable[[str, float | None, tuple[PassedOver, ...]], _T | GaveUp]


def take_turns(pools: Mapping[str, float], stay: Stay[_T]) -> _T:
    """Wait at the first pool for so many seconds, then at the next, and so on; at the last for as long as it takes.

    stay: has the job run at a pool, if it begins within so many seconds (None: whenever it does), and returns what came
    of it; or `GaveUp`, once it is certain that it won't begin there. So the job is never at two pools: with an engine
    that holds jobs back that means to submit it, and to leave only if `is_taken_back`. It is told which pools were left
    before. Raises `LaunchError` if each pool gave up.
    """
    passed: tuple[PassedOver, ...] = ()
    for number, (pool, seconds) in enumerate(pools.items(), 1):
        found = stay(pool, None if number == len(pools) else seconds, passed)
        if not isinstance(found, GaveUp):
            return found
        passed = (*passed, PassedOver(pool, found.reason))
    raise no_pool(passed)


def is_taken_back(status: JobStatus | None) -> bool:
    """Check the answer of `Engine.withdraw` before the job may be submitted anywhere else. A job that somebody stopped
    is not to begin at another pool either."""
    stopped = status is not None and status.ended is not None and status.ended.stopped is not None
    return status is not None and not stopped and status.state in (RunState.CUT_OFF, RunState.NOT_LAUNCHED)


def poll(
    why_not: Callable[[], str | None],
    seconds: float | None,
    pause: Callable[[float], None],
    clock: Callable[[], float] = monotonic,
) -> str | None:
    """Ask at growing intervals until there is no reason left why the job can't begin: None then, else the last reason
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
    """Return the reason for leaving a pool after its time was over."""
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
    """The time that a job may wait at a pool."""

    seconds: float | None = None
    """None without a limit, as no other pool can run the job."""
    reason: str = "it did not begin"
    """The reason why it could not begin at once."""
    _left: GaveUp | None = None
    # Whether it was to be taken back, and the engine has not said what came of that.
    _unanswered: bool = False
    _over: Event = field(default_factory=Event)
    _thread: Thread | None = None
    _since: float | None = None

    def refused(self, reason: str) -> bool:
        """Check that an engine that has no place for the job, for this reason, may be asked again."""
        if self._since is None:
            self._since = monotonic()
        if self.seconds is None or monotonic() - self._since < self.seconds:
            return True
        self._left = waited(reason, self.seconds)
        return False

    def begin(self, engine: Engine, ref: JobRef) -> None:
        """Begin to count the time: the engine has the job."""
        if self.seconds is not None and engine.queues:
            self._thread = Thread(target=self._watch, args=(engine, ref), name="dsv-patience", daemon=True)
            self._thread.start()

    def left(self, ended: Ended) -> GaveUp | None:
        """Return why the job is to move to another pool, now that it is over here. None if this was its end."""
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
