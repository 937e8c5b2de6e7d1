"""Start the runs of a sweep, a limited number at a time, and wait for them.

Each run is a process of its own, which continues if this one is killed; the records show which have not begun.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGHUP
from time import monotonic
from typing import Protocol

from dsv.errors import DsvError, NotFound, Unreachable, Unsupported
from dsv.run.engines.attach import Signals
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import RunView, ask_to_stop, find_under_way
from dsv.run.parameters import due
from dsv.run.record import RunId
from dsv.run.sweep import SweepNotes, SweepPlan

_TICK = 0.2
_AWAY = 5.0
"""Seconds until a store that did not answer is asked again."""


class Started(Protocol):
    """The process of a run. If the run could not be started, `said` has the reason."""

    @property
    def run(self) -> RunId | None: ...

    @property
    def said(self) -> str: ...

    def poll(self) -> int | None:
        """Its exit code; None while it goes on."""
        ...


class Watcher(Protocol):
    """Shows the progress of a sweep to a person."""

    def begun(self, number: int, run: RunId) -> None: ...

    def ended(self, number: int, view: RunView) -> None: ...

    def note(self, text: str) -> None: ...

    def tick(self) -> None:
        """Called several times a second while nothing happens."""
        ...


@dataclass(slots=True)
class SweepDriver:
    """Starts the runs that are due, and watches those that go on, until nothing is left of either."""

    plan: SweepPlan
    state: Path
    parallel: int
    notes: SweepNotes
    show: Callable[[RunId], RunView]
    """Returns a run as the store knows it. Raises `DsvError`."""
    start: Callable[[int], Started]
    """Starts the run of a number, and returns once it has announced itself or failed."""
    watcher: Watcher
    signals: Signals = field(default_factory=Signals)
    ended_by: int | None = None
    """The signal that ended it before all runs were started."""
    refused: int | None = None
    """The exit code of the run that could not be started."""
    _going: dict[int, _Going] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _stopping: bool = False
    _away_until: float = 0.0
    _told_away: bool = False

    def drive(self) -> None:
        self._begun = set(self.plan.begun)
        self._going = {number: _Going(run, None, self.state) for number, run in self.plan.going}
        with self.signals.caught():
            while True:
                for number in self._due():
                    if self._away_until <= monotonic() and self._may_begin(number):
                        self._start(number)
                self._look()
                if not self._going and not self._due():
                    break
                self._heed(self.signals.next(_TICK))
                if self.ended_by == SIGHUP:
                    break  # the terminal is gone: the runs that were started continue
        if self._stopping:
            with suppress(DsvError):
                if not self.notes.is_over(self.plan.turn):
                    self.notes.stop()

    def _due(self) -> tuple[int, ...]:
        if self._stopping:
            return ()
        return due(self.plan.seat.of, self._begun, len(self._going), self.parallel)[:1]

    def _may_begin(self, number: int) -> bool:
        try:
            self._stopping = self.notes.is_over(self.plan.turn)
        except Unreachable as error:
            self._away_until = monotonic() + _AWAY
            if not self._told_away:
                self._told_away = True
                self.watcher.note(f"the next run is started once the store answers: {error.message}")
            return False
        except DsvError as error:
            self._refuse(number, error.message, error.exit_code)
            return False
        self._told_away = False
        if self._stopping:
            self.watcher.note("the sweep is being stopped: no more runs are started")
        return not self._stopping

    def _start(self, number: int) -> None:
        self._begun.add(number)
        try:
            started = self.start(number)
        except DsvError as error:
            self._refuse(number, error.message, error.exit_code)
            return
        run = started.run
        if run is None:
            self._refuse(number, started.said, started.poll())
            return
        self._going[number] = _Going(run, started, self.state)
        self.watcher.begun(number, run)

    def _refuse(self, number: int, why: str, code: int | None) -> None:
        """Start no more runs: what keeps one from being started before it has a record keeps all others from it too."""
        self._begun.discard(number)
        self._stopping, self.refused = True, code or CANNOT_LAUNCH
        self.watcher.note(f"run {number} could not be started, so no more runs are started: {why}")

    def _look(self) -> None:
        for number, one in list(self._going.items()):
            if one.exit_code() is None:
                continue
            del self._going[number]
            try:
                view = self.show(one.run)
            except DsvError as error:
                self.watcher.note(f"run {one.run} has ended, and its record can't be read: {error.message}")
            else:
                self.watcher.ended(number, view)

    def _heed(self, number: int | None) -> None:
        if number is None:
            self.watcher.tick()
            return
        again, self._stopping = self.ended_by is not None, True
        self.ended_by = number
        if number == SIGHUP:
            return
        if self._going:
            patient = (
                f"no more runs are started, and those that run have {GRACE:.0f} s to exit; "
                "send the signal again to kill them now"
            )
            self.watcher.note("the runs are ended at once" if again else patient)
        for one in self._going.values():
            found = find_under_way(self.state, one.run)
            if found is not None:
                with suppress(NotFound, Unsupported):  # it has ended just now
                    ask_to_stop(found, 0 if again else GRACE)


@dataclass(slots=True)
class _Going:
    """A run that goes on: one of this process, or one that an earlier one has begun."""

    run: RunId
    started: Started | None
    state: Path

    def exit_code(self) -> int | None:
        """None while it goes on; -1 if this process can't tell."""
        if self.started is not None:
            return self.started.poll()
        one = find_under_way(self.state, self.run)
        return None if one is not None and not one.mark.is_dead() else -1
