"""Finding, listing, choosing and comparing runs.

A key is a path into what `dsv runs --json` shows of a run: `params.lr`, `metrics.val.accuracy`, `exit_code`, `host`.
"""

from __future__ import annotations

import operator
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from heapq import nlargest, nsmallest
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from dsv.errors import DsvError, NotFound, UsageError
from dsv.periodic import now_ms
from dsv.run.active_runs import UnderWay, under_way
from dsv.run.parameters import ID_PART, is_part
from dsv.run.part import RunPart
from dsv.run.record import RunId, RunRecord, json_of
from dsv.run.record_store import SPOOLS, RunStore, Spool, SpooledPart, StoredRun
from dsv.run.series import Series
from dsv.values.ids import StoreId
from dsv.values.json import Json, as_text, flattened, json_or_text
from dsv.values.names import DatasetName
from dsv.values.units import format_duration, parse_duration, parse_moment, parse_size, rfc3339

_T = TypeVar("_T")

_DAY = re.compile(r"[0-9]{8}-", re.ASCII)
_SHORTEST: Final = 4
_NAMED: Final = 3
"""The most runs that a message about an ambiguous text names."""
_SECOND: Final = 15
"""Characters of an id that are the time in whole seconds."""


class RunKey(NamedTuple):
    """The unique key of a run in a store: records may have been copied to another dataset."""

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
    """The store has all that is known of it."""
    error: DsvError | None = None
    """The reason why this dsv could not launch it, ended it, lost track of it, or could not write its output."""
    problem: DsvError | None = None
    """The reason why this dsv could not send its record; the next run sends it."""
    last_known: DsvError | None = None
    """The reason why its cluster could not tell its state, which is then the last known one."""
    out: Path | None = None
    """The folder of its output, if this dsv has run it: the record hides secrets in the name."""
    kept: bool = True
    """Its record is in the store or waits here. If not, `problem` says why."""
    series: Mapping[str, Series] | None = None
    """The curves of its metrics, if they were asked for."""

    def __repr__(self) -> str:
        run, took = self.record, self.took_seconds
        how = run.state if took is None else f"exit {run.exit_code} after {format_duration(took)}"
        numbers = [
            (name, value) for name, value in (run.metrics or {}).items() if isinstance(value, int | float)
        ]
        shown = "".join(
            f", {name if name.isprintable() else ascii(name)}={value}" for name, value in numbers[:4]
        )
        return f"<run {run.run} of {run.target}: {how}, begun {rfc3339(run.started_ms)}{shown}>"

    @property
    def exit_code(self) -> int:
        assert self.record.exit_code is not None  # it has ended
        return self.record.exit_code or (0 if self.error is None else self.error.exit_code)

    @property
    def hit(self) -> bool:
        """Nothing was run: it has the result of another."""
        return self.record.hit_of is not None

    @property
    def result_run(self) -> RunId:
        """The run whose result it has: itself, unless it was not repeated."""
        of = self.record.hit_of
        return self.record.run if of is None else RunId.parse(of[1])

    @property
    def took_seconds(self) -> float | None:
        record = self.record
        return None if record.ended_ms is None else (record.ended_ms - record.started_ms) / 1000

    def item(self) -> dict[str, Json]:
        """Return the document for `--json`: times as RFC 3339 in UTC, whole ids."""
        series = {name: {"of": curve.of, "last": curve.last} for name, curve in (self.series or {}).items()}
        return dict(RunItem(self)) | ({} if self.series is None else {"series": series})


class RunItem(Mapping[str, Json]):
    """The document of a run. Each member is made when it is asked for: sorting many runs takes one of them."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def __getitem__(self, name: str) -> Json:
        record = self._view.record
        match name:
            case "sent":
                return self._view.sent
            case "took_seconds":
                return self._view.took_seconds
            case "started" | "ended":
                return _moment(record.started_ms if name == "started" else record.ended_ms)
            case "parts":
                return [_part(part) for part in record.parts]
        if name not in _KEYS:
            raise KeyError(name)
        return json_of(getattr(record, name))

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)


_KEYS: Final = dict.fromkeys((*RunRecord.keys(), "took_seconds", "sent"))


def _part(part: RunPart) -> dict[str, Json]:
    item = asdict(part)
    started, ended = item.pop("started_ms"), item.pop("ended_ms")
    return {**item, "started": _moment(started), "ended": _moment(ended)}


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else rfc3339(time_ms)


def each_run(
    runs: RunStore | None,
    spool: Spool | None,
    dataset: DatasetName | None,
    limit: int | None = None,
    *,
    early: Iterable[RunRecord] = (),
    since: str = "",
    skipped: Callable[[DsvError], None] = lambda _: None,
    quick: bool = False,
) -> Iterator[RunView]:
    """Yield the runs of a dataset (None: of all), newest first, and read them on the way.

    runs: None for unsent runs only
    spool: None for stored runs only
    limit: how many will probably be taken
    early: runs that may have no record yet
    since: the lowest id
    skipped: called with the error of each record that can't be read, is damaged or is of a newer dsv
    quick: by a quick listing, with records to make whole (see `RunStore.whole`)
    """
    kept = () if spool is None else spool.records(lambda part: dataset in (None, part.dataset), skipped)
    waiting = {RunKey.of(each): each for each in early if dataset in (None, each.dataset)}
    waiting |= {RunKey.of(each): each for each in kept}
    listed = () if runs is None else runs.quick_listing(dataset) if quick else runs.listing(dataset)
    stored = {RunKey.of(each): each for each in listed}
    if runs is not None and limit is None:
        runs.forget_others(dataset, stored.values())
    newest = sorted((key for key in {*stored, *waiting} if key.run >= since), reverse=True)
    wanted = (stored[key] for key in newest if key in stored)
    # One more, as ids order the runs of one second at random.
    count = None if limit is None else limit + 1
    records = iter(() if runs is None else runs.read_all(wanted, skipped, count, whole=not quick))
    views = _in_turn(newest, waiting, records)
    for _, of_second in groupby(views, key=lambda view: view.record.run[:_SECOND]):
        yield from newest_first(of_second)


def _in_turn(
    keys: Iterable[RunKey], waiting: Mapping[RunKey, RunRecord], records: Iterator[RunRecord]
) -> Iterator[RunView]:
    """Yield the runs with these keys. records: those that are stored and can be read, in the order of the keys"""
    record = next(records, None)
    for key in keys:
        if record is not None and RunKey.of(record) == key:
            yield _view(record, waiting)
            record = next(records, None)
        elif key in waiting:
            yield RunView(waiting[key], sent=False)


def newest_first(views: Iterable[RunView]) -> list[RunView]:
    """Sort by the second in the id, then by the start, then by the id."""

    def order(view: RunView) -> tuple[str, int, RunKey]:
        record = view.record
        return record.run[:_SECOND], record.started_ms, RunKey.of(record)

    some = list(views)
    return sorted(some, key=order, reverse=True) if len(some) > 1 else some


def show_run(
    runs: RunStore | None,
    spool: Spool | None,
    text: str,
    datasets: Iterable[DatasetName],
    early: Iterable[RunRecord] = (),
    *,
    only: DatasetName | None = None,
) -> RunView:
    """Return the run that a text means: its id, a unique part of it as `is_part` takes, or its name.

    Ids take precedence. Raises `NotFound`, `UsageError` for an ambiguous or too short text, or the error of an
    unreadable unsent run if only its id matches.

    datasets: those to search in the store
    early: runs that may have no record yet
    only: the dataset of the run, if it is known
    """
    unread: list[DsvError] = []
    kept = () if spool is None else spool.records(lambda part: only in (None, part.dataset), unread.append)
    here = {RunKey.of(each): each for each in (*early, *kept) if only in (None, each.dataset)}
    places = tuple(datasets)
    for named in (False, True):
        meant = {
            key for key, each in here.items() if (each.name == text if named else is_part(text, key.run))
        }
        stored = {} if runs is None else _stored(runs, text, places, named=named)
        if meant or stored or not text:
            break
        for problem in unread:
            if is_part(text, Path(problem.subject or "").stem):
                raise problem
    key = only_one(text, meant | stored.keys())
    if runs is not None and key in stored:
        return _view(runs.read(stored[key]), here)
    return RunView(here[key], sent=False)


def _stored(
    runs: RunStore, text: str, datasets: Iterable[DatasetName], *, named: bool
) -> dict[RunKey, StoredRun]:
    """Return the stored runs with a matching id, or, if `named`, with this name, which only records have. A
    whole id, or its beginning, is found without listing all runs."""
    if not named and ID_PART.fullmatch(text) is None:
        return {}
    prefix = text if _DAY.match(text) and not named else ""
    by_key = {RunKey.of(stored): stored for dataset in datasets for stored in runs.listing(dataset, prefix)}
    if not named:
        return {key: stored for key, stored in by_key.items() if is_part(text, key.run)}
    records = runs.read_all(by_key.values(), lambda _: None)
    return {key: by_key[key] for record in records if record.name == text and (key := RunKey.of(record))}


def runs_known_here(state: Path) -> list[RunView]:
    """Return the runs known here without a store, newest first: those under way, and the unsent ones."""
    records = {RunKey.of(active.record): active.record for active in under_way(state)}
    for key, (record, _) in _kept_here(state).items():
        if record.state.is_terminal or key not in records:
            records[key] = record
    return newest_first(RunView(record, sent=False) for record in records.values())


def run_known_here(state: Path, text: str) -> RunView | None:
    """Return the run known here that a text means by id or name. Raises `UsageError` if it means several."""
    return _meant(text, [(view.record, view) for view in runs_known_here(state)])


def find_under_way(state: Path, text: str) -> UnderWay | None:
    """Return the run under way that a text means by id or name. Raises `UsageError` if it means several."""
    return _meant(text, [(each.record, each) for each in under_way(state)])


def _meant(text: str, pairs: Sequence[tuple[RunRecord, _T]]) -> _T | None:
    by_id = [pair for pair in pairs if is_part(text, pair[0].run)]
    meant = by_id or [pair for pair in pairs if text and pair[0].name == text]
    keys = {RunKey.of(record): value for record, value in meant}
    return keys[only_one(text, keys.keys())] if keys else None


def ended_here(state: Path, run: str, dataset: str | None = None) -> tuple[RunRecord, bytes | None] | None:
    """Return the record and the log of an ended run that waits here to be sent. No store is asked. Raises
    `UsageError` if several such runs have this id.

    run: a whole id, because any other text may mean runs that only a store knows
    """
    waiting = _kept_here(state, lambda part: part.run == run and dataset in (None, part.dataset))
    ended = {key: pair for key, pair in waiting.items() if pair[0].state.is_terminal}
    if not ended:
        return None
    record, spool = ended[only_one(run, ended.keys())]
    return record, spool.log(record.dataset, record.run)


def _kept_here(
    state: Path, wanted: Callable[[SpooledPart], bool] = lambda _: True
) -> dict[RunKey, tuple[RunRecord, Spool]]:
    """Return the runs that wait to be sent to any store."""
    folder, kept = state / SPOOLS, {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(UsageError):
            spool = Spool(state, StoreId.parse(entry.name))
            for record in spool.records(wanted, lambda _: None):
                kept[RunKey.of(record)] = record, spool
    return kept


def run_log(runs: RunStore, spool: Spool, record: RunRecord) -> bytes | None:
    """Read the log of a run, its head and its tail; None if it was not kept."""
    waiting = spool.log(record.dataset, record.run)
    if waiting is not None:
        return waiting
    for stored in runs.listing(record.dataset, record.run):
        return runs.log(stored)
    return None


def _view(record: RunRecord, waiting: Mapping[RunKey, RunRecord]) -> RunView:
    """Return the newer of the unsent and the stored record of a run."""
    here = waiting.get(RunKey.of(record))
    if here is not None and here.state.is_terminal and not record.state.is_terminal:
        return RunView(here, sent=False)
    return RunView(record, sent=True)


def only_one(text: str, keys: Collection[RunKey]) -> RunKey:
    """Return the only run that a text means. Raises `NotFound` and `UsageError`."""
    if not text:
        raise UsageError("no run was named", hint="dsv runs lists them")
    if not keys and len(text) < _SHORTEST:
        raise NotFound(
            f"{text} is too short for a run's id: give {_SHORTEST} characters or more",
            subject=text,
            hint="dsv runs lists them",
        )
    if not keys:
        raise NotFound(f"there is no run {text}", subject=text, hint="dsv runs lists them")
    if len(keys) > 1:
        several = sorted(keys, reverse=True)
        twice = len({key.run for key in several}) < len(several)
        more = ", …" if len(several) > _NAMED else ""
        some = ", ".join(f"{key.run} on {key.dataset}" for key in several[:_NAMED])
        raise UsageError(
            f"{text} means {len(several)} runs: {some}{more}",
            subject=text,
            hint=f"dsv runs {several[0].run} --dataset {several[0].dataset}"
            if twice
            else f"name one by its id, such as {several[0].run}",
        )
    return next(iter(keys))


Item = Mapping[str, Json]

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONTAINS: Final = "~"
_FILTER = re.compile(r"\s*([^<>=!~]+?)\s*(!=|<=|>=|==|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_FREE: Final = ("params", "metrics")
"""Members whose keys users choose."""
_HOW_TO_GET: Final[Mapping[str, str]] = {
    "params": "dsv run -p NAME=VALUE gives a run its parameters",
    "metrics": "a job leaves its metrics in $DSV_OUT/metrics.json",
}
_SMALL_IS_GOOD: Final = frozenset(
    (
        "loss", "error", "err", "mse", "rmse", "mae", "mape", "nll", "ppl", "perplexity", "wer", "cer", "fid", "ece",
        "time", "seconds", "latency", "duration", "bytes", "memory", "distance", "divergence", "cost", "regret", "fpr",
        "fnr", "eer", "bpb", "bpc", "hd", "hd95", "hausdorff", "brier"
    )
)  # fmt: skip
"""Words in the names of metrics that are better when smaller."""
_TIMES: Final = ("started", "ended")
_NAMED_KEYS: Final = 1_000
"""The newest runs whose keys a message about a key names."""
_NOT_COMPARED: Final = {*RunRecord.keys("not compared"), "sent"}


@dataclass(frozen=True, slots=True)
class Filter:
    """`KEY OP VALUE`."""

    key: str
    operator: str
    text: str
    """VALUE as it was typed."""
    value: Json
    """VALUE as JSON, if it is JSON."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a filter such as `params.lr<0.1`. Raises `UsageError` if it is invalid."""
        found = _FILTER.fullmatch(text)
        if found is None:
            raise UsageError(
                f"invalid filter: {text!r}",
                subject=text,
                hint="--filter 'params.lr<0.1', with = != < <= > >= or ~",
            )
        key, sign, text = found.groups()
        value = json_or_text(text)
        if key in _TIMES and sign != _CONTAINS and value is not None:
            parse_moment(text, now_ms())  # raises
        parse = {"seconds": parse_duration, "bytes": parse_size}.get(key.rpartition("_")[2])
        if parse is not None and isinstance(value, str) and "." not in key and sign != _CONTAINS:
            value = parse(text)
        return cls(key, "=" if sign == "==" else sign, text, value)

    def matches(self, item: Item) -> bool:
        """Check a run. A run without the key matches only `KEY=null`."""
        actual = look_up(item, self.key)
        if self.value is None and self.operator in ("=", "!="):
            return (actual is None) is (self.operator == "=")
        if actual is None:
            return False
        if self.operator == _CONTAINS:
            return self.text in as_text(actual)
        if self.key in _TIMES and isinstance(actual, str):
            return self._is_at(parse_moment(actual, 0))
        if isinstance(actual, str) and (self.operator in ("=", "!=") or isinstance(self.value, str)):
            wanted = self.value if isinstance(self.value, str) else self.text
            return OPERATORS[self.operator](actual, wanted)
        if self.operator in ("=", "!="):
            same = actual == self.value and isinstance(actual, bool) is isinstance(self.value, bool)
            return same is (self.operator == "=")
        return _is_number(actual) and _is_number(self.value) and OPERATORS[self.operator](actual, self.value)

    def _is_at(self, moment: float) -> bool:
        """Compare a moment with the day, minute or second that the text names."""
        first, last = (parse_moment(self.text, now_ms(), end=end) for end in (False, True))
        if self.operator in ("=", "!="):
            return (first <= moment <= last) is (self.operator == "=")
        return OPERATORS[self.operator](moment, last if self.operator in ("<=", ">") else first)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """The selection and the order of runs in a list."""

    filters: tuple[Filter, ...] = ()
    """All must match."""
    sort: str | None = None
    """A key. `-KEY` sorts the largest first, `+KEY` the smallest; without a sign, the smallest or a metric's
    best. Runs without the key are last. None keeps the order."""
    reverse: bool = False
    limit: int | None = None
    hits: bool = False
    """Also runs outside of a sweep for which nothing was run."""

    @property
    def needs_all(self) -> bool:
        """True if the newest runs alone may not be the wanted ones."""
        return bool(self.filters or self.sort or self.reverse)

    @property
    def keys(self) -> list[str]:
        return [each.key for each in self.filters] + ([] if self.sort is None else [sort_order(self.sort)[0]])

    def choose(self, views: Iterable[RunView]) -> list[RunView]:
        """Return the wanted runs; at most these are kept in memory. Raises `UsageError` for a key that no record has,
        and `NotFound` for a parameter or metric that no run here has."""
        views = (view for view in views if self.hits or not view.hit or view.record.sweep is not None)
        first: list[Item] = []
        unseen = set(self.keys)
        lacks: list[RunView] = []
        key, backwards = sort_order(self.sort or "")
        largest_first = backwards is not self.reverse

        def matching() -> Iterator[RunView]:
            for view in views:
                item = RunItem(view)
                if unseen and len(first) < _NAMED_KEYS:
                    first.append(item)
                unseen.difference_update([each for each in unseen if look_up(item, each) is not None])
                if all(each.matches(item) for each in self.filters):
                    yield view

        def ranked() -> Iterator[tuple[tuple[int, Json], RunView]]:
            for view in matching():
                value = look_up(RunItem(view), key)
                if value is not None:
                    yield _rank(value, largest_first), view
                elif self.limit is None or len(lacks) < self.limit:
                    lacks.append(view)

        if self.sort is not None:
            most, rank = self.limit, itemgetter(0)
            pairs = (
                sorted(ranked(), key=rank, reverse=largest_first)
                if most is None
                else (nlargest if largest_first else nsmallest)(most, ranked(), key=rank)
            )
            chosen = [view for _, view in pairs]
        else:
            found = matching()
            chosen = list(deque(found, self.limit))[::-1] if self.reverse else list(islice(found, self.limit))
            if unseen:  # perhaps a later run has the key
                deque(found, 0)
        for each in unseen:
            _check_key(each, first)
        return (chosen + lacks)[: self.limit]


def sort_order(text: str) -> tuple[str, bool]:
    """Return the key, and whether the largest value is first."""
    if text[:1] in ("+", "-"):
        return text[1:], text.startswith("-")
    head, _, name = text.partition(".")
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()))
    return text, head == "metrics" and not words & _SMALL_IS_GOOD


def look_up(value: Json, key: str) -> Json:
    """Return the value of a key in a document, or None. A name with a dot takes precedence over a path."""
    if not key:
        return value
    parts = key.split(".")
    for count in range(len(parts), 0, -1):
        inner = value.get(".".join(parts[:count])) if isinstance(value, Mapping) else None
        if inner is not None and (found := look_up(inner, ".".join(parts[count:]))) is not None:
            return found
    return None


def differences(views: Sequence[RunView]) -> tuple[list[tuple[str, list[Json]]], int]:
    """Return the keys in which these runs differ, with their values, and the number of other keys."""
    flat = [_compared(view) for view in views]
    keys = list(dict.fromkeys(key for item in flat for key in item))
    rows = [(key, [item.get(key) for item in flat]) for key in keys]
    differ = [(key, values) for key, values in rows if any(_differs(each, values[0]) for each in values)]
    order = {name: rank for rank, name in enumerate(("dataset", "commit", "data", "params", "metrics"), -5)}
    differ.sort(key=lambda row: order.get(row[0].partition(".")[0], 0))
    return differ, len(rows) - len(differ)


def free_values(view: RunView) -> dict[str, Json]:
    """Return parameters and metrics by their keys."""
    record = view.record
    return flattened(record.params, "params.") | flattened(record.metrics or {}, "metrics.")


def free_keys(values: Iterable[Mapping[str, Json]]) -> dict[str, str]:
    """Return all keys, parameters first, each with its title: without `params.` or `metrics.`, unless both have it."""
    keys = sorted(dict.fromkeys(key for of_run in values for key in of_run), key="params.".__gt__)
    free = {key: key.partition(".")[2] for key in keys if key.partition(".")[0] in _FREE}
    named = Counter(free.values())
    return {key: free[key] if key in free and named[free[key]] == 1 else key for key in keys}


def best_of(key: str, values: Iterable[Json]) -> Json:
    """Return the best value of a metric; None if its numbers are the same, and for what is no metric."""
    numbers = {value for value in values if isinstance(value, int | float) and not isinstance(value, bool)}
    if not key.startswith("metrics.") or len(numbers) < 2:
        return None
    return max(numbers) if sort_order(key)[1] else min(numbers)


def _compared(view: RunView) -> dict[str, Json]:
    item = {key: value for key, value in view.item().items() if key not in _NOT_COMPARED}
    for data in view.record.data[1:]:
        path = "" if data.path is None else f":{data.path}"
        item[f"data.{data.name}"] = f"{data.dataset}@{data.commit}{path}"
    if view.record.data and view.record.data[0].path is not None:
        item["data"] = view.record.data[0].path
    return {key: value for key, value in flattened(item).items() if value not in (None, [], ())}


def _differs(one: Json, other: Json) -> bool:
    return one != other or isinstance(one, bool) is not isinstance(other, bool)


def _check_key(key: str, items: Sequence[Item]) -> None:
    if not items:
        return
    head = key.partition(".")[0]
    known = list(dict.fromkeys(each for item in items for each in (*item, *flattened(item))))
    if head in _FREE and all(look_up(item, key) is None for item in items):
        there = [each for each in known if each.startswith(f"{head}.")]
        hint = f"these runs have {', '.join(there[:9])}" if there else _HOW_TO_GET[head]
        raise NotFound(f"no run has {key}", subject=key, hint=hint)
    if head not in _FREE and head not in items[0]:
        below = [f"{free}.{key}" for free in _FREE if f"{free}.{key}" in known]
        close = below or get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]}?" if close else "dsv runs --json shows the keys that there are"
        raise UsageError(f"runs have no key {key}", subject=key, hint=hint)


def _rank(value: Json, largest_first: bool) -> tuple[int, Json]:
    """Return a sort key: in both orders numbers are before strings (NaN is one), and strings before all else."""
    kind = 0 if _is_number(value) else 1 if isinstance(value, str) else 2
    return -kind if largest_first else kind, value if kind < 2 else as_text(value)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
