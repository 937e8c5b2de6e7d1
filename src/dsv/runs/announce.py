"""Making a run known to other commands before its job starts, and recording it if the job never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dsv.engines.base import CANNOT_LAUNCH
from dsv.errors import DsvError, Interrupted, Terminated
from dsv.model.run import RunId, RunRecord, RunState
from dsv.model.run_end import EndCause
from dsv.repo.repository import now_ms
from dsv.runs.live_log import LiveLog
from dsv.runs.place import LIVE_LOG, make_folder
from dsv.runs.plan import Launch
from dsv.runs.records import RunRecords


@contextmanager
def announced(
    decided: Launch, records: RunRecords, announce: Callable[[RunId, Path, Path], None]
) -> Iterator[LiveLog | None]:
    """Tells of the run, and keeps a record of it if its job doesn't come to start. Gives its live log, None if no log
    is wanted."""
    early = replace(decided.record(decided.plan(), now_ms()), state=RunState.STAGING)
    make_folder(decided.own)
    path = decided.own / LIVE_LOG
    live = LiveLog(path, decided.masker) if decided.spec.log else None
    try:
        records.announce(early, path if live is not None else None)
        announce(early.run, decided.own, decided.out)
        yield live
    except BaseException as error:
        if not records.begun and records.under_way:
            record_not_started(decided, records, error)
        raise
    finally:
        if live is not None:
            live.close() if records.under_way else live.remove()


def record_not_started(decided: Launch, records: RunRecords, error: BaseException) -> None:
    """Ends the record of a run that is under way, and whose job no engine has."""
    early = replace(decided.record(decided.plan(), now_ms()), state=RunState.STAGING)
    records.finish(_not_started(decided, early, error), None)
    records.send()


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
        end=EndCause.CANCELLED if isinstance(error, Interrupted | Terminated) else EndCause.NOT_STARTED,
        error=decided.masker.text(message),
        log=None,
    )
