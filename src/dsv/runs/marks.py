"""Which runs are under way on this machine, told so that another command finds out which of them were cut off.

A run has a mark from before its record begins until its end is kept: a file that says which process supervises it. A
mark whose process is gone is of a run that nobody will ever end: the process was killed, or the machine went down.
Only the machine itself can tell, so a mark of another one (a home on a file server has those of all) is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dsv.engines.base import CANNOT_LAUNCH
from dsv.engines.registry import ENGINES
from dsv.errors import DsvError, NoRoom, UsageError
from dsv.fs.files import replace_file
from dsv.fs.process import Fate, Process, host_name
from dsv.model.ids import StoreId
from dsv.model.names import DatasetName
from dsv.model.run import RECORD, RunId, RunRecord, RunState
from dsv.repo.run_spool import Spool
from dsv.repo.runs import RunStore
from dsv.runs.place import remove_scratch, run_folder

GONE = "dsv was killed or its machine went down before the job had ended"


@dataclass(frozen=True, slots=True)
class _Mark:
    """process: the kernel, the number and the start of the one that supervises the run. store: where its record
    goes."""

    store: str
    dataset: str
    process: tuple[str, int, int]
    host: str

    def is_dead(self) -> bool:
        fate = Process(*self.process).fate()
        if fate is not Fate.UNKNOWN:
            return fate is Fate.DEAD
        boot, now = self.process[0].partition(":")[0], Process.here().kernel.partition(":")[0]
        return self.host == _host() and boot != "" and now not in ("", boot)


_MARK = msgspec.json.Decoder(_Mark)


class Marks:
    """The marks of a user's runs on datasets of one store.

    Setting and removing one never fails: a run without one is merely not found out when it is cut off.
    """

    def __init__(self, state: Path, store: StoreId) -> None:
        self._state = state
        self._folder = state / "running"
        self._store = str(store)

    def set(self, dataset: DatasetName, run: RunId) -> None:
        here = Process.here()
        mark = _Mark(self._store, str(dataset), (here.kernel, here.pid, here.start), _host())
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / run, msgspec.json.encode(mark), mode=0o600)

    def remove(self, run: RunId) -> None:
        with suppress(OSError):
            (self._folder / run).unlink()

    def clear(self, dataset: DatasetName, run: RunId) -> None:
        """Removes the mark of a run that was cut off, and what the run left among the user's state but its output."""
        remove_scratch(run_folder(self._state, dataset, run) / "scratch")
        self.remove(run)

    def of_the_dead(self) -> Iterator[tuple[DatasetName, RunId]]:
        """The runs whose supervisor is known to be gone."""
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            with suppress(OSError, UsageError, msgspec.DecodeError):
                run, mark = RunId.parse(path.name), _MARK.decode(path.read_bytes())
                if mark.store == self._store and mark.is_dead():
                    yield DatasetName.parse(mark.dataset), run


def record_cut_off(
    marks: Marks, spool: Spool, runs: RunStore, environ: Mapping[str, str], warn: Callable[[str], None]
) -> list[RunRecord]:
    """Runs of this store that nobody supervises any more get the end of their record, and are returned.

    A run whose job lives on, because what should have ended it was killed too, stays as it is; that is told.
    """
    done = []
    for dataset, run in marks.of_the_dead():
        begun = _begun(dataset, run, spool, runs)
        if begun is not None and not begun.state.is_terminal:
            make = ENGINES.get(begun.engine)
            if make is not None and make(environ).still_runs(run):
                warn(f"the dsv of run {run} is gone, and its job still runs; end it by: {_how_to_end(begun)}")
                continue
            begun = replace(begun, state=RunState.CUT_OFF, exit_code=CANNOT_LAUNCH, error=GONE)
            try:
                spool.keep(dataset, run, RECORD, begun.encode())
            except OSError as error:
                raise NoRoom(f"the record of run {run} can't be kept: {error}", subject=run) from error
            with suppress(DsvError, OSError):  # it waits here, and is shown so
                spool.send(runs, only=run)
            done.append(begun)
        marks.clear(dataset, run)
    return done


def _begun(dataset: DatasetName, run: RunId, spool: Spool, runs: RunStore) -> RunRecord | None:
    """What is known of a run: what waits here is never older than what the store has."""
    for record in spool.records(lambda part: part.run == run, lambda _: None):
        return record
    for stored in runs.listing(dataset, run):
        return runs.read(stored)
    return None


def _how_to_end(record: RunRecord) -> str:
    if record.engine in ("docker", "podman"):
        return f"{record.engine} rm --force $({record.engine} ps --quiet --filter label=dsv.run={record.run})"
    return f"kill $(grep -la DSV_RUN={record.run} /proc/[0-9]*/environ | cut -d/ -f3)"


def _host() -> str:
    """This machine: its name, and its id if it has one."""
    number = ""
    with suppress(OSError):
        number = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    return f"{host_name()}/{number}"
