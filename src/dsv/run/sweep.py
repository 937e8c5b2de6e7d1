"""A sweep: which runs have started, which are left, and the process that starts them. Each run has its own
process, which continues if the sweep's is killed; records show which have begun. On a cluster the process of a run ends
once the cluster has its job, and the sweep's asks for all of them.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from signal import SIGHUP
from threading import Thread
from time import monotonic, sleep
from typing import Any

import msgspec

from dsv.errors import Conflict, DsvError, LaunchError, NotFound, Unreachable, Unsupported, UsageError
from dsv.files.process import Process
from dsv.files.small_files import list_names, read_json, replace_file
from dsv.format.keys import runs_prefix
from dsv.periodic import now_ms
from dsv.run.active_runs import RunOwner
from dsv.run.dirs import RunPlace
from dsv.run.engine_list import ENGINES
from dsv.run.engines.attach import Signals
from dsv.run.engines.base import CANNOT_LAUNCH
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import RunView, ended_here, find_under_way
from dsv.run.parameters import SweepId, SweepSeat, count_of, due
from dsv.run.plan import masker_of
from dsv.run.record import CodeState, RunId, RunRecord, RunState
from dsv.run.spec import JobSpec, seated
from dsv.stores.base import PutResult, StoreBackend, TooLargeError
from dsv.values.json import Json
from dsv.values.names import DatasetName, Target

_DECODER = msgspec.json.Decoder(RunOwner)
_UNKNOWN = RunOwner(Process("", 0, 0), "another machine")
_MAX_NOTE = 4096
_NOTE = re.compile(r"(stop|turn)-([1-9][0-9]{0,8})", re.ASCII)


class SweepNotes:
    """The notes in the store about a sweep's driver: `turn-N` is the N-th, until a `stop-M` with M >= N.
    Methods raise as the store's."""

    def __init__(self, store: StoreBackend, dataset: DatasetName, sweep: SweepId) -> None:
        self._store = store
        self._sweep = sweep
        self._prefix = f"{runs_prefix(dataset)}{sweep}/"

    def driver(self) -> RunOwner | None:
        """Return the process that starts its runs; None if there is none, or if it is known to be gone."""
        turn, stop = self._last()
        found = self._read(turn) if turn > stop else None
        return None if found is None or found.is_dead else found

    def next_turn(self) -> int:
        """Return the number of the next driver; that of the present driver, if any, so that `take` fails."""
        turn, stop = self._last()
        return max(turn, stop) + (self.driver() is None)

    def take(self, turn: int) -> None:
        """Make this process the driver. Raises `Conflict` if another became it after `next_turn`."""
        here = RunOwner.here()
        put = self._store.put_if_absent(f"{self._prefix}turn-{turn}", msgspec.json.encode(here))
        if put is PutResult.LOST and (other := self._read(turn)) != here:
            raise self._refusal(other)

    def is_over(self, turn: int) -> bool:
        """Check that the driver of this turn must start no more runs."""
        return self._last()[1] >= turn

    def stop(self) -> None:
        """Ask the driver, on any machine, to start no more runs."""
        turn, stop = self._last()
        number = max(turn, stop + 1)
        while self._store.put_if_absent(f"{self._prefix}stop-{number}", b"") is PutResult.LOST:
            number += 1

    def _last(self) -> tuple[int, int]:
        """Return the highest numbers of a turn and of a stop."""
        last = {"turn": 0, "stop": 0}
        for item in self._store.list(self._prefix):
            if (match := _NOTE.fullmatch(item.key.rpartition("/")[2])) is not None:
                last[match[1]] = max(last[match[1]], int(match[2]))
        return last["turn"], last["stop"]

    def _read(self, turn: int) -> RunOwner:
        with suppress(TooLargeError, msgspec.DecodeError, RecursionError):
            return _DECODER.decode(self._store.get(f"{self._prefix}turn-{turn}", _MAX_NOTE))
        return _UNKNOWN

    def _refusal(self, other: RunOwner) -> Conflict:
        return Conflict(
            f"the runs of {self._sweep} are being started by dsv on {other.host_name}",
            subject=self._sweep,
            hint=f"dsv wait {self._sweep.short}; to continue it here: dsv stop {self._sweep.short}, then again",
        )


def sweep_folder(state: Path, sweep: SweepId) -> Path:
    """Return the folder of a sweep, for its mark, and for the messages of its process if it is detached."""
    return state / "sweeps" / sweep


@contextmanager
def driving(state: Path, sweep: SweepId) -> Iterator[None]:
    """Mark this process as the driver in a block. Raises `LaunchError`, or `Conflict` with another here."""
    path = _path(state, sweep)
    with ExitStack() as held:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            replace_file(path, msgspec.json.encode(RunOwner.here()))
        except BlockingIOError as error:
            here = f"the runs of {sweep} are being started by another dsv here"
            raise Conflict(here, subject=sweep, hint=f"dsv wait {sweep.short}") from error
        except OSError as error:
            raise LaunchError(
                f"{path} can't be written: {error.strerror or error}", subject=str(path)
            ) from error
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def driver(state: Path, sweep: SweepId) -> RunOwner | None:
    """Return the process that starts its runs, if it lives or may live."""
    with suppress(OSError, msgspec.DecodeError):
        found = read_json(_path(state, sweep), _DECODER)
        if found is not None and not found.is_dead:
            return found
    return None


def being_started(state: Path, text: str) -> tuple[SweepId, RunOwner] | None:
    """Return the sweep that a text means and its process on this machine, also before its first run has a record."""
    for name in list_names(state / "sweeps"):
        with suppress(UsageError):
            sweep = SweepId.parse(name)
            found = driver(state, sweep) if sweep.is_meant_by(text) else None
            if found is not None and found.is_here:
                return sweep, found
    return None


def _path(state: Path, sweep: SweepId) -> Path:
    return sweep_folder(state, sweep) / "driver"


@dataclass(frozen=True, slots=True)
class SweepView:
    """The runs of a sweep."""

    seat: SweepSeat
    members: tuple[RunView, ...]
    """In the order in which they are shown; never empty."""

    @property
    def id(self) -> SweepId:
        return self.seat.id

    @property
    def dataset(self) -> DatasetName:
        return self.members[0].record.dataset

    @property
    def latest(self) -> dict[int, RunView]:
        """The run of each number that has a record, by number: the last one, if it was repeated."""
        ordered = sorted(self.members, key=lambda view: (_seat(view).number, view.record.run))
        return {_seat(view).number: view for view in ordered}

    @property
    def not_begun(self) -> tuple[int, ...]:
        """The numbers of the runs whose command has not begun, whether they have a record of that or none."""
        latest = self.latest.items()
        begun = {number for number, view in latest if view.record.state is not RunState.NOT_LAUNCHED}
        return tuple(number for number in range(1, self.seat.of + 1) if number not in begun)

    @property
    def under_way(self) -> tuple[RunRecord, ...]:
        return tuple(view.record for view in self.members if not view.record.state.is_terminal)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the first failed run by number; 0 if all succeeded; else None."""
        codes = [view.record.exit_code for view in self.latest.values()]
        failed = next((code for code in codes if code), None)
        return failed if failed is not None or self.not_begun or None in codes else 0


def grouped(views: Sequence[RunView]) -> list[SweepView | RunView]:
    """Group the runs of each sweep, at the position of its first one. The order of runs stays."""
    groups: dict[object, list[RunView]] = {}
    for view in views:
        seat = view.record.sweep
        groups.setdefault(len(groups) if seat is None else seat.id, []).append(view)
    seats = ((members[0].record.sweep, members) for members in groups.values())
    return [members[0] if seat is None else SweepView(seat, tuple(members)) for seat, members in seats]


def sweep_of(views: Iterable[RunView], text: str) -> SweepView | None:
    """Return the sweep that a text means by its id or its name. Raises `UsageError` if it means several."""
    every = list(views)
    seats = {view.record.sweep.id: view.record.sweep for view in every if view.record.sweep is not None}
    found = [seat for id_, seat in seats.items() if id_.is_meant_by(text)]
    found = found or [seat for seat in seats.values() if seat.name == text]
    if len(found) > 1:
        some = ", ".join(seat.id for seat in found[:3])
        raise UsageError(
            f"{text} means {len(found)} sweeps", subject=text, hint=f"name one by its id: {some}"
        )
    if not found:
        return None
    id_ = found[0].id
    members = [view for view in every if view.record.sweep is not None and view.record.sweep.id == id_]
    members.sort(key=lambda view: (_seat(view).number, view.record.run))
    return SweepView(found[0], tuple(members))


def _seat(view: RunView) -> SweepSeat:
    assert view.record.sweep is not None  # checked by the caller
    return view.record.sweep


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The runs of a sweep that are to be started."""

    spec: JobSpec
    """That of the run with the first parameters."""
    seat: SweepSeat
    begun: frozenset[int] = frozenset()
    """The numbers of the runs that were started before."""
    going: tuple[tuple[int, RunId], ...] = ()
    """The runs of `begun` that are under way now, on this machine or in a cluster."""
    again: RunId | None = None
    """The run from whose record the others are made, if the sweep is continued."""
    turn: int = 1
    """The number of its driver."""
    out: Path | None = None
    """The folder given for the output folders of its runs."""

    @property
    def left(self) -> tuple[int, ...]:
        return due(self.seat.of, self.begun, 0, self.seat.of)

    def of_run(self, number: int) -> JobSpec:
        return seated(replace(self.spec, out=self.out), replace(self.seat, number=number))

    def member(self, number: int) -> dict[str, Json]:
        """Return what the process of one run needs to make its spec with `as_member`."""
        code = self.spec.recorded_code
        return {
            "seat": asdict(replace(self.seat, number=number)),
            "pins": dict(self.spec.pins),
            "target": str(self.spec.target),
            "data": {name: str(target) for name, target in self.spec.data.items()},
            "code": None if code is None else asdict(code),
            "again": self.again,
            "out": None if self.out is None else str(self.out),
        }


def as_member(spec: JobSpec, member: Mapping[str, Json]) -> JobSpec:
    """Turn the spec of a sweep's command line into that of one run, from what `SweepPlan.member` returned."""
    code = member["code"]
    spec = replace(
        spec,
        pins=member["pins"],
        target=Target.parse(member["target"]),
        data={name: Target.parse(text) for name, text in member["data"].items()},
        recorded_code=spec.recorded_code if code is None else CodeState(**code),
        again_of=None,
        out=None if member["out"] is None else Path(member["out"]),
    )
    return seated(spec, SweepSeat.of_json(member["seat"]))


def new_sweep(spec: JobSpec, axes: dict[str, list[Json]], place: RunPlace) -> SweepPlan:
    """Plan a run for each combination of these values. Raises `UsageError`."""
    _check_secrets(spec, axes, place)
    id_ = SweepId.make(now_ms(), os.urandom(4))
    seat = SweepSeat(id=id_, number=1, of=count_of(axes), axes=axes, name=spec.name)
    return SweepPlan(seated(spec, seat), seat, out=spec.out)


def continued_sweep(view: SweepView, turn: int, spec: JobSpec, place: RunPlace) -> SweepPlan:
    """Plan the rest of a sweep. spec: that of its first run, repeated. Raises `UsageError`."""
    _check_secrets(spec, view.seat.axes, place)
    seat = replace(view.seat, number=view.not_begun[0])
    out = _out_of(view)
    return SweepPlan(
        spec=seated(replace(spec, out=out), seat),
        seat=seat,
        begun=frozenset(range(1, seat.of + 1)) - set(view.not_begun),
        going=_going_here(view, place.state),
        again=view.members[0].record.run,
        turn=turn,
        out=out,
    )


def _out_of(view: SweepView) -> Path | None:
    """Return the folder named for the outputs, found from a run's: that is in it, named by its number."""
    first = view.members[0].record
    folder = Path(first.out)
    return folder.parent if first.sweep is not None and folder.name == str(first.sweep.number) else None


def _going_here(view: SweepView, state: Path) -> tuple[tuple[int, RunId], ...]:
    return tuple(
        (record.sweep.number, record.run)
        for record in view.under_way
        if record.sweep is not None
        and (ENGINES[record.engine].queues or find_under_way(state, record.run) is not None)
    )


def _check_secrets(spec: JobSpec, axes: dict[str, list[Json]], place: RunPlace) -> None:
    """Refuse parameters that are secrets: each record of the sweep shows the values of all its runs."""
    given: dict[str, Json] = {**axes}
    if masker_of(replace(spec, params=given), place).by_name.value(given) != given:
        raise UsageError(
            "a parameter of the sweep is a secret, which no record shows",
            subject="--param",
            hint="pass secrets by -e alone, the same for all runs",
        )


_TICK = 0.2
_AWAY = 5.0
"""Seconds until a store that did not answer is asked again."""
_ASK = (1.0, 15.0)
"""Seconds between two questions for the runs that a cluster has: at first, and at most."""


@dataclass(frozen=True, slots=True)
class Started:
    """The process of a detached run or sweep."""

    process: subprocess.Popen[bytes]
    launched: Mapping[str, Any] | None = None
    """The id and the output folder, and whether nothing runs, as it has announced them; None if it ended before."""
    said: str = ""
    """The reason why it ended before, for a run of a sweep."""

    @property
    def run(self) -> RunId | None:
        return None if self.launched is None else RunId.parse(self.launched["run"])

    def poll(self) -> int | None:
        """Return its exit code, which is the run's; None while it runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code


@dataclass(slots=True)
class SweepDriver:
    """Starts the runs that are due, and watches the started ones, until all have ended."""

    plan: SweepPlan
    state: Path
    parallel: int
    notes: SweepNotes
    show: Callable[[RunId], RunView]
    """Returns a run as the store knows it. Raises `DsvError`."""
    start: Callable[[int], Started]
    """Starts the run of a number, and returns once it has announced itself or failed."""
    watch: Callable[[int, RunId | RunView], None]
    """Called with each run's number, when it has begun with its id, and when it has ended with its record."""
    note: Callable[[str], None]
    settle: Callable[[Sequence[RunView]], Sequence[RunView]]
    """Returns runs as clusters report them now, ended once their records are whole."""
    end: Callable[[RunRecord, float], bool]
    """Ends the job of a run in its cluster within these seconds. Returns False if it may live."""
    signals: Signals = field(default_factory=Signals)
    ended_by: int | None = None
    """The signal that ended it before all runs were started."""
    refused: int | None = None
    """The exit code of the run that could not be started."""
    _going: dict[int, tuple[RunId, Started | None]] = field(default_factory=dict)
    """Runs that go on, each with its process unless an earlier driver has started it."""
    _left: dict[int, RunView] = field(default_factory=dict)
    """Runs whose jobs a cluster has, without a process here."""
    _grace: float = GRACE
    _being_ended: set[int] = field(default_factory=set)
    _ask_at: float = 0.0
    _pause: float = _ASK[0]
    _begun: set[int] = field(default_factory=set)
    _stopping: bool = False
    _away_until: float = 0.0
    _away_reported: bool = False

    def drive(self) -> None:
        self._begun = set(self.plan.begun)
        self._going = {number: (run, None) for number, run in self.plan.going}
        with self.signals.caught():
            while True:
                for number in self._due():
                    if self._away_until <= monotonic() and self._may_begin(number):
                        self._start(number)
                self._look()
                self._ask()
                if not (self._going or self._left or self._due()):
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
        return due(self.plan.seat.of, self._begun, len(self._going) + len(self._left), self.parallel)[:1]

    def _may_begin(self, number: int) -> bool:
        try:
            self._stopping = self.notes.is_over(self.plan.turn)
        except Unreachable as error:
            self._away_until = monotonic() + _AWAY
            self._say_once(f"the next run is started once the store answers: {error.message}")
            return False
        except DsvError as error:
            self._refuse(number, error.message, error.exit_code)
            return False
        self._away_reported = False
        if self._stopping:
            self.note("the sweep is being stopped: no more runs are started")
        return not self._stopping

    def _say_once(self, text: str) -> None:
        if not self._away_reported:
            self._away_reported = True
            self.note(text)

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
        self._going[number] = run, started
        if started.launched is not None and not started.launched["hit"]:
            self.watch(number, run)

    def _refuse(self, number: int, why: str, code: int | None) -> None:
        """Start no more runs: what stops one run before it has a record would stop all others too."""
        self._begun.discard(number)
        self._stopping, self.refused = True, code or CANNOT_LAUNCH
        self.note(f"run {number} could not be started, so no more runs are started: {why}")

    def _look(self) -> None:
        for number, (run, started) in list(self._going.items()) if self._away_until <= monotonic() else ():
            active = None if started is not None else find_under_way(self.state, run)
            goes_on = started.poll() is None if started else active is not None and not active.owner.is_dead
            if goes_on:
                continue
            del self._going[number]
            try:
                view = self.show(run)
            except DsvError as error:
                if isinstance(error, Unreachable) and self._grace and ended_here(self.state, run) is None:
                    self._going[number], self._away_until = (run, started), monotonic() + _AWAY
                    self._say_once(f"run {run} is looked for once the store answers: {error.message}")
                    return
                self.note(f"the record of run {run} can't be read: {error.message}")
            else:
                if view.record.state.is_terminal or not ENGINES[view.record.engine].queues:
                    self.watch(number, view)
                else:
                    self._left[number] = view
                    self._ask_at, self._pause = monotonic() + _ASK[0], _ASK[0]

    def _ask(self) -> None:
        """Ask for all runs that a cluster has, in one go."""
        if not self._left or monotonic() < self._ask_at:
            return
        for number in self._left.keys() - self._being_ended if self.ended_by is not None else ():
            self._being_ended.add(number)
            Thread(target=self._end, args=(self._left[number].record, self._grace), daemon=True).start()
        self._pause = min(self._pause * 1.3, _ASK[1])
        with suppress(DsvError):  # the store does not answer
            for number, view in zip(tuple(self._left), self.settle(list(self._left.values())), strict=True):
                if view.record.state.is_terminal:
                    del self._left[number]
                    self._pause = _ASK[0]
                    self.watch(number, view)
        self._ask_at = monotonic() + self._pause

    def _end(self, record: RunRecord, grace: float) -> None:
        while not self.end(record, grace):
            self._say_once(f"run {record.run} is ended once its cluster answers")
            sleep(_AWAY)

    def _heed(self, number: int | None) -> None:
        if number is None:
            return
        again, self._stopping = self.ended_by is not None, True
        self.ended_by, self._grace = number, 0 if again else GRACE
        if number == SIGHUP:
            return
        if self._going or self._left:
            patient = (
                f"no more runs are started, and those that run have {GRACE:.0f} s to exit; "
                "send the signal again to kill them now"
            )
            self.note("the runs are ended at once" if again else patient)
        for run, _ in self._going.values():
            found = find_under_way(self.state, run)
            if found is not None:
                with suppress(NotFound, Unsupported):  # it has ended just now
                    found.ask_to_stop(self._grace)
        self._being_ended.clear()
        self._ask_at, self._pause = 0.0, _ASK[0]
