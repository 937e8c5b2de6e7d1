"""Which process of this machine begins the runs of a sweep, so that no other does, and so that it can be told to stop.

<state>/sweeps/<sweep id>/driver    kernel, number and start of that process; gone when it has ended
"""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from dsv.errors import Conflict, LaunchError, UsageError
from dsv.fs.files import list_names, read_json, write_once
from dsv.fs.process import Process
from dsv.model.sweep import SweepId
from dsv.runs.marks import is_dead, this_machine


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
