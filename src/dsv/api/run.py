"""Run a command on a commit, once or as a sweep: cache, leases, engine, and the record of the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import tomli_w

from dsv.api.cache import NoLease, Stager
from dsv.api.context import Context
from dsv.api.pools import Placing
from dsv.api.run_trees import commit_code, commit_output
from dsv.api.runs import Runs, open_runs
from dsv.api.settings import StoreChoice
from dsv.cache.leases import Lease
from dsv.cache.root import CacheRoot
from dsv.errors import Conflict, Denied, DsvError, NotFound, Unreachable, UsageError, as_launch_error
from dsv.repo.session import Session
from dsv.run import supervisor
from dsv.run.active_runs import RunRecords
from dsv.run.dirs import RunPlace, code_folder, code_state
from dsv.run.engine_list import ENGINES
from dsv.run.engines.attach import Signals
from dsv.run.engines.base import CANNOT_LAUNCH, JobPlan
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import RunView, run_known_here
from dsv.run.node_order import StoreAccess
from dsv.run.pools import GaveUp
from dsv.run.record import RunId, RunOutput, RunRecord
from dsv.run.record_store import RunStore
from dsv.run.resources import PassedOver
from dsv.run.spec import JobSpec
from dsv.run.staged import Staged
from dsv.run.supervisor import Announce, Turns
from dsv.run.sweep import Started, SweepDriver, SweepPlan, SweepView
from dsv.store.base import StoreBackend
from dsv.store.options import StoreOptions, read_certificates
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import Rev, Target


class RunStaging:
    """The store and the cache of one pool, as `dsv.run.staged.Staging` needs them.

    Each target is resolved only once, because a branch may move before it is staged. `opened` closes this
    object. `sessions` collects the sessions that protect the code from gc until a record in the store names
    it.
    """

    def __init__(
        self,
        context: Context,
        cache: Path,
        spec: JobSpec,
        opened: ExitStack,
        sessions: list[Session],
        *,
        offline: bool = False,
        force: bool = False,
    ) -> None:
        self._context = context
        self._opened = opened
        self._offline = offline
        self._force = force
        self._sessions = sessions
        jobs = None if spec.pool is None else spec.pool.run.get("jobs")
        self._stager = opened.enter_context(Stager(context, CacheRoot(cache), offline=offline, jobs=jobs))
        opened.callback(close_sessions, sessions)
        self.found = {
            target: self._stager.targets.find(_pinned(spec, target))
            for target in (spec.target, *spec.data.values())
        }
        self.main = self.found[spec.target]

    def elsewhere(self) -> tuple[str, ...]:
        store = self._context.settings.store()
        return ("--store", store.name or store.url, "--cache", str(self._stager.root.path))

    def access(self) -> StoreAccess:
        store = self._context.settings.store()
        return store_access(store, self._context.store_options(store))

    def locate(self, target: Target) -> Staged:
        return self._stager.locate(self._exact(target))

    def stage(self, target: Target, run: RunId | None) -> tuple[Staged, Lease | NoLease]:
        staged = self._stager.stage(self._exact(target), run)
        if target in self.found:
            self._stager.targets.remember(self.found[target])
        return staged

    def _exact(self, target: Target) -> Target:
        one = self.found.get(target)
        return target if one is None else Target(one.dataset, Rev(str(one.commit)), target.path)

    def commit_code(self, folder: Path) -> CommitId | None:
        """Commit the code. Return None if this user can't write to the store now: a run may lack that."""
        why = "the store is not asked with --offline"
        if not self._offline:
            try:
                repository = self._stager.targets.repository
                code, session = commit_code(
                    self._context, repository, self.main.dataset, folder, force=self._force
                )
                self._sessions.append(session)
                return code
            except (Denied, Unreachable) as error:
                why = error.message
        self._context.progress.note(
            f"the code is not committed, and the run sees {folder} as it changes: {why}"
        )
        return None

    def output(self, folder: Path | None, run: RunId) -> RunOutput:
        dataset, targets = self.main.dataset, self._stager.targets
        if folder is not None and self._offline:
            return RunOutput(error="the store is not asked with --offline")
        if folder is not None:
            return commit_output(
                self._context, lambda: targets.repository, dataset, folder, run, self._opened
            )
        try:
            found = RunStore(targets.repository.store).newest(dataset, run)
            if found is not None and found.output is not None:
                return found.output
        except DsvError as error:
            return RunOutput(error=error.message)
        return RunOutput(error="the machine of the job could not send it")


def run(
    context: Context,
    cache: Path,
    spec: JobSpec,
    place: RunPlace,
    *,
    offline: bool = False,
    signals: Signals | None = None,
    grace: float = GRACE,
    announce: Announce | None = None,
    placing: Placing | None = None,
    force: bool = False,
) -> RunView:
    """Stage the data in this cache, run the job, keep its record, and wait for all of that.

    offline: do not ask the store; a later run sends the record. signals, grace, announce, and errors: see
    `supervisor.run`. placing: chooses the run's pool, and so its cache. force: commit code of any size.
    """
    with as_launch_error(), ExitStack() as opened:
        sessions: list[Session] = []

        def staging_of(cache: Path, spec: JobSpec) -> RunStaging:
            return RunStaging(context, cache, spec, opened, sessions, offline=offline, force=force)

        turns = None
        if placing is None:
            staging = staging_of(cache, spec)
        else:
            chooser, placed = placing, placing.choose(spec, context.progress.note)
            spec = placed.spec
            staging = staging_of(placed.cache, spec)

            def enter(
                pool: str, seconds: float | None, passed: tuple[PassedOver, ...]
            ) -> tuple[JobSpec, RunStaging, str | None] | GaveUp:
                found = chooser.enter(placed, pool, seconds, passed, context.progress.note)
                if isinstance(found, GaveUp):
                    return found
                return found.spec, staging_of(found.cache, found.spec) if passed else staging, found.reason

            turns = Turns(placing.order(placed), enter)
        store_id = staging.main.store

        runs = RunStore(
            lambda: _opened_again(context, store_id, opened), started=lambda: close_sessions(sessions)
        )
        return supervisor.run(
            spec,
            place=replace(place, author=context.writer.author),
            staging=staging,
            records=RunRecords(place.state, store_id, None if offline else runs),
            signals=signals,
            progress=context.progress,
            grace=grace,
            announce=announce,
            turns=turns,
        )


def _opened_again(context: Context, store_id: StoreId, opened: ExitStack) -> StoreBackend:
    """Return the store for writing; the data may be from a cache, without asking a store.

    Raises `Conflict` if it is another store, and `Unsupported` if it needs a newer dsv.
    """
    repository = opened.enter_context(context.repository())
    if repository.id != store_id:
        raise Conflict(
            f"{repository.store.url} is not the store that the data came from",
            subject=repository.store.url,
            hint="dsv config store shows which store is in effect and why",
        )
    repository.format.check(repository.store.url, writing=True)
    return repository.store


def dry_run(
    context: Context,
    cache: Path,
    spec: JobSpec,
    place: RunPlace,
    *,
    offline: bool = False,
    placing: Placing | None = None,
    force: bool = False,
) -> tuple[JobPlan, JobSpec]:
    """Return the plan that `run` would submit, except the run's id, and the spec with its pool's settings.

    Nothing is fetched or started. Code that a cluster's machines read from the store is committed, because
    the plan could not be submitted without it. force: commit code of any size.
    """
    with as_launch_error(), ExitStack() as opened:
        if placing is not None:
            placed = placing.choose(spec, context.progress.note)
            spec, cache = placed.spec, placed.cache
        sessions: list[Session] = []
        staging = RunStaging(context, cache, spec, opened, sessions, offline=offline, force=force)
        return supervisor.dry_run(spec, place=place, staging=staging), spec


def close_sessions(sessions: list[Session]) -> None:
    while sessions:
        sessions.pop().close()


def _pinned(spec: JobSpec, target: Target) -> Target:
    pin = spec.pins.get(str(target))
    return target if pin is None else Target(target.dataset, Rev(pin), target.path)


def recorded_run(context: Context, place: RunPlace, text: str, *, offline: bool = False) -> RunRecord:
    """Return the record of the run that `text` names: an id, part of one, or a name.

    offline: search only the runs that this machine knows. Raises `NotFound`, `UsageError`.
    """
    if offline:
        view = run_known_here(place.state, text)
        if view is None:
            raise NotFound(
                f"this machine knows no run {text}, and with --offline the store is not asked",
                subject=text,
                hint=f"dsv run --again {text}",
            )
        return view.record
    with open_runs(context, place.environ) as found:
        known = found.show_or_sweep(text)
    if isinstance(known, SweepView):
        raise UsageError(f"{text} is a sweep", subject=text, hint=f"dsv run --again {known.id}")
    return known.record


_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (TRUSTED )?CERTIFICATE-----[^-]+-----END (?:TRUSTED )?CERTIFICATE-----"
)
_MOST: Final = 96 << 10
"""Bytes of certificates: Linux limits a variable to 128 KiB."""


def store_access(store: StoreChoice, options: StoreOptions) -> StoreAccess:
    """Return what a job's machine needs to reach the store. Raises `UsageError`, `NotFound`, `Denied`.

    The address in a profile is passed on, but never its credentials or a private key in the certificate file.
    """
    from dsv.store.open import local_folder

    places = [local_folder(each) for each in (store.url, store.names) if each is not None]
    folders = tuple(str(each) for each in places if each is not None)
    if store.name is None:
        return StoreAccess(folders=folders)
    endpoint, region = store.endpoint, store.region
    if store.profile is not None and store.url.startswith("s3://"):
        endpoint, region = _of_profile(store, options)
    known = {"endpoint": endpoint, "region": region, "names": store.names}
    table = {"url": store.url, **{key: value for key, value in known.items() if value is not None}}
    return StoreAccess(
        settings=tomli_w.dumps({"stores": {store.name: table}}),
        certificates="" if store.ca_bundle is None else _certificates(store, Path(store.ca_bundle)),
        folders=folders,
        profile=None if store.profile is None else f"stores.{store.name}.profile",
    )


def _of_profile(store: StoreChoice, options: StoreOptions) -> tuple[str | None, str | None]:
    """Return endpoint and region: of the store's own settings, or else of its profile."""
    from dsv.store.credentials import aws_session

    _, profile = aws_session(store.url, options)
    return store.endpoint or profile.get("endpoint_url"), store.region or profile.get("region")


def _certificates(store: StoreChoice, path: Path) -> str:
    key = f"stores.{store.name}.ca_bundle"
    found = [each.group() for each in _CERTIFICATE.finditer(read_certificates(store.url, path))]
    text = b"\n".join(found)
    if not found:
        raise UsageError(
            f"{path} has no certificate",
            subject=key,
            hint=f"dsv config {key} FILE, which is in the PEM format",
        )
    if len(text) > _MOST:
        raise UsageError(
            f"{path} has {len(text) >> 10} KiB of certificates, and a job takes at most {_MOST >> 10} KiB",
            subject=key,
            hint=f"dsv config {key} FILE, with the authority of this store alone",
        )
    return text.decode("ascii", "replace") + "\n"


@contextmanager
def open_sweep(
    context: Context,
    found: Runs,
    cache: Path,
    plan: SweepPlan,
    place: RunPlace,
    *,
    parallel: int,
    start: Callable[[SweepPlan, int], Started],
    watch: Callable[[int, RunId | RunView], None],
    note: Callable[[str], None],
    placing: Placing | None = None,
    force: bool = False,
) -> Iterator[SweepDriver]:
    """Yield a driver that can start runs: commits and code are found, and data of local runs is held.

    The caller is `driving` the sweep. start: starts one run. watch: called with a run's number, and its id
    when it has started, or its record when it has ended.
    """
    spec = plan.spec
    first, _ = dry_run(context, cache, spec, place, placing=placing, force=force)
    stage = placing is None and not ENGINES[first.engine].queues
    sessions: list[Session] = []
    with ExitStack() as opened:
        with as_launch_error():
            staging = RunStaging(context, cache, spec, opened, sessions, force=force)
            code = spec.recorded_code
            if spec.code is not None and code is None:
                folder = code_folder(place, spec.code)
                if (tree := staging.commit_code(folder)) is not None:
                    code = replace(code_state(folder, place.environ), tree=tree.hex())
            for target in staging.found if stage else ():
                opened.callback(staging.stage(target, None)[1].release)
        dataset = staging.main.dataset
        spec = replace(
            spec,
            target=Target(dataset, spec.target.rev, spec.target.path),
            pins={str(target): str(one.commit) for target, one in staging.found.items()},
            recorded_code=code,
        )
        context.progress.finish()
        whole = replace(plan, spec=spec)
        yield SweepDriver(
            whole,
            place.state,
            parallel,
            found.notes(dataset, plan.seat.id),
            show=lambda run: found.show(run, dataset),
            start=lambda number: start(whole, number),
            watch=watch,
            note=note,
        )


def become_driver(found: Runs, plan: SweepPlan) -> None:
    """Make this process the driver of the sweep. Raises `Conflict` if another process has become it."""
    assert plan.spec.target.dataset is not None  # a record names it, or the command line
    try:
        found.notes(plan.spec.target.dataset, plan.seat.id).take(plan.turn)
    except Denied:
        if plan.again is not None:
            raise
        # A user who can't write to the store leaves no record there from which others could continue.


def outcome(found: Runs, driver: SweepDriver) -> tuple[int, SweepView | None]:
    """Return the exit code of a sweep, and its runs; None if none has a record."""
    view = None
    with suppress(NotFound):
        view = found.sweep(driver.plan.seat.id)
    code = None if view is None else view.exit_code
    if code is None:
        code = CANNOT_LAUNCH if driver.ended_by is None else 128 + driver.ended_by
    return code if driver.refused is None else driver.refused, view
