"""Choosing the pool of a run from what the pools report, and waiting in one queue after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event, Thread
from time import monotonic
from typing import Final, NamedTuple, Protocol, TypeVar

from dsv.errors import DsvError, LaunchError, Unreachable
from dsv.run.engines.base import Ended, Engine, JobStatus
from dsv.run.part import EndCause
from dsv.run.record import JobRef, RunState
from dsv.run.resources import Capacity, GpuCount, PassedOver
from dsv.run.spec import JobSpec
from dsv.run.staging import Staging
from dsv.values.units import format_duration


class Prefer(StrEnum):
    CACHED = "cached"
    """Of the pools that can begin now, one that has the data."""
    ORDER = "order"
    """Of the pools that can begin now, the one that was named first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The known facts about a pool for one job. `dsv pools` shows the members that are named like its keys."""

    pool: str
    engine: str | None = None
    error: DsvError | None = None
    """The reason why it gave no answer."""
    refused: str | None = None
    """The reason why its engine can't run the job."""
    capacity: Capacity | None = None
    """As `fit` returns it for the job; None without an answer."""
    cached: bool | None = None
    """Its cache has the data; None if that is unknown."""
    no_room: str | None = None
    """The reason why the data has no room there; None if it has, or if that is unknown."""
    cache: str | None = None
    """The folder of its cache, as the configuration has it."""
    free_bytes: int | None = None
    """Free bytes on the disk of its cache, if this machine can see it."""

    @property
    def reachable(self) -> bool:
        return self.error is None

    @property
    def problem(self) -> str | None:
        return self.refused if self.error is None else self.error.message

    @property
    def hint(self) -> str | None:
        return None if self.error is None else self.error.hint

    @property
    def unseen(self) -> tuple[str, ...]:
        return () if self.capacity is None else self.capacity.unseen

    @property
    def gpus(self) -> tuple[GpuCount, ...] | None:
        return None if self.capacity is None else self.capacity.gpus()

    @property
    def nodes(self) -> int | None:
        return None if self.capacity is None else len(self.capacity.nodes)

    @property
    def waiting(self) -> int | None:
        return None if self.capacity is None else self.capacity.waiting

    @property
    def never(self) -> str | None:
        """The reason why it can never run the job. None if it can."""
        if self.error is not None:
            return f"unreachable: {self.error.message}"
        if self.no_room is not None and self.refused is None:
            return f"no room in its cache: {self.no_room}"
        return self.refused or (None if self.capacity is None else self.capacity.never)

    @property
    def not_now(self) -> str | None:
        """The reason why the job can't begin there now. None if it can."""
        if self.error is not None:
            return f"unreachable: {self.error.message}"
        return None if self.capacity is None else self.capacity.not_now


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool chosen for a run."""

    pool: str
    passed_over: tuple[PassedOver, ...] = ()
    """The pools before it in the order, with reasons."""
    then: tuple[str, ...] = ()
    """Other pools that can run the job, to try if it doesn't begin in time."""
    reason: str | None = None
    """The reason why the job can't begin there now, and waits; None if it can."""


_NOT_CACHED: Final = "it can begin as well, and doesn't have the data cached"


def choose_pool(facts: Sequence[PoolFacts], prefer: Prefer = Prefer.CACHED) -> PoolChoice:
    """Choose the first pool that can begin the job now, preferably with the data; else the first that can
    ever run it. facts: in the order in which the pools were named. Raise `LaunchError` if no pool can."""
    never = {each.pool: why for each in facts if (why := each.never) is not None}
    able = [each for each in facts if each.pool not in never]
    if not able:
        raise no_pool([PassedOver(pool, why) for pool, why in never.items()])
    not_now = {each.pool: why for each in able if (why := each.not_now) is not None}
    ready = [each for each in able if each.pool not in not_now]
    cached = [each for each in ready if each.cached] if prefer is Prefer.CACHED else []
    chosen = (cached or ready or able)[0].pool
    names = [each.pool for each in facts]
    reasons = {each.pool: _NOT_CACHED for each in ready} | never | not_now
    return PoolChoice(
        chosen,
        passed_over=tuple(PassedOver(name, reasons[name]) for name in names[: names.index(chosen)]),
        then=tuple(each.pool for each in able if each.pool != chosen),
        reason=not_now.get(chosen),
    )


_T = TypeVar("_T")
ANSWERS_WITHIN: Final = 10.0
"""Seconds for all pools together. A pool that needs longer is shown as unreachable."""


def ask_all(
    pools: Sequence[str],
    ask: Callable[[str], _T],
    failed: Callable[[str, DsvError], _T],
    seconds: float = ANSWERS_WITHIN,
) -> list[_T]:
    """Ask all pools at the same time, and return the answers in order.

    ask: called for each pool in its own thread, which is abandoned if it hangs (on a dead file server)
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


class GaveUp(Exception):
    """The job no longer waits at a pool, and will never begin there, for this reason."""


class Stop(NamedTuple):
    """A pool that may get the job now."""

    spec: JobSpec
    staging: Staging
    reason: str | None
    """Why the job can't begin there at once, if known."""


class Route(Protocol):
    """The pools that a run may go to, in order."""

    @property
    def pools(self) -> Mapping[str, float | None]:
        """With the seconds to wait at each of them; None at the last, without a limit."""
        ...

    def enter(self, name: str, seconds: float | None, passed: tuple[PassedOver, ...]) -> Stop:
        """Wait up to this many seconds until the pool may get the job. Raise `GaveUp` after that, or if the
        pool can never run it. passed: the pools passed over before"""
        ...


def is_taken_back(status: JobStatus | None) -> bool:
    """Check the answer of `Engine.withdraw`: may the job be submitted elsewhere? A stopped job may not."""
    stopped = status is not None and status.ended is not None and status.ended.stopped is not None
    return status is not None and not stopped and status.state in (RunState.CUT_OFF, RunState.NOT_LAUNCHED)


def waited(reason: str, seconds: float | None) -> str:
    """Return the reason for leaving a pool after it reached its time limit."""
    return reason if not seconds else f"{reason}, for {format_duration(seconds)}"


def no_pool(passed: Sequence[PassedOver]) -> LaunchError:
    """Return the error that no pool can run the job, with these reasons."""
    reasons = "; ".join(f"{each.pool}: {each.reason}" for each in passed)
    return LaunchError(
        f"no pool can run this: {reasons}", subject=passed[0].pool if passed else None, hint="dsv pools"
    )


_AGAIN: Final = 5.0
"""Seconds until an engine that gave no answer is asked again."""
_WAITING: Final = (RunState.SUBMITTED, RunState.QUEUED)


@dataclass(slots=True)
class Patience:
    """The time that a job may wait at a pool."""

    seconds: float | None = None
    """None for no limit, because no other pool can run the job."""
    reason: str = "it did not begin"
    """The reason why it could not begin at once."""
    _left: str | None = None
    # The job was to be withdrawn, and the engine has not reported the result.
    _unanswered: bool = False
    _over: Event = field(default_factory=Event)
    _thread: Thread | None = None
    _since: float | None = None

    def refused(self, reason: str) -> bool:
        """Check that the engine, which refused the job for this reason, may be asked again."""
        if self._since is None:
            self._since = monotonic()
        if self.seconds is None or monotonic() - self._since < self.seconds:
            return True
        self._left = waited(reason, self.seconds)
        return False

    def begin(self, engine: Engine, ref: JobRef) -> None:
        """Start to count the time, now that the engine has the job."""
        if self.seconds is not None and engine.queues:
            self._thread = Thread(target=self._watch, args=(engine, ref), name="dsv-patience", daemon=True)
            self._thread.start()

    def left(self, ended: Ended) -> str | None:
        """Return why the job, which is over here, moves to another pool. None if this was its end."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.seconds is None or ended.signal is not None or ended.launched:
            return None
        if ended.cause is EndCause.LEASE_LOST:
            return None
        if ended.stopped is not None:
            return None  # for instance from another machine
        if not ended.taken and self._left is not None:
            return self._left
        if not ended.taken or ended.cause is EndCause.UNSCHEDULABLE:
            return ended.reason or "it can't run the job"
        if self._left is None and self._unanswered and ended.cause is EndCause.CANCELLED:
            return waited(self.reason, self.seconds)
        return self._left

    def _watch(self, engine: Engine, ref: JobRef) -> None:
        assert self.seconds is not None  # checked by begin
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
                return  # it has begun, or was ended elsewhere
            deadline = monotonic() + _AGAIN
