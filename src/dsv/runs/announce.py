"""Making a run known to other commands before its job starts, and recording it if the job never does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dsv.engines.base import CANNOT_LAUNCH
from dsv.errors import DsvError, Interrupted, Terminated
from dsv.model.run import RunId, RunRecord, RunState
from dsv.repo.repository import now_ms
from dsv.runs.place import LIVE_LOG, make_folder
from dsv.runs.plan import Launch
from dsv.runs.records import RunRecords


@contextmanager
def announced(
    decided: Launch, records: RunRecords, announce: Callable[[RunId, Path, Path], None]
) -> Iterator[int | None]:
    """Tells of the run, and keeps a record of it if the job does not come to start. Gives the descriptor of its live
    log, None if no log is wanted."""
    early = replace(decided.record(decided.plan(), now_ms()), state=RunState.STAGING)
    live = decided.own / LIVE_LOG
    make_folder(decided.own)
    descriptor = os.open(live, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        records.announce(early, live if decided.spec.log else None)
        announce(early.run, decided.own, decided.out)
        yield descriptor if decided.spec.log else None
    except BaseException as error:
        if not records.begun:
            records.finish(_not_started(decided, early, error), None)
            records.send()
        raise
    finally:
        os.close(descriptor)
        if not records.under_way:
            live.unlink(missing_ok=True)


def _not_started(decided: Launch, early: RunRecord, error: BaseException) -> RunRecord:
    message = (
        error.message if isinstance(error, DsvError) else f"dsv met an unexpected {type(error).__name__}"
    )
    code = error.exit_code if isinstance(error, Interrupted | Terminated) else CANNOT_LAUNCH
    return replace(
        early,
        state=RunState.NOT_LAUNCHED,
        ended_ms=now_ms(),
        exit_code=code,
        error=decided.masker.text(message),
    )
