"""The job of a run, asked about and ended by its reference, when the process that supervised the run is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dsv.engines.base import Engine, JobStatus
from dsv.model.run import JobRef, RunRecord, RunState
from dsv.runs.engines import Engines


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that its engine has: alive, or ended and not yet removed."""

    engine: Engine
    ref: JobRef
    status: JobStatus

    def cancel(self, grace: float) -> JobStatus:
        """Ends it, if it lives, and removes what the engine keeps of it; how it ended."""
        return self.engine.cancel(self.ref, grace) or self.status

    def logs(self, follow: bool) -> AbstractContextManager[Iterator[bytes]] | None:
        return self.engine.logs(self.ref, follow)


def find_job(record: RunRecord, engines: Engines) -> FoundJob | None:
    """None if the engine has no such job, or none any more. Raises `Unreachable` if it doesn't answer.

    A run that was killed before its reference was written down is looked for by its id.
    """
    engine = engines.make(record.engine, record.pool)
    if engine is None:
        return None
    refs = engine.list(record.run) if record.job is None else (record.job, *engine.list(record.run))
    found = None
    for ref in refs:
        status = engine.status(ref)
        if status is not None and status.state is not RunState.CUT_OFF and (found is None or status.lives):
            found = FoundJob(engine, ref, status)
            if status.lives:
                break
    return found
