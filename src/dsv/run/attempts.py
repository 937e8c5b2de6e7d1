"""The attempts of a run on this machine: a job is started, watched over, and started again if it failed and may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from signal import Signals as SignalName
from time import monotonic

from dsv.periodic import now_ms
from dsv.run.active_runs import RunRecords
from dsv.run.completing import completed, no_log, salvaged, with_metrics
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
from dsv.run.engines.base import Ended
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


@dataclass(slots=True)
class Attempts:
    """The attempts of a run, with the leases that are held and the signals that are passed on meanwhile."""

    launch: Launch
    records: RunRecords
    leases: Sequence[Lease]
    signals: Signals
    note: Callable[[str], None]
    grace: Callable[[], float]
    """Returns the seconds that the job gets to end by itself."""
    hung_up: Callable[[], None]
    """Called if the terminal goes away, and the job continues without it."""
    patience: Patience
    record: RunRecord
    """As it is known so far."""
    _began_ms: int = 0
    _began: float | None = None
    """The time at which this attempt was submitted, by the monotonic clock."""
    _ended_ms: int = 0
    _gpu_watch: GpuWatch | None = None
    _gpus: tuple[GpuUse, ...] = ()

    def run(
        self, output: Callable[[], Output], log: LogKeeper | None
    ) -> tuple[RunRecord, Ended, KeptLog | None] | GaveUp:
        """Run the job until an attempt succeeds, must not be repeated, or was the last.

        Return the record, complete but for the output, how the job ended, and its log; or `GaveUp` if the job has not
        begun for so long that it is to go on to another pool.

        output: makes an `Output` for each attempt
        """
        launch, engine = self.launch, self.launch.chosen.engine
        parts: list[RunPart] = []
        may_live = False
        try:
            make_folder(launch.scratch, launch.other_folder)
            before = _make_output(launch) if engine.shares_folders else None
            while True:
                self.launch = replace(launch, attempt=len(parts) + 1)
                ended = self._attempt(output())
                may_live = ended.may_live
                if (gave_up := self.patience.left(ended)) is not None:
                    self.records.moves_on()
                    return gave_up
                parts.append(self._part(ended))
                left = 0 if "retries" in engine.gives else launch.spec.retries - len(parts) + 1
                if left <= 0 or may_live or not may_try_again(parts[-1]):
                    break
                self.note(_failure(parts[-1], left))
                self.record = replace(self.record, parts=tuple(parts))
        finally:
            if not may_live:
                remove_scratch(launch.scratch)
        ended = replace(
            ended,
            reason=_hidden(launch, ended.reason),
            stopped=parts[-1].cancelled_by or ended.stopped,
            parts=tuple(replace(each, error=_hidden(launch, each.error)) for each in ended.parts or parts),
            usage=self._usage(ended),
        )
        kept = None if log is None else salvaged(lambda: log.kept(launch.masker), no_log)
        info = None if kept is None else LogInfo(kept.total, len(kept.data))
        record = replace(completed(self.record, ended, self._ended_ms), log=info)
        record = with_metrics(record, lambda: _metrics(launch, before, ended), launch.masker)
        return record, ended, kept

    def _attempt(self, output: Output) -> Ended:
        plan, engine, spec = self.launch.plan(), self.launch.chosen.engine, self.launch.spec
        self._began = None
        self.records.announce(self.record)
        if spec.gpus is not None and not engine.queues:
            self._gpu_watch = GpuWatch(names_of(spec.gpus, self.launch.chosen.facts.machine, spec.gpu_type))
            self._gpu_watch.start()
        said = False

        def waits(reason: str) -> bool:
            nonlocal said
            if not said:
                self.note(f"the job waits: {reason}")
            said = True
            self.records.announce(replace(self.record, state=RunState.QUEUED, error=reason))
            return self.patience.refused(reason)

        def expired() -> bool:
            limit = None if "time_seconds" in engine.gives else spec.time_seconds
            return limit is not None and self._began is not None and monotonic() - self._began >= limit

        job = Foreground(engine, plan, output, self.signals.wake, self._submitted, waits)
        ended = supervise(
            job,
            output,
            self.signals,
            lost=self._lost_lease,
            note=self.note,
            over=self._over,
            grace=self.grace,
            hung_up=self.hung_up if engine.queues else None,
            expired=expired,
        )
        job.check()
        return ended

    def _submitted(self, ref: JobRef) -> None:
        """Record how to find the job. It begins after that."""
        self._began_ms, self._began = now_ms(), monotonic()
        engine = self.launch.chosen.engine
        if self.records.begun:
            self.record = replace(self.record, job=ref)
            self.records.announce(self.record)
        else:
            state = RunState.QUEUED if engine.queues else RunState.RUNNING
            self.record = replace(self.record, state=state, started_ms=self._began_ms, job=ref)
            self.records.begin(self.record)
        self.patience.begin(engine, ref)

    def _over(self) -> None:
        self._ended_ms = now_ms()
        if self._gpu_watch is not None:
            self._gpus = self._gpu_watch.stop()

    def _usage(self, ended: Ended) -> Usage | None:
        if ended.usage is None and not self._gpus:
            return None
        return replace(ended.usage or Usage(), gpus=self._gpus)

    def _part(self, ended: Ended) -> RunPart:
        """Return the record's part for one attempt."""
        by = self.records.marks.stopped_by(self.launch.run)
        if by is None and ended.signal is not None:
            by = SignalName(ended.signal).name
        return RunPart(
            attempt=self.launch.attempt,
            host=self.launch.place.host,
            started_ms=self._ended_ms if self._began is None else self._began_ms,
            ended_ms=self._ended_ms,
            end=ended.cause,
            exit_code=ended.exit_code,
            exit_signal=exit_signal(ended.exit_code) if ended.launched and ended.seen else None,
            cancelled_by=by if ended.cause is EndCause.CANCELLED else None,
            error=ended.reason,
        )

    def _lost_lease(self) -> str | None:
        """Return why data is not held any more, or None."""
        return next((each.reason or "a lease was lost" for each in self.leases if each.lost.is_set()), None)


def _hidden(launch: Launch, text: str | None) -> str | None:
    return salvaged(lambda: launch.masked(text), lambda problem: problem)


def _metrics(launch: Launch, before: tuple[int, int, int] | None, ended: Ended) -> Metrics:
    if launch.chosen.engine.shares_folders:
        return read_metrics(launch.out, before)
    return Metrics() if ended.metrics is None else parse_metrics(ended.metrics)


def _make_output(launch: Launch) -> tuple[int, int, int] | None:
    """Make the output folder. Return what tells the job's metrics from older ones."""
    make_folder(launch.out, launch.other_folder)
    if launch.skeleton is not None:
        make_skeleton(launch.main.path, tuple(launch.further), launch.skeleton)
    write_params(launch.out, launch.spec.params)
    return metrics_stamp(launch.out)


def _failure(part: RunPart, left: int) -> str:
    times = "once more" if left == 1 else f"{left} times more at most"
    how = f"exit code {part.exit_code} ({part.end})"
    return f"attempt {part.attempt} ended with {how}; the job is started again, {times}"
