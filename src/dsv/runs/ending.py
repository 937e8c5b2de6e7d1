"""What becomes of a run once its job is over: the rest of its record, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from signal import Signals as SignalName
from typing import Final, TypeVar, cast

from dsv.engines.base import CANNOT_LAUNCH, Ended
from dsv.engines.log import KeptLog
from dsv.engines.supervise import Outcome
from dsv.errors import LaunchError, NoRoom
from dsv.model.json_values import Json
from dsv.model.run import GpuUse, LogInfo, RunOutput, RunRecord, RunState, Usage
from dsv.model.run_end import TIMED_OUT, EndCause, RunPart, ended_at, exit_signal, on_one_clock
from dsv.runs.place import Metrics, parse_metrics, read_metrics
from dsv.runs.plan import Launch
from dsv.runs.records import RunRecords

_T = TypeVar("_T")
_GPUS: Final = re.compile(r"gpu|cdi|nvidia|device|gres|node configuration", re.IGNORECASE)
"""What engines say if it is the GPUs that keep a job from starting."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What happened between the start and the end of a job."""

    first: RunRecord
    outcome: Outcome
    parts: tuple[RunPart, ...]
    ended_ms: int
    usage: Usage | None
    metrics: Metrics
    log: KeptLog | None


def metrics_of(launch: Launch, before: tuple[int, int, int] | None, ended: Ended) -> Metrics:
    if launch.chosen.engine.shares_folders:
        found = read_metrics(launch.out, before)
    else:
        found = Metrics() if ended.metrics is None else parse_metrics(ended.metrics)
    values = None if found.values is None else launch.masker.value(found.values)
    return Metrics(cast("dict[str, Json] | None", values), _masked(launch, found.problem))


def no_log(problem: str) -> KeptLog:
    return KeptLog(f"[dsv: the log is not kept: {problem}]\n".encode(), 0)


def salvaged(make: Callable[[], _T], instead: Callable[[str], _T]) -> _T:
    """A part of the record that is made of what the job left, which may be anything: that it can't be made costs
    neither the rest of the record nor the job's exit code."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 (told in the record, in place of that part)
        return instead(f"dsv met an unexpected {type(error).__name__}")


def part_of(
    outcome: Outcome, *, attempt: int, host: str, started_ms: int, ended_ms: int, by: str | None
) -> RunPart:
    """What the record says of one attempt on this machine. by: who asked for its end, if somebody did."""
    ended, cause = outcome.ended, cause_of(outcome)
    return RunPart(
        attempt=attempt,
        host=host,
        started_ms=started_ms,
        ended_ms=ended_ms,
        end=cause,
        exit_code=_exit_code(outcome),
        exit_signal=exit_signal(ended.exit_code) if ended.launched and ended.seen else None,
        cancelled_by=by if cause is EndCause.CANCELLED else None,
        error=outcome.lost or ended.reason,
    )


def cause_of(outcome: Outcome) -> EndCause:
    """Why the job ended. What dsv did itself comes before what the engine saw of it."""
    ended = outcome.ended
    if outcome.lost is not None:
        return EndCause.LEASE_LOST
    if not ended.seen:
        return EndCause.LOST_SIGHT
    if outcome.timed_out:
        return EndCause.TIME_LIMIT
    if outcome.signal is not None:
        return EndCause.CANCELLED
    return ended.cause or (EndCause.EXITED if ended.launched else EndCause.NOT_STARTED)


def _exit_code(outcome: Outcome) -> int:
    """The job's own, unless that would call a success what dsv cut short."""
    if outcome.lost is not None:
        return CANNOT_LAUNCH
    if outcome.timed_out and outcome.ended.exit_code == 0:
        return TIMED_OUT
    return outcome.ended.exit_code


def keep(
    launch: Launch, done: Executed, records: RunRecords, output: RunOutput | None = None
) -> tuple[RunRecord, NoRoom | None]:
    """The record, whole now, is kept; that it can't be doesn't change how the job ended."""
    record = replace(record_of(launch, done), output=output)
    if done.outcome.ended.may_live:
        return record, None  # whoever finds the supervisor gone ends the job, and then the record
    try:
        records.finish(record, None if done.log is None else done.log.data)
    except NoRoom as problem:
        return record, problem
    return record, None


def record_of(launch: Launch, done: Executed) -> RunRecord:
    """All there is to know, but for what becomes of the output."""
    ended, lost = done.outcome.ended, done.outcome.lost
    state = RunState.ENDED if ended.launched else RunState.NOT_LAUNCHED
    if lost is not None or not ended.seen or ended.cause is EndCause.LEASE_LOST:
        state = RunState.CUT_OFF
    parts = on_one_clock(ended.parts, done.first.started_ms, done.ended_ms)
    # The job tells when its command began and ended: in a cluster it may have waited, and its end may be seen late.
    began = min(
        (part.started_ms for part in parts if part.started_ms is not None), default=done.first.started_ms
    )
    return replace(
        done.first,
        state=state,
        image_id=None if ended.image is None else ended.image.id,
        image_digest=None if ended.image is None else ended.image.digest,
        started_ms=began,
        ended_ms=ended_at(parts) or done.ended_ms,
        exit_code=_exit_code(done.outcome),
        signal=None if done.outcome.signal is None else SignalName(done.outcome.signal).name,
        error=salvaged(lambda: _masked(launch, lost or ended.reason), lambda problem: problem),
        end=done.parts[-1].end,
        cancelled_by=done.parts[-1].cancelled_by,
        parts=tuple(_masked_part(launch, part) for part in parts or done.parts),
        usage=done.usage,
        metrics=done.metrics.values,
        metrics_error=done.metrics.problem,
        log=None if done.log is None else LogInfo(done.log.total, len(done.log.data)),
    )


def error_of(launch: Launch, outcome: Outcome) -> LaunchError | None:
    if outcome.lost is not None:
        return LaunchError(
            f"run {launch.run} was ended: {outcome.lost}",
            subject=launch.run,
            hint=f"dsv run --again {launch.run}",
        )
    engine = launch.chosen.engine
    if not outcome.ended.seen:
        return LaunchError(
            f"how run {launch.run} ended is not known, nor whether it did: {_masked(launch, outcome.ended.reason)}",
            subject=launch.run,
            hint="dsv runs"
            if engine.queues
            else f"{engine.name} ps --all --filter label=dsv.run={launch.run}",
        )
    if outcome.ended.launched or outcome.signal is not None:
        return None
    reason = _masked(launch, outcome.ended.reason)
    about_gpus = launch.spec.gpus is not None and _GPUS.search(reason or "") is not None
    return LaunchError(
        f"{engine.name} could not start the command: {reason}" if engine.takes_image else f"{reason}",
        subject=launch.run,
        hint=_masked(launch, outcome.ended.hint)
        or (engine.gpu_hint if about_gpus else f"dsv runs {launch.run}"),
    )


def usage_of(ended: Ended, gpus: tuple[GpuUse, ...]) -> Usage | None:
    if ended.usage is None:
        return Usage(gpus=gpus) if gpus else None
    return replace(ended.usage, gpus=gpus)


def _masked_part(launch: Launch, part: RunPart) -> RunPart:
    return replace(part, error=salvaged(lambda: _masked(launch, part.error), lambda problem: problem))


def _masked(launch: Launch, text: str | None) -> str | None:
    return None if text is None else launch.masker.text(text)
