"""Records that this machine remembers: they equal the store's, whatever happened to the file, and go with deletions."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import NotFound, UsageError
from dsv.run import remembered
from dsv.run.listing import Filter, RunItem, RunQuery, RunView, each_run
from dsv.run.record import OnceKey, OutputFile, RunId, RunOutput, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.run.remembered import RememberedRuns
from dsv.stores.memory import MemoryStore
from dsv.values.ids import StoreId
from dsv.values.names import DatasetName
from dsv.values.units import format_time
from tests.run.test_record import RECORD

STORE = StoreId(b"s" * 16)
OTHER = DatasetName.parse("other")


def record(number: int, **changes: object) -> RunRecord:
    return replace(RECORD, run=RunId.parse(f"20261120-{number:06}-1f2e3d4c"), **changes)  # type: ignore[arg-type]


def known(state: Path, *records: RunRecord) -> list[RunRecord | None]:
    here = RememberedRuns(state, STORE)
    return [here.get(each.dataset, each.run) for each in records]


def test_a_remembered_record_equals_the_stored_one(tmp_path: Path) -> None:
    whole = replace(
        RECORD,
        params={"none": None, "deep": {"x": [1, None, True], "big": 2**62}, "text": "\udcff\n"},
        output=RunOutput("ee" * 32, 1, 2, root="aa" * 32, largest=(OutputFile("a", 1, "bb" * 32),)),
        error="line\nand line",
    )
    RememberedRuns(tmp_path, STORE).add([whole, replace(whole, run=RECORD.run, state=RunState.RUNNING)])
    assert known(tmp_path, whole) == [whole]
    assert known(tmp_path, replace(whole, dataset=OTHER)) == [None]
    assert RememberedRuns(tmp_path, StoreId(b"t" * 16)).get(whole.dataset, whole.run) is None


def test_only_the_first_listing_asks_the_store(tmp_path: Path) -> None:
    store = MemoryStore()
    for number in range(20):
        RunStore(store).add_end(record(number), None)
    reads: list[str] = []
    get = store.get

    def counted(key: str, limit: int = 0) -> bytes:
        reads.append(key)
        return get(key, limit)

    store.get = counted  # type: ignore[method-assign]
    for expected in (20, 0):
        reads.clear()
        runs = RunStore(store, remembered=RememberedRuns(tmp_path, STORE))
        views = list(each_run(runs, None, None))
        assert [view.record for view in views] == [record(number) for number in reversed(range(20))]
        assert len(reads) == expected


def test_a_damaged_file_costs_requests_and_nothing_else(tmp_path: Path) -> None:
    first, second, third = (record(number) for number in range(3))
    RememberedRuns(tmp_path, STORE).add([first, second])
    (path,) = (path for path in (tmp_path / "remembered-runs").iterdir() if path.suffix != ".lock")
    data = path.read_bytes()
    for at in range(0, len(data), 37):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert all(
            one in (None, whole)
            for one, whole in zip(known(tmp_path, first, second), (first, second), strict=True)
        )
    path.write_bytes(data[:-9])  # a writer was killed
    RememberedRuns(tmp_path, STORE).add([third])
    assert known(tmp_path, first) == [first]
    RememberedRuns(tmp_path, STORE).add([second])
    assert known(tmp_path, first, second)[1] == second
    path.unlink()
    path.mkdir()
    RememberedRuns(tmp_path, STORE).add([third])
    assert known(tmp_path, third) == [None]


def _add(state: Path, numbers: range) -> None:
    for number in numbers:
        RememberedRuns(state, STORE).add([record(number)])


def test_a_file_that_is_cut_while_it_is_read_costs_requests(tmp_path: Path) -> None:
    records = [record(number) for number in range(200)]
    RememberedRuns(tmp_path, STORE).add(records)
    here = RememberedRuns(tmp_path, STORE)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock")
    os.truncate(path, 100)
    assert here.get(records[-1].dataset, records[-1].run) is None


def test_who_does_not_get_the_lock_soon_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_LOCK_SECONDS", 0.0)
    RememberedRuns(tmp_path, STORE).add([record(1)])
    (lock,) = tmp_path.rglob("*.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        RememberedRuns(tmp_path, STORE).add([record(2)])
        RememberedRuns(tmp_path, STORE).forget([(RECORD.dataset, record(1).run)])
        assert known(tmp_path, record(1), record(2)) == [record(1), None]
    RememberedRuns(tmp_path, STORE).add([record(2)])
    assert known(tmp_path, record(2)) == [record(2)]


def test_several_processes_add_and_forget_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_LOCK_SECONDS", inf)
    gone = record(999)
    RememberedRuns(tmp_path, STORE).add([gone])
    forking = multiprocessing.get_context("fork")
    adding = [forking.Process(target=_add, args=(tmp_path, range(at, at + 20))) for at in (0, 20, 40)]
    for process in adding:
        process.start()
    RememberedRuns(tmp_path, STORE).forget([(gone.dataset, gone.run)])
    for process in adding:
        process.join()
    assert known(tmp_path, gone) == [None]
    assert known(tmp_path, *map(record, range(60))) == [record(number) for number in range(60)]


def test_what_the_store_does_not_have_any_more_is_forgotten(tmp_path: Path) -> None:
    kept, gone, other = record(1), record(2), record(3, dataset=OTHER, data=())
    RememberedRuns(tmp_path, STORE).add([kept, gone, other])
    RememberedRuns(tmp_path, STORE).forget_others(RECORD.dataset, [(kept.dataset, kept.run)])
    assert known(tmp_path, kept, gone, other) == [kept, None, other]
    RememberedRuns(tmp_path, STORE).forget_others(None, [(kept.dataset, kept.run)])
    assert known(tmp_path, kept, other) == [kept, None]


def view(number: int, metrics: dict[str, object] | None) -> RunView:
    return RunView(record(number, metrics=metrics), sent=True)


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=12),
    st.integers(0, 14) | st.none(),
    st.booleans(),
    st.sampled_from(["metrics.acc", "-metrics.acc", "+metrics.acc", "metrics.loss"]),
)
def test_a_bounded_choice_is_the_beginning_of_the_whole_order(
    values: list[int | None], limit: int | None, reverse: bool, sort: str
) -> None:
    name = sort.rpartition(".")[2]
    views = [view(number, None if value is None else {name: value}) for number, value in enumerate(values)]
    query = RunQuery(sort=sort, reverse=reverse)
    if views and all(value is None for value in values):
        with pytest.raises(NotFound):
            query.choose(iter(views))
        return
    whole = query.choose(iter(views))
    largest_first = (sort.startswith("-") or sort == "metrics.acc") is not reverse
    has = [each for each in views if each.record.metrics]
    wanted = sorted(has, key=lambda each: each.record.metrics[name], reverse=largest_first)  # type: ignore[index,return-value,arg-type]
    assert whole == wanted + [each for each in views if not each.record.metrics]
    assert replace(query, limit=limit).choose(iter(views)) == whole[:limit]
    newest = [each for each in views if each.record.metrics][: limit if limit is not None else None]
    assert RunQuery((Filter.parse(f"metrics.{name}>=0"),), limit=limit).choose(iter(views)) == newest


ACCURACIES = [0.9, "NaN", 0.5, "high", "-Infinity", 0.2, True]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("metrics.acc>0.5", [0.9]),
        ("metrics.acc<0.5", [0.2]),
        ("metrics.acc>=0", [0.9, 0.5, 0.2]),
        ("metrics.acc>a", ["high"]),
        ("metrics.acc=NaN", ["NaN"]),
        ("metrics.acc!=0.5", [0.9, "NaN", "high", "-Infinity", 0.2, True]),
        ("metrics.acc~i", ["high", "-Infinity"]),
    ],
)
def test_numbers_are_compared_with_numbers_and_texts_with_texts(text: str, wanted: list[object]) -> None:
    views = [view(number, {"acc": value}) for number, value in enumerate(ACCURACIES)]
    found = RunQuery((Filter.parse(text),)).choose(iter(views))
    assert [each.record.metrics["acc"] for each in found if each.record.metrics] == wanted


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize(
    ("sort", "first"), [("metrics.acc", [0.9, 0.5, 0.2]), ("+metrics.acc", [0.2, 0.5, 0.9])]
)
def test_a_diverged_training_is_never_the_best(sort: str, first: list[float], limit: int | None) -> None:
    views = [view(number, {"acc": value}) for number, value in enumerate(ACCURACIES)]
    for reverse in (False, True):
        chosen = RunQuery(sort=sort, reverse=reverse, limit=limit).choose(iter(views))
        values = [each.record.metrics["acc"] for each in chosen if each.record.metrics]
        assert values[:3] == (first[::-1] if reverse else first)


def test_times_durations_and_sizes_in_filters_are_read_as_they_are_printed() -> None:
    one = view(1, {})
    started = RunItem(one)["started"]
    assert isinstance(started, str) and started.endswith("Z")
    shown = format_time(one.record.started_ms)
    for text in (f"started={shown}", f"started>={shown}", f"started<={started}", f"started={started[:10]}"):
        assert Filter.parse(text).matches(RunItem(one)), text
    for text in (f"started<{shown}", f"started>{shown}", f"started!={shown}", "took_seconds>1d12h"):
        assert not Filter.parse(text).matches(RunItem(one)), text
    assert Filter.parse("memory_bytes>=1.50 kB").value == 1500
    assert Filter.parse("took_seconds<1d 12h").value == 129600
    for text in ("started>yesterday", "took_seconds>soon", "memory_bytes>much"):
        with pytest.raises(UsageError):
            Filter.parse(text)


def test_keys_that_no_run_has_are_refused_whatever_the_limit() -> None:
    views = [view(number, {"acc": number}) for number in range(5)]
    with pytest.raises(UsageError, match="runs have no key nonsense"):
        RunQuery((Filter.parse("nonsense=null"),), limit=1).choose(iter(views))
    with pytest.raises(NotFound, match=r"no run has metrics\.f1"):
        RunQuery((Filter.parse("metrics.f1=null"),), limit=1).choose(iter(views))
    last = [*views, view(9, {"f1": 1})]
    assert RunQuery((Filter.parse("metrics.f1=null"),), limit=1).choose(iter(last)) == views[:1]


def test_an_item_has_the_keys_of_the_document() -> None:
    item = RunItem(view(1, None))
    assert list(item) == [*RunRecord.keys(), "took_seconds", "sent"]
    assert item["started"] == "1970-01-01T00:00:00Z"
    with pytest.raises(KeyError):
        item["started_ms"]


@pytest.mark.parametrize("unknown", [0, 3, 70])
def test_a_quick_listing_has_the_runs_of_a_whole_one(tmp_path: Path, unknown: int) -> None:
    store = MemoryStore()
    for number in range(4 + unknown):
        RunStore(store).add_end(record(number, dataset=OTHER if number % 2 else RECORD.dataset), None)
    RunStore(store).write(OTHER, record(200).run, "start", b"{}")
    store.put_if_absent("runs/other/notes/start", b"of another program")
    runs = RunStore(store, remembered=RememberedRuns(tmp_path, STORE))
    list(runs.read_all(runs.listing()[:4], lambda _: None))
    runs = RunStore(store, remembered=RememberedRuns(tmp_path, STORE))
    for dataset in (None, OTHER, DatasetName.parse("none")):
        listed, quick = runs.listing(dataset), runs.quick_listing(dataset)
        assert sorted(map(str, quick)) == sorted(map(str, listed))


def test_records_without_a_key_are_not_decoded_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = record(2, once=OnceKey(key="ab" * 32, hit_of="pets/20261120-000001-1f2e3d4c"))
    RememberedRuns(tmp_path, STORE).add([record(1), keyed])
    here, decoded = RememberedRuns(tmp_path, STORE), list[str]()
    member = remembered._member
    monkeypatch.setattr(remembered, "_member", lambda name: decoded.append(name) or member(name))
    shown = [here.get(each.dataset, each.run, whole=False) for each in (record(1), keyed)]
    assert [each.once for each in shown if each is not None] == [None, keyed.once] and decoded == ["once"]
