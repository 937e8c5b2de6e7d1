"""Running a command on a commit: data staged, leases held, an engine started, a record kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from dsv.errors import DsvError, Interrupted, LaunchError, NoRoom, Terminated, as_launch_error
from dsv.periodic import now_ms
from dsv.run.active_runs import RunRecords
from dsv.run.attempts import Supervision, execute, masked
from dsv.run.completing import completed
from dsv.run.dirs import LIVE_LOG, RunPlace, first_time, leave_terminal, make_folder
from dsv.run.engine_list import choose
from dsv.run.engines.attach import Signals, spared
from dsv.run.engines.base import CANNOT_LAUNCH, NO_OPTIONS, Ended, Engine, Plan, check_given
from dsv.run.engines.local_resources import with_free_gpus
from dsv.run.engines.log import LiveLog, LogKeeper
from dsv.run.engines.output import Output
from dsv.run.engines.reaper import GRACE
from dsv.run.node_order import NO_ACCESS
from dsv.run.plan import Launch
from dsv.run.pools import GaveUp, Patience, take_turns
from dsv.run.record import EndCause, RunId, RunOutput, RunRecord, RunState
from dsv.run.resources import PassedOver
from dsv.run.spec import JobSpec, check_spec
from dsv.run.staged import Lease, Staged, Staging
from dsv.values.ids import CommitId
from dsv.values.names import Target
from dsv.values.progress import NoProgress, Progress

_GPUS: Final = re.compile(r"gpu|cdi|nvidia|device|gres|node configuration", re.IGNORECASE)
"""Words in the messages of engines if the GPUs keep a job from starting."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A pool that the job may be given to now. reason: why it could not begin there at once, as far as is known."""

    spec: JobSpec
    staging: Staging
    reason: str | None = None


Enter: TypeAlias = Callable[
    [str, float | None, tuple[PassedOver, ...], Callable[[str], None]], Entered | GaveUp
]


@dataclass(frozen=True, slots=True)
class Turns:
    """The pools that a run may go to, in order, with the seconds that it waits at each of them but the last.

    enter: waits until the job may be given to a pool, for at most so many seconds; it is told which pools were left
    before, and tells what it waits for.
    """

    pools: Mapping[str, float]
    enter: Enter


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that has ended.

    engine: which had its job. error: why dsv could not launch it, ended it, or lost sight of it. problem: why the
    record isn't in the store yet; it is then kept here and sent by the next run.
    """

    record: RunRecord
    engine: Engine
    out: Path
    error: LaunchError | None
    problem: DsvError | None = None

    @property
    def exit_code(self) -> int:
        """Of dsv."""
        assert self.record.exit_code is not None  # it has ended
        return self.record.exit_code


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
    turns: Turns | None = None,
) -> RunResult:
    """Runs it and waits for it; its output goes to these descriptors, None for nowhere.

    signals: caught and passed on while the job lives, and until its record is kept; those that end nothing don't
    before and after that either. Without, this process's handlers stay as they are. grace: seconds that the job
    gets to end after one, unless `dsv stop` names others.

    announce: told of the run, of its own folder among the user's state and of its output folder, once nothing is found
    wrong and before any data is fetched. From then on it has a record, whatever happens, and its output goes to the
    live log in that folder alone (see live_log.py), which is there until the record is kept. turns: the pools that it
    may go to, this one first; it goes on to the next if it doesn't begin in time. Raises `LaunchError` for
    what kept it from being started, but `UsageError`, `Interrupted` and `Terminated` as they are.
    """
    check_spec(spec)
    watcher = progress if progress is not None else NoProgress()
    unharmed = spared() if signals is not None else nullcontext()
    with ExitStack() as stack, as_launch_error(), unharmed:
        decided = _decide(spec, place, staging)
        for text in _notes(decided, place):
            watcher.note(text)
        live = None
        if announce is not None:
            stdout = stderr = None
            live = stack.enter_context(_announced(decided, records, announce))
        terminals = tuple(each for each in (0, 1, 2) if signals is not None and os.isatty(each))
        stay = _Stay(records, signals, watcher, grace, (stdout, stderr), live, terminals)
        if turns is None:
            done = stay.at(decided, staging, Patience())
            assert not isinstance(done, GaveUp)  # there is no other pool
        else:
            done = _in_turn(decided, turns, stay)
        if done.problem is None:
            done = replace(done, problem=records.send())
            whole = records.is_in_store(done.problem) and done.record.state.is_terminal
            if whole and done.record.job is not None:
                done.engine.forget(done.record.job)
        lost = done.record.end is EndCause.LOST_SIGHT
        if lost and (known := records.told_by_others(done.record)) is not None:
            done = replace(done, record=known, error=None)  # the job was seen to end where it ran
        return done


@dataclass(frozen=True, slots=True)
class _Stay:
    """One run at whichever pool. sinks: descriptors for what the job writes; terminals: those of
    this process that are terminals, which can't be told once they are gone."""

    records: RunRecords
    signals: Signals | None
    watcher: Progress
    grace: float
    sinks: tuple[int | None, int | None]
    live: LiveLog | None
    terminals: tuple[int, ...]

    def at(self, decided: Launch, staging: Staging, patience: Patience) -> RunResult | GaveUp:
        """Makes sure of the data and has the job run, until its record is kept. The leases end with that."""
        records = self.records
        with ExitStack() as leases:
            launch, held = _stage(decided, staging, self.watcher, leases)
            launch = _stage_code(launch, staging, leases, held)
            self.watcher.finish()
            log = LogKeeper(live=None if self.live is None else self.live.add) if decided.spec.log else None
            graced = lambda: records.asked_to_stop(launch.run, self.grace)  # noqa: E731
            signals = self.signals or Signals()
            supervision = Supervision(
                held, signals, self.watcher.note, graced, lambda: self._hang_up(launch), patience
            )
            with signals.caught() if self.signals is not None else nullcontext():
                done = execute(launch, records, lambda: Output(*self.sinks, log), log, supervision)
                if isinstance(done, GaveUp):
                    return done
                record, ended, kept = done
                data = None if kept is None else kept.data
                if launch.keeps_output and not ended.may_live:
                    records.ended(record, data)
                    record = replace(record, output=_kept_output(launch, staging, supervision))
                problem = None
                if (
                    not ended.may_live
                ):  # else whoever finds the supervisor gone ends the job, and then the record
                    problem = _keep(record, data, records)
                engine = launch.chosen.engine
                return RunResult(record, engine, launch.out, _error_of(launch, ended), problem)

    def _hang_up(self, launch: Launch) -> None:
        leave_terminal(launch.own, self.terminals)
        self.watcher.note(f"the terminal was closed; the run continues: dsv logs {launch.run}")


def _in_turn(decided: Launch, turns: Turns, stay: _Stay) -> RunResult:
    """The run at one pool after the other, until it begins. An engine that was given it has it no more before another
    gets it; whoever is killed in between leaves a mark that names the last pool."""
    place, records, note = decided.place, stay.records, stay.watcher.note
    now = decided

    def at(pool: str, seconds: float | None, passed: tuple[PassedOver, ...]) -> RunResult | GaveUp:
        nonlocal now
        if passed:
            note(f"not on {passed[-1].pool}: {passed[-1].reason}")
        if records.under_way:
            records.submit(replace(now.record(now.plan(), now_ms()), state=RunState.QUEUED))
        entered = turns.enter(pool, seconds, passed, note)
        if isinstance(entered, GaveUp):
            return entered
        if passed or not now.chosen.engine.queues:  # what is free has changed while it waited
            now = _decide(entered.spec, place, entered.staging, decided.run)
        reason = entered.reason or "it did not begin"
        return stay.at(now, entered.staging, Patience(seconds, reason))

    try:
        return take_turns(turns.pools, at)
    except BaseException as error:
        if records.starts and not records.begun and records.under_way:
            _record_not_started(now, records, error)
        raise


def _kept_output(launch: Launch, staging: Staging, supervision: Supervision) -> RunOutput | None:
    """Sends the output to the store, also that of a job that failed. A signal ends that."""
    try:
        with supervision.signals.raising():
            if not launch.chosen.engine.shares_folders:
                return staging.sent_output(launch.run)
            return staging.keep_output(launch.out, launch.run)
    except (Interrupted, Terminated, KeyboardInterrupt) as error:
        return RunOutput(error=error.message if isinstance(error, DsvError) else "it was interrupted")


def _keep(record: RunRecord, log: bytes | None, records: RunRecords) -> NoRoom | None:
    """Keeps the whole record. That it can't be kept doesn't change how the job ended."""
    try:
        records.finish(record, log)
    except NoRoom as problem:
        return problem
    return None


def _error_of(launch: Launch, ended: Ended) -> LaunchError | None:
    if ended.cause is EndCause.LEASE_LOST:
        return LaunchError(
            f"run {launch.run} was ended: {masked(launch, ended.reason)}",
            subject=launch.run,
            hint=f"dsv run --again {launch.run}",
        )
    engine = launch.chosen.engine
    if not ended.seen:
        return LaunchError(
            f"could not determine whether run {launch.run} ended: {masked(launch, ended.reason)}",
            subject=launch.run,
            hint="dsv runs"
            if engine.queues
            else f"{engine.name} ps --all --filter label=dsv.run={launch.run}",
        )
    if ended.launched or ended.signal is not None:
        return None
    reason = masked(launch, ended.reason)
    about_gpus = launch.spec.gpus is not None and _GPUS.search(reason or "") is not None
    return LaunchError(
        f"{engine.name} could not start the command: {reason}" if engine.takes_image else f"{reason}",
        subject=launch.run,
        hint=masked(launch, ended.hint) or (engine.gpu_hint if about_gpus else f"dsv runs {launch.run}"),
    )


@contextmanager
def _announced(
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
            _record_not_started(decided, records, error)
        raise
    finally:
        if live is not None:
            live.close() if records.under_way else live.remove()


def _record_not_started(decided: Launch, records: RunRecords, error: BaseException) -> None:
    """Ends the record of a run that is under way, and whose job no engine has."""
    early = replace(decided.record(decided.plan(), now_ms()), state=RunState.STAGING)
    records.finish(completed(early, _not_started(decided, error), now_ms()), None)
    records.send()


def _not_started(decided: Launch, error: BaseException) -> Ended:
    message = (
        error.message if isinstance(error, DsvError) else f"dsv met an unexpected {type(error).__name__}"
    )
    told = isinstance(error, Interrupted | Terminated)
    return Ended(
        exit_code=error.exit_code if isinstance(error, Interrupted | Terminated) else CANNOT_LAUNCH,
        launched=False,
        cause=EndCause.CANCELLED if told else EndCause.NOT_STARTED,
        reason=decided.masker.text(message),
    )


def dry_run(spec: JobSpec, *, place: RunPlace, staging: Staging) -> Plan:
    """Return the plan that `run` would submit, but for the id of the run. Fetches and starts nothing; code that other
    machines have from the store is committed, as what is run names its commit."""
    check_spec(spec)
    with as_launch_error():
        launch = _decide(spec, place, staging)
        if not launch.chosen.engine.shares_folders:
            launch = _located_code(launch, staging)
        return launch.plan()


def _located_code(launch: Launch, staging: Staging) -> Launch:
    if launch.code is None:
        return launch
    return replace(launch, staged_code=staging.locate_code(launch.code, _recorded_tree(launch)))


def _recorded_tree(launch: Launch) -> CommitId | None:
    recorded = launch.spec.recorded_code
    return None if recorded is None or recorded.tree is None else CommitId.parse(recorded.tree)


def _stage_code(launch: Launch, staging: Staging, leases: ExitStack, held: list[Lease]) -> Launch:
    """The code is data like any other: in the cache, and leased."""
    if not launch.chosen.engine.shares_folders:
        return _located_code(launch, staging)
    if launch.code is None:
        return launch
    found = staging.stage_code(launch.code, _recorded_tree(launch), launch.run)
    if found is None:
        return launch
    leases.callback(found[1].release)
    held.append(found[1])
    return replace(launch, staged_code=found[0])


def _decide(spec: JobSpec, place: RunPlace, staging: Staging, run: RunId | None = None) -> Launch:
    options = NO_OPTIONS if spec.pool is None else spec.pool.options
    chosen = choose(place.environ, spec.engine, spec.image, options)
    if spec.pool is not None and spec.gpus is not None:
        chosen = replace(chosen, facts=replace(chosen.facts, machine=with_free_gpus(chosen.facts.machine)))
    located = {name: staging.locate(target) for name, target in _targets(spec).items()}
    check_given(chosen.engine, spec)
    elsewhere = staging.elsewhere() if chosen.engine.queues else ()
    access = NO_ACCESS if chosen.engine.shares_folders else staging.access()
    run = run or RunId.make(now_ms(), os.urandom(4))
    return Launch.of(spec, place, chosen, run, located, elsewhere, access)


def _notes(decided: Launch, place: RunPlace) -> tuple[str, ...]:
    """Return what a person should know before it starts.

    Everything that can be found wrong is found here, before the first byte is fetched.
    """
    plan, note = decided.plan(), decided.chosen.note
    return plan.notes if note is None or not first_time(place, "plain-process") else (note, *plan.notes)


def _stage(
    decided: Launch, staging: Staging, progress: Progress, leases: ExitStack
) -> tuple[Launch, list[Lease]]:
    if decided.chosen.engine.queues:  # each machine makes sure of the data itself, and holds it there
        return decided, []
    staged: dict[str, Staged] = {}
    held: list[Lease] = []
    for name, target in _targets(decided.spec).items():
        staged[name], lease = staging.stage(target, decided.run)
        leases.callback(lease.release)
        held.append(lease)
    return replace(decided, staged=staged), held


def _targets(spec: JobSpec) -> dict[str, Target]:
    """By name; the target itself has none and comes first."""
    return {"": spec.target, **spec.data}
