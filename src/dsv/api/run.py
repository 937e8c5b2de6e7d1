"""Running a command on a commit: the cache, leases on it, an engine, and the record of the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from dsv.api.cache import NoLease, Stager
from dsv.api.context import Context
from dsv.api.pools import Placed, Placing
from dsv.api.run_trees import KeptOutput, commit_code
from dsv.api.store_access import store_access
from dsv.cache.claims.leases import Lease
from dsv.cache.root import CacheRoot
from dsv.errors import Conflict, Denied, DsvError, LaunchError, Unreachable, as_launch_error
from dsv.repo.session import Session
from dsv.run import supervisor
from dsv.run.active_runs import Marks, RunRecords
from dsv.run.dirs import RunPlace, code_folder, code_state
from dsv.run.engines.attach import Signals
from dsv.run.engines.base import Plan
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import show_run, waiting_run
from dsv.run.node_order import StoreAccess
from dsv.run.pools import GaveUp
from dsv.run.record import RunId, RunOutput, RunRecord, start_number
from dsv.run.record_store import RunStore, Spool
from dsv.run.resources import PassedOver
from dsv.run.spec import JobSpec
from dsv.run.staged import Staged
from dsv.run.supervisor import RunResult
from dsv.store.base import Bytes, Store
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName, Rev, Target


class LateRunStore(RunStore):
    """Takes records for one store, and only for that one. A context manager that closes what was opened.

    started: called when the start of a run is there.
    """

    def __init__(
        self, context: Context, store_id: StoreId, started: Callable[[], None] = lambda: None
    ) -> None:
        # Not the base's: the store that it would be given isn't open yet.
        self._context = context
        self._store_id = store_id
        self._started = started
        self._opened: Store | None = None
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def _store(self) -> Store:
        """Opened by whatever asks first. Raises what opening a store raises, and `Unsupported` for a newer one."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
        return self._opened

    def write(self, dataset: DatasetName, run: RunId, part: str, data: Bytes) -> None:
        """Raises what `RunStore.write` raises, and what opening the store raises."""
        super().write(dataset, run, part, data)
        if start_number(part) is not None:
            self._started()

    def _open(self) -> Store:
        repository = self._stack.enter_context(self._context.repository())
        if repository.id != self._store_id:
            raise Conflict(
                f"{repository.store.url} is not the store that the data came from",
                subject=repository.store.url,
                hint="dsv config store shows which store is in effect and why",
            )
        repository.format.check(repository.store.url, writing=True)
        return repository.store


def run(
    context: Context,
    cache: Path,
    spec: JobSpec,
    place: RunPlace,
    *,
    offline: bool = False,
    stdout: int | None = 1,
    stderr: int | None = 2,
    signals: Signals | None = None,
    grace: float = GRACE,
    announce: Callable[[RunId, Path, Path], None] | None = None,
    placing: Placing | None = None,
    force: bool = False,
) -> RunResult:
    """Makes sure that the data is in this cache, runs the job, and leaves its record. Waits for all of it.

    offline: the store is not asked, and the record is sent by a later run. stdout, stderr: descriptors for what the
    job writes, None for nowhere. signals, grace, announce: as of `supervisor.run`.
    placing: chooses the pool that the run goes to, and so the cache as well.
    force: however large the code is.
    Raises `LaunchError` for whatever keeps the job from being started, but `UsageError`, `Interrupted` and
    `Terminated` as they are.
    """
    with as_launch_error(), ExitStack() as stagers:
        stagings = _Stagings(context, stagers, offline, force)
        stagers.callback(stagings.started)
        placed = None
        if placing is not None:
            placed = placing.choose(spec, context.progress.note)
            spec, cache = placed.spec, placed.cache
        staging = stagings.make(cache, spec)
        turns = None
        if placing is not None and placed is not None:
            turns = supervisor.Turns(placing.order(placed), stagings.enter(placing, placed, staging))
        with LateRunStore(context, staging.store, stagings.started) as runs:
            spool, marks = Spool(place.spool, staging.store), Marks(place.state, staging.store)
            return supervisor.run(
                spec,
                place=replace(place, author=context.writer.author),
                staging=staging,
                records=RunRecords(spool, None if offline else runs, marks),
                stdout=stdout,
                stderr=stderr,
                signals=signals,
                progress=context.progress,
                grace=grace,
                announce=announce,
                turns=turns,
            )


def dry_run(
    context: Context,
    cache: Path,
    spec: JobSpec,
    place: RunPlace,
    *,
    offline: bool = False,
    placing: Placing | None = None,
    force: bool = False,
) -> tuple[Plan, JobSpec]:
    """Return the plan that `run` would submit, but for the id of the run, and the spec with the settings of its pool.

    Nothing is fetched, and nothing is started.

    Code that the machines of a cluster have from the store is committed: otherwise nobody could submit what is shown.
    force: however large it is.
    """
    if placing is not None:
        with as_launch_error():
            placed = placing.choose(spec, context.progress.note)
        spec, cache = placed.spec, placed.cache
    sessions: list[Session] = []
    with as_launch_error(), ExitStack() as held:
        stager = held.enter_context(Stager(context, CacheRoot(cache), offline=offline))
        held.callback(_close, sessions)
        code = _Code(context, force, offline, sessions)
        return supervisor.dry_run(spec, place=place, staging=_Fixed(stager, spec, code)), spec


@contextmanager
def prepared(
    context: Context,
    cache: Path,
    spec: JobSpec,
    place: RunPlace,
    *,
    stage: bool,
    offline: bool = False,
    force: bool = False,
) -> Iterator[JobSpec]:
    """Yield what the runs of a sweep have in common: the commits that its targets mean now, and its code.

    stage: the data is fetched into this cache, once for all of them, and held meanwhile.
    """
    sessions: list[Session] = []
    with Stager(context, CacheRoot(cache), offline=offline) as stager, ExitStack() as held:
        held.callback(_close, sessions)  # records name the code by then
        with as_launch_error():
            targets = (spec.target, *spec.data.values())
            found = {target: stager.targets.find(_pinned(spec, target)) for target in targets}
            main = found[spec.target]
            code = spec.recorded_code
            if spec.code is not None and code is None:
                folder = code_folder(place, spec.code)
                tree = _Code(context, force, offline, sessions).commit(stager, main.dataset, folder)
                if tree is not None:
                    code = replace(code_state(folder, place.environ), tree=tree.hex())
            for target, one in found.items() if stage else ():
                whole = Target(one.dataset, Rev(str(one.commit)), target.path)
                held.callback(stager.stage(whole, None)[1].release)
        pins = {str(target): str(one.commit) for target, one in found.items()}
        yield replace(
            spec,
            target=Target(main.dataset, spec.target.rev, spec.target.path),
            pins=pins,
            recorded_code=code,
        )


def _close(sessions: list[Session]) -> None:
    for session in sessions:
        session.close()


def _pinned(spec: JobSpec, target: Target) -> Target:
    pin = spec.pins.get(str(target))
    return target if pin is None else Target(target.dataset, Rev(pin), target.path)


def recorded_run(context: Context, place: RunPlace, text: str, *, offline: bool = False) -> RunRecord:
    """The record of the run that `text` names: an id, part of one, or a name.

    offline: only records that wait here to be sent are looked at. Raises `NotFound`, `UsageError`.
    """
    if offline:
        return waiting_run(place.spool, text)
    with context.repository() as repository:
        spool = Spool(place.spool, repository.id)
        return show_run(RunStore(repository.store), spool, text, list(repository.refs.datasets())).record


class _Fixed:
    """A `Staging` that finds each target once: a branch may move between looking and staging."""

    def __init__(
        self,
        stager: Stager,
        spec: JobSpec,
        code: _Code | None = None,
        output: KeptOutput | None = None,
    ) -> None:
        targets = (spec.target, *spec.data.values())
        found = {target: stager.targets.find(_pinned(spec, target)) for target in targets}
        self.store = found[spec.target].store
        self._dataset = found[spec.target].dataset
        self._code = code
        self._output = output
        self._stager = stager
        self._found = found
        self._whole = {
            target: Target(one.dataset, Rev(str(one.commit)), target.path) for target, one in found.items()
        }

    def elsewhere(self) -> tuple[str, ...]:
        store = self._stager.settings.store()
        return ("--store", store.name or store.url, "--cache", str(self._stager.root.path))

    def access(self) -> StoreAccess:
        store = self._stager.settings.store()
        return store_access(store, self._stager.store_options(store))

    def locate(self, target: Target) -> Staged:
        return self._stager.locate(self._whole[target])

    def stage(self, target: Target, run: RunId) -> tuple[Staged, Lease | NoLease]:
        staged = self._stager.stage(self._whole[target], run)
        self._stager.targets.remember(self._found[target])
        return staged

    def locate_code(self, folder: Path, recorded: CommitId | None) -> Staged:
        commit = self._commit_code(folder, recorded)
        if commit is None:
            raise LaunchError(
                f"the code in {folder} is not in the store, from which the machines of the cluster have it",
                subject=str(folder),
                hint="leave out --code, or --offline",
            )
        return self._stager.locate(Target(self._dataset, Rev(str(commit))))

    def _commit_code(self, folder: Path, recorded: CommitId | None) -> CommitId | None:
        if recorded is not None or self._code is None:
            return recorded
        return self._code.commit(self._stager, self._dataset, folder)

    def stage_code(
        self, folder: Path, recorded: CommitId | None, run: RunId
    ) -> tuple[Staged, Lease | NoLease] | None:
        commit = self._commit_code(folder, recorded)
        if commit is None:
            return None
        return self._stager.stage(Target(self._dataset, Rev(str(commit))), run)

    def sent_output(self, run: RunId) -> RunOutput:
        try:
            runs = RunStore(self._stager.targets.repository.store)
            for stored in runs.listing(self._dataset, run):
                if (output := runs.read(stored).output) is not None:
                    return output
        except DsvError as error:
            return RunOutput(error=error.message)
        return RunOutput(error="the machine of the job could not send it")

    def keep_output(self, folder: Path, run: RunId) -> RunOutput:
        assert self._output is not None  # nothing is run without
        return self._output.keep(lambda: self._stager.targets.repository, self._dataset, folder, run)


@dataclass(frozen=True, slots=True)
class _Stagings:
    """Makes the staging of each pool that a run comes to."""

    context: Context
    open: ExitStack
    offline: bool
    force: bool
    sessions: list[Session] = field(default_factory=list)

    def started(self) -> None:
        """The start of the run is in the store, and names its code: gc keeps that without the session too."""
        while self.sessions:
            self.sessions.pop().close()

    def make(self, cache: Path, spec: JobSpec) -> _Fixed:
        jobs = None if spec.pool is None else spec.pool.run.get("jobs")
        stager = Stager(self.context, CacheRoot(cache), offline=self.offline, jobs=jobs)
        code = _Code(self.context, self.force, self.offline, self.sessions)
        output = KeptOutput(self.context, self.offline)
        self.open.callback(output.close)  # once the record is sent
        return _Fixed(self.open.enter_context(stager), spec, code, output)

    def enter(self, placing: Placing, placed: Placed, first: _Fixed) -> supervisor.Enter:
        """first: the staging of the pool that the run was placed at."""

        def enter(
            pool: str,
            seconds: float | None,
            passed: tuple[PassedOver, ...],
            note: Callable[[str], None],
        ) -> supervisor.Entered | GaveUp:
            found = placing.enter(placed, pool, seconds, passed, note)
            if isinstance(found, GaveUp):
                return found
            staging = first if not passed else self.make(found.cache, found.spec)
            return supervisor.Entered(found.spec, staging, found.reason)

        return enter


@dataclass(frozen=True, slots=True)
class _Code:
    """Commits code. force: however large it is. offline: the store is not asked, so nothing is committed. sessions:
    gets the one that keeps the commit until a record names it."""

    context: Context
    force: bool
    offline: bool
    sessions: list[Session]

    def commit(self, stager: Stager, dataset: DatasetName, folder: Path) -> CommitId | None:
        """None if this user can't write to the store now: the run doesn't need that, and says so."""
        if self.offline:
            self._tell(folder, "a run with --offline asks no store")
            return None
        try:
            repository = stager.targets.repository
            code, session = commit_code(self.context, repository, dataset, folder, force=self.force)
            self.sessions.append(session)
            return code
        except (Denied, Unreachable) as error:
            self._tell(folder, error.message)
            return None

    def _tell(self, folder: Path, why: str) -> None:
        self.context.progress.note(
            f"the code is not committed, and the run sees {folder} as it changes: {why}"
        )
