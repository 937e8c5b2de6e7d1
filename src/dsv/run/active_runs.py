"""The runs that are under way on this machine, so that other commands can show, follow, stop and wait for them.

A run has a mark from before its data is fetched until its record is kept. The mark is a file that names the process
that supervises the run, its state, its job, and where its output is. If that process is gone, the run was cut off.
Only the same machine can tell, so marks of other machines (in a home on a file server) are left alone.

    <state>/running/<run id>         the mark
    <state>/running/<run id>.stop    a request to end the run: the seconds that its job gets
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dsv.errors import DsvError, UsageError
from dsv.fs.files import replace_file
from dsv.fs.process import Fate, Process, host_name, user_name
from dsv.run.dirs import remove_scratch, run_folder
from dsv.run.record import MAX_RECORD, RunId, RunRecord
from dsv.values.ids import StoreId
from dsv.values.names import DatasetName

_MAX_MARK: Final = 2 * MAX_RECORD
"""Bytes of a mark: a record as a string, and little else. A longer one is cut, and so can't be read."""
_MAX_NUMBER: Final = 64


@dataclass(frozen=True, slots=True)
class Mark:
    """process: kernel, number and start of the process that supervises the run. store: where its record goes.
    record: the record so far, encoded. live: the file with its output so far, if it is detached. Marks of earlier
    versions have neither of the last two."""

    store: str
    dataset: str
    process: tuple[str, int, int]
    host: str
    record: str | None = None
    live: str | None = None

    def known(self) -> RunRecord | None:
        """None if it can't be read."""
        try:
            return None if self.record is None else RunRecord.decode(self.record.encode(), "a run's mark")
        except DsvError:
            return None

    @property
    def host_name(self) -> str:
        """For people."""
        return self.host.partition("/")[0]

    def is_dead(self) -> bool:
        return is_dead(Process(*self.process), self.host)


_MARK = msgspec.json.Decoder(Mark)


class Marks:
    """The marks of a user's runs on datasets of one store.

    Setting and removing one never fails: a run without one is merely not found out when it is cut off.
    """

    def __init__(self, state: Path, store: StoreId) -> None:
        self._state = state
        self._folder = state / "running"
        self._store = str(store)

    def set(self, record: RunRecord, live: Path | None = None) -> None:
        """live: where its output is, if other commands may read it there."""
        here = Process.here()
        mark = Mark(
            self._store,
            str(record.dataset),
            (here.kernel, here.pid, here.start),
            this_machine(),
            record.encode().decode("ascii"),
            None if live is None else str(live),
        )
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / record.run, msgspec.json.encode(mark), mode=0o600)

    def remove(self, run: RunId) -> None:
        with suppress(OSError):
            (self._folder / run).unlink()
        with suppress(OSError):
            stop_request(self._folder, run).unlink()

    def grace(self, run: RunId) -> float | None:
        """The seconds that whoever asked for its end gives the job; None if nobody did."""
        try:
            with stop_request(self._folder, run).open("rb") as file:
                return float(file.read(_MAX_NUMBER))
        except (OSError, ValueError):
            return None

    def stopped_by(self, run: RunId) -> str | None:
        """Who asked for its end: the owner of the request. None if nobody did."""
        try:
            owner = stop_request(self._folder, run).stat().st_uid
        except OSError:
            return None
        return f"{user_name(owner)}@{host_name()}"

    def early(self, run: RunId) -> RunRecord | None:
        """The record of a run as its mark has it."""
        for record in self.known():
            if record.run == run:
                return record
        return None

    def known(self) -> list[RunRecord]:
        """The records of the runs that are under way."""
        return [
            record
            for each in under_way(self._state)
            if each.mark.store == self._store and (record := each.mark.known()) is not None
        ]

    def supervised(self) -> frozenset[RunId]:
        """The runs that a process of this machine waits for."""
        marked = [each for each in under_way(self._state) if each.mark.store == self._store]
        return frozenset(each.run for each in marked if Process(*each.mark.process).fate() is Fate.ALIVE)

    def clear(self, dataset: DatasetName, run: RunId) -> None:
        """Removes the mark of a run that was cut off, and what the run left among the user's state but its output."""
        remove_scratch(run_folder(self._state, dataset, run) / "scratch")
        self.remove(run)

    def of_the_dead(self) -> Iterator[tuple[DatasetName, RunId]]:
        """The runs whose supervisor is known to be gone."""
        for each in under_way(self._state):
            if each.mark.store == self._store and each.mark.is_dead():
                with suppress(UsageError):
                    yield DatasetName.parse(each.mark.dataset), each.run


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A run that has a mark. folder: where that lies."""

    folder: Path
    run: RunId
    mark: Mark


def under_way(state: Path) -> list[UnderWay]:
    """The runs of this user, of any store, that have a mark; oldest first. Marks that can't be read are passed over."""
    folder = state / "running"
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(OSError, UsageError, msgspec.DecodeError):
            with path.open("rb") as file:
                mark = _MARK.decode(file.read(_MAX_MARK))
            found.append(UnderWay(folder, RunId.parse(path.name), mark))
    return found


def is_dead(process: Process, host: str) -> bool:
    """Whether a process of this machine is known to be gone. host: as of `this_machine`, where it was started."""
    fate = process.fate()
    if fate is not Fate.UNKNOWN:
        return fate is Fate.DEAD
    boot, now = process.kernel.partition(":")[0], Process.here().kernel.partition(":")[0]
    return host == this_machine() and boot != "" and now not in ("", boot)


def stop_request(folder: Path, run: RunId) -> Path:
    return folder / f"{run}.stop"


def this_machine() -> str:
    """This machine: its name, and its id if it has one."""
    number = ""
    with suppress(OSError):
        number = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    return f"{host_name()}/{number}"
