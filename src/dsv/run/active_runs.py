"""Runs under way on this machine: the marks by which commands find them, and their unsent records."""

from __future__ import annotations

import os
import signal
from contextlib import closing, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from select import select
from threading import Thread
from time import monotonic, sleep
from typing import Final

import msgspec

from dsv.errors import Conflict, DsvError, Interrupted, NoRoom, NotFound, Unreachable, Unsupported, UsageError
from dsv.files.errors import as_error
from dsv.files.process import Fate, Process, Watched, host_name, user_name
from dsv.files.small_files import replace_file, write_once
from dsv.run.dirs import ANSWERS, LIVE_LOG, MESSAGES, remove_scratch, run_folder
from dsv.run.record import LOG, MAX_RECORD, SERIES, RunId, RunRecord, RunState, start_name
from dsv.run.record_store import RunStore, Spool
from dsv.run.series import LiveSeries
from dsv.values.ids import StoreId
from dsv.values.secrets import Masker

_MAX_MARK: Final = 2 * MAX_RECORD
"""Bytes of a mark, which is little more than a record. A longer file is cut, and so can't be decoded."""
_MAX_NUMBER: Final = 64
_TICK: Final = 0.2


class RunOwner(msgspec.Struct, frozen=True):
    """The process that supervises a run or drives a sweep, and its machine."""

    process: Process
    host: str

    @classmethod
    def here(cls) -> RunOwner:
        return cls(Process.here(), this_machine())

    @property
    def is_here(self) -> bool:
        """Check that it runs on this machine: several machines may share a home on a file server."""
        return self.process.kernel == Process.here().kernel

    @property
    def is_dead(self) -> bool:
        """Check that it is known to have ended. Only its own machine can tell."""
        fate = self.process.fate()
        if fate is not Fate.UNKNOWN:
            return fate is Fate.DEAD
        boot, now = self.process.kernel.partition(":")[0], Process.here().kernel.partition(":")[0]
        return self.host == this_machine() and boot != "" and now not in ("", boot)

    @property
    def host_name(self) -> str:
        """The name of the host, for people."""
        return self.host.partition("/")[0]


class _Mark(msgspec.Struct, frozen=True):
    store: str
    """The id of the store that gets the record."""
    process: tuple[str, int, int]
    """Kernel, number and start of the process that supervises the run."""
    host: str
    record: str
    """The record so far, encoded."""
    live: str | None = None
    """The file with the output so far, if the run is detached."""


_MARK = msgspec.json.Decoder(_Mark)


class Marks:
    """The marks of a user's runs on datasets of one store. Setting and removing a mark never fails; without
    it, no command notices that a run was cut off."""

    def __init__(self, state: Path, store: StoreId) -> None:
        self.state = state
        self.folder = state / "running"
        self._store = str(store)

    def set(self, record: RunRecord, live: Path | None = None) -> None:
        """live: the file with the output so far, if other commands may read it. Raises `OSError`."""
        here = Process.here()
        mark = _Mark(
            self._store,
            (here.kernel, here.pid, here.start),
            this_machine(),
            record.encode().decode("ascii"),
            None if live is None else str(live),
        )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self.folder / record.run, msgspec.json.encode(mark), mode=0o600)

    def remove(self, run: RunId) -> None:
        with suppress(OSError):
            (self.folder / run).unlink()
        with suppress(OSError):
            stop_request(self.folder, run).unlink()
        with suppress(OSError):
            self.answer(run).unlink()

    def answer(self, run: RunId) -> Path:
        """Return the file with the last state of a run that its cluster has reported here."""
        return self.state / ANSWERS / run

    def tidy(self, record: RunRecord) -> None:
        """Remove what is here of a run on a cluster whose record is in the store."""
        with suppress(OSError):
            self.answer(record.run).unlink(missing_ok=True)
            own = run_folder(self.state, record.dataset, record.run)
            (own / MESSAGES).unlink(missing_ok=True)
            own.rmdir()  # if nothing else is there

    def grace(self, run: RunId, otherwise: float) -> float:
        """Return the grace in seconds of the stop request, or `otherwise` without a request."""
        try:
            with stop_request(self.folder, run).open("rb") as file:
                return float(file.read(_MAX_NUMBER))
        except (OSError, ValueError):
            return otherwise

    def stopped_by(self, run: RunId) -> str | None:
        """Return the owner of the stop request as `user@host`; None without a request."""
        try:
            owner = stop_request(self.folder, run).stat().st_uid
        except OSError:
            return None
        return f"{user_name(owner)}@{host_name()}"

    def known(self) -> list[RunRecord]:
        """Return the records of the runs that are under way."""
        return [each.record for each in self._marked()]

    def supervised(self) -> frozenset[RunId]:
        """Return the runs whose supervisor lives on this machine."""
        return frozenset(
            each.record.run for each in self._marked() if each.owner.process.fate() is Fate.ALIVE
        )

    def clear(self, record: RunRecord) -> None:
        """Remove the mark and the scratch folder of a run that was cut off. Its output remains."""
        remove_scratch(run_folder(self.state, record.dataset, record.run) / "scratch")
        self.remove(record.run)

    def live_log(self, record: RunRecord) -> Path:
        """Return the path of the file with the output so far, if the run is detached."""
        return run_folder(self.state, record.dataset, record.run) / LIVE_LOG

    def orphaned(self) -> list[RunRecord]:
        """Return the records so far of the runs whose supervisor is known to be gone."""
        return [each.record for each in self._marked() if each.owner.is_dead]

    def _marked(self) -> list[UnderWay]:
        return [each for each in under_way(self.state) if each.store == self._store]


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A run that has a mark."""

    folder: Path
    """The folder of the marks."""
    store: str
    """The id of the store that gets the record."""
    owner: RunOwner
    record: RunRecord
    """As it is known so far."""
    live: Path | None
    """The file with the output so far, if the run is detached."""

    @property
    def run(self) -> RunId:
        return self.record.run

    @property
    def is_marked(self) -> bool:
        """Check that its end is not recorded yet."""
        return (self.folder / self.run).exists()

    def ask_to_stop(self, grace: float) -> bool:
        """Ask the supervisor to end the job after `grace` seconds. Return False if it was asked before.

        A further request sends nothing, unless its grace is 0, which ends the job at once. Raises
        `Unsupported` for a run of another machine, and `NotFound` if its supervisor is gone.
        """
        run, owner = self.run, self.owner
        if not owner.is_here:
            raise Unsupported(
                f"run {run} is under way on {owner.host_name}, and can be stopped only there",
                subject=run,
                hint=f"ssh {owner.host_name} dsv stop {run}",
            )
        with closing(self._watched()) as watched:
            if watched.has_ended():
                raise NotFound(f"the dsv of run {run} is gone", subject=run, hint=f"dsv runs {run}")
            request = stop_request(self.folder, run)
            first = write_once(request, f"{grace:g}".encode())
            if not first and grace == 0:
                replace_file(request, b"0", mode=0o600)
            if first or grace == 0:
                _send(watched, signal.SIGTERM)
            return first

    def wait_for_end(self, seconds: float = inf) -> bool:
        """Wait until a run of this machine has its record, or its supervisor is gone. False if neither is in time."""
        last = monotonic() + seconds
        with closing(self._watched()) as watched:
            while self.is_marked and not watched.has_ended():
                if monotonic() >= last:
                    return False
                if watched.descriptor is None:
                    sleep(_TICK)
                else:
                    select([watched.descriptor], [], [], _TICK)
        return True

    def _watched(self) -> Watched:
        return Watched(self.owner.process.pid, self.owner.process.start)


def _send(watched: Watched, number: int) -> None:
    try:
        if watched.descriptor is not None:
            signal.pidfd_send_signal(watched.descriptor, number)
        else:
            os.kill(watched.process.pid, number)
    except ProcessLookupError:
        pass  # it has ended just now
    except PermissionError as error:
        raise UsageError("the run is another user's", hint="only they can stop it") from error


def under_way(state: Path) -> list[UnderWay]:
    """Return this user's marked runs of all stores, oldest first. Unreadable marks are left out."""
    folder = state / "running"
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(OSError, DsvError, msgspec.DecodeError):
            with path.open("rb") as file:
                mark = _MARK.decode(file.read(_MAX_MARK))
            record = RunRecord.decode(mark.record.encode(), str(path))
            owner = RunOwner(Process(*mark.process), mark.host)
            live = None if mark.live is None else Path(mark.live)
            found.append(UnderWay(folder, mark.store, owner, record, live))
    return found


def check_name_free(state: Path, name: str | None, run: RunId | None = None) -> None:
    """Raises `Conflict` if another run of this name is under way on this machine. The mark of `run` is then removed."""
    for each in under_way(state) if name is not None else ():
        if each.record.name == name and each.run != run and each.owner.process.fate() is Fate.ALIVE:
            if run is not None:
                (state / "running" / run).unlink(missing_ok=True)
            raise Conflict(
                f"the name {name} is in use by run {each.run}, which is under way",
                subject=name,
                hint=f"choose another --name, or end that run: dsv stop {each.run}",
            )


def stop_request(folder: Path, run: RunId) -> Path:
    return folder / f"{run}.stop"


def this_machine() -> str:
    """Return the name of this machine, with its id if it has one."""
    number = ""
    with suppress(OSError):
        number = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    return f"{host_name()}/{number}"


_START_SECONDS: Final = 35.0
"""Seconds that the end of a run waits for its start to be sent: a little more than a refused connection takes."""


class RunRecords:
    """Keeps the record of one run: in its mark while it is under way, in the spool, and in the store."""

    def __init__(self, state: Path, store: StoreId, runs: RunStore | None) -> None:
        """state: the user's folder for dsv's state; runs: None if the store must not be asked (`--offline`)"""
        self.marks = Marks(state, store)
        self._spool = Spool(state, store)
        self._runs = runs
        self.begun = False
        """True once the start of the job is recorded."""
        self.under_way = False
        """True from `announce` until `finish`."""
        self.starts = 0
        """The number of recorded starts: one for each pool whose engine took the job."""
        self._live: Path | None = None
        self._start: Thread | None = None
        self._start_problem: DsvError | None = None

    def announce(self, record: RunRecord, live: Path | None = None, *, must: bool = False) -> None:
        """Set the mark, so that other commands of this machine find the run. live: its output so far. must: raise
        `NoRoom` or another error if it can't be set, because nobody else will know of the run."""
        self._live = live or self._live
        try:
            self.marks.set(record, self._live)
        except OSError as error:
            if must:
                raise as_error(error, self.marks.folder) from error
        if not self.under_way:
            check_name_free(self.marks.state, record.name, record.run)
        self.under_way = True

    def begin(self, record: RunRecord) -> None:
        """Keep the start before the job begins, and send it while the job starts. Raises `NoRoom`."""
        self.announce(record)
        self.starts += 1
        self._spool.keep(record.dataset, record.run, start_name(self.starts), record.encode())
        self.begun = True
        if self._runs is not None:
            self._start = Thread(target=self._send_start, args=(record,), name="dsv-run-start", daemon=True)
            self._start.start()

    def ended(self, record: RunRecord, log: bytes | None) -> None:
        """Note that the job has ended and its output is still to be sent. If this process is killed before
        `finish`, this record counts. `finish` raises a suppressed `NoRoom`."""
        for part, data in ((LOG, log), (SERIES, record.curves or None)):
            with suppress(NoRoom):
                if data is not None:
                    self._spool.keep(record.dataset, record.run, part, data)
        self.announce(record)

    def moves_on(self) -> None:
        """Note that the job was withdrawn before it began, and moves to another pool."""
        self.begun = False

    @property
    def start_is_sent(self) -> bool:
        """True if the store has the start, so that other machines can complete the record."""
        return self._start is not None and not self._start.is_alive() and self._start_problem is None

    def live_series(self, record: RunRecord, file: Path, mask: Masker) -> LiveSeries | None:
        """As `RunStore.live_series`, if the store may be asked."""
        return None if self._runs is None else self._runs.live_series(record, file, mask)

    def leave(self, record: RunRecord) -> None:
        """Leave a run that its cluster completes: it is no longer under way on this machine."""
        self.marks.remove(record.run)
        self.marks.tidy(record)
        self.under_way = False

    def finish(self, record: RunRecord, log: bytes | None) -> None:
        """Keep the end, for `send` or for a later run, and remove the mark. Raises `NoRoom`."""
        self._spool.keep_end(record, log, self._runs)
        self.marks.remove(record.run)
        self.under_way = False

    def send(self) -> DsvError | None:
        """Send all parts that wait, also of earlier runs. Return why some were not sent, an interrupt
        included: they are kept here, and the next run sends them."""
        if self._runs is None:
            return None
        try:
            if self._start is not None:
                self._start.join(_START_SECONDS)
            if self._start_problem is None:
                self._spool.send(self._runs)
            return self._start_problem
        except (DsvError, OSError) as error:
            return _explained(error)
        except KeyboardInterrupt:
            return Interrupted("sending the record was interrupted")

    def is_in_store(self, problem: DsvError | None) -> bool:
        """Check that the whole record has been sent. problem: the result of `send`"""
        return self._runs is not None and problem is None and not self.under_way

    def completed_elsewhere(self, record: RunRecord) -> RunRecord | None:
        """Return the record if another dsv completed it with the job's end; None if the store is away."""
        if self._runs is None:
            return None
        with suppress(DsvError, OSError):
            found = self._runs.newest(record.dataset, record.run)
            if found is not None and found.exit_code is not None and found.state is not RunState.CUT_OFF:
                return found
        return None

    def _send_start(self, record: RunRecord) -> None:
        assert self._runs is not None  # checked by begin
        try:
            self._spool.send(self._runs, only=record.run)
        except (DsvError, OSError) as error:
            self._start_problem = _explained(error)


def _explained(error: DsvError | OSError) -> DsvError:
    return error if isinstance(error, DsvError) else Unreachable(f"the record can't be sent: {error}")
