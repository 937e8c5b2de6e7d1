"""The progress of a sweep: which runs have started, which are left, and which process drives it."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dsv.errors import Conflict, LaunchError, UsageError
from dsv.fs.files import list_names, read_json, write_once
from dsv.fs.process import Process
from dsv.run.active_runs import is_dead, this_machine
from dsv.run.listing import RunView
from dsv.run.parameters import SweepId, SweepSeat
from dsv.run.record import RunRecord, RunState


class Driver(msgspec.Struct, frozen=True):
    """The process, and the machine that it was started on."""

    process: Process
    host: str

    @property
    def is_here(self) -> bool:
        """Whether its number means anything to this process: a home on a file server is that of several machines."""
        return self.process.kernel == Process.here().kernel


_DECODER = msgspec.json.Decoder(Driver)


def sweep_folder(state: Path, sweep: SweepId) -> Path:
    """Of one sweep: its mark, and what its process has to say if it is detached."""
    return state / "sweeps" / sweep


@contextmanager
def driving(state: Path, sweep: SweepId) -> Iterator[None]:
    """Meanwhile this process begins the runs of the sweep. Raises `Conflict` if another one does, and `LaunchError`."""
    path = _path(state, sweep)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.parent):
            _take(path, state, sweep)
    except OSError as error:
        raise LaunchError(f"{path} can't be written: {error.strerror or error}", subject=str(path)) from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def _take(path: Path, state: Path, sweep: SweepId) -> None:
    data = msgspec.json.encode(Driver(Process.here(), this_machine()))
    while not write_once(path, data):
        if (other := driver(state, sweep)) is not None:
            where = "here" if other.is_here else f"on {other.host.partition('/')[0]}"
            raise Conflict(
                f"the runs of {sweep} are being started by another dsv {where}",
                subject=sweep,
                hint=f"dsv wait {sweep.short}"
                if other.is_here
                else f"if that is gone: rm {shlex.quote(str(path))}",
            )
        path.unlink(missing_ok=True)  # of one that was killed


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of two that find the mark of a process that was killed, the second must not remove the mark of the first. Only
    processes of one machine can find that, so a lock of this machine is enough."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def driver(state: Path, sweep: SweepId) -> Driver | None:
    """The process that begins its runs, if it lives or may live."""
    with suppress(OSError, msgspec.DecodeError):
        found = read_json(_path(state, sweep), _DECODER)
        if found is not None and not is_dead(found.process, found.host):
            return found
    return None


def being_started(state: Path, text: str) -> tuple[SweepId, Driver] | None:
    """The sweep that a text means and that has a process on this machine, perhaps before its first run has a record."""
    for name in list_names(state / "sweeps"):
        with suppress(UsageError):
            sweep = SweepId.parse(name)
            found = driver(state, sweep) if sweep.is_meant_by(text) else None
            if found is not None and found.is_here:
                return sweep, found
    return None


def _path(state: Path, sweep: SweepId) -> Path:
    return sweep_folder(state, sweep) / "driver"


NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class SweepView:
    """members: its runs, as many as are looked at, in the order in which they are shown. Never empty. chosen: whether
    they are a choice of its runs, so that they don't tell which have begun."""

    seat: SweepSeat
    members: tuple[RunView, ...]
    chosen: bool = False

    @property
    def id(self) -> SweepId:
        return self.seat.id

    @property
    def latest(self) -> dict[int, RunView]:
        """The run of each number that has begun, in this order: the last one, if it was repeated."""
        found: dict[int, RunView] = {}
        for view in sorted(self.members, key=lambda view: (_seat(view).number, view.record.run)):
            found[_seat(view).number] = view
        return found

    @property
    def not_begun(self) -> tuple[int, ...]:
        begun = {_seat(view).number for view in self.members}
        return tuple(number for number in range(1, self.seat.of + 1) if number not in begun)

    @property
    def under_way(self) -> tuple[RunRecord, ...]:
        return tuple(view.record for view in self.members if not view.record.state.is_terminal)

    @property
    def exit_code(self) -> int | None:
        """That of the first in the order of the numbers that has not succeeded; None while a run goes on or one has
        not begun and none has failed."""
        codes = [view.record.exit_code for view in self.latest.values()]
        failed = next((code for code in codes if code), None)
        return failed if failed is not None or self.not_begun or None in codes else 0

    def counts(self) -> dict[str, int]:
        """How many runs are in which state, in words, those that say most first."""
        words = Counter(_word(view.record) for view in self.latest.values())
        words[NOT_BEGUN] = 0 if self.chosen else len(self.not_begun)
        order = ["ok", "failed", "cut off", "not run", "running"]
        known = sorted(
            words, key=lambda word: (word == NOT_BEGUN, order.index(word) if word in order else 9, word)
        )
        return {word: words[word] for word in known if words[word]}


def grouped(views: Sequence[RunView], *, chosen: bool = False) -> list[SweepView | RunView]:
    """The runs of each sweep together, where the first of them stands; within a sweep the order stays what it was.

    chosen: whether these are not all runs, but those that a filter or a limit leaves."""
    members: dict[SweepId, list[RunView]] = {}
    for view in views:
        if view.record.sweep is not None:
            members.setdefault(view.record.sweep.id, []).append(view)
    found: list[SweepView | RunView] = []
    for view in views:
        seat = view.record.sweep
        if seat is None:
            found.append(view)
        elif members[seat.id][0] is view:
            found.append(SweepView(seat, tuple(members[seat.id]), chosen))
    return found


def sweep_of(views: Iterable[RunView], text: str) -> SweepView | None:
    """The sweep that a text means, by its id or by its name. Raises `UsageError` for a text that means several."""
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
    assert view.record.sweep is not None  # so they were chosen
    return view.record.sweep


def _word(record: RunRecord) -> str:
    match record.state:
        case RunState.ENDED:
            return "ok" if record.exit_code == 0 else "failed"
        case RunState.NOT_LAUNCHED:
            return "not run"
        case RunState.CUT_OFF:
            return "cut off"
        case state:
            return str(state)
