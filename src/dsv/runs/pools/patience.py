"""Waiting in the queue of an engine: a job that doesn't begin in time is taken back."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic
from typing import Final

from dsv.engines.base import Ended, Engine
from dsv.model.run import JobRef, RunState
from dsv.model.run_end import EndCause
from dsv.runs.pools.turns import GaveUp, is_taken_back, waited

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
