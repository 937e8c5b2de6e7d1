"""Runs of this machine whose supervisor is gone: their jobs are found by their references, and their records end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from dsv.engines.base import Ended
from dsv.errors import DsvError, NoRoom, Unreachable
from dsv.model.names import DatasetName
from dsv.model.run import LOG, RECORD, RunId, RunOutput, RunRecord, RunState
from dsv.repo.run_spool import Spool
from dsv.repo.runs import RunStore
from dsv.runs.completing import forget_job, with_end, with_what_it_left
from dsv.runs.engines import Engines
from dsv.runs.jobs import FoundJob, find_job
from dsv.runs.known_secrets import KnownSecrets
from dsv.runs.marks import Marks
from dsv.runs.records import encode_within_bounds

GONE: Final = "dsv was killed or its machine went down before the job had ended"


def record_cut_off(
    marks: Marks,
    spool: Spool,
    runs: RunStore,
    engines: Engines,
    warn: Callable[[str], None],
    stop: Mapping[RunId, float] | None = None,
) -> list[RunRecord]:
    """Runs of this store that nobody supervises any more get the end of their record, and are returned.

    A run whose job lives on, because what should have ended it was killed too, stays as it is, and so does one whose
    engine doesn't answer; both are told. stop: runs whose jobs are ended first, each with its seconds of grace.
    """
    done = []
    for dataset, run in marks.of_the_dead():
        early = marks.early(run)
        begun = _begun(dataset, run, spool, runs)
        if early is not None and (begun is None or not begun.state.is_terminal):
            begun = early  # it names the last pool, and others may write to the store
        if begun is not None and begun is early and begun.state.is_terminal:
            whole = replace(begun, output=RunOutput(error="dsv was killed while it sent it"))
            done.append(_keep_end(whole, None, spool, runs))
        elif begun is not None and not begun.state.is_terminal:
            own = begun if early is not None else replace(begun, job=None)
            found = _what_became_of(own, engines, warn, (stop or {}).get(run))
            if found is None:
                continue
            whole, log = with_end(begun, found.end), None
            if found.job is not None:
                whole, log = with_what_it_left(
                    whole,
                    found.job,
                    KnownSecrets.elsewhere(begun, engines.environ),
                    logged=begun.log is not None,
                )
            done.append(_keep_end(whole, log, spool, runs))
            forget_job(whole, engines)
        marks.clear(dataset, run)
    return done


@dataclass(frozen=True, slots=True)
class _Found:
    """end: how the job ended, or why nobody knows. job: if a cluster keeps what it has left."""

    end: str | Ended
    job: FoundJob | None = None


def _keep_end(record: RunRecord, log: bytes | None, spool: Spool, runs: RunStore) -> RunRecord:
    try:
        if log is not None:
            spool.keep(record.dataset, record.run, LOG, log)
        spool.keep(record.dataset, record.run, RECORD, encode_within_bounds(record))
    except OSError as problem:
        raise NoRoom(
            f"the record of run {record.run} can't be kept: {problem}", subject=record.run
        ) from problem
    with suppress(DsvError, OSError):  # it waits here, and is shown so
        spool.send(runs, only=record.run)
    return record


def _what_became_of(
    record: RunRecord, engines: Engines, warn: Callable[[str], None], grace: float | None
) -> _Found | None:
    """What to record of a run whose supervisor is gone: how its job ended if the engine can tell, else what is not
    known. None if the job lives, or may live."""
    try:
        job = find_job(record, engines)
    except Unreachable as error:
        warn(
            f"the dsv of run {record.run} is gone, and whether its job still runs is not known: {error.message}"
        )
        return None
    if job is None:
        return _Found(GONE)
    if job.status.state in (RunState.QUEUED, RunState.RUNNING) and grace is None:
        warn(f"the dsv of run {record.run} is gone, and its job still runs; end it by: dsv stop {record.run}")
        return None
    ended = job.cancel(grace or 0.0)
    if ended.lives:
        return None
    if ended.ended is not None:
        return _Found(ended.ended, job if job.engine.queues else None)
    return _Found(GONE if ended.exit_code is None else f"{GONE}; the job's exit code was {ended.exit_code}")


def _begun(dataset: DatasetName, run: RunId, spool: Spool, runs: RunStore) -> RunRecord | None:
    """What is known of a run: what waits here is never older than what the store has."""
    for record in spool.records(lambda part: (part.dataset, part.run) == (dataset, run), lambda _: None):
        return record
    for stored in runs.listing(dataset, run):
        return runs.read(stored)
    return None
