"""Runs that continue without the terminal that started them: followed, stopped and waited for by other commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsv.files.process import host_name, user_name
from dsv.run.engines.reaper import processes_of
from tests.cli.detached import await_file, await_log, detach, here, kill_with_reaper, mark, shown
from tests.inputs.small_disk import small_disk
from tests.kit.dsv import Dsv, assert_documented
from tests.waiting import PATIENCE, until

__all__ = ["here"]

TRAPPED = (
    'trap "echo saving; echo x >> times; exit 7" TERM; echo up; touch ready; while :; do sleep 0.05; done'
)


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
    assert "in use by run" in here("evict", "--all").err
    waited = here("wait", run, "--json")
    assert waited.code == 125
    assert_documented("wait", waited.json)
    assert "in use by run" not in here("evict", "--all").err, (
        "its hold ends with the completion of its record"
    )
    assert (waited.json["items"][0]["state"], processes_of(run)) == ("cut-off", [])
    assert here.ok("logs", run).out.startswith("up\n")
    stopped = here.ok("stop", run, "--json").json
    assert (stopped["stopped"], stopped["state"]) == (False, "cut-off")


def test_the_second_stop_of_a_run_reports_that_it_was_stopped_already(here: Dsv) -> None:
    wait = "touch saving; until [ -e go ]; do sleep 0.05; done"
    run = detach(
        here, f'trap "echo x >> times; {wait}; exit 7" TERM; touch ready; while :; do sleep 0.05; done'
    )
    await_file(here, "ready")
    first = here.start("stop", run, "--json")
    await_file(here, "saving")
    second = here.start("stop", run, "--json")
    assert second.stderr is not None
    assert b"is being stopped already" in second.stderr.readline()
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
    refused = here("release", "pets@v1")
    assert refused.code == 3 and "you have no hold of pets@v1" in refused.err
    assert f"; it is in use by run {run} of {user_name()} on {host_name()}\n" in refused.err
    assert list((Path(here.environ["DSV_CACHE"]) / "pets").glob("*"))
    here.ok("stop", run)
    assert "in use by run" not in here("evict", "--all").err
    assert not list((Path(here.environ["DSV_CACHE"]) / "pets").glob("*"))


def test_an_error_that_is_found_at_once_is_reported_and_starts_nothing(here: Dsv) -> None:
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
    here.ok("config", "pools.quiet.engine", "process")
    here.ok("config", "pools.quiet.log", "no")
    run = detach(here, "echo secret; touch ready; until [ -e go ]; do sleep 0.05; done", "--on", "quiet")
    await_file(here, "ready")
    live = here("logs", run)
    assert (live.code, live.out) == (3, "") and "keeps no log" in live.err
    (here.cwd / "go").touch()
    assert here("wait", run).code == 0
    assert here("logs", run).code == 3


@pytest.mark.parametrize("command", ["logs", "stop", "wait"])
def test_a_run_that_is_not_there_is_not_found(here: Dsv, command: str) -> None:
    assert here(command, "00000000").code == 3
    assert here(command, "xyz").code == 3


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
    assert live.code == 3 and "foreground, so its log can't be read until it ends" in live.err
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
    await_log(here, run, {"up"})
    kill_with_reaper(here, run)
    assert processes_of(run)
    shown_still = here.ok("logs", "-f", run)
    assert shown_still.out == "up\n" and "its job still runs; to end it: dsv stop" in shown_still.err
    stopped = here("stop", run)
    assert (stopped.code, processes_of(run)) == (0, [])
    assert shown(here, run)["state"] == "cut-off"


@pytest.mark.parametrize(
    ("host", "user", "said", "hint"),
    [
        ("gpu-9", "ada", "is under way on gpu-9, and {} only there", "ssh gpu-9 dsv {} "),
        (host_name(), "ada", "is ada's, and {} only by them", "sudo -iu ada dsv {} "),
        (host_name(), user_name(), "is known here, and {} only through that", "dsv runs "),
    ],
)
def test_whose_run_it_is_and_where_is_said(here: Dsv, host: str, user: str, said: str, hint: str) -> None:
    """Of a run that no dsv of this user supervises here."""
    assert here.process("run", "pets@v1", "--", "true").code == 0
    run = here.ok("runs", "--json").json["items"][0]["run"]
    (folder,) = (here.home / ".local/share/dsv/store/runs").glob(f"*/{run}")
    for part in ("log", "record"):
        (folder / part).unlink()
    start = json.loads((folder / "start").read_text())
    (folder / "start").write_text(json.dumps({**start, "host": host, "user": user}))
    for command, code, what in (("stop", 9, "it can be stopped"), ("logs", 3, "its log can be read")):
        refused = here(command, run)
        assert refused.code == code and f"hint: {hint.format(command)}{run}" in refused.err
        assert said.format(what if command == "stop" else f"until it has ended {what}") in refused.err


STAGES_FOR_EVER = """
import threading
from dsv.api.cache import Stager
from dsv.cli.detach import main
Stager.stage = lambda *_: threading.Event().wait()
main()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_can_be_stopped_or_killed_while_its_data_is_fetched(here: Dsv, killed: bool) -> None:
    reading, writing = os.pipe()
    supervisor = subprocess.Popen(
        [sys.executable, "-c", STAGES_FOR_EVER, str(writing)],
        cwd=here.cwd, env=dict(here.environ), stdin=subprocess.PIPE, pass_fds=(writing,), start_new_session=True,
    )  # fmt: skip
    os.close(writing)
    assert supervisor.stdin is not None
    supervisor.stdin.write(
        json.dumps({"arguments": ["run", "-d", "pets@v1", "--", "true"], "member": None}).encode()
    )
    supervisor.stdin.close()
    with os.fdopen(reading) as told:
        run = json.loads(told.readline())["run"]
    assert (shown(here, run)["state"], shown(here, run)["sent"]) == ("staging", False)
    assert run in here.ok("runs").out
    if killed:
        supervisor.kill()
        supervisor.wait(PATIENCE)
        assert here("wait", run).code == 125 and shown(here, run)["state"] == "cut-off"
    else:
        stopped = here.ok("stop", run, "--json").json
        assert (stopped["stopped"], stopped["state"], stopped["exit_code"]) == (True, "not-launched", 143)
        assert supervisor.wait(PATIENCE) == 143
        assert here("wait", run).code == 143
        assert shown(here, run)["cancelled_by"] == f"{user_name()}@{host_name()}"
    logs = here("logs", run)
    assert (logs.code, logs.out) == (3, "") and f"run {run} has no log: its command never began" in logs.err


def test_without_room_for_its_mark_no_run_is_promised(here: Dsv, tmp_path: Path) -> None:
    """Nobody could find, follow or stop it."""
    with small_disk(tmp_path / "state") as disk:
        full = here.at(here.cwd, XDG_STATE_HOME=str(disk.path))
        assert full.process("run", "pets@v1", "--", "true").code == 0
        disk.limit(free=0)
        done = full.process("run", "-d", "pets@v1", "--", "touch", "began")
        assert (done.code, done.out) == (125, "") and "No space left" in done.err, done
        disk.limit()
    assert not (here.cwd / "began").exists()


def test_a_full_state_disk_costs_no_record_and_no_answer(here: Dsv, tmp_path: Path) -> None:
    """Neither of a run that ends by itself, nor of one whose dsv is killed."""
    with small_disk(tmp_path / "state") as disk:
        full = here.at(here.cwd, XDG_STATE_HOME=str(disk.path))
        job = "echo up; touch ready-$DSV_RUN; until [ -e go ]; do sleep 0.05; done; exit 3"
        ends, killed = (detach(full, job) for _ in range(2))
        for run in (ends, killed):
            await_file(here, f"ready-{run}")
            await_log(full, run, {"up"})
        mark_of_killed = json.loads((disk.path / "dsv/running" / killed).read_text())
        disk.limit(free=0)
        os.kill(mark_of_killed["process"][1], signal.SIGKILL)
        until(lambda: processes_of(killed) == [], "the end of the job")
        (here.cwd / "go").touch()
        for run, code, state in ((ends, 3, "ended"), (killed, 125, "cut-off")):
            assert full("wait", run).code == code
            assert full.ok("logs", run).out == "up\n"
            (item,) = full.ok("runs", run, "--json").json["items"]
            assert (item["state"], item["exit_code"], item["sent"]) == (state, code, True)
        disk.limit()


def test_the_name_of_a_run_that_is_under_way_is_taken(here: Dsv) -> None:
    """Else `dsv stop NAME` would mean two runs. An ended run's name is free again."""
    job = "touch ready; until [ -e go ]; do sleep 0.05; done"
    run = detach(here, job, "--name", "same")
    await_file(here, "ready")
    for options in ((), ("--detach",)):
        refused = here.process("run", *options, "pets@v1", "--name", "same", "--", "touch", "ran")
        assert refused.code == 125 and f"the name same is in use by run {run}" in refused.err
        assert f"hint: choose another --name, or end that run: dsv stop {run}" in refused.err
    assert not (here.cwd / "ran").exists() and len(here.ok("runs", "--json").json["items"]) == 1
    assert here.process("run", "pets@v1", "--name", "other", "--", "true").code == 0
    (here.cwd / "go").touch()
    assert here("wait", "same").code == 0
    assert here.process("run", "pets@v1", "--name", "same", "--", "true").code == 0
