"""Making, keeping and sending the record of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Final, Self

from dsv.errors import DsvError, Interrupted, NoRoom, Unreachable
from dsv.run.active_runs import Marks
from dsv.run.node_order import PASSED
from dsv.run.record import LOG, MAX_RECORD, RECORD, RunId, RunRecord, RunState, start_name
from dsv.run.record_store import RunStore, Spool
from dsv.values.json import Json
from dsv.values.secrets import HIDDEN, Masker

_START_SECONDS: Final = 35.0
"""How long the end of a run waits for its start to be sent: a little more than a refused connection takes."""


class RunRecords:
    """Where the record of one run goes. runs: None if the store must not be asked (`--offline`); marks: make the
    run known to other commands while it is under way."""

    def __init__(self, spool: Spool, runs: RunStore | None, marks: Marks | None = None) -> None:
        self._marks = marks
        self._spool = spool
        self._runs = runs
        self.begun = False
        """Whether the start of the job is recorded."""
        self.under_way = False
        """Whether the run is known to other commands as one that has not ended."""
        self.starts = 0
        """How often the start of a job was recorded: once for each pool whose engine took it."""
        self._live: Path | None = None
        self._start: Thread | None = None
        self._start_problem: DsvError | None = None

    def announce(self, record: RunRecord, live: Path | None) -> None:
        """Makes the run known to other commands of this machine before its job starts. live: its output so far."""
        self._live = live
        self._mark(record)

    def submit(self, record: RunRecord) -> None:
        """The engine is about to be given the job."""
        self._mark(record)

    def asked_to_stop(self, run: RunId, otherwise: float) -> float:
        """The seconds that whoever stops the run gives it; the other ones if nobody said."""
        asked = None if self._marks is None else self._marks.grace(run)
        return otherwise if asked is None else asked

    def stopped_by(self, run: RunId) -> str | None:
        """Who asked for its end by `dsv stop`; None if nobody did."""
        return None if self._marks is None else self._marks.stopped_by(run)

    def begin(self, record: RunRecord) -> None:
        """Keeps the start, before the job begins, and sends it while that does. Raises `NoRoom`."""
        self._mark(record)
        self.starts += 1
        self._keep(record, start_name(self.starts), record.encode())
        self.begun = True
        if self._runs is not None:
            self._start = Thread(target=self._send_start, args=(record,), name="dsv-run-start", daemon=True)
            self._start.start()

    def ended(self, record: RunRecord, log: bytes | None) -> None:
        """The job has ended, and its output is yet to be sent: if this process is killed meanwhile, the record is made
        of this one. That it can't be kept is told by `finish`."""
        if log is not None:
            with suppress(NoRoom):
                self._keep(record, LOG, log)
        self._mark(record)

    def moves_on(self) -> None:
        """The job was taken back before it began; another pool gets it."""
        self.begun = False

    def finish(self, record: RunRecord, log: bytes | None) -> None:
        """Keeps the end, for `send` or for a later run. Raises `NoRoom`."""
        if log is not None:
            self._keep(record, LOG, log)
        self._keep(record, RECORD, encode_within_bounds(record))
        if self._marks is not None:
            self._marks.remove(record.run)
        self.under_way = False

    def send(self) -> DsvError | None:
        """Sends what waits, of earlier runs too. Returns why something is not in the store yet: it is then kept here
        and sent by the next run. An interrupt is such a reason as well."""
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
        """Whether all that is known of the run has been sent. problem: what `send` returned."""
        return self._runs is not None and problem is None and not self.under_way

    def told_by_others(self, record: RunRecord) -> RunRecord | None:
        """The record that another dsv has completed in the store and that tells how the job ended.

        None if there is none, or if the store doesn't answer.
        """
        if self._runs is None:
            return None
        with suppress(DsvError, OSError):
            for stored in self._runs.listing(record.dataset, record.run):
                found = self._runs.read(stored)
                if found.state in (RunState.ENDED, RunState.NOT_LAUNCHED) and found.exit_code is not None:
                    return found
        return None

    def _mark(self, record: RunRecord) -> None:
        if self._marks is not None:
            self._marks.set(record, self._live)
        self.under_way = True

    def _send_start(self, record: RunRecord) -> None:
        assert self._runs is not None  # begin looked
        try:
            self._spool.send(self._runs, only=record.run)
        except (DsvError, OSError) as error:
            self._start_problem = _explained(error)

    def _keep(self, record: RunRecord, part: str, data: bytes) -> None:
        try:
            self._spool.keep(record.dataset, record.run, part, data)
        except OSError as error:
            raise NoRoom(
                f"the record of run {record.run} can't be kept: {error}", subject=record.run
            ) from error


def _explained(error: DsvError | OSError) -> DsvError:
    return error if isinstance(error, DsvError) else Unreachable(f"the record can't be sent: {error}")


def encode_within_bounds(record: RunRecord) -> bytes:
    """The record, without its metrics if they would make it longer than a record may be."""
    data = record.encode()
    if len(data) <= MAX_RECORD:
        return data
    return replace(record, metrics=None, metrics_error="too large for the record").encode()


@dataclass(frozen=True, slots=True)
class KnownSecrets:
    """The secrets of a run, as far as the machine that completes its record knows them.

    unknown: names of what may hold other secrets.
    """

    masker: Masker = field(repr=False)
    unknown: tuple[str, ...]

    @classmethod
    def elsewhere(cls, record: RunRecord, environ: Mapping[str, str]) -> Self:
        """On a machine that has only the record and its own environment."""
        given = {name: environ[name] for name in record.env if name in environ}
        return cls._of(record, given, environ, record.command, record.params)

    @classmethod
    def on_node(cls, record: RunRecord, environ: Mapping[str, str], command: Sequence[str] | None) -> Self:
        """On a node of the run, which has the values that the job was given. command: as it was typed."""
        given = {name: environ[PASSED + name] for name in record.env if PASSED + name in environ}
        params: Mapping[str, Json] = record.params
        with suppress(KeyError, ValueError):
            params = json.loads(environ[f"{PASSED}DSV_PARAMS"])
        return cls._of(record, given, environ, record.command if command is None else command, params)

    @classmethod
    def _of(
        cls,
        record: RunRecord,
        given: Mapping[str, str],
        environ: Mapping[str, str],
        command: Sequence[str],
        params: Mapping[str, Json],
    ) -> Self:
        masker = Masker.of(given, environ, command, params)
        unknown = [name for name in record.env if name not in given]
        told = [record.engine_args]
        told += [record.command] if tuple(command) == record.command else []
        shown = [*told, record.params] if params == record.params else told
        if HIDDEN in json.dumps(shown):
            unknown.append("the command or the parameters")
        return cls(masker, tuple(unknown))
