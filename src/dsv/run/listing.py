"""Finding, showing, stopping and awaiting runs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Final, NamedTuple, TypeVar

from dsv.errors import DsvError, NotFound, Unsupported, UsageError
from dsv.fs.files import replace_file, write_once
from dsv.fs.process import Process, Watched
from dsv.run.active_runs import UnderWay, stop_request, under_way
from dsv.run.dirs import SPOOLS
from dsv.run.record import RunId, RunPart, RunRecord
from dsv.run.record_store import RunStore, Spool, SpooledPart, StoredRun
from dsv.values.ids import StoreId
from dsv.values.json import Json
from dsv.values.names import DatasetName
from dsv.values.units import rfc3339

_T = TypeVar("_T")

_DAY = re.compile(r"[0-9]{8}-", re.ASCII)
_SHORTEST: Final = 4
_NAMED: Final = 3
"""Runs that a message names of those that a text may mean."""
_PART = re.compile(rf"[0-9a-f-]{{{_SHORTEST},}}", re.ASCII)


class RunKey(NamedTuple):
    """The key of a run, unlike that of any other one of a store: records may have been copied to another dataset."""

    run: RunId
    dataset: str

    @classmethod
    def of(cls, each: RunRecord | StoredRun) -> RunKey:
        return cls(each.run, str(each.dataset))


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it is shown."""

    record: RunRecord
    sent: bool
    """All that is known of it is in the store."""

    @property
    def took_seconds(self) -> float | None:
        record = self.record
        return None if record.ended_ms is None else (record.ended_ms - record.started_ms) / 1000

    def item(self) -> dict[str, Json]:
        """For `--json`: times RFC 3339 in UTC, ids whole."""
        record = self.record
        item = asdict(record)
        item |= {
            "commit": record.commit.hex(),
            "data": [asdict(each) | {"commit": each.commit.hex()} for each in record.data],
            "parts": [_part(part) for part in record.parts],
            "started": rfc3339(record.started_ms),
            "ended": _moment(record.ended_ms),
            "took_seconds": self.took_seconds,
            "sent": self.sent,
        }
        del item["started_ms"], item["ended_ms"]
        return item


def _part(part: RunPart) -> dict[str, Json]:
    item = asdict(part)
    started, ended = item.pop("started_ms"), item.pop("ended_ms")
    return {**item, "started": _moment(started), "ended": _moment(ended)}


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else rfc3339(time_ms)


def list_runs(
    runs: RunStore | None,
    spool: Spool | None,
    dataset: DatasetName | None,
    limit: int | None = None,
    *,
    early: Iterable[RunRecord] = (),
    since: str = "",
    skipped: Callable[[DsvError], None] = lambda _: None,
) -> list[RunView]:
    """Return the newest `limit` runs of a dataset (None: of all), newest first.

    runs: None for only those that wait here to be sent
    spool: None for only those in the store
    early: runs that may have no record yet
    since: only those whose ids are not below this
    skipped: called with the error of each record that can't be read, is damaged or is of a newer dsv
    """
    kept = () if spool is None else spool.records(lambda part: dataset in (None, part.dataset), skipped)
    waiting = {RunKey.of(each): each for each in early if dataset in (None, each.dataset)}
    waiting |= {RunKey.of(each): each for each in kept}
    stored = [] if runs is None else runs.listing(dataset)
    known = {RunKey.of(each) for each in stored} | set(waiting)
    newest = sorted((key for key in known if key.run >= since), reverse=True)[:limit]
    wanted = frozenset(newest)
    chosen = [each for each in stored if RunKey.of(each) in wanted]
    views = {key: RunView(waiting[key], sent=False) for key in wanted & waiting.keys()}
    for record in () if runs is None else runs.read_all(chosen, skipped):
        views[RunKey.of(record)] = _view(record, waiting)
    return [views[key] for key in newest if key in views]


def show_run(
    runs: RunStore | None,
    spool: Spool | None,
    text: str,
    datasets: Iterable[DatasetName],
    early: Iterable[RunRecord] = (),
    *,
    only: DatasetName | None = None,
) -> RunView:
    """Return one run: by its id, by four characters or more that only its id begins or ends with, or by its name.

    An id goes before a name. Raises `NotFound`, and `UsageError` for what means several runs or is too short.

    datasets: those of which the store is asked
    early: runs that may have no record yet
    only: the dataset of the run, if it is known
    """
    places = tuple(datasets)

    def find_stored(named: bool) -> dict[RunKey, StoredRun]:
        return {} if runs is None else _stored(runs, text, places, named=named)

    spools = () if spool is None else (spool,)
    waiting, stored = _find(text, spools, tuple(early), only, find_stored)
    key = only_one(text, waiting.keys() | stored.keys())
    if runs is not None and key in stored:
        return _view(runs.read(stored[key]), waiting)
    return RunView(waiting[key], sent=False)


def waiting_run(folder: Path, text: str) -> RunRecord:
    """Do as `show_run`, with the runs that wait in this folder of spools, for whichever store: none is asked."""
    waiting, _ = _find(text, tuple(_spools(folder)), (), None, lambda named: {})
    if text and not waiting:
        raise NotFound(
            f"no run {text} waits here to be sent, and with --offline the store is not asked",
            subject=text,
            hint=f"dsv run --again {text}",
        )
    return waiting[only_one(text, waiting.keys())]


def _find(
    text: str,
    spools: Sequence[Spool],
    early: Sequence[RunRecord],
    only: DatasetName | None,
    find_stored: Callable[[bool], dict[RunKey, StoredRun]],
) -> tuple[dict[RunKey, RunRecord], dict[RunKey, StoredRun]]:
    """Return the runs that wait or are early, and those in the store, that a text means by their ids, else by name.

    Raises why a run that waits can't be read, if its id is meant and there is no other of such an id.
    """
    problems: list[DsvError] = []
    waiting: dict[RunKey, RunRecord] = {}
    stored: dict[RunKey, StoredRun] = {}
    for named in (False, True):

        def is_part_meant(part: SpooledPart, named: bool = named) -> bool:
            return only in (None, part.dataset) and (named or matches(part.run, text))

        kept = [record for spool in spools for record in spool.records(is_part_meant, problems.append)]
        for record in (*early, *kept):
            meant = record.name == text if named else matches(record.run, text)
            if meant and only in (None, record.dataset):
                waiting[RunKey.of(record)] = record
        stored = find_stored(named)
        if waiting or stored or not text:
            break
        if problems and not named:
            raise problems[0]
    return waiting, stored


def _stored(
    runs: RunStore, text: str, datasets: Iterable[DatasetName], *, named: bool
) -> dict[RunKey, StoredRun]:
    """Return the runs in the store that a text may mean by their ids, or by their names, which only records tell.

    A whole id, or the beginning of one, is found without listing all.
    """
    if not named and _PART.fullmatch(text) is None:
        return {}
    prefix = text if _DAY.match(text) and not named else ""
    found = {RunKey.of(each): each for dataset in datasets for each in runs.listing(dataset, prefix)}
    if not named:
        return {key: each for key, each in found.items() if matches(key.run, text)}
    records = runs.read_all(list(found.values()), lambda _: None)
    return {key: found[key] for record in records if record.name == text and (key := RunKey.of(record))}


def runs_known_here(state: Path) -> list[RunView]:
    """Return the runs that this machine knows without asking a store, newest first: those that are under way on it,
    and those whose records wait to be sent."""
    found = {
        RunKey.of(record): record for each in under_way(state) if (record := each.mark.known()) is not None
    }
    for spool in _spools(state / SPOOLS):
        for record in spool.records(lambda part: True, lambda _: None):
            if record.state.is_terminal or RunKey.of(record) not in found:
                found[RunKey.of(record)] = record
    return [RunView(found[key], sent=False) for key in sorted(found, reverse=True)]


def run_known_here(state: Path, text: str) -> RunView | None:
    """Return the one of these runs that a text means by its id or its name. Raises `UsageError` if it means several."""
    views = {RunKey.of(view.record): view for view in runs_known_here(state)}
    return _meant(text, views, lambda view: view.record.name)


def _meant(text: str, found: Mapping[RunKey, _T], name: Callable[[_T], str | None]) -> _T | None:
    keys = [key for key in found if matches(key.run, text)]
    keys = keys or [key for key, each in found.items() if text and name(each) == text]
    return found[only_one(text, keys)] if keys else None


def ended_here(folder: Path, text: str, dataset: str | None = None) -> tuple[RunRecord, bytes | None] | None:
    """Return the record and the log of a run that has ended, if they wait in this folder of spools. No store is asked.

    Raises `UsageError` if several runs that wait have this id.

    text: a whole id; any other might mean runs that only a store knows
    dataset: that of the run, if it is known
    """
    found = {
        RunKey.of(record): (record, spool)
        for spool in _spools(folder)
        for record in spool.records(
            lambda part: part.run == text and dataset in (None, str(part.dataset)), lambda _: None
        )
        if record.state.is_terminal
    }
    if not found:
        return None
    record, spool = found[only_one(text, found.keys())]
    return record, spool.log(record.dataset, record.run)


def run_log(runs: RunStore, spool: Spool, record: RunRecord) -> bytes | None:
    """Read the log of a run, its head and its tail; None if it was not kept."""
    waiting = spool.log(record.dataset, record.run)
    if waiting is not None:
        return waiting
    for stored in runs.listing(record.dataset, record.run):
        return runs.log(stored)
    return None


def _view(record: RunRecord, waiting: Mapping[RunKey, RunRecord]) -> RunView:
    """Return the newer of what waits here and what the store has of the same run."""
    here = waiting.get(RunKey.of(record))
    if here is not None and here.state.is_terminal and not record.state.is_terminal:
        return RunView(here, sent=False)
    return RunView(record, sent=True)


def _spools(folder: Path) -> Iterator[Spool]:
    for each in folder.iterdir() if folder.is_dir() else ():
        try:
            store = StoreId.parse(each.name)
        except UsageError:
            continue
        yield Spool(folder, store)


def matches(run: RunId, text: str) -> bool:
    """Check that a text may mean a run by its id."""
    return _PART.fullmatch(text) is not None and (run.startswith(text) or run.endswith(text))


def only_one(text: str, found: Collection[RunKey]) -> RunKey:
    """Return the one run that a text means. Raises `NotFound` and `UsageError`."""
    if not text:
        raise UsageError("no run was named", hint="dsv runs lists them")
    if not found and len(text) < _SHORTEST:
        raise UsageError(
            f"{text} is too short for a run's id: give {_SHORTEST} characters or more",
            subject=text,
            hint="dsv runs lists them",
        )
    if not found:
        raise NotFound(f"there is no run {text}", subject=text, hint="dsv runs lists them")
    if len(found) > 1:
        raise _several(text, sorted(found, reverse=True))
    return next(iter(found))


def _several(text: str, found: list[RunKey]) -> UsageError:
    more = ", …" if len(found) > _NAMED else ""
    if len({each.run for each in found}) == len(found):
        some = ", ".join(each.run for each in found[:_NAMED])
        return UsageError(
            f"{text} means {len(found)} runs", subject=text, hint=f"name one of them by its id: {some}{more}"
        )
    some = ", ".join(f"{each.run} on {each.dataset}" for each in found[:_NAMED])
    return UsageError(
        f"{text} means {len(found)} runs: {some}{more}",
        subject=text,
        hint=f"dsv runs {found[0].run} --dataset {found[0].dataset}",
    )


_TICK: Final = 0.2
_LONG: Final = 5.0


def find_under_way(state: Path, text: str) -> UnderWay | None:
    """Return the run under way that a text means by its id or its name, or None.

    Raises `UsageError` if it means several.
    """
    found = {RunKey(each.run, each.mark.dataset): each for each in under_way(state)}
    return _meant(text, found, lambda one: None if (record := one.mark.known()) is None else record.name)


def is_here(one: UnderWay) -> bool:
    """Check that the run's supervisor is or was a process of this machine."""
    return Process(*one.mark.process).kernel == Process.here().kernel


def ask_to_stop(one: UnderWay, grace: float) -> bool:
    """Ask the run's supervisor to end the job, which gets so many seconds to end by itself.

    Return False if somebody else has asked before; then nothing is sent, except that a grace of 0 ends the job at once
    all the same. Raises `Unsupported` for a run of another machine, and `NotFound` if its supervisor is gone.
    """
    if not is_here(one):
        raise Unsupported(
            f"run {one.run} is under way on {one.mark.host_name}, and can be stopped there alone",
            subject=one.run,
            hint=f"ssh {one.mark.host_name} dsv stop {one.run}",
        )
    _, pid, start = one.mark.process
    watched = Watched(pid, start)
    try:
        if watched.has_ended():
            raise NotFound(f"the dsv of run {one.run} is gone", subject=one.run, hint=f"dsv runs {one.run}")
        request = stop_request(one.folder, one.run)
        first = write_once(request, f"{grace:g}".encode())
        if not first and grace == 0:
            replace_file(request, b"0", mode=0o600)
        if first or grace == 0:
            _send(watched, signal.SIGTERM)
        return first
    finally:
        watched.close()


def wait_for_end(one: UnderWay, long: Callable[[], None] | None = None) -> None:
    """Wait until the record of a run of this machine is kept, or its supervisor is gone.

    long: called every few seconds meanwhile
    """
    _, pid, start = one.mark.process
    watched = Watched(pid, start)
    due = monotonic() + _LONG
    try:
        while (one.folder / one.run).exists() and not watched.has_ended():
            if long is not None and monotonic() >= due:
                long()
                due = monotonic() + _LONG
            if watched.descriptor is None:
                sleep(_TICK)
            else:
                select([watched.descriptor], [], [], _TICK)
    finally:
        watched.close()


def _send(watched: Watched, number: int) -> None:
    try:
        if watched.descriptor is not None:
            signal.pidfd_send_signal(watched.descriptor, number)
        else:
            os.kill(watched.process.pid, number)
    except ProcessLookupError:
        pass  # it has ended just now
    except PermissionError as error:
        raise UsageError("the run is another user's", hint="only they can stop it") from error
