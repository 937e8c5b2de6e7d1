"""Runs that go on without the terminal that started them: followed, stopped and waited for by other commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv.engines.guardian import processes_of
from dsv.engines.registry import ENGINES
from dsv.runs.control import ask_to_stop, is_here, wait_for_end
from dsv.runs.marks import under_way
from tests.cli.runner import Dsv, assert_documented
from tests.labs.docker_engine import ContainerEngine
from tests.waiting import PATIENCE, until

TRAPPED = (
    'trap "echo saving; echo x >> times; exit 7" TERM; echo up; touch ready; while :; do sleep 0.05; done'
)


@pytest.fixture
def here(pets: Dsv) -> Iterator[Dsv]:
    """Outside of the workspace, so that a job may write to its working directory. A test that fails leaves no run."""
    folder = pets.home / "elsewhere"
    folder.mkdir()
    yield pets.at(folder)
    for one in under_way(pets.home / ".local/state/dsv"):
        if is_here(one) and not one.mark.is_dead():
            ask_to_stop(one, 0)
            wait_for_end(one)


def detach(dsv: Dsv, script: str, *options: str) -> str:
    started = dsv.process("run", "--detach", "pets@v1", *options, "--", "sh", "-c", script)
    assert started.code == 0, started
    return started.out.strip()


def await_file(dsv: Dsv, name: str) -> None:
    until((dsv.cwd / name).exists, f"the file {name} of the job")


def await_log(dsv: Dsv, run: str, lines: set[str]) -> None:
    """Until a job's output has come to the file that is read here."""
    until(lambda: set(dsv.ok("logs", run).lines) == lines, "the job's output")


def mark(dsv: Dsv, run: str) -> Any:
    return json.loads((dsv.home / ".local/state/dsv/running" / run).read_text())


def shown(dsv: Dsv, run: str) -> Any:
    (item,) = dsv.ok("runs", run, "--json").json["items"]
    return item


def test_a_detached_run_is_followed_and_waited_for(here: Dsv) -> None:
    job = "echo out; echo err >&2; touch ready; until [ -e go ]; do sleep 0.05; done; echo last; exit 3"
    run = detach(here, job, "-p", "lr=0.1", "--name", "baseline")
    await_file(here, "ready")
    assert shown(here, run)["state"] == "running"
    await_log(here, "baseline", {"out", "err"})
    following = here.start("logs", "-f", run[-8:])
    assert following.stdout is not None
    assert sorted(following.stdout.readline() for _ in range(2)) == [b"err\n", b"out\n"]
    (here.cwd / "go").touch()
    assert following.communicate(timeout=PATIENCE)[0] == b"last\n"
    assert following.returncode == 0
    waited = here("wait", run)
    assert (waited.code, waited.out) == (3, f"{run} 3\n")
    item = shown(here, run)
    assert (item["state"], item["exit_code"], item["params"], item["sent"]) == ("ended", 3, {"lr": 0.1}, True)
    assert not (here.home / ".local/state/dsv/running" / run).exists()


def test_the_log_of_a_detached_run_is_that_of_a_foreground_run(here: Dsv) -> None:
    job = ["-e", "TOKEN=swordfish-and-more", "--", "sh", "-c", "seq 3000; echo $TOKEN; printf end"]
    assert here.process("run", "pets@v1", *job).code == 0
    foreground = here.ok("runs", "--json").json["items"][0]["run"]
    detached = here.process("run", "-d", "pets@v1", *job).out.strip()
    assert here("wait", detached).code == 0
    assert here.ok("logs", detached).out == here.ok("logs", foreground).out
    assert here.ok("logs", detached).out.endswith("3000\n***\nend")


def test_the_supervisor_shows_no_values_in_its_arguments(here: Dsv) -> None:
    run = detach(here, "touch ready; until [ -e go ]; do sleep 0.05; done", "-e", "TOKEN=swordfish-and-more")
    await_file(here, "ready")
    arguments = Path(f"/proc/{mark(here, run)['process'][1]}/cmdline").read_bytes()
    assert b"dsv" in arguments and b"swordfish" not in arguments
    (here.cwd / "go").touch()
    assert here("wait", run).code == 0


def test_a_run_outlives_the_session_that_started_it(here: Dsv) -> None:
    run = detach(here, TRAPPED)
    await_file(here, "ready")
    pid = mark(here, run)["process"][1]
    assert os.getsid(pid) == pid and os.getppid() != pid
    for descriptor in (0, 1, 2):
        assert not os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(("/dev/pts", "pipe:"))
    assert here("stop", run).code == 0


def test_a_supervisor_that_is_killed_leaves_a_run_that_was_cut_off(here: Dsv) -> None:
    run = detach(here, TRAPPED)
    await_log(here, run, {"up"})
    os.kill(mark(here, run)["process"][1], signal.SIGKILL)
    waited = here("wait", run, "--json")
    assert waited.code == 125
    assert_documented("wait", waited.json)
    assert (waited.json["items"][0]["state"], processes_of(run)) == ("cut-off", [])
    assert here.ok("logs", run).out.startswith("up\n")
    stopped = here.ok("stop", run, "--json").json
    assert (stopped["stopped"], stopped["state"]) == (False, "cut-off")


def test_of_two_who_stop_a_run_one_is_told_that_it_was_stopped_already(here: Dsv) -> None:
    wait = "touch saving; until [ -e go ]; do sleep 0.05; done"
    run = detach(
        here, f'trap "echo x >> times; {wait}; exit 7" TERM; touch ready; while :; do sleep 0.05; done'
    )
    await_file(here, "ready")
    first = here.start("stop", run, "--json")
    await_file(here, "saving")
    second = here.start("stop", run, "--json")
    assert second.stderr is not None
    assert b"was asked to stop already" in second.stderr.readline()
    (here.cwd / "go").touch()
    said = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in (first, second)]
    for each in said:
        assert_documented("stop", each)
    assert [each["stopped"] for each in said] == [True, False]
    assert [each["exit_code"] for each in said] == [7, 7]
    assert (here.cwd / "times").read_text() == "x\n"
    assert shown(here, run)["signal"] == "SIGTERM"
    assert "had ended already, with exit code 7" in here.ok("stop", run).err


def test_the_grace_is_that_of_whoever_stops_the_run(here: Dsv) -> None:
    deaf = "trap '' TERM; touch ready; while :; do sleep 0.05; done"
    run = detach(here, deaf)
    await_file(here, "ready")
    patient = here.start("stop", run, "--grace", "10h")
    until((here.home / ".local/state/dsv/running" / f"{run}.stop").exists, "the first stop")
    messages = here.home / ".local/state/dsv/runs/pets" / run / "dsv.log"
    until(lambda: "SIGTERM" in messages.read_text(), "the signal")
    assert "it has 36000 s" in messages.read_text()
    assert here("stop", run, "--grace", "0").code == 0
    assert patient.wait(PATIENCE) == 0
    assert here("wait", run).code == 128 + signal.SIGKILL


def test_the_data_of_a_detached_run_is_not_evicted(here: Dsv) -> None:
    run = detach(here, TRAPPED)
    await_file(here, "ready")
    assert "in use by run" in here("evict", "--all").err
    assert list((Path(here.environ["DSV_CACHE"]) / "pets").glob("*"))
    here.ok("stop", run)
    assert "in use by run" not in here("evict", "--all").err
    assert not list((Path(here.environ["DSV_CACHE"]) / "pets").glob("*"))


def test_what_is_found_wrong_at_once_is_told_and_starts_nothing(here: Dsv) -> None:
    wrong = here.process("run", "-d", "pets@nope", "--", "true")
    assert (wrong.code, wrong.out) == (125, "") and "nope" in wrong.err
    assert here.ok("runs", "--json").json["items"] == []
    for options in (["--dry-run"], ["--json-file", "x"]):
        assert here("run", "-d", "pets@v1", *options, "--", "true").code == 2


def test_relative_folders_are_those_of_the_caller(here: Dsv) -> None:
    started = here.at(here.cwd.parent).process(
        "-C", "elsewhere", "run", "-d", "--json", "pets@v1", "--out", "out", "--", "sh", "-c", "pwd"
    )
    document = json.loads(started.out)
    assert document["out"] == str(here.cwd / "out")
    assert here("wait", document["run"]).code == 0
    assert here.ok("logs", document["run"]).out.strip() == str(here.cwd)


def test_a_run_without_a_log_has_none(here: Dsv) -> None:
    run = detach(here, "echo secret; touch ready; until [ -e go ]; do sleep 0.05; done", "--no-log")
    await_file(here, "ready")
    live = here("logs", run)
    assert (live.code, live.out) == (3, "")
    (here.cwd / "go").touch()
    assert here("wait", run).code == 0
    assert here("logs", run).code == 3


@pytest.mark.parametrize("command", ["logs", "stop", "wait"])
def test_a_run_that_is_not_there_is_not_found(here: Dsv, command: str) -> None:
    assert here(command, "00000000").code == 3
    assert here(command, "xyz").code == 2


def test_the_exit_code_of_several_is_that_of_the_first_that_failed(here: Dsv) -> None:
    runs = [detach(here, f"exit {code}") for code in (0, 5, 4)]
    waited = here("wait", *runs)
    assert (waited.code, waited.lines) == (
        5,
        [f"{run} {code}" for run, code in zip(runs, (0, 5, 4), strict=True)],
    )


def test_no_store_is_needed_for_a_run_whose_record_waits_here(here: Dsv) -> None:
    here.ok("cache", "pets@v1")
    run = detach(here, TRAPPED, "--offline")
    await_log(here, run, {"up"})
    store = here.home / ".local/share/dsv/store"
    store.rename(store.with_name("away"))
    assert here.ok("logs", run).out == "up\n"
    stopped = here.ok("stop", run, "--json").json
    assert (stopped["stopped"], stopped["exit_code"]) == (True, 7)
    assert here("wait", run).code == 7
    assert "saving" in here.ok("logs", run).out


def test_a_foreground_run_is_stopped_from_elsewhere(here: Dsv) -> None:
    process = here.start("run", "pets@v1", "--name", "front", "--", "sh", "-c", TRAPPED)
    await_file(here, "ready")
    live = here("logs", "front")
    assert live.code == 3 and "before it has ended" in live.err
    assert here.ok("stop", "front", "--json").json["exit_code"] == 7
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, b"saving" in out) == (7, True)
    assert "saving" in here.ok("logs", "front").out


def test_a_run_of_another_machine_is_left_to_it(here: Dsv) -> None:
    run = detach(here, TRAPPED)
    await_file(here, "ready")
    path = here.home / ".local/state/dsv/running" / run
    document = json.loads(path.read_text())
    other = {**document, "process": ["another-kernel:1", *document["process"][1:]], "host": "gpu-9/0123"}
    path.write_text(json.dumps(other))
    refused = here("stop", run)
    assert refused.code == 9 and "gpu-9" in refused.err
    assert here("logs", run).code == 3
    path.write_text(json.dumps(document))
    assert here("stop", run).code == 0


def test_what_its_killed_supervisor_could_not_end_is_ended_by_stop(here: Dsv) -> None:
    run = detach(here, TRAPPED)
    await_file(here, "ready")
    pid = mark(here, run)["process"][1]
    for child in children(pid):
        if b"guardian" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    assert processes_of(run)
    stopped = here("stop", run)
    assert (stopped.code, processes_of(run)) == (0, [])
    assert shown(here, run)["state"] == "cut-off"


STAGES_FOR_EVER = """
import threading
from dsv.api.cache_stage import Stager
from dsv.cli.detach import main
Stager.stage = lambda *_: threading.Event().wait()
main()
"""


def test_a_run_can_be_stopped_while_its_data_is_fetched(here: Dsv) -> None:
    reading, writing = os.pipe()
    supervisor = subprocess.Popen(
        [sys.executable, "-c", STAGES_FOR_EVER, str(writing)],
        cwd=here.cwd, env=dict(here.environ), stdin=subprocess.PIPE, pass_fds=(writing,), start_new_session=True,
    )  # fmt: skip
    os.close(writing)
    assert supervisor.stdin is not None
    supervisor.stdin.write(json.dumps(["run", "-d", "pets@v1", "--", "true"]).encode())
    supervisor.stdin.close()
    with os.fdopen(reading) as told:
        run = json.loads(told.readline())["run"]
    assert (shown(here, run)["state"], shown(here, run)["sent"]) == ("staging", False)
    assert run in here.ok("runs").out
    stopped = here.ok("stop", run, "--json").json
    assert (stopped["stopped"], stopped["state"], stopped["exit_code"]) == (True, "not-launched", 143)
    assert supervisor.wait(PATIENCE) == 143
    assert here("wait", run).code == 143


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
        assert not ENGINES[engine](containers.environ).still_runs(run)


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(folder.name))
    return found
