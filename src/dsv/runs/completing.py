"""The end of a run's record, written by another dsv than the one that started the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from dsv.engines.base import CANNOT_LAUNCH, Ended, Engine, JobStatus, NoEngine
from dsv.engines.log import KeptLog, LogKeeper
from dsv.errors import DsvError
from dsv.fs.files import replace_file
from dsv.model.json_values import Json
from dsv.model.run import LOG, RECORD, LogInfo, RunId, RunRecord, RunState
from dsv.model.run_end import EndCause, on_one_clock
from dsv.model.units import rfc3339
from dsv.repo.runs import RunStore
from dsv.runs.ending import no_log, salvaged
from dsv.runs.engines import Engines
from dsv.runs.jobs import FoundJob
from dsv.runs.known_secrets import KnownSecrets
from dsv.runs.place import Metrics, job_folder, parse_metrics, read_metrics, remove_scratch
from dsv.runs.records import encode_within_bounds

_SUPERVISOR_HAS: Final = 30.0
"""Seconds after the end of its job in which the dsv that waits for it, on whichever machine, completes the record: it
knows the secrets of the run."""


def with_end(begun: RunRecord, found: str | Ended) -> RunRecord:
    """The record of a run whose job is over. found: how it ended, or why nobody knows."""
    if isinstance(found, str):
        return replace(
            begun, state=RunState.CUT_OFF, exit_code=CANNOT_LAUNCH, error=found, end=EndCause.LOST_SIGHT, log=None
        )  # fmt: skip
    state = RunState.ENDED if found.launched else RunState.NOT_LAUNCHED
    if not found.seen or found.cause is EndCause.LEASE_LOST:
        state = RunState.CUT_OFF
    parts = on_one_clock(found.parts, begun.started_ms)
    began = min((part.started_ms for part in parts if part.started_ms is not None), default=None)
    first = [part for part in parts if part.attempt == 1 and part.cache_hit is not None]
    return replace(
        begun,
        state=state,
        exit_code=found.exit_code,
        error=found.reason,
        end=found.cause,
        parts=parts,
        started_ms=begun.started_ms if began is None else began,
        ended_ms=max((part.ended_ms for part in parts if part.ended_ms is not None), default=None),
        cache_hit=all(part.cache_hit for part in first) if first else begun.cache_hit,
        stage_bytes=sum(part.stage_bytes or 0 for part in found.parts) or begun.stage_bytes,
        usage=found.usage,
        log=None,
    )


def with_what_it_left(
    record: RunRecord, job: FoundJob, secrets: KnownSecrets, *, logged: bool
) -> tuple[RunRecord, bytes | None]:
    """The log and the metrics of a job that is over, if they can be seen from here. logged: whether it keeps a log."""
    record = with_metrics(record, lambda: _metrics(record, job), secrets)
    log = kept_log(record, lambda: _gathered(job.logs(follow=False)), secrets) if logged else None
    if log is None:
        return record, None
    return replace(record, log=LogInfo(log.total, len(log.data))), log.data


def with_metrics(record: RunRecord, read: Callable[[], Metrics], secrets: KnownSecrets) -> RunRecord:
    """With what it left in `metrics.json`, and without its secrets."""
    masker = secrets.masker
    found = salvaged(read, lambda problem: Metrics(problem=problem))
    values = None if found.values is None else cast("dict[str, Json]", masker.value(found.values))
    error = None if record.error is None else masker.text(record.error)
    return replace(record, metrics=values, metrics_error=found.problem, error=error)


def kept_log(
    record: RunRecord, read: Callable[[], LogKeeper | None], secrets: KnownSecrets
) -> KeptLog | None:
    """What it wrote, as far as it is kept; why it is not, if it may show a secret that is not known here."""
    return salvaged(lambda: _log(record, read, secrets), no_log)


def finish(runs: RunStore, record: RunRecord, log: bytes | None) -> RunRecord:
    """Completes the record of a run in the store. Of several who do so one wins; returns what is there now."""
    if log is not None:
        kept = runs.add(record.dataset, record.run, LOG, log)
        if len(kept) != len(log) and record.log is not None:
            record = replace(record, log=LogInfo(record.log.bytes, len(kept)))
    data = runs.add(record.dataset, record.run, RECORD, encode_within_bounds(record))
    return RunRecord.decode(bytes(data), record.run)


@dataclass(slots=True)
class Settler:
    """Asks the clusters what has become of runs that have no end in the store, and completes their records.

    supervised: the runs that a dsv of this machine waits for. answers: the folder for the last answer about each run.
    An engine that gave no answer is not asked again.
    """

    engines: Engines
    runs: RunStore
    supervised: frozenset[RunId] = frozenset()
    answers: Path | None = None
    _silent: dict[tuple[str, str | None], str | None] = field(default_factory=dict)
    _made: dict[tuple[str, str | None], Engine | None] = field(default_factory=dict)

    def settle(self, record: RunRecord) -> tuple[RunRecord, bool]:
        """The record as it is now; False if its end could not be written to the store."""
        engine = self._engine(record)
        if record.state.is_terminal or record.job is None or engine is None or not engine.queues:
            return record, True
        key = record.engine, record.pool
        status = None if key in self._silent else engine.status(record.job)
        if status is None:
            return self._as_last_known(record, engine), True
        if status.lives:
            self._remember(record, status)
            return replace(record, state=status.state, error=status.reason or record.error), True
        if status.ended is None:
            return self._without_job(record, status), True
        if not self._is_left_to_us(record, status):
            return record, True
        whole, log = with_what_it_left(
            with_end(record, status.ended),
            FoundJob(engine, record.job, status),
            KnownSecrets.elsewhere(record, self.engines.environ),
            logged=record.log is not None,
        )
        try:
            whole = finish(self.runs, whole, log)
        except DsvError:  # the next dsv that may write to the store
            return whole, False
        forget_job(whole, self.engines)
        if self.answers is not None:
            with suppress(OSError):
                (self.answers / record.run).unlink()
        return whole, True

    def _without_job(self, record: RunRecord, status: JobStatus) -> RunRecord:
        """A run whose job the cluster does not have any more. Whoever removed that has completed the record before."""
        if status.reason is None or record.run in self.supervised:
            return record
        with suppress(DsvError):
            for stored in self.runs.listing(record.dataset, record.run):
                if RECORD in stored.parts:
                    return self.runs.read(stored)
        return with_end(record, status.reason)

    def _as_last_known(self, record: RunRecord, engine: Engine) -> RunRecord:
        key = record.engine, record.pool
        if key not in self._silent:
            answer = engine.probe()
            self._silent[key] = answer.reason if isinstance(answer, NoEngine) else None
        if (reason := self._silent[key]) is None:
            return record
        state, since = record.state, record.started_ms
        if self.answers is not None:
            with suppress(OSError, ValueError):
                path = self.answers / record.run
                state, since = RunState(path.read_text()), int(path.stat().st_mtime * 1000)
        said = f"{state} is the last known state; not reachable since {rfc3339(since)}: {reason}"
        return replace(record, state=state, error=said)

    def _remember(self, record: RunRecord, status: JobStatus) -> None:
        if self.answers is not None:
            with suppress(OSError):
                self.answers.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(self.answers / record.run, status.state.encode(), mode=0o600)

    def _is_left_to_us(self, record: RunRecord, status: JobStatus) -> bool:
        """A job that never began may go on to another pool, which only the dsv that submitted it knows."""
        assert status.ended is not None  # it was looked at before
        moves = bool(record.then) and not status.ended.launched
        quiet = status.quiet_for is not None and status.quiet_for >= _SUPERVISOR_HAS
        return status.ended.seen and quiet and not moves and record.run not in self.supervised

    def _engine(self, record: RunRecord) -> Engine | None:
        key = record.engine, record.pool
        if key not in self._made:
            self._made[key] = self.engines.make(*key)
        return self._made[key]


def forget_job(record: RunRecord, engines: Engines) -> None:
    """Removes what the job left about itself, and what its cluster keeps of it, once that is in the record."""
    engine = None if record.job is None else engines.make(record.engine, record.pool)
    if engine is not None and record.job is not None:
        engine.forget(record.job)
    pool = None if record.pool is None else engines.pools.get(record.pool)
    if pool is not None and pool.out is not None:
        remove_scratch(job_folder(pool.out, record.dataset, record.run))


def _metrics(record: RunRecord, job: FoundJob) -> Metrics:
    """Of a folder that was there before the run, only a file that is not older."""
    if not job.engine.shares_folders:
        left = None if job.status.ended is None else job.status.ended.metrics
        return Metrics() if left is None else parse_metrics(left)
    out = Path(record.out)
    if out.name != record.run:
        try:
            if (out / "metrics.json").lstat().st_mtime * 1000 < record.started_ms:
                return Metrics()
        except OSError:
            return Metrics()
    return read_metrics(out, None)


def _log(record: RunRecord, read: Callable[[], LogKeeper | None], secrets: KnownSecrets) -> KeptLog | None:
    if secrets.unknown:
        names = ", ".join(secrets.unknown)
        return no_log(f"it may show values of {names}, which only {record.host} knows")
    keeper = read()
    return None if keeper is None else keeper.kept(secrets.masker)


def _gathered(log: AbstractContextManager[Iterator[bytes]] | None) -> LogKeeper | None:
    if log is None:
        return None
    keeper = LogKeeper()
    with log as pieces:
        for data in pieces:
            keeper.add(data)
    return keeper
