"""Runs in real containers, detached or not, whose supervisor goes away."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from dsv.files.process import Watched
from dsv.run.active_runs import under_way
from dsv.run.engine_list import ENGINES
from dsv.run.engines.base import JobStatus
from dsv.run.record import RunState
from tests.cli.detached import await_log, here, kill_with_reaper, mark, reapers_of, shown
from tests.kit.dsv import Dsv
from tests.labs.docker_engine import ContainerEngine
from tests.waiting import PATIENCE, until

__all__ = ["here"]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.real) for name in ("docker", "podman")])
def lab(request: pytest.FixtureRequest) -> ContainerEngine:
    engine = request.getfixturevalue("docker_engine" if request.param == "docker" else "podman")
    assert isinstance(engine, ContainerEngine)
    return engine


def test_a_detached_container_is_stopped_and_one_without_a_supervisor_is_cut_off(
    here: Dsv, lab: ContainerEngine
) -> None:
    containers = here.at(here.cwd, **lab.env)
    engine = Path(lab.program).name
    job = 'trap "echo saving; exit 7" TERM; echo up; touch /out/ready; while :; do sleep 0.1; done'
    for end in ("stop", "kill"):
        started = containers.process(
            "run",
            "-d",
            "--json",
            "pets@v1",
            "--engine",
            engine,
            "--image",
            lab.busybox,
            "--",
            "sh",
            "-c",
            job,
        )
        assert started.code == 0, started
        run, out = (json.loads(started.out)[key] for key in ("run", "out"))
        until((Path(out) / "ready").exists, "the container's start")
        await_log(containers, run, {"up"})
        if end == "stop":
            assert containers("stop", run).code == 0
            assert containers("wait", run).code == 7
            assert containers.ok("logs", run).out == "up\nsaving\n"
        else:
            os.kill(mark(here, run)["process"][1], signal.SIGKILL)
            assert containers("wait", run).code == 125
        assert not ENGINES[engine](containers.environ).list(run)


def test_the_log_of_a_foreground_run_whose_supervisor_alone_is_killed_is_kept(
    here: Dsv, lab: ContainerEngine
) -> None:
    """The reaper ends the job, and the container goes once the record has its log; its name is free at once."""
    containers = here.at(here.cwd, **lab.env)
    engine = Path(lab.program).name
    job = 'trap "echo saving; exit 7" TERM; echo up; touch /out/ready; while :; do sleep 0.1; done'
    options = ["--engine", engine, "--image", lab.busybox, "--name", f"mine-{os.getpid()}"]
    running = containers.start("run", "pets@v1", *options, "--out", "there", "--", "sh", "-c", job)
    until((here.cwd / "there" / "ready").exists, "the container's start")
    (run,) = [one.run for one in under_way(here.home / ".local/state/dsv")]
    (ref,) = ENGINES[engine](containers.environ).list(run)
    reaper = Watched(*reapers_of(running.pid))
    running.kill()
    running.communicate(timeout=PATIENCE)
    until(reaper.has_ended, "the end of the reaper")
    reaper.close()
    assert ENGINES[engine](containers.environ).status(ref) == JobStatus(RunState.ENDED, 7)
    again = containers.process("run", "pets@v1", *options, "--", "echo", "again")
    assert (again.code, again.out) == (0, "again\n"), again
    item = shown(containers, run)
    assert (item["state"], item["exit_code"]) == ("cut-off", 125)
    assert item["error"].endswith("; the job's exit code was 7")
    assert containers.ok("logs", run).out == "up\nsaving\n"
    assert not ENGINES[engine](containers.environ).list(run)


def test_a_container_that_lost_its_supervisor_and_reaper_is_followed_and_stopped(
    here: Dsv, lab: ContainerEngine
) -> None:
    """By the reference in its record: `logs` and `stop` ask the engine."""
    containers = here.at(here.cwd, **lab.env)
    engine = Path(lab.program).name
    save = "echo saving; echo {} > /out/metrics.json; exit 7"
    job = f'trap "{save}" TERM; echo up; touch /out/ready; while :; do sleep 0.1; done'
    started = containers.process(
        "run", "-d", "--json", "pets@v1", "--engine", engine, "--image", lab.busybox, "--", "sh", "-c", job
    )  # fmt: skip
    assert started.code == 0, started
    run, out = (json.loads(started.out)[key] for key in ("run", "out"))
    until((Path(out) / "ready").exists, "the container's start")
    item = shown(containers, run)
    assert item["state"] == "running"
    assert (item["job"]["engine"], item["job"]["run"]) == (engine, run)
    kill_with_reaper(here, run)
    live = containers("logs", run)
    assert (live.code, live.out) == (0, "up\n") and f"this is {engine}'s own log" in live.err
    assert "its job still runs" in containers.ok("runs", run).err
    following = containers.start("logs", "-f", run)
    assert following.stdout is not None and following.stdout.readline() == b"up\n"
    stopped = containers("stop", run)
    assert (stopped.code, following.communicate(timeout=PATIENCE)[0]) == (0, b"saving\n")
    item = shown(containers, run)
    assert (item["state"], item["exit_code"]) == ("cut-off", 125)
    assert item["error"].endswith("; the job's exit code was 7")
    assert (item["metrics"], item["took_seconds"] > 0) == ({}, True)
    assert containers.ok("logs", run).out == "up\nsaving\n"
    assert not ENGINES[engine](containers.environ).list(run)


def test_an_engine_that_does_not_answer_ends_no_run(here: Dsv, docker_engine: ContainerEngine) -> None:
    """Nobody knows whether its job lives, so nothing is recorded."""
    containers = here.at(here.cwd, **docker_engine.env)
    job = "touch /out/ready; while :; do sleep 0.1; done"
    options = ["--engine", "docker", "--image", docker_engine.busybox]
    started = containers.process("run", "-d", "--json", "pets@v1", *options, "--", "sh", "-c", job)
    run, out = (json.loads(started.out)[key] for key in ("run", "out"))
    until((Path(out) / "ready").exists, "the container's start")
    kill_with_reaper(here, run)
    away = here.at(here.cwd, **{**docker_engine.env, "DOCKER_HOST": f"unix://{here.home}/none"})
    looked = away.ok("runs", run, "--json")
    assert looked.json["items"][0]["state"] == "running"
    assert "its supervisor died, and docker does not answer" in looked.err
    refused = away("stop", run, "--grace", "0")
    assert refused.code == 6 and "may still run" in refused.err
    assert containers("stop", run, "--grace", "0").code == 0
    assert shown(containers, run)["state"] == "cut-off"
