"""Parts of run records that wait for a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dsv.errors import DsvError, IntegrityError, NoRoom, NotFound, Unreachable
from dsv.files.small_files import replace_file
from dsv.run.active_runs import Marks
from dsv.run.completing import Completer
from dsv.run.engine_list import Engines
from dsv.run.listing import each_run, show_run
from dsv.run.record import LOG, RECORD, START, RunId, RunState
from dsv.run.record_store import Spool
from dsv.stores.base import PutResult
from dsv.values.ids import StoreId
from dsv.values.names import DatasetName
from tests.run.shop import SCANS, Shop
from tests.run.shop import STORE as STORE_OF_SHOP

STORE = StoreId(b"s" * 16)
DATASET = DatasetName.parse("team/scans")
RUN = RunId.parse("20261120-132145-1f2e3d4c")


def test_what_is_kept_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before it gets its name, its folder after, and the parent of every folder that was made."""
    events: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append("the file" if path.is_file() else str(path.relative_to(tmp_path)))
        real_sync(descriptor)

    def rename(*names: str, **more: object) -> None:
        events.append("its name")
        real_rename(*names, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    spool = Spool(tmp_path / "state/dsv", STORE)
    place = f"state/dsv/unsent-runs/{STORE}"
    for folders in (["state/dsv", "state", "."], []):
        events.clear()
        path = spool.keep(DATASET, RUN, START if folders else LOG, b"data")
        assert path.read_bytes() == b"data"
        names = [f"{place}/{DATASET.component}", place, "state/dsv/unsent-runs", *folders]
        assert events == ["the file", "its name", *names]


def _spoil(shop: Shop, run: RunId, part: str) -> Path:
    """No user can read it any more: not even root, who runs the tests in places."""
    path = next(each.path for each in shop.spool.waiting() if (each.run, each.part) == (run, part))
    path.unlink()
    path.mkdir()
    return path


def test_a_part_that_cannot_be_read_keeps_no_other_back(shop: Shop) -> None:
    first, second = (shop.run("true", offline=True).record for _ in range(2))
    spoiled = _spoil(shop, first.run, RECORD)
    later = shop.run("sh", "-c", "exit 4")
    assert (later.exit_code, later.error) == (4, None)
    assert isinstance(later.problem, Unreachable) and later.problem.subject == str(spoiled)
    assert [part.path for part in shop.spool.waiting()] == [spoiled]

    said: list[DsvError] = []
    views = list(each_run(shop.runs, shop.spool, None, skipped=said.append))
    assert {view.record.run: view.record.state for view in views} == {
        first.run: RunState.RUNNING, second.run: RunState.ENDED, later.record.run: RunState.ENDED,
    }  # fmt: skip
    assert [error.subject for error in said] == [str(spoiled)]
    for run in (first.run, second.run):
        assert show_run(shop.runs, shop.spool, run, [SCANS]).record.run == run


@pytest.mark.parametrize("part", [LOG, RECORD])
def test_a_part_that_is_too_large_is_not_read_whole(shop: Shop, part: str) -> None:
    """It took the memory of whatever lay there, 64 GiB here."""
    first, second = (shop.run("true", offline=True).record for _ in range(2))
    path = shop.spool.keep(first.dataset, first.run, part, b"")
    with path.open("r+b") as file:
        file.truncate(64 << 30)  # a hole, which takes no room
    with pytest.raises(IntegrityError, match="has more than the 33554432 bytes") as caught:
        shop.spool.send(shop.runs)
    assert caught.value.subject == str(path) and f"rm {path}" in str(caught.value.hint)
    assert [each.path for each in shop.spool.waiting()] == [path]
    said: list[DsvError] = []
    found = [view.record.run for view in each_run(shop.runs, shop.spool, None, skipped=said.append)]
    assert sorted(found) == sorted((first.run, second.run))
    assert shop.spool.log(first.dataset, first.run) is None


def test_a_start_that_cannot_be_read_is_no_reason_to_stop(shop: Shop) -> None:
    """The thread that sends it has no caller that would get the error."""
    run = shop.run("true", offline=True).record.run
    for part in (START, RECORD):
        _spoil(shop, run, part)
    assert shop.run("true").exit_code == 0
    with pytest.raises(Unreachable, match=run):  # it is not said that there is no such run
        show_run(None, shop.spool, run, [])
    with pytest.raises(NotFound):
        show_run(shop.runs, shop.spool, "20010101-000000-00000000", [SCANS])


def test_a_folder_that_cannot_be_read_keeps_no_other_back(shop: Shop) -> None:
    first = shop.run("true", offline=True).record
    folder = shop.spool.waiting()[0].path.parent.parent / "other"
    folder.symlink_to(folder)
    later = shop.run("true")
    assert later.exit_code == 0
    assert later.problem is not None and later.problem.subject == str(folder)
    assert shop.spool.waiting() == []
    said: list[DsvError] = []
    views = list(each_run(shop.runs, shop.spool, None, skipped=said.append))
    assert {view.record.run for view in views} == {first.run, later.record.run}
    assert [error.subject for error in said] == [str(folder)]


class Order:
    """Takes so many parts of runs, and then none; remembers the order."""

    def __init__(self, shop: Shop, takes: int = 9) -> None:
        self.inner, self.takes = shop.store, takes
        self.put: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if len(self.put) == self.takes:
            raise Unreachable("the store is away")
        self.put.append(key.rpartition("/")[2])
        return self.inner.put_if_absent(key, data)


def _no_room_for(monkeypatch: pytest.MonkeyPatch, *parts: str) -> None:
    def full(path: Path, data: bytes, **more: Any) -> None:
        if path.name.endswith(parts):
            raise OSError(28, "No space left on device", str(path))
        replace_file(path, data, **more)

    monkeypatch.setattr("dsv.run.record_store.replace_file", full)


@pytest.mark.parametrize("parts", [(".log", ".record"), (".record",)])
def test_an_end_without_room_here_goes_to_the_store(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...]
) -> None:
    shop.store = store = Order(shop)  # type: ignore[assignment]
    _no_room_for(monkeypatch, *parts)
    view = shop.run(
        "sh", "-c", "echo 1 > $DSV_OUT/x; echo '{\"acc\": 1}' > $DSV_OUT/metrics.json; echo hi; exit 3"
    )
    assert (view.exit_code, view.problem, view.sent, view.kept) == (3, None, True, True)
    stored = shop.runs.newest(SCANS, view.record.run)
    assert stored == view.record and stored.metrics == {"acc": 1}
    assert list(dict.fromkeys(store.put)) == [START, LOG, RECORD]
    assert shop.runs.log(shop.runs.listing(SCANS)[0]) == b"hi\n"
    assert (shop.spool.waiting(), Marks(shop.place.state, STORE_OF_SHOP).known()) == ([], [])


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_an_end_that_neither_takes_is_said_to_be_lost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    """The store never has a record without its log, and the next dsv completes the run as cut off."""
    shop.store = store = Order(shop, takes)  # type: ignore[assignment]
    _no_room_for(monkeypatch, ".log", ".record")
    view = shop.run("sh", "-c", "echo hi; exit 3")
    assert (view.exit_code, view.sent, view.kept) == (3, False, False)
    assert isinstance(view.problem, NoRoom) and "nor in the store: the store is away" in view.problem.message
    assert store.put == [START, LOG, RECORD][:takes]
    marks = Marks(shop.place.state, STORE_OF_SHOP)
    assert [record.run for record in marks.known()] == [view.record.run]
    monkeypatch.setattr(Marks, "orphaned", Marks.known)
    said: list[str] = []
    completer = Completer(Engines(shop.environ), shop.runs, shop.spool, marks)
    assert completer.complete_cut_off(said.append) == []
    assert len(said) == 1 and said[0].startswith(f"the record of run {view.record.run} can't be kept")
    assert marks.known() != []
    store.takes = 9
    (record,) = completer.complete_cut_off(said.append)
    assert (record.state, marks.known()) == (RunState.CUT_OFF, [])
    assert shop.runs.newest(SCANS, record.run) == record
