"""How a run ends where its engine, its readers or what its job left behind make trouble."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv.periodic import now_ms
from dsv.run.engines.attach import supervise
from dsv.run.engines.base import Ended
from dsv.run.engines.containers import container as container_run
from dsv.run.engines.machine import Machine
from dsv.run.engines.output import LogKeeper
from dsv.run.listing import run_log
from dsv.run.part import EndCause, RunPart
from dsv.run.record import RECORD, RunState
from dsv.run.resources import ALL_GPUS
from dsv.values.secrets import Masker
from tests.engines.fake_docker import FakeDocker
from tests.run.shop import SCANS, Shop
from tests.waiting import until


def test_a_container_that_nobody_can_see_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemon went away for good: nobody knows whether the job still runs, and that is said."""
    monkeypatch.setattr(container_run, "SILENCE", 0.5)
    docker = FakeDocker.make(tmp_path / "docker")
    shop = Shop(tmp_path, docker.environ)

    def go_away() -> None:
        docker.await_up()
        docker.set("down")
        docker.set("left", 125)

    threading.Thread(target=go_away).start()
    result = shop.run("train", image="busybox", engine="docker")
    record = shop.runs.read(shop.runs.listing(SCANS)[0])
    assert (result.exit_code, record.exit_code, record.state) == (125, 125, RunState.CUT_OFF)
    assert "did not answer" in (record.error or "")
    assert result.error is not None and "could not determine whether" in result.error.message
    assert record.run in (result.error.hint or "") and "docker ps" in (result.error.hint or "")


def test_a_job_whose_end_another_dsv_recorded_ends_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_run, "SILENCE", 0.5)
    docker = FakeDocker.make(tmp_path / "docker")
    shop = Shop(tmp_path, docker.environ)

    def go_away() -> None:
        docker.await_up()
        until(lambda: shop.runs.listing(SCANS), "the start of the run")
        (stored,) = shop.runs.listing(SCANS)
        whole = replace(shop.runs.read(stored), state=RunState.ENDED, exit_code=5, ended_ms=now_ms())
        shop.runs.write(SCANS, stored.run, RECORD, whole.encode())
        docker.set("down")
        docker.set("left", 125)

    threading.Thread(target=go_away).start()
    result = shop.run("train", image="busybox", engine="docker")
    assert (result.exit_code, result.record.state, result.error) == (5, RunState.ENDED, None)


@pytest.mark.parametrize(
    ("refused", "command"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "install the NVIDIA"),
        ("the store's folder /lake is not there", "dsv runs "),
        (
            'Conflict. The container name "/grid-1" is already in use by container "5c3".',
            "choose another --name",
        ),
    ],
)
def test_the_gpus_are_pointed_to_only_if_they_are_why_a_job_did_not_start(
    tmp_path: Path, refused: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = replace(Machine.read({}), gpus=1)
    monkeypatch.setattr(Machine, "read", classmethod(lambda cls, environ: machine))
    docker = FakeDocker.make(tmp_path / "docker")
    docker.set("refused", refused)
    result = Shop(tmp_path, docker.environ).run("train", image="busybox", engine="docker", gpus=ALL_GPUS)
    assert result.error is not None and refused in result.error.message
    assert (result.error.hint or "").startswith(command)


@pytest.mark.parametrize(
    ("refused", "command"),
    [
        ('Error: short-name "team/resnet" did not resolve to an alias', "--image REGISTRY/team/resnet, such as "),
        ("manifest unknown", "see why this fails: docker pull team/resnet"),
    ],
)  # fmt: skip
def test_an_image_that_can_not_be_fetched_says_what_helps(tmp_path: Path, refused: str, command: str) -> None:
    docker = FakeDocker.make(tmp_path / "docker")
    docker.set("refused", refused)
    docker.set("no-image")
    result = Shop(tmp_path, docker.environ).run("train", image="team/resnet", engine="docker")
    assert result.record.end is EndCause.IMAGE_NOT_PULLED
    assert result.error is not None and (result.error.hint or "").startswith(command)


def test_a_run_ends_with_its_job_and_not_with_its_readers(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered: list[int] = []

    def deliver_late(*given: Any, **more: Any) -> Ended:
        outcome = supervise(*given, **more)
        delivered.append(now_ms())
        time.sleep(0.05)
        return outcome

    monkeypatch.setattr("dsv.run.supervisor.supervise", deliver_late)
    ended = shop.run("true").record.ended_ms
    assert ended is not None and ended <= delivered[0]


@pytest.mark.parametrize("ahead_ms", [20 * 60_000, -20 * 60_000, 0])
def test_a_run_ends_when_its_job_did_whatever_the_clock_of_its_node(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    """The end is seen late, as after an outage of the cluster."""

    def seen_late(*given: Any, over: Any, **more: Any) -> Ended:
        ended = supervise(*given, over=lambda: None, **more)
        began = now_ms() + ahead_ms
        part = RunPart(host="n1", started_ms=began, ended_ms=began + 4000, exit_code=0, end=EndCause.EXITED)
        with monkeypatch.context() as later:
            later.setattr("dsv.run.supervisor.now_ms", lambda: began - ahead_ms + 71_000)
            over()
        return replace(ended, parts=(part,))

    monkeypatch.setattr("dsv.run.supervisor.supervise", seen_late)
    before = now_ms()
    record = shop.run("true").record
    assert record.ended_ms is not None and record.ended_ms - record.started_ms == 4000
    assert before - 2000 <= record.started_ms <= now_ms() + 71_000
    assert [(each.started_ms, each.ended_ms) for each in record.parts] == [
        (record.started_ms, record.ended_ms)
    ]


def test_what_cannot_be_made_of_a_jobs_leavings_costs_that_part_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> object:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(Masker, "value", lambda masker, value: value if value == {} else fail())
    monkeypatch.setattr(LogKeeper, "kept", fail)
    result = shop.run("sh", "-c", "echo '{\"a\": 1}' > $DSV_OUT/metrics.json; echo out; exit 3")
    record = shop.runs.read(shop.runs.listing(SCANS)[0])
    assert (result.exit_code, record.exit_code, record.state) == (3, 3, RunState.ENDED)
    assert record.metrics is None and "unexpected RuntimeError" in (record.metrics_error or "")
    assert b"unexpected RuntimeError" in (run_log(shop.runs, shop.spool, record) or b"")
    assert b"hunter2" not in shop.everything()
