"""The attempts of a run on this machine: a job is started, watched over, and started again if it failed and may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from signal import Signals as SignalName
from time import monotonic
from typing import cast

from dsv.periodic import now_ms
from dsv.run.active_runs import RunRecords
from dsv.run.completing import completed, no_log, salvaged
from dsv.run.dirs import (
    Metrics,
    make_folder,
    make_skeleton,
    metrics_stamp,
    parse_metrics,
    read_metrics,
    remove_scratch,
    write_params,
)
from dsv.run.engines.attach import Foreground, Signals, supervise
from dsv.run.engines.base import Ended, Engine
from dsv.run.engines.local_resources import GpuWatch, names_of
from dsv.run.engines.log import KeptLog, LogKeeper
from dsv.run.engines.output import Output
from dsv.run.plan import Launch
from dsv.run.pools import GaveUp, Patience
from dsv.run.record import (
    EndCause,
    GpuUse,
    JobRef,
    LogInfo,
    RunPart,
    RunRecord,
    RunState,
    Usage,
    exit_signal,
    may_try_again,
)
from dsv.run.staged import Lease
from dsv.values.json import Json


def execute(
    launch: Launch,
    records: RunRecords,
    output: Callable[[], Output],
    log: LogKeeper | None,
    supervision: Supervision,
) -> tuple[RunRecord, Ended, KeptLog | None] | GaveUp:
    """Runs the job until an attempt succeeds, must not be repeated, or was the last. output: made anew for each.

    Returns the record, whole but for what becomes of the output, how the job ended, and its log. Gives up if the job
    does not begin for so long that it is to go on to another pool.
    """
    may_live = False
    try:
        make_folder(launch.scratch, launch.other_folder)
        before = _make_output(launch) if launch.chosen.engine.shares_folders else None
        early = replace(launch.record(launch.plan(), now_ms()), state=RunState.SUBMITTED)
        begun = _Begun(early, records, launch.chosen.engine, supervision.patience)
        parts: list[RunPart] = []
        while True:
            this = replace(launch, attempt=len(parts) + 1)
            end = _End()
            ended = _attempt(this, begun, end, output(), supervision)
            may_live = ended.may_live
            if (gave_up := supervision.patience.left(ended)) is not None:
                records.moves_on()
                return gave_up
            parts.append(_part(this, begun, end, ended, records))
            left = 0 if "retries" in launch.chosen.engine.gives else launch.spec.retries - len(parts) + 1
            if left <= 0 or may_live or not may_try_again(parts[-1]):
                break
            supervision.note(_said_of_failure(parts[-1], left))
            begun.record = replace(begun.record, parts=tuple(parts))
    finally:
        if not may_live:
            remove_scratch(launch.scratch)
    ended = _described(launch, ended, parts, end.gpus)
    metrics = salvaged(lambda: metrics_of(launch, before, ended), lambda problem: Metrics(problem=problem))
    kept = None if log is None else salvaged(lambda: log.kept(launch.masker), no_log)
    record = replace(
        completed(begun.record, ended, end.time_ms),
        metrics=metrics.values,
        metrics_error=metrics.problem,
        log=None if kept is None else LogInfo(kept.total, len(kept.data)),
    )
    return record, ended, kept


def _described(launch: Launch, ended: Ended, parts: Sequence[RunPart], gpus: tuple[GpuUse, ...]) -> Ended:
    """The end of the last attempt as the record has it: with all attempts, who ended it, and without secrets."""
    return replace(
        ended,
        reason=salvaged(lambda: masked(launch, ended.reason), lambda problem: problem),
        stopped=parts[-1].cancelled_by or ended.stopped,
        parts=tuple(_masked_part(launch, part) for part in ended.parts or parts),
        usage=usage_of(ended, gpus),
    )


def metrics_of(launch: Launch, before: tuple[int, int, int] | None, ended: Ended) -> Metrics:
    if launch.chosen.engine.shares_folders:
        found = read_metrics(launch.out, before)
    else:
        found = Metrics() if ended.metrics is None else parse_metrics(ended.metrics)
    values = None if found.values is None else launch.masker.value(found.values)
    return Metrics(cast("dict[str, Json] | None", values), masked(launch, found.problem))


def part_of(
    ended: Ended, *, attempt: int, host: str, started_ms: int, ended_ms: int, by: str | None
) -> RunPart:
    """Return the record's part for one attempt on this machine. by: who asked for its end, if somebody did."""
    return RunPart(
        attempt=attempt,
        host=host,
        started_ms=started_ms,
        ended_ms=ended_ms,
        end=ended.cause,
        exit_code=ended.exit_code,
        exit_signal=exit_signal(ended.exit_code) if ended.launched and ended.seen else None,
        cancelled_by=by if ended.cause is EndCause.CANCELLED else None,
        error=ended.reason,
    )


def usage_of(ended: Ended, gpus: tuple[GpuUse, ...]) -> Usage | None:
    if ended.usage is None:
        return Usage(gpus=gpus) if gpus else None
    return replace(ended.usage, gpus=gpus)


def masked(launch: Launch, text: str | None) -> str | None:
    return None if text is None else launch.masker.text(text)


def _masked_part(launch: Launch, part: RunPart) -> RunPart:
    return replace(part, error=salvaged(lambda: masked(launch, part.error), lambda problem: problem))


def _make_output(launch: Launch) -> tuple[int, int, int] | None:
    """Make the output folder. Return what tells the job's metrics from older ones."""
    make_folder(launch.out, launch.other_folder)
    if launch.skeleton is not None:
        make_skeleton(launch.main.path, tuple(launch.further), launch.skeleton)
    write_params(launch.out, launch.spec.params)
    return metrics_stamp(launch.out)


@dataclass(frozen=True, slots=True)
class Supervision:
    """The leases and signals of a job while it runs.

    hung_up: what to do if the terminal goes away, and the job lives on without it.
    """

    leases: Sequence[Lease]
    signals: Signals
    note: Callable[[str], None]
    grace: Callable[[], float]
    hung_up: Callable[[], None] | None = None
    patience: Patience = field(default_factory=Patience)

    def lost(self) -> str | None:
        for lease in self.leases:
            if lease.lost.is_set():
                return lease.reason or "a lease was lost"
        return None


@dataclass(slots=True)
class _Begun:
    """The moment in which the engine has the job and says how to find it again. The job begins after that."""

    record: RunRecord
    records: RunRecords
    engine: Engine
    patience: Patience
    started_ms: int = 0
    started: float | None = None

    def submit(self) -> None:
        self.started = None
        self.records.submit(self.record)

    def waits(self, reason: str) -> bool:
        """The engine has no place for it yet. Whether it goes on waiting there."""
        self.records.submit(replace(self.record, state=RunState.QUEUED, error=reason))
        return self.patience.refused(reason)

    def note(self, ref: JobRef) -> None:
        self.started_ms, self.started = now_ms(), monotonic()
        if not self.records.begun:
            state = RunState.QUEUED if self.engine.queues else RunState.RUNNING
            self.record = replace(self.record, state=state, started_ms=self.started_ms, job=ref)
            self.records.begin(self.record)
        else:
            self.record = replace(self.record, job=ref)
            self.records.submit(self.record)
        self.patience.begin(self.engine, ref)


@dataclass(slots=True)
class _End:
    """The moment in which a job is over."""

    watch: GpuWatch | None = None
    time_ms: int = 0
    gpus: tuple[GpuUse, ...] = field(default=())

    def note(self) -> None:
        self.time_ms = now_ms()
        if self.watch is not None:
            self.gpus = self.watch.stop()


def _attempt(launch: Launch, begun: _Begun, end: _End, output: Output, supervision: Supervision) -> Ended:
    plan, engine = launch.plan(), launch.chosen.engine
    begun.submit()
    end.watch = _gpu_watch(launch)
    said: set[str] = set()

    def waits(reason: str) -> bool:
        if not said:
            supervision.note(f"the job waits: {reason}")
        said.add(reason)
        return begun.waits(reason)

    job = Foreground(engine, plan, output, supervision.signals.wake, begun.note, waits)
    limit = None if "time_seconds" in engine.gives else launch.spec.time_seconds
    ended = supervise(
        job,
        output,
        supervision.signals,
        lost=supervision.lost,
        note=supervision.note,
        over=end.note,
        grace=supervision.grace,
        hung_up=supervision.hung_up if engine.queues else None,
        expired=lambda: (
            limit is not None and begun.started is not None and monotonic() - begun.started >= limit
        ),
    )
    job.check()
    return ended


def _part(launch: Launch, begun: _Begun, end: _End, ended: Ended, records: RunRecords) -> RunPart:
    by = records.stopped_by(launch.run)
    if by is None and ended.signal is not None:
        by = SignalName(ended.signal).name
    started = begun.started_ms if begun.started is not None else end.time_ms
    return part_of(
        ended,
        attempt=launch.attempt,
        host=launch.place.host,
        started_ms=started,
        ended_ms=end.time_ms,
        by=by,
    )


def _said_of_failure(part: RunPart, left: int) -> str:
    assert part.end is not None  # it failed
    times = "once more" if left == 1 else f"{left} times more at most"
    how = f"exit code {part.exit_code} ({part.end})"
    return f"attempt {part.attempt} ended with {how}; the job is started again, {times}"


def _gpu_watch(launch: Launch) -> GpuWatch | None:
    spec = launch.spec
    if spec.gpus is None or launch.chosen.engine.queues:
        return None
    watch = GpuWatch(names_of(spec.gpus, launch.chosen.facts.machine, spec.gpu_type))
    watch.start()
    return watch
