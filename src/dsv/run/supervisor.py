"""Runs a command on a commit: stages data, holds leases, runs the job in an engine, keeps a record."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals as SignalName
from time import monotonic
from typing import Final, TypeAlias

from dsv.errors import DsvError, Interrupted, LaunchError, NoRoom, Signalled, Terminated, as_launch_error
from dsv.periodic import now_ms
from dsv.run.active_runs import RunRecords
from dsv.run.completing import completed, known_secrets, no_log, salvaged
from dsv.run.dirs import (
    LIVE_LOG,
    SERIES_FILE,
    Metrics,
    RunPlace,
    first_time,
    hide_params,
    leave_terminal,
    left_in,
    make_folder,
    make_skeleton,
    metrics_stamps,
    parse_left,
    remove_notes,
    remove_scratch,
    write_params,
)
from dsv.run.engine_list import choose
from dsv.run.engines.attach import Foreground, Left, Signals, informing_ignored, supervise
from dsv.run.engines.base import CANNOT_LAUNCH, NO_OPTIONS, Ended, Engine, JobPlan, check_given
from dsv.run.engines.machine import GpuWatch, choose_gpus, with_free_gpus
from dsv.run.engines.output import JobOutput, KeptLog, LiveLog, LogKeeper
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import RunView
from dsv.run.node_order import NO_ACCESS
from dsv.run.origin import code_state
from dsv.run.part import EndCause, RunPart, exit_signal, may_try_again
from dsv.run.plan import Launch, code_of, masker_of, output_of
from dsv.run.pools import GaveUp, Patience, Route, no_pool
from dsv.run.record import GpuUse, JobRef, JobUsage, RunId, RunOutput, RunRecord, RunState
from dsv.run.resources import PassedOver
from dsv.run.series import Stamp
from dsv.run.spec import JobSpec, check_spec
from dsv.run.staged import Staged
from dsv.run.staging import DataLease, OnceGate, Staging
from dsv.values.ids import CommitId
from dsv.values.json import Json
from dsv.values.names import Rev, Target
from dsv.values.progress import NoProgress, Progress

_GPUS: Final = re.compile(r"gpu|cdi|nvidia|device|gres|node configuration", re.IGNORECASE)
"""Words in messages of engines that can't start a job because of its GPUs."""


Announce: TypeAlias = Callable[[RunId, Path | None, Path | None], None]
"""Called with the run's id, its own folder in the user's state, and its output folder. Without a folder: nothing runs,
because this run has the result already."""


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
    announce: Announce | None = None,
    route: Route | None = None,
    once: OnceGate | None = None,
) -> RunView:
    """Run a job until its end, and return the run. Its output goes to these descriptors, None for nowhere.

    Raises `UsageError`, `Signalled`, or `LaunchError` for all else that prevents the start.

    signals: caught until the record is kept, and passed on to the job. SIGUSR1 and SIGUSR2 don't end this
        process before or after that either. None leaves this process's handlers as they are.
    grace: the seconds that the job gets to end after a signal, unless `dsv stop` names others
    announce: called after all checks, before any data is fetched. From then on the run has a record in any
        case, and its output goes only to the live log in its own folder, until the record is kept.
    route: the pools that it may go to, this one first; it moves to the next if it doesn't begin in time
    once: given if the run is not to be repeated
    """
    check_spec(spec)
    progress = progress if progress is not None else NoProgress()
    unharmed = informing_ignored() if signals is not None else nullcontext()
    with ExitStack() as stack, as_launch_error(), unharmed:
        decided = _decide(spec, place, staging)
        if (folder := decided.code) is not None and spec.recorded_code is None:  # git is asked once
            code = code_state(folder, place.environ)
            decided = replace(decided, spec=replace(decided.spec, code=folder, recorded_code=code))
        if once is not None and (hit := once.look(decided)) is not None:
            if announce is not None and hit.error is None:  # a sweep looks for its own run
                announce(hit.record.run if spec.sweep is not None else hit.result_run, None, hit.out)
            return hit
        for text in _notes(decided, place):
            progress.note(text)
        live = None
        if announce is not None:
            stdout = stderr = None
            live = stack.enter_context(_announced(decided, records, announce))
        terminals = tuple(each for each in (0, 1, 2) if signals is not None and os.isatty(each))
        supervisor = _Supervisor(records, signals, progress, grace, (stdout, stderr), live, terminals, once)

        def run_it(launch: Launch) -> RunView:
            if route is None:
                return supervisor.run_at(launch, staging, Patience())
            return supervisor.run_along(launch, route)

        return run_it(decided) if once is None else once.around(decided, run_it)


@dataclass(frozen=True, slots=True)
class _Supervisor:
    """Supervises one run, at any pool."""

    records: RunRecords
    signals: Signals | None
    progress: Progress
    grace: float
    sinks: tuple[int | None, int | None]
    """The descriptors for the job's output."""
    live: LiveLog | None
    terminals: tuple[int, ...]
    """This process's descriptors that are terminals, found early: a closed one can't be recognized."""
    once: OnceGate | None

    def run_at(self, decided: Launch, staging: Staging, patience: Patience) -> RunView:
        """Stage the data, run the job and keep its record, which ends the leases; then send the record. Raises
        `GaveUp` if the job did not begin in time and was withdrawn."""
        records = self.records
        signals = self.signals or Signals()
        with ExitStack() as leases:
            launch, held = _stage(decided, staging, leases)
            launch = launch if self.once is None else self.once.checked(launch)
            self.progress.finish()
            log = LogKeeper(live=None if self.live is None else self.live.add) if decided.spec.log else None
            with signals.caught() if self.signals is not None else nullcontext():
                early = replace(launch.record(launch.plan(), now_ms()), state=RunState.SUBMITTED)
                attempts = _Attempts(self, launch, held, signals, patience, early)
                try:
                    record, ended, kept = attempts.run(lambda: JobOutput(*self.sinks, log), log)
                except Left:
                    records.leave(attempts.record)  # at once: from now on others end the job themselves
                    records.send()
                    return RunView(attempts.record, sent=True, out=launch.out)
                data = None if kept is None else kept.data
                if launch.keeps_output and ended.launched and not ended.may_live:
                    records.ended(record, data)
                    record = self._kept(launch, staging, signals, record)
                problem = None
                # If the job may live, a later dsv that finds this one gone ends it and completes the record.
                if not ended.may_live:
                    try:
                        records.finish(record, data)
                        if launch.chosen.engine.shares_folders:
                            remove_notes(launch.out, launch.run)
                    except NoRoom as error:  # that changes nothing about how the job ended
                        problem = error
        failed: DsvError | None = _error_of(launch, ended)
        if failed is None and attempts.unwritten is not None:
            why = f"the output could not be written: {attempts.unwritten.strerror}"
            failed = NoRoom(why, hint=f"dsv logs {launch.run}")
        done_here = RunView(record, False, failed, problem, out=launch.out, kept=problem is None)
        return self._sent(done_here, launch.chosen.engine)

    def _kept(self, launch: Launch, staging: Staging, signals: Signals, record: RunRecord) -> RunRecord:
        """Return the record with its output, which goes to its branch once the mark names the commit."""
        due = None if record.output is None else record.output.into
        kept = _kept_output(launch, staging, signals, record)
        kept = replace(kept, into=kept.into or due)
        record = replace(record, output=kept)
        if not kept.is_due:
            return record
        if launch.chosen.engine.queues and (there := self.records.completed_elsewhere(record)) is not None:
            return replace(record, output=there.output or kept)  # its branch may have moved since
        self.records.ended(record, None)
        try:
            with signals.raising():
                return replace(record, output=staging.into(record))
        except KeyboardInterrupt as error:
            return replace(record, output=kept.missed(str(error) or "it was interrupted"))

    def _sent(self, done: RunView, engine: Engine) -> RunView:
        """Send the record, if it is kept, and let the engine forget the job once it is in the store."""
        record = done.record
        if done.problem is None:
            problem = self.records.send()
            done = replace(done, sent=self.records.is_in_store(problem), problem=problem)
            if engine.queues and done.sent and record.state.is_terminal and record.job is not None:
                engine.forget(record.job)
            if done.sent and engine.queues:
                self.records.marks.tidy(record)
        known = self.records.completed_elsewhere(record) if record.end is EndCause.LOST_SIGHT else None
        # Its end was seen where it ran.
        return done if known is None else replace(done, record=known, error=None)

    def run_along(self, decided: Launch, route: Route) -> RunView:
        """Run at one pool after another, until the job begins.

        An engine gets the job after the former has withdrawn it. If dsv is killed between, the mark has the last pool.
        """
        records, now = self.records, decided
        passed: tuple[PassedOver, ...] = ()
        try:
            for pool, seconds in route.pools.items():
                if passed:
                    self.progress.note(f"not on {passed[-1].pool}: {passed[-1].reason}")
                if records.under_way:
                    records.announce(replace(now.record(now.plan(), now_ms()), state=RunState.QUEUED))
                try:
                    spec, staging, reason = route.enter(pool, seconds, passed)
                    first = decided.spec
                    spec = replace(spec, code=first.code, recorded_code=first.recorded_code)
                    if passed or not now.chosen.engine.queues:  # what is free has changed while it waited
                        now = replace(_decide(spec, now.place, staging, decided.run), once=now.once)
                    return self.run_at(now, staging, Patience(seconds, reason or "it did not begin"))
                except GaveUp as left:
                    passed = (*passed, PassedOver(pool, str(left)))
            raise no_pool(passed)
        except BaseException as error:
            _record_not_started(now, records, error)
            raise


def _kept_output(launch: Launch, staging: Staging, signals: Signals, record: RunRecord) -> RunOutput:
    """Commit the output, without secret parameters, even if the job failed. A signal interrupts that."""
    if launch.chosen.engine.shares_folders and launch.out.is_symlink():
        return RunOutput(error=f"the job replaced {launch.out} by a symlink")
    try:
        with signals.raising():
            if not launch.chosen.engine.shares_folders:
                return staging.output(None, record)
            hide_params(launch.out, json.dumps(launch.spec.params), record.params)
            return staging.output(launch.out, record)
    except (KeyboardInterrupt, DsvError, OSError) as error:
        return RunOutput(error=str(error) or "it was interrupted")


def _error_of(launch: Launch, ended: Ended) -> LaunchError | None:
    run, engine, reason = launch.run, launch.chosen.engine, launch.masked(ended.reason)
    if ended.cause is EndCause.LEASE_LOST:
        return LaunchError(f"run {run} was ended: {reason}", subject=run, hint=f"dsv run --again {run}")
    if not ended.seen:
        look = "dsv runs" if engine.queues else f"{engine.name} ps --all --filter label=dsv.run={run}"
        return LaunchError(f"could not determine whether run {run} ended: {reason}", subject=run, hint=look)
    if ended.launched or ended.signal is not None:
        return None
    about_gpus = launch.spec.gpus is not None and _GPUS.search(reason or "") is not None
    return LaunchError(
        f"{engine.name} could not start the command: {reason}" if engine.needs_image else f"{reason}",
        subject=run,
        hint=launch.masked(ended.hint) or (engine.gpu_hint if about_gpus else f"dsv runs {run}"),
    )


@contextmanager
def _announced(decided: Launch, records: RunRecords, announce: Announce) -> Iterator[LiveLog | None]:
    """Announce the run, and record it even if its job doesn't start. Yield its live log, if wanted."""
    early = replace(decided.record(decided.plan(), now_ms()), state=RunState.STAGING)
    make_folder(decided.own)
    path = decided.own / LIVE_LOG
    live = LiveLog(path, decided.masker) if decided.spec.log else None
    try:
        records.announce(early, path if live is not None else None, must=True)
        announce(early.run, decided.own, decided.out)
        yield live
    except BaseException as error:
        _record_not_started(decided, records, error)
        raise
    finally:
        if live is not None:
            live.close() if records.under_way else live.remove()
        with suppress(OSError):
            decided.own.rmdir()  # if nothing is in it


def _record_not_started(decided: Launch, records: RunRecords, error: BaseException) -> None:
    """Complete the record of a run if it is under way and no engine has its job."""
    if records.begun or not records.under_way:
        return
    if isinstance(error, KeyboardInterrupt):
        error = error.error if isinstance(error, Signalled) else Interrupted("interrupted")
    code = error.exit_code if isinstance(error, Interrupted | Terminated) else None
    unexpected = f"dsv failed with an unexpected {type(error).__name__}"
    ended = Ended(
        exit_code=CANNOT_LAUNCH if code is None else code,
        launched=False,
        cause=EndCause.NOT_STARTED if code is None else EndCause.CANCELLED,
        stopped=records.marks.stopped_by(decided.run) or exit_signal(code),
        reason=decided.masked(error.message if isinstance(error, DsvError) else unexpected),
    )
    early = replace(decided.record(decided.plan(), now_ms()), state=RunState.STAGING)
    records.finish(completed(early, ended, now_ms()), None)
    records.send()


def dry_run(
    spec: JobSpec, *, place: RunPlace, staging: Staging, once: OnceGate | None = None
) -> tuple[JobPlan, dict[str, Json] | None]:
    """Return the plan that `run` would submit, except for the run's id, and whether it is done already. Fetch and start
    nothing; but code for machines that share no folders is committed, because the plan names its commit."""
    check_spec(spec)
    with as_launch_error():
        launch = _decide(spec, place, staging)
        answer = None if once is None else once.explain(launch)
        if not launch.chosen.engine.shares_folders:
            launch = replace(launch, staged_code=_code(launch, staging, staging.locate))
        return launch.plan(), answer


def _decide(spec: JobSpec, place: RunPlace, staging: Staging, run: RunId | None = None) -> Launch:
    options = NO_OPTIONS if spec.pool is None else spec.pool.options
    chosen = choose(place.environ, spec.engine, spec.image, options)
    engine = chosen.engine
    if spec.pool is not None and spec.gpus is not None:
        chosen = replace(chosen, facts=replace(chosen.facts, machine=with_free_gpus(chosen.facts.machine)))
    located = {name: staging.locate(target) for name, target in _targets(spec).items()}
    check_given(engine, spec)
    run = run or RunId.make(now_ms(), os.urandom(4))
    own = place.folder(located[""].dataset, run)
    return Launch(
        spec=spec, place=place, chosen=chosen, run=run, staged=located, own=own,
        out=output_of(spec, place, engine, located[""], own),
        code=code_of(spec, place),
        masker=masker_of(spec, place),
        elsewhere=staging.elsewhere() if engine.queues else (),
        access=NO_ACCESS if engine.shares_folders else staging.access(),
    )  # fmt: skip


def _notes(decided: Launch, place: RunPlace) -> tuple[str, ...]:
    """Return notes to show before the start. All checks are done here, before any data is fetched."""
    plan, chosen = decided.plan(), decided.chosen
    once = chosen.note if chosen.note is not None and first_time(place, "plain-process") else None
    return tuple(note for note in (once, chosen.passed_over, *plan.notes) if note is not None)


def _stage(decided: Launch, staging: Staging, leases: ExitStack) -> tuple[Launch, list[DataLease]]:
    """Stage the data and the code. An engine that queues stages and holds the data on its own machines."""
    held: list[DataLease] = []
    engine = decided.chosen.engine

    def stage(target: Target) -> Staged:
        staged, lease = staging.stage(target, decided.run)
        leases.callback(lease.release)
        held.append(lease)
        return staged

    staged = decided.staged
    if not engine.queues:
        staged = {name: stage(target) for name, target in _targets(decided.spec).items()}
    code = _code(decided, staging, stage if engine.shares_folders else staging.locate)
    return replace(decided, staged=staged, staged_code=code), held


def _code(launch: Launch, staging: Staging, stage: Callable[[Target], Staged]) -> Staged | None:
    """Commit the code and stage it as data. None without code, or if the job uses the folder itself. Raises
    `LaunchError` if machines that share no folders need the code and it can't be committed."""
    if launch.code is None:
        return None
    recorded = launch.spec.recorded_code
    if recorded is not None and recorded.tree is not None:
        commit: CommitId | None = CommitId.parse(recorded.tree)
    else:
        commit = staging.commit_code(launch.code)
    if commit is not None:
        return stage(Target(launch.main.dataset, Rev(str(commit))))
    if launch.chosen.engine.shares_folders:
        return None
    raise LaunchError(
        f"the code in {launch.code} is not in the store, where the cluster's machines read it",
        subject=str(launch.code),
        hint="leave out --code, or --offline",
    )


def _targets(spec: JobSpec) -> dict[str, Target]:
    """Return the targets by name; the run's own is first, with an empty name."""
    return {"": spec.target, **spec.data}


@dataclass(slots=True)
class _Attempts:
    """The attempts of a run at one pool."""

    by: _Supervisor
    launch: Launch
    leases: Sequence[DataLease]
    signals: Signals
    patience: Patience
    record: RunRecord
    """As it is known so far."""
    _began_ms: int = 0
    _began: float | None = None
    """The time at which this attempt was submitted, by the monotonic clock."""
    _ended_ms: int = 0
    _gpu_watch: GpuWatch | None = None
    _gpus: tuple[GpuUse, ...] = ()
    unwritten: OSError | None = None
    """The reason why output of the job could not be written."""

    def run(
        self, output: Callable[[], JobOutput], log: LogKeeper | None
    ) -> tuple[RunRecord, Ended, KeptLog | None]:
        """Run the job until an attempt succeeds, must not be repeated, or was the last.

        Return the record without the output, how the job ended, and its log. Raises `GaveUp` if the job did
        not begin in time, was withdrawn, and moves to another pool.

        output: makes an `JobOutput` for each attempt
        """
        launch, engine = self.launch, self.launch.chosen.engine
        parts: list[RunPart] = []
        may_live, live = False, None
        try:
            make_folder(launch.scratch, launch.other_folder)
            before = _make_output(launch) if engine.shares_folders else ()
            if not engine.queues:
                live = self.by.records.live_series(self.record, launch.out / SERIES_FILE, launch.masker)
            while True:
                self.launch = replace(launch, attempt=len(parts) + 1)
                ended = self._attempt(output())
                may_live = ended.may_live
                if (why := self.patience.left(ended)) is not None:
                    self.by.records.moves_on()
                    raise GaveUp(why)
                parts.append(self._part(ended))
                left = 0 if "retries" in engine.gives else launch.spec.retries - len(parts) + 1
                if left <= 0 or may_live or not may_try_again(parts[-1]):
                    break
                self.by.progress.note(_failure(parts[-1], left))
                self.record = replace(self.record, parts=tuple(parts))
        except Left:
            may_live = True
            raise
        finally:
            if live is not None:
                live.stop(timeout=10.0)  # a store may hang
            if not may_live:
                remove_scratch(launch.scratch)
        ended = replace(
            ended,
            stopped=parts[-1].cancelled_by or ended.stopped,
            parts=ended.parts or tuple(parts),
            usage=self._usage(ended),
        )
        kept = None if log is None else salvaged(lambda: log.kept(launch.masker), no_log)
        record = completed(
            self.record, ended, self._ended_ms, kept=kept, masker=launch.masker,
            metrics=lambda _: _metrics(launch, before, ended),
        )  # fmt: skip
        return record, ended, kept

    def _attempt(self, output: JobOutput) -> Ended:
        plan, engine, spec = self.launch.plan(), self.launch.chosen.engine, self.launch.spec
        self._began = None
        self.by.records.announce(self.record)
        if spec.gpus is not None and not engine.queues:
            self._gpu_watch = GpuWatch(
                choose_gpus(spec.gpus, self.launch.chosen.facts.machine, spec.gpu_type)
            )
            self._gpu_watch.start()
        said = False

        def waits(reason: str) -> bool:
            nonlocal said
            if not said:
                self.by.progress.note(f"the job waits: {reason}")
            said = True
            self.by.records.announce(replace(self.record, state=RunState.QUEUED, error=reason))
            return self.patience.refused(reason)

        def expired() -> bool:
            limit = None if "time_seconds" in engine.gives else spec.time_seconds
            return limit is not None and self._began is not None and monotonic() - self._began >= limit

        engine.has_record = lambda: self.by.records.completed_elsewhere(self.record) is not None
        job = Foreground(engine, plan, output, self.signals.wake, self._submitted, waits)
        ended = supervise(
            job,
            output,
            self.signals,
            lost=self._lost_lease,
            note=self.by.progress.note,
            over=self._over,
            grace=lambda: self.by.records.marks.grace(self.launch.run, self.by.grace),
            hung_up=self._hang_up if engine.queues else None,
            expired=expired,
            leave=self._leave,
        )
        job.check()
        self.unwritten = self.unwritten or output.problem
        return ended

    def _leave(self) -> bool:
        """Leave a job that its cluster holds, if nobody waits for this process, and others know what it knows."""
        record, detached = self.record, self.by.live is not None
        if record.job is None or not (detached and self.by.records.start_is_sent):
            return False
        environ = {} if record.sweep is None else self.launch.place.environ  # as the sweep's process has it
        given = self.launch.spec.env.items() <= environ.items()
        known = given and not known_secrets(record, environ).unknown
        last_pool = self.patience.seconds is None and not record.then
        return known and last_pool and self.launch.chosen.engine.leave(record.job)

    def _submitted(self, ref: JobRef) -> None:
        """Record the reference of the job, which begins after that."""
        self._began_ms, self._began = now_ms(), monotonic()
        engine = self.launch.chosen.engine
        if self.by.once is not None:
            self.by.once.submitted(queues=engine.queues)
        if self.by.records.begun:
            self.record = replace(self.record, job=ref)
            self.by.records.announce(self.record)
        else:
            state = RunState.QUEUED if engine.queues else RunState.RUNNING
            self.record = replace(self.record, state=state, started_ms=self._began_ms, job=ref)
            self.by.records.begin(self.record)
        self.patience.begin(engine, ref)

    def _hang_up(self) -> None:
        leave_terminal(self.launch.own, self.by.terminals)
        self.by.progress.note(f"the terminal was closed; the run continues: dsv logs {self.launch.run}")

    def _over(self) -> None:
        self._ended_ms = now_ms()
        if self._gpu_watch is not None:
            self._gpus = self._gpu_watch.stop()

    def _usage(self, ended: Ended) -> JobUsage | None:
        if ended.usage is None and not self._gpus:
            return None
        return replace(ended.usage or JobUsage(), gpus=self._gpus)

    def _part(self, ended: Ended) -> RunPart:
        by = self.by.records.marks.stopped_by(self.launch.run)
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
        return next(
            (each.reason or "the data is no longer held" for each in self.leases if each.lost.is_set()), None
        )


def _metrics(launch: Launch, before: Collection[Stamp], ended: Ended) -> Metrics:
    if launch.chosen.engine.shares_folders:
        return left_in(launch.out, launch.run, before)
    return parse_left(ended)


def _make_output(launch: Launch) -> Collection[Stamp]:
    """Create the output folder. Return the stamps of older metrics in it."""
    make_folder(launch.out, launch.other_folder)
    if launch.skeleton is not None:
        make_skeleton(launch.main.path, tuple(launch.further), launch.skeleton)
    write_params(launch.out, launch.spec.params)
    return metrics_stamps(launch.out)


def _failure(part: RunPart, left: int) -> str:
    how = f"exit code {part.exit_code} ({part.end})"
    return f"attempt {part.attempt} ended with {how}; retrying ({left - 1} more after this)"
