"""Finding, showing, stopping and awaiting runs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Final, NamedTuple

from dsv.errors import DsvError, NotFound, Unsupported, UsageError
from dsv.fs.files import replace_file, write_once
from dsv.fs.process import Process, Watched
from dsv.run.active_runs import UnderWay, stop_request, under_way
from dsv.run.dirs import SPOOLS
from dsv.run.record import RunId, RunPart, RunRecord
from dsv.run.record_store import RunStore, Spool, StoredRun
from dsv.values.ids import StoreId
from dsv.values.json import Json
from dsv.values.names import DatasetName
from dsv.values.units import rfc3339

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
    """A run as it is shown. sent: whether all that is known of it is in the store."""

    record: RunRecord
    sent: bool

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
    """The newest `limit` runs of a dataset (None: of all), newest first.

    since: only those whose ids are not below this. runs: None shows only what waits here to be sent; spool: None shows
    only what the store has. early: runs that may have no record yet. skipped: told of each record that can't be read,
    is damaged or is of a newer dsv; it hides no other.
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
    """One run: by its id, by four characters or more that only its id begins or ends with, or by its name.

    An id goes before a name. datasets: those of which the store is asked. early: runs that may have no record yet.
    only: the dataset of the run, if it is known. Raises `NotFound`, and `UsageError` for what means several runs or is
    too short.
    """
    places = tuple(datasets)
    spools = [] if spool is None else [spool]
    early = [each for each in early if only in (None, each.dataset)]
    waiting, problems = _waiting(spools, text, only)
    waiting = {RunKey.of(each): each for each in early if matches(each.run, text)} | waiting
    stored = {} if runs is None else _matching(runs, text, places)
    if text and not (waiting or stored):
        if problems:
            raise problems[0]
        waiting, stored = _waiting_by_name(spools, text, only), _stored_by_name(runs, text, places)
        waiting = {RunKey.of(each): each for each in early if each.name == text} | waiting
    key = only_one(text, waiting.keys() | stored.keys())
    if runs is not None and key in stored:
        return _view(runs.read(stored[key]), waiting)
    return RunView(waiting[key], sent=False)


def waiting_run(folder: Path, text: str) -> RunRecord:
    """As `show_run`, of the runs that wait in this folder of spools, for whichever store: none is asked."""
    spools = list(_spools(folder))
    waiting, problems = _waiting(spools, text)
    if text and not waiting:
        if problems:
            raise problems[0]
        waiting = _waiting_by_name(spools, text)
    if text and not waiting:
        raise NotFound(
            f"no run {text} waits here to be sent, and with --offline the store is not asked",
            subject=text,
            hint=f"dsv run --again {text}",
        )
    return waiting[only_one(text, waiting.keys())]


def runs_known_here(state: Path) -> list[RunView]:
    """The runs that this machine knows without asking a store, newest first: those that are under way on it, and those
    whose records wait to be sent. state: the user's folder for dsv's state."""
    found = {
        RunKey.of(record): record for each in under_way(state) if (record := each.mark.known()) is not None
    }
    for spool in _spools(state / SPOOLS):
        for record in spool.records(lambda part: True, lambda _: None):
            if record.state.is_terminal or RunKey.of(record) not in found:
                found[RunKey.of(record)] = record
    return [RunView(found[key], sent=False) for key in sorted(found, reverse=True)]


def run_known_here(state: Path, text: str) -> RunView | None:
    """The run among these that a text means by its id or its name. Raises `UsageError` if it means several."""
    views = {RunKey.of(view.record): view for view in runs_known_here(state)}
    meant = [key for key in views if matches(key.run, text)]
    meant = meant or [key for key, view in views.items() if view.record.name == text]
    return views[only_one(text, meant)] if meant else None


def ended_here(folder: Path, text: str, dataset: str | None = None) -> tuple[RunRecord, bytes | None] | None:
    """The record and the log of a run that has ended, if they wait in this folder of spools. No store is asked.

    text: a whole id; any other might mean runs that only a store knows. dataset: that of the run, if it is known.
    Raises `UsageError` if several runs that wait have this id.
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


def _waiting(
    spools: Iterable[Spool], text: str, only: DatasetName | None = None
) -> tuple[dict[RunKey, RunRecord], list[DsvError]]:
    """The runs that wait and that a text may mean by their ids, and why others of them can't be read."""
    problems: list[DsvError] = []
    found = {
        RunKey.of(record): record
        for spool in spools
        for record in spool.records(
            lambda part: matches(part.run, text) and only in (None, part.dataset), problems.append
        )
    }
    return found, problems


def _waiting_by_name(
    spools: Iterable[Spool], name: str, only: DatasetName | None = None
) -> dict[RunKey, RunRecord]:
    records = (
        record
        for spool in spools
        for record in spool.records(lambda part: only in (None, part.dataset), lambda _: None)
    )
    return {RunKey.of(record): record for record in records if record.name == name}


def _matching(runs: RunStore, text: str, datasets: tuple[DatasetName, ...]) -> dict[RunKey, StoredRun]:
    """The runs that a text may mean by their ids. A whole id, or the beginning of one, is found without listing all."""
    if _PART.fullmatch(text) is None:
        return {}
    prefix = text if _DAY.match(text) else ""
    found = [each for dataset in datasets for each in runs.listing(dataset, prefix)]
    return {RunKey.of(each): each for each in found if matches(each.run, text)}


def _stored_by_name(
    runs: RunStore | None, name: str, datasets: tuple[DatasetName, ...]
) -> dict[RunKey, StoredRun]:
    """The runs of these datasets that have this name, which only their records tell."""
    if runs is None:
        return {}
    stored = {RunKey.of(each): each for dataset in datasets for each in runs.listing(dataset)}
    records = runs.read_all(list(stored.values()), lambda _: None)
    return {key: stored[key] for record in records if record.name == name and (key := RunKey.of(record))}


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
    """The one run that a text means. Raises `NotFound` and `UsageError`."""
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
    """The run under way that `text` means: by its id or part of it, else by its name. None if there is none.

    Raises `UsageError` for a text that means several.
    """
    there = under_way(state)
    found = {_key(each): each for each in there if matches(each.run, text)}
    if text and not found:
        named = ((each, each.mark.known()) for each in there)
        found = {_key(each): each for each, record in named if record is not None and record.name == text}
    return found[only_one(text, found.keys())] if found else None


def _key(one: UnderWay) -> RunKey:
    return RunKey(one.run, one.mark.dataset)


def is_here(one: UnderWay) -> bool:
    """Check that the run's supervisor is or was a process of this machine."""
    return Process(*one.mark.process).kernel == Process.here().kernel


def ask_to_stop(one: UnderWay, grace: float) -> bool:
    """Asks the run's supervisor to end the job, which gets so many seconds to end by itself.

    False if somebody else has asked before; then nothing is sent, except that a grace of 0 ends the job at once all
    the same. Raises `Unsupported` for a run of another machine, and `NotFound` if its supervisor is gone.
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
    """Returns when the record of the run is kept, or its supervisor is gone. The run is one of this machine.

    long: called each time that a while has gone by.
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
