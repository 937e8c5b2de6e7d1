"""What is kept of a run whose dsv was killed, by whoever completes its record."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.run.active_runs import Marks, RunOwner
from dsv.run.completing import Completer
from dsv.run.engine_list import Engines
from dsv.run.record import LOG, RECORD, JobRef, LogInfo, RunId, RunRecord, RunState
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from tests.engines.fake_docker import FakeDocker
from tests.killing import run_killed
from tests.run.shop import SCANS, STORE, Shop

RUN = RunId.parse("20261120-132145-1f2e3d4c")


@pytest.fixture
def docker(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """Its container has ended with exit code 7, and nobody supervises it."""
    monkeypatch.setattr(RunOwner, "is_dead", True)
    fake = FakeDocker.make(shop.home / "docker")
    shop.environ |= fake.environ
    fake.set("over", 7)
    fake.set("log", "the token is hunter2hunter2\nlast\n")
    return fake


def marks(shop: Shop) -> Marks:
    return Marks(shop.place.state, STORE)


def left(shop: Shop, *, engine: str = "docker", live: str | None = None) -> RunRecord:
    """A run with metrics, as its dsv has left it. live: its log so far, if it was detached"""
    out = shop.home / "out"
    out.mkdir(exist_ok=True)
    (out / "metrics.json").write_text('{"acc": 0.5}')
    record = RunRecord(
        run=RUN, dataset=SCANS, commit=CommitId.hash(b"x"), target="team/scans", data=(), state=RunState.RUNNING,
        engine=engine, job=JobRef(engine, RUN, "", "deadbeefcafe"), params={}, out=str(out), host="gpu-7",
        user="ada", started_ms=1000, log=LogInfo(0, 0), env=("TOKEN",),
    )  # fmt: skip
    path = marks(shop).live_log(record)
    path.parent.mkdir(parents=True)
    if live is not None:
        path.write_text(live)
    marks(shop).set(record, None if live is None else path)
    return record


def complete(shop: Shop, **environ: str) -> list[RunRecord]:
    engines = Engines({**shop.environ, **environ})
    return Completer(engines, shop.runs, shop.spool, marks(shop)).complete_cut_off(print)


def log_of(shop: Shop) -> bytes | None:
    return shop.runs.log(shop.runs.listing(SCANS)[0])


def test_the_log_and_the_metrics_of_a_container_are_kept_and_then_it_is_removed(
    shop: Shop, docker: FakeDocker
) -> None:
    left(shop)
    (record,) = complete(shop, TOKEN="hunter2hunter2")
    assert (record.state, record.exit_code, record.metrics) == (RunState.CUT_OFF, 125, {"acc": 0.5})
    assert record.error is not None and record.error.endswith("the job's exit code was 7")
    assert log_of(shop) == b"the token is ***\nlast\n" and record.log == LogInfo(33, 22)
    assert shop.runs.newest(SCANS, RUN) == record and marks(shop).known() == []
    assert (docker.folder / "calls").read_text().splitlines()[-1].startswith("rm ")


def test_of_a_secret_that_is_unknown_here_only_what_dsv_has_masked_is_kept(
    shop: Shop, docker: FakeDocker
) -> None:
    shop.environ.pop("TOKEN", None)
    left(shop, live="the token is ***\n")
    complete(shop)
    assert log_of(shop) == b"the token is ***\n"


@pytest.mark.parametrize("engine", ["docker", "process"])
def test_without_a_job_the_log_so_far_and_the_metrics_are_kept(
    shop: Shop, docker: FakeDocker, engine: str
) -> None:
    """The reaper has ended it."""
    docker.set("gone")
    left(shop, engine=engine, live="up\n")
    (record,) = complete(shop)
    assert (record.state, record.metrics, record.log) == (RunState.CUT_OFF, {"acc": 0.5}, LogInfo(3, 3))
    assert (log_of(shop), record.ended_ms) == (b"up\n", None)  # nobody knows when it ended


def test_metrics_that_an_earlier_run_left_are_not_those_of_one_that_was_cut_off(
    shop: Shop, docker: FakeDocker
) -> None:
    record = left(shop)
    late = (Path(record.out) / "metrics.json").stat().st_mtime_ns // 10**6 + 1000
    marks(shop).set(replace(record, started_ms=late))
    assert complete(shop)[0].metrics is None


def test_a_completer_that_is_killed_at_any_step_loses_no_log(shop: Shop, docker: FakeDocker) -> None:
    """A container is removed only once its log is kept."""
    state, store, calls = shop.place.state, shop.home / "store", docker.folder / "calls"

    def begin() -> None:
        for folder in (state, store):
            shutil.rmtree(folder, ignore_errors=True)
        calls.unlink(missing_ok=True)
        shop.store = DirectoryStore(store, create=True)
        left(shop)

    def work() -> object:
        return complete(shop, TOKEN="hunter2hunter2")

    begin()
    steps = run_killed(work, None, inside=shop.home)
    assert steps > 5
    for step in range(1, steps + 1):
        begin()
        run_killed(work, step, inside=shop.home)
        if "rm " in calls.read_text():
            assert {each.part for each in shop.spool.waiting()} == {LOG, RECORD} or log_of(shop), step
        work()
        shop.spool.send(shop.runs)  # as the next run does
        assert log_of(shop) == b"the token is ***\nlast\n", step
        stored = shop.runs.newest(SCANS, RUN)
        assert stored is not None and stored.log == LogInfo(33, 22), step
        assert marks(shop).known() == [] and shop.spool.waiting() == [], step
        assert "rm " in calls.read_text(), step
