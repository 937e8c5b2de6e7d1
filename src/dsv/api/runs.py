"""The runs of a store: its records, records that wait on this machine, and runs active on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dsv.api.context import Context
from dsv.api.pools import engines_of
from dsv.cache.inventory import find_all
from dsv.cache.leases import end_leases_of_runs
from dsv.cache.root import CacheRoot
from dsv.errors import Conflict, DsvError, IntegrityError, NotFound, Unsupported, UsageError
from dsv.format.keys import run_key
from dsv.repo.repository import Repository
from dsv.run.active_runs import Marks, under_way
from dsv.run.completing import Completer
from dsv.run.dirs import remove_run_folder, run_folder
from dsv.run.engine_list import Engines
from dsv.run.lineage import DatasetRun, started_in
from dsv.run.listing import RunQuery, RunView, each_run, run_log, show_run
from dsv.run.once_claims import Claimant
from dsv.run.parameters import ID_PART, PREFIX, SweepId, names_sweep
from dsv.run.record import RECORD, RunId, RunRecord
from dsv.run.record_store import RunStore, Spool, StoredRun
from dsv.run.remembered import RememberedRuns, Stale
from dsv.run.series import Series, series_of
from dsv.run.sweep import SweepNotes, SweepView, sweep_of
from dsv.stores.base import together
from dsv.upkeep.expire import store_time
from dsv.values.names import DatasetName

_MOST_QUICK = 256
"""The most shown runs of which each is asked for in place of a listing of all."""


@dataclass(frozen=True, slots=True)
class Runs:
    repository: Repository
    runs: RunStore
    spool: Spool
    marks: Marks
    engines: Engines
    state: Path
    """The user's folder for dsv's state."""
    cache: CacheRoot
    bound: DatasetName | None
    """The dataset of the workspace; None outside of one, or in one of another store."""

    def show(self, text: str, dataset: DatasetName | None = None) -> RunView:
        """Return one run, by an id, part of an id, or a name. Raises `NotFound`, `UsageError`."""
        places = [dataset] if dataset is not None else list(self.repository.refs.datasets())
        return show_run(self.runs, self.spool, text, places, self.marks.known(), only=dataset)

    def listed(
        self,
        dataset: DatasetName | None = None,
        query: RunQuery | None = None,
        skipped: Callable[[DsvError], None] = lambda _: None,
    ) -> list[RunView]:
        """Return the runs on a dataset (None: the workspace's, or else all), newest first or as queried.

        skipped: see `each_run`. Raises like `RunQuery.choose`, and `NotFound` for a missing dataset.
        """
        query = query or RunQuery()
        most, known = None if query.needs_all else query.limit, self.marks.known()

        of, unread = dataset or self.bound, list[DsvError]()

        def choose(quick: bool) -> list[RunView]:
            unread.clear()
            chosen = query.choose(
                each_run(self.runs, self.spool, of, most, early=known, skipped=unread.append, quick=quick)
            )
            if not quick:
                return chosen
            whole = together([partial(self.runs.whole, view.record) for view in chosen])
            return [replace(view, record=record) for view, record in zip(chosen, whole, strict=True)]

        try:
            chosen = choose(quick=query.limit is not None and query.limit <= _MOST_QUICK)
        except Stale:
            chosen = choose(quick=False)
        for problem in unread:
            skipped(problem)
        if not chosen and dataset is not None and dataset not in self.repository.refs.datasets():
            raise NotFound(f"there is no dataset {dataset}", subject=dataset, hint="dsv datasets lists them")
        return chosen

    def result_of(self, record: RunRecord) -> RunRecord:
        """Return the run whose result a run has: itself, unless it was not repeated. Raises `NotFound`."""
        of = record.hit_of
        return record if of is None else self.show(of[1], of[0]).record

    def series(self, record: RunRecord) -> dict[str, Series]:
        """Return the curves of a run's metrics, or of those of the run whose result it has."""
        result = self.result_of(record)
        return series_of(self.repository.store, result.dataset, result.run)

    def with_series(self, views: Iterable[RunView], *, ended: bool) -> list[RunView]:
        """Add curves, and their last values if there are no metrics. ended: also to runs that have ended"""

        def add(view: RunView) -> RunView:
            record = view.record
            with suppress(IntegrityError, NotFound, Unsupported):  # which `series` itself raises
                if ended or not record.state.is_terminal:
                    series = self.series(record)
                    if record.metrics is None and series:
                        last = {name: curve.last for name, curve in series.items()}
                        record = replace(record, metrics=last)
                    return replace(view, record=record, series=series)
            return view

        return together([partial(add, view) for view in views])

    def sweep(self, text: str) -> SweepView:
        """Return a sweep, by its id, the last 4 or more characters of it, or its name. Raises like `show`."""
        since = ""
        with suppress(UsageError):
            since = SweepId.parse(text).begun
        views = each_run(self.runs, self.spool, None, early=self.marks.known(), since=since)
        found = sweep_of(views, text)
        if found is None:
            raise NotFound(f"there is no sweep {text}", subject=text, hint="dsv runs lists them")
        return found

    def notes(self, dataset: DatasetName, sweep: SweepId) -> SweepNotes:
        return SweepNotes(self.repository.store, dataset, sweep)

    def unfinished(self, text: str) -> tuple[SweepView, int]:
        """Return a sweep with unstarted runs, and the turn of its next driver. Raises like `show`."""
        view = self.sweep(text)
        turn = self.notes(view.dataset, view.id).next_turn() if view.not_begun else 0
        view = self.sweep(view.id)  # the previous driver may have started some since then
        if not view.not_begun:
            raise UsageError(
                f"all {view.seat.of} runs of {view.id} were started",
                subject=view.id,
                hint=f"dsv run --again {view.members[0].record.run} repeats one of them",
            )
        return view, turn

    def ids_or_dataset(
        self, texts: list[str], dataset: DatasetName | None
    ) -> tuple[list[str], DatasetName | None]:
        """Return the same; for the name of a dataset alone, which means no run, the dataset without ids."""
        if dataset is None and len(texts) == 1 and not ID_PART.fullmatch(texts[0].removeprefix(PREFIX)):
            try:
                self.show(texts[0])
            except NotFound:
                named = [one for one in self.repository.refs.datasets() if str(one) == texts[0]]
                return ([], named[0]) if named else (texts, dataset)
        return texts, dataset

    def show_or_sweep(self, text: str, dataset: DatasetName | None = None) -> RunView | SweepView:
        """Return the run that a text means, else the sweep. Raises `NotFound`, `UsageError`."""
        if names_sweep(text):
            return self.sweep(text)
        try:
            return self.show(text, dataset)
        except NotFound as error:
            return self.sweep_instead(text, error)

    def sweep_instead(self, text: str, error: NotFound) -> SweepView:
        """Return the sweep that a text means if it means no run. Raises `error` if there is none either."""
        try:
            return self.sweep(text)
        except NotFound:
            raise error from None

    def stored(self, texts: Sequence[str], dataset: DatasetName | None = None) -> list[StoredRun]:
        """Return the keys of the runs that `texts` mean, each once; records may be unreadable."""
        found: dict[StoredRun, None] = {}
        places = [dataset] if dataset is not None else list(self.repository.refs.datasets())
        for text in texts:
            try:
                run, known = RunId.parse(text), places
            except UsageError:
                record = self.show(text, dataset).record
                run, known = record.run, [record.dataset]
            found[self.runs.find(run, known)] = None
        return list(found)

    def older_than(self, seconds: float, dataset: DatasetName | None = None) -> list[StoredRun]:
        """Return the runs whose records were written longer ago, by the time of the store."""
        ended = [one for one in self.runs.listing(dataset) if RECORD in one.parts]
        store = self.repository.store
        made = together([partial(store.modified, run_key(one.dataset, one.run, RECORD)) for one in ended])
        now = store_time(self.repository) if ended else 0
        return [one for one, when in zip(ended, made, strict=True) if now - when > seconds]

    def delete(
        self, chosen: Sequence[StoredRun], warn: Callable[[str], None], *, force: bool = False
    ) -> None:
        """Delete runs permanently, with their own folders on this machine; gc then removes their code and output.

        Raises `Conflict`, with nothing deleted, for a run that has not ended in the store, unless `force`. The
        folder of such a run stays. warn: called for each folder that stays
        """
        alive = [stored.run for stored in chosen if RECORD not in stored.parts]
        if alive and not force:
            raise Conflict(
                f"run {alive[0]} has not ended, or its machine went down before it could record the end",
                subject=alive[0],
                hint=f"dsv stop {alive[0]} first; --force deletes its record all the same",
            )
        running = {active.run for active in under_way(self.state)} | set(alive)

        def delete(stored: StoredRun) -> str | None:
            self.runs.delete(stored)
            folder = run_folder(self.state, stored.dataset, stored.run)
            if stored.run in running:
                return f"{folder} stays: the run may still write there" if folder.exists() else None
            try:
                remove_run_folder(self.state, stored.dataset, stored.run)
            except OSError as error:
                return f"{folder} can't be deleted: {error.strerror}"
            return None

        problems = together([partial(delete, stored) for stored in chosen])
        self.runs.forget(chosen)
        for problem in problems:
            if problem is not None:
                warn(problem)

    def log(self, record: RunRecord) -> bytes | None:
        """Read the kept log of a run that has ended."""
        return run_log(self.runs, self.spool, record)

    def settle(self, views: Iterable[RunView], *, whole: bool = False) -> list[RunView]:
        """Return the runs as clusters report them now, and within others only if those had not ended. Complete records
        that no other process completes.

        whole: a run whose record another process is still to complete has not ended
        """
        completer = self._completer()
        completed_runs = []
        for view in views:
            if view.sent and view.record.state.is_terminal:
                completer.remove_job(view.record)
            record, sent = completer.settle(view.record, whole=whole)
            if record is not view.record:
                view = RunView(record, sent and view.sent, last_known=completer.last_known.get(record.run))
            if record.within is not None and started_in(record, self._outer) is None:
                view = replace(view, record=replace(record, within=None))
            completed_runs.append(view)
        return completed_runs

    def _outer(self, key: DatasetRun) -> RunRecord | None:
        with suppress(IntegrityError, Unsupported):
            return self.runs.ended(*key)
        return None

    def settle_claimed(self, by: Claimant) -> None:
        """Complete the record of a run for which another waits, if its process on this machine is gone, or its cluster
        has the end and no other process completes it."""
        self.complete_cut_off(lambda _: None)
        record = self.runs.newest(by.dataset, by.run)
        if record is not None:
            self.settle([RunView(record, sent=True)])

    def complete_cut_off(
        self, warn: Callable[[str], None], stop: Mapping[RunId, float] | None = None
    ) -> list[RunRecord]:
        """Like `Completer.complete_cut_off`; and end what those runs hold in this cache."""
        runs = self._completer().complete_cut_off(warn, stop)
        if runs:
            with suppress(OSError, DsvError):  # it expires
                places = find_all(self.cache.dot / "claims")
                end_leases_of_runs(self.cache, places, [record.run for record in runs])
        return runs

    def end_in_cluster(self, record: RunRecord, grace: float) -> bool:
        """End the job of a run in its cluster. Return False if it may live."""
        engine = self.engines.make(record.engine, record.pool)
        status = None if engine is None or record.job is None else engine.cancel(record.job, grace)
        return status is not None and not status.lives

    def _completer(self) -> Completer:
        return Completer(self.engines, self.runs, self.spool, self.marks)


@contextmanager
def open_runs(context: Context, environ: Mapping[str, str]) -> Iterator[Runs]:
    state = context.settings.state
    with context.repository() as repository, context.sending_events(environ) as send:
        workspace, added = context.workspace_or_none(), partial(send, repository.id)
        yield Runs(
            repository,
            RunStore(repository.store, lambda: None, RememberedRuns(state, repository.id), added),
            Spool(state, repository.id),
            Marks(state, repository.id),
            engines_of(environ, context.settings),
            state,
            CacheRoot(context.settings.cache().path),
            workspace.dataset if workspace is not None and workspace.store_id == repository.id else None,
        )
