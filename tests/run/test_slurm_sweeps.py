"""Sweeps on a real Slurm: a job for each run, seen and ended from a machine that did not start them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.run.slurm_site import Site
from tests.waiting import PATIENCE, until

WAITS = 'touch "$DSV_OUT/ready"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done'


def runs(site: Site, **where: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(site.dsv("runs", "grid", "--json", **where))["items"]
    return found


def start(site: Site, script: str, *options: str) -> Any:
    words = ("run", "digits", "--on", "a", "-p", "n=1,2,3", "--sweep", "--name", "grid", *options)
    return site.start(*words, "--", "sh", "-c", script)


def take_all(site: Site) -> str:
    """Another job, which takes all nodes as soon as no other runs."""
    words = ("--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 3600")
    return site.slurm.call("sbatch", "--parsable", *words).strip()


def test_each_run_of_a_sweep_is_a_job_of_its_own(site: Site) -> None:
    terminal = start(site, 'echo "{\\"acc\\": 0.$DSV_ATTEMPT}" > "$DSV_OUT/metrics.json"', "--parallel", "2")
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    items = runs(site)
    assert [(item["params"]["n"], item["exit_code"], item["metrics"]) for item in items] == [
        (number, 0, {"acc": 0.1}) for number in (1, 2, 3)
    ]
    assert len({item["job"]["id"] for item in items}) == 3


def test_a_sweep_is_seen_and_ended_from_another_machine(site: Site) -> None:
    terminal = start(site, WAITS, "--parallel", "2")
    until(lambda: len(list((site.folder / "out").glob("digits/*/ready"))) == 2, "two runs at once")
    assert [item["state"] for item in runs(site, node="n3")] == ["running", "running"]
    until(lambda: "has not ended" not in site.dsv("stop", "grid", node="n3", code=None), "both ends")
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 143 and "is being stopped" in err, out + err
    ended = runs(site)
    assert [(item["state"], item["end"]) for item in ended] == [("ended", "cancelled")] * 2
    assert site.slurm.call("squeue", "--noheader") == ""


def test_a_sweep_whose_terminal_is_killed_is_continued(site: Site) -> None:
    """One of its runs fails, and the best is shown first."""
    script = f'{WAITS}; n=$(tr -dc 123 < "$DSV_OUT/params.json"); [ $n != 2 ] || exit 3; '
    script += 'echo "{\\"acc\\": 0.$n}" > "$DSV_OUT/metrics.json"'
    out = site.folder / "out"
    terminal = start(site, script, "--parallel", "2")
    until(lambda: len(list(out.glob("digits/*/ready"))) == 2, "two runs at once")
    terminal.send_signal(signal.SIGKILL)
    terminal.communicate()
    assert len(site.queued()) == 2 and len(runs(site)) == 2
    again = site.start("run", "--again", runs(site)[0]["sweep"]["id"], "--on", "a", "--parallel", "2")
    go = {path.parent for path in out.glob("digits/*/ready")}
    for each in go:
        (each / "go").touch()
    until(lambda: len(list(out.glob("digits/*/ready"))) == 3, "the third run")
    for path in out.glob("digits/*/ready"):
        (path.parent / "go").touch()
    _, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 3, err
    items = json.loads(site.dsv("runs", "grid", "--sort", "metrics.acc", "--json"))["items"]
    assert [(each["params"]["n"], each["exit_code"]) for each in items] == [(3, 0), (1, 0), (2, 3)]


def test_ctrl_c_ends_the_jobs_of_a_sweep(site: Site) -> None:
    terminal = start(site, WAITS, "--parallel", "2")
    until(lambda: len(list((site.folder / "out").glob("digits/*/ready"))) == 2, "two runs at once")
    terminal.send_signal(signal.SIGINT)
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 143 and site.slurm.call("squeue", "--noheader") == "", err
    assert [each["end"] for each in runs(site)] == ["cancelled"] * 2


def test_the_runs_of_a_sweep_move_to_the_pool_that_has_room(site: Site) -> None:
    """Nothing that can't be scheduled is begun, and says why."""
    both = ("-p", "n=1,2", "--sweep")
    refused = site.dsv("run", "digits", "--on", "a", *both, "--gpus", "99", "--", "true", code=125)
    assert "a: " in refused and json.loads(site.dsv("runs", "--json"))["items"] == []
    for key, value in (
        ("engine", "slurm"),
        ("out", str(site.folder / "out")),
        ("slurm.constraint", "nothing"),
    ):
        site.dsv("config", f"pools.b.{key}", value)
    site.dsv("config", "pools.b.wait", "1s")
    site.dsv("config", "prefer", "order")
    words = ("run", "digits", "--on", "b,a", "-p", "n=1,2", "--sweep")
    site.dsv(*words, "--parallel", "2", "--name", "grid", "--", "true")
    assert [(each["pool"], each["passed_over"][0]["pool"]) for each in runs(site)] == [("a", "b")] * 2


def test_a_queued_run_leaves_no_process_here(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one alone nor those of a sweep: the cluster has them, and their nodes complete the records."""
    monkeypatch.setenv("KEY", "hunter2hunter2")
    taken = take_all(site)
    until(lambda: site.state(taken) == "RUNNING", "a cluster that is busy")
    alone = site.dsv(
        "run", "--detach", "digits", "--on", "a", "--name", "alone", "--", "echo", "hello"
    ).strip()
    site.dsv("run", "--detach", "digits", "--on", "a", "-p", "n=1,2,3", "--sweep", "--name", "grid",
             "--parallel", "3", "-e", "KEY", "--", "sh", "-c", f"echo $KEY; {WAITS}")  # fmt: skip
    until(lambda: len(site.queued()) == 4, "the jobs")
    running = Path(os.environ["HOME"]) / ".local/state/dsv/running"
    until(lambda: not list(running.glob("2*")), "the end of the processes that have submitted them")
    items = json.loads(site.dsv("runs", "--json"))["items"]
    assert [item["state"] for item in items] == ["queued"] * 4
    site.slurm.call("scancel", taken)
    assert site.dsv("wait", alone).split() == [alone, "0"]
    outs = site.folder / "out" / "digits"
    until(lambda: len(list(outs.glob("*/ready"))) == 3, "the runs of the sweep")
    assert site.dsv("logs", runs(site)[0]["run"]) == "***\n"
    for path in outs.glob("*/ready"):
        (path.parent / "go").touch()
    site.dsv("wait", "grid")
    assert site.dsv("runs", alone, "--log") == "hello\n"
    for item in runs(site):
        assert site.dsv("runs", item["run"], "--log") == "***\n"
        assert not site.folder_of(item["run"]).exists()


def test_a_run_that_ends_in_the_queue_is_completed_by_the_next_command(site: Site) -> None:
    """No process is there that could see its end: by scancel, or by dsv stop."""
    taken = take_all(site)
    until(lambda: site.state(taken) == "RUNNING", "a cluster that is busy")
    running = Path(os.environ["HOME"]) / ".local/state/dsv/running"
    ends = []
    for stop in (lambda run: site.slurm.call("scancel", *site.queued()), lambda run: site.dsv("stop", run)):
        run = site.dsv("run", "--detach", "digits", "--on", "a", "--", "true").strip()
        until(lambda: not list(running.glob("2*")), "the end of the process that has submitted it")
        stop(run)
        assert site.dsv("wait", run, code=125).split() == [run, "125"]
        ends.append(site.last())
    assert [(each["state"], each["end"], each["sent"]) for each in ends] == [
        ("not-launched", "cancelled", True)
    ] * 2
    me = f"{ends[1]['user']}@{ends[1]['host']}"
    assert [each["cancelled_by"] for each in ends] == [None, me]


def test_a_sweep_holds_its_data_while_its_next_run_waits(site: Site) -> None:
    """No job runs, and the data is there until the sweep has ended."""
    site.dsv("cache", "digits")
    terminal = start(site, WAITS, "--parallel", "1")
    out = site.folder / "out"
    until(lambda: len(list(out.glob("digits/*/ready"))) == 1, "the first run")
    take_all(site)
    (first,) = out.glob("digits/*/ready")
    (first.parent / "go").touch()
    until(lambda: [site.state(job) for job in site.queued()] == ["PENDING"], "the second run, which waits")
    assert site.held()
    terminal.send_signal(signal.SIGINT)
    terminal.communicate(timeout=PATIENCE)
    until(lambda: not site.held(), "the end of the sweep's hold")
