"""Running a command on a commit: the data made sure of, leases held, an engine started, a record left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals as SignalName
from typing import Protocol, TypeVar, cast

from dsv.engines.base import CANNOT_LAUNCH, Ended, Engine, Plan
from dsv.engines.gpu import GpuWatch, names_of
from dsv.engines.guard import GRACE
from dsv.engines.log import KeptLog, LogKeeper
from dsv.engines.output import Output
from dsv.engines.registry import choose
from dsv.engines.signals import Signals, spared
from dsv.engines.supervise import Outcome, supervise
from dsv.errors import DsvError, Interrupted, LaunchError, NoRoom, Terminated, UsageError
from dsv.model.names import Target
from dsv.model.progress import NoProgress, Progress
from dsv.model.run import GpuUse, Json, LogInfo, RunId, RunRecord, RunState, Usage
from dsv.repo.repository import now_ms
from dsv.runs.announce import announced
from dsv.runs.place import (
    Metrics,
    RunPlace,
    first_time,
    make_folder,
    make_skeleton,
    metrics_stamp,
    read_metrics,
    remove_scratch,
    write_params,
)
from dsv.runs.plan import Launch
from dsv.runs.records import RunRecords, Sent
from dsv.runs.spec import JobSpec, check_spec
from dsv.runs.staged import Staged

_T = TypeVar("_T")


class Flag(Protocol):
    """A `threading.Event`, as far as it is read here."""

    def is_set(self) -> bool: ...


class Lease(Protocol):
    """A claim on staged data that renews itself. `lost` is set, with `reason`, once it can't be held any more."""

    @property
    def lost(self) -> Flag: ...

    @property
    def reason(self) -> str: ...

    def release(self) -> None: ...


class Staging(Protocol):
    """What a run needs of the cache."""

    def locate(self, target: Target) -> Staged:
        """Where the target is or would be; fetches none of it. `hit`: whether it is there, whole."""
        ...

    def stage(self, target: Target, run: RunId) -> tuple[Staged, Lease]:
        """Makes sure of the data, and holds it for this run from before it looked until the lease is released."""
        ...


@dataclass(frozen=True, slots=True)
class RunResult:
    """exit_code: of dsv. error: set if that is not the exit code of the command. sent: what became of
    the record: `sent.problem` says why it isn't in the store yet."""

    record: RunRecord
    exit_code: int
    out: Path
    error: LaunchError | None
    sent: Sent


def run(
    spec: JobSpec,
    *,
    place: RunPlace,
    staging: Staging,
    records: RunRecords,
    stdout: int | None = 1,
    stderr: int | None = 2,
    signals: Signals | None = None,
    progress: Progress | None = None,
    grace: float = GRACE,
    announce: Callable[[RunId, Path, Path], None] | None = None,
) -> RunResult:
    """Runs it and waits for it; its output goes to these descriptors, None for nowhere.

    signals: caught and passed on while the job lives, and until its record is kept; those that end nothing don't
    before and after that either. Without, this process's handlers stay as they are. grace: seconds that the job
    gets to end after one, unless `dsv stop` names others.

    announce: told of the run, of its own folder among the user's state and of its output folder, once nothing is found
    wrong and before any data is fetched. From then on it has a record, whatever happens, and its output goes to
    `LIVE_LOG` in that folder, which is there until the record is kept. Raises `LaunchError` for what kept it from
    being started, but `UsageError`, `Interrupted` and `Terminated` as they are.
    """
    check_spec(spec)
    watcher = progress if progress is not None else NoProgress()
    unharmed = spared() if signals is not None else nullcontext()
    with ExitStack() as stack, ExitStack() as leases, as_launch_error(), unharmed:
        decided = _decide(spec, place, staging)
        for text in _notes(decided, place):
            watcher.note(text)
        if announce is not None:
            stdout = stderr = stack.enter_context(announced(decided, records, announce))
        launch, held = _stage(decided, staging, watcher, leases)
        log = LogKeeper() if spec.log else None
        graced = lambda: records.asked_to_stop(launch.run, grace)  # noqa: E731
        supervision = _Supervision(held, signals or Signals(), watcher.note, graced)
        with signals.caught() if signals is not None else nullcontext():
            done = _execute(launch, records, Output(stdout, stderr, log), log, supervision)
            record, problem = _keep(launch, done, records)
        leases.close()  # sending the record may take its time
        sent = records.send() if problem is None else Sent(problem=problem)
        assert record.exit_code is not None  # it has ended
        return RunResult(record, record.exit_code, launch.out, _error(launch, done.outcome), sent)


def dry_run(spec: JobSpec, *, place: RunPlace, staging: Staging) -> Plan:
    """What `run` would have the engine run, but for the id of the run. Fetches, makes and starts nothing."""
    check_spec(spec)
    with as_launch_error():
        return _decide(spec, place, staging).plan()


@contextmanager
def as_launch_error() -> Iterator[None]:
    """Whatever keeps a command from being started is 125, as docker has it; misuse and interrupts stay."""
    try:
        yield
    except (UsageError, LaunchError, Interrupted, Terminated):
        raise
    except DsvError as error:
        raise LaunchError(error.message, subject=error.subject, hint=error.hint) from error


def _decide(spec: JobSpec, place: RunPlace, staging: Staging) -> Launch:
    chosen = choose(place.environ, spec.engine, spec.image)
    located = {name: staging.locate(target) for name, target in _targets(spec).items()}
    return Launch.of(spec, place, chosen, RunId.make(now_ms(), os.urandom(4)), located)


def _notes(decided: Launch, place: RunPlace) -> tuple[str, ...]:
    """What a person should know before it starts. Everything that can be found wrong is found here, before the first
    byte is fetched."""
    plan, note = decided.plan(), decided.chosen.note
    return plan.notes if note is None or not first_time(place, "plain-process") else (note, *plan.notes)


def _stage(
    decided: Launch, staging: Staging, progress: Progress, leases: ExitStack
) -> tuple[Launch, list[Lease]]:
    staged: dict[str, Staged] = {}
    held: list[Lease] = []
    for name, target in _targets(decided.spec).items():
        staged[name], lease = staging.stage(target, decided.run)
        leases.callback(lease.release)
        held.append(lease)
    progress.finish()
    return replace(decided, staged=staged), held


@dataclass(frozen=True, slots=True)
class _Executed:
    """What happened between the start and the end of a job."""

    first: RunRecord
    outcome: Outcome
    ended_ms: int
    usage: Usage | None
    metrics: Metrics
    log: KeptLog | None


def _execute(
    launch: Launch, records: RunRecords, output: Output, log: LogKeeper | None, supervision: _Supervision
) -> _Executed:
    try:
        make_folder(launch.scratch)
        make_folder(launch.out)
        if launch.skeleton is not None:
            make_skeleton(launch.main.path, tuple(launch.further), launch.skeleton)
        write_params(launch.out, launch.spec.params)
        before = metrics_stamp(launch.out)
        plan = launch.plan()
        first = launch.record(plan, now_ms())
        records.begin(first)
        end = _End(_gpu_watch(launch))
        outcome = supervision.run(launch.chosen.engine, plan, output, end.note)
    finally:
        remove_scratch(launch.scratch)
    metrics = _salvaged(lambda: _read_metrics(launch, before), lambda problem: Metrics(problem=problem))
    kept = None if log is None else _salvaged(lambda: log.kept(launch.masker), _no_log)
    return _Executed(first, outcome, end.time_ms, _usage(outcome.ended, end.gpus), metrics, kept)


def _read_metrics(launch: Launch, before: tuple[int, int, int] | None) -> Metrics:
    found = read_metrics(launch.out, before)
    values = None if found.values is None else launch.masker.value(found.values)
    return Metrics(cast("dict[str, Json] | None", values), _masked(launch, found.problem))


def _no_log(problem: str) -> KeptLog:
    return KeptLog(f"[dsv: the log is not kept: {problem}]\n".encode(), 0)


def _salvaged(make: Callable[[], _T], instead: Callable[[str], _T]) -> _T:
    """A part of the record that is made of what the job left, which may be anything: that it can't be made costs
    neither the rest of the record nor the job's exit code."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 (told in the record, in place of that part)
        return instead(f"dsv met an unexpected {type(error).__name__}")


@dataclass(slots=True)
class _End:
    """The moment in which a job is over."""

    watch: GpuWatch | None
    time_ms: int = 0
    gpus: tuple[GpuUse, ...] = ()

    def note(self) -> None:
        self.time_ms = now_ms()
        if self.watch is not None:
            self.gpus = self.watch.stop()


@dataclass(frozen=True, slots=True)
class _Supervision:
    """How a job is watched over."""

    leases: Sequence[Lease]
    signals: Signals
    note: Callable[[str], None]
    grace: Callable[[], float]

    def run(self, engine: Engine, plan: Plan, output: Output, over: Callable[[], None]) -> Outcome:
        """over: called when the job is over, before what is left of its output is delivered."""
        try:
            handle = engine.submit(plan, output, self.signals.wake)
        except LaunchError as error:
            over()
            return Outcome(Ended(exit_code=CANNOT_LAUNCH, launched=False, reason=error.message))
        return supervise(
            handle, output, self.signals, lost=self.lost, note=self.note, over=over, grace=self.grace
        )

    def lost(self) -> str | None:
        for lease in self.leases:
            if lease.lost.is_set():
                return lease.reason or "a lease was lost"
        return None


def _keep(launch: Launch, done: _Executed, records: RunRecords) -> tuple[RunRecord, NoRoom | None]:
    """The record, whole now, is kept; that it can't be doesn't change how the job ended."""
    ended, lost = done.outcome.ended, done.outcome.lost
    state = RunState.ENDED if ended.launched else RunState.NOT_LAUNCHED
    if lost is not None or not ended.seen:
        state = RunState.CUT_OFF
    record = replace(
        done.first,
        state=state,
        image_id=None if ended.image is None else ended.image.id,
        image_digest=None if ended.image is None else ended.image.digest,
        ended_ms=done.ended_ms,
        exit_code=ended.exit_code if lost is None else CANNOT_LAUNCH,
        signal=None if done.outcome.signal is None else SignalName(done.outcome.signal).name,
        error=_salvaged(lambda: _masked(launch, lost or ended.reason), lambda problem: problem),
        usage=done.usage,
        metrics=done.metrics.values,
        metrics_error=done.metrics.problem,
        log=None if done.log is None else LogInfo(done.log.total, len(done.log.data)),
    )
    try:
        records.finish(record, None if done.log is None else done.log.data)
    except NoRoom as problem:
        return record, problem
    return record, None


def _error(launch: Launch, outcome: Outcome) -> LaunchError | None:
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
            hint=f"{engine.name} ps --all --filter label=dsv.run={launch.run}",
        )
    if outcome.ended.launched or outcome.signal is not None:
        return None
    reason = _masked(launch, outcome.ended.reason)
    return LaunchError(
        f"{engine.name} could not start the command: {reason}" if engine.takes_image else f"{reason}",
        subject=launch.run,
        hint=engine.gpu_hint if launch.spec.gpus is not None else None,
    )


def _gpu_watch(launch: Launch) -> GpuWatch | None:
    if launch.spec.gpus is None:
        return None
    watch = GpuWatch(names_of(launch.spec.gpus, launch.chosen.facts.machine))
    watch.start()
    return watch


def _usage(ended: Ended, gpus: tuple[GpuUse, ...]) -> Usage | None:
    if ended.usage is None:
        return Usage(gpus=gpus) if gpus else None
    return replace(ended.usage, gpus=gpus)


def _masked(launch: Launch, text: str | None) -> str | None:
    return None if text is None else launch.masker.text(text)


def _targets(spec: JobSpec) -> dict[str, Target]:
    """By name; the target itself has none and comes first."""
    return {"": spec.target, **spec.data}
