"""Run a command on a commit, once or as a sweep: cache, leases, engine, and the record of the run."""

from __future__ import annotations

import random
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from dsv.api.context import Context
from dsv.api.pools import Placed, Placing, PoolRoute
from dsv.api.run_staging import RunStaging, close_sessions
from dsv.api.settings import parse_setting
from dsv.errors import Conflict, DsvError, NotFound, UsageError, as_launch_error
from dsv.periodic import now_ms
from dsv.repo.session import Session
from dsv.run import supervisor
from dsv.run.active_runs import RunRecords, check_name_free
from dsv.run.dirs import RUNS, RunPlace, remove_run_folder
from dsv.run.engines.attach import Signals
from dsv.run.engines.base import JobPlan
from dsv.run.engines.reaper import GRACE
from dsv.run.listing import RunView, run_known_here
from dsv.run.record import RunId, RunRecord
from dsv.run.record_store import RunStore
from dsv.run.spec import JobSpec
from dsv.run.staging import OnceGate
from dsv.run.supervisor import Announce
from dsv.stores.base import StoreBackend
from dsv.values.ids import StoreId
from dsv.values.json import Json
from dsv.values.names import DatasetName


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
    with as_launch_error(), ExitStack() as opened, context.sending_events(place.environ) as send:
        check_name_free(place.state, spec.name)
        sessions: list[Session] = []
        setting = context.settings.get("runs.keep_local")
        keep = None if setting is None else parse_setting(setting)
        staging_of = partial(
            RunStaging, context, opened=opened, sessions=sessions, offline=offline, force=force
        )
        placed = Placed(spec, cache) if placing is None else placing.choose(spec)
        staging = staging_of(placed.cache, placed.spec)
        store_id = staging.main.store
        opening, added = partial(_opened_again, context, store_id, opened), partial(send, store_id)
        runs = RunStore(opening, started=lambda: close_sessions(sessions), added=added)
        records = RunRecords(place.state, store_id, None if offline else runs)
        view = supervisor.run(
            placed.spec,
            place=replace(place, author=context.writer.author),
            staging=staging,
            records=records,
            signals=signals,
            progress=context.progress,
            grace=grace,
            announce=announce,
            route=None if placing is None else PoolRoute(placing, placed, staging, staging_of),
            once=_gate(context, staging, records, place, opened) if spec.once else None,
        )
        if keep is not None and not offline:
            _trim_folders(place.state, runs, keep)
        return view


def _gate(
    context: Context, staging: RunStaging, records: RunRecords, place: RunPlace, opened: ExitStack
) -> OnceGate:
    from dsv.api.run_once import Gate  # importing it takes longer than many runs

    return Gate(context, staging, records, place.environ, opened)


def _trim_folders(state: Path, runs: RunStore, seconds: int) -> None:
    """Remove folders of runs that ended longer ago and whose whole output the store has: at most 16, chosen at
    random, because each takes requests."""
    before = now_ms() - 1000 * seconds
    old = [path for path in (state / RUNS).glob("*/*") if path.name < RunId.make(before, b"\xff" * 4)]
    with suppress(DsvError, OSError):
        for path in random.sample(old, min(len(old), 16)):
            record = runs.newest(DatasetName.from_component(path.parent.name), RunId.parse(path.name))
            output = None if record is None or (record.ended_ms or before) >= before else record.output
            if record is not None and output is not None and output.tree is not None and not output.left_out:
                remove_run_folder(state, record.dataset, record.run)


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
) -> tuple[JobPlan, JobSpec, dict[str, Json] | None]:
    """Return the plan that `run` would submit, except the run's id, the spec with its pool's settings, and whether
    it is done already, if it is not to be repeated.

    Nothing is fetched or started. Code that a cluster's machines read from the store is committed, because
    the plan could not be submitted without it. force: commit code of any size.
    """
    with as_launch_error(), ExitStack() as opened:
        placed = Placed(spec, cache) if placing is None else placing.choose(spec)
        staging = RunStaging(context, placed.cache, placed.spec, opened, [], offline=offline, force=force)
        records = RunRecords(place.state, staging.main.store, None)
        gate = _gate(context, staging, records, place, opened) if spec.once else None
        plan, answer = supervisor.dry_run(placed.spec, place=place, staging=staging, once=gate)
        return plan, placed.spec, answer


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
    from dsv.api.runs import open_runs
    from dsv.run.sweep import SweepView

    with open_runs(context, place.environ) as found:
        known = found.show_or_sweep(text)
    if isinstance(known, SweepView):
        raise UsageError(f"{text} is a sweep", subject=text, hint=f"dsv run --again {known.id}")
    return known.record
