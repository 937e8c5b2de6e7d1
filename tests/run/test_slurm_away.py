"""Runs on a real Slurm whose terminal, whose dsv or whose controller goes away."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess

import pytest

from dsv.files.process import host_name, user_name
from tests.kit.clusters import WAIT
from tests.labs.machine import environment
from tests.run.slurm_site import Site, run_of
from tests.waiting import PATIENCE, until


def test_a_terminal_that_is_gone_ends_nothing(site: Site) -> None:
    """The run is seen and stopped from another machine, by two at once, and its record has the end."""
    terminal = site.start(*run_of(script="trap 'exit 9' TERM; " + WAIT))
    site.ready()
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    assert site.held()
    run = site.last()["run"]
    assert "its job still runs" in site.dsv("runs", code=None) or site.last()["state"] == "running"
    both = [site.start("stop", "--grace", "10m", run, node=node) for node in ("n2", "n3")]
    assert [each.wait(PATIENCE) for each in both] == [0, 0]
    until(lambda: site.last()["state"] == "ended", "the record, which the node completes")
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "cancelled", 9)
    by = f"{user_name(os.geteuid())}@n"
    assert all(each["cancelled_by"].startswith(by) for each in (record, *record["parts"]))
    until(lambda: not site.held(), "the end of the lease")


def test_a_run_outlives_its_terminal(site: Site) -> None:
    """The terminal is closed: dsv keeps running without it, and the record is as ever."""
    mine, its = pty.openpty()
    dsv = subprocess.Popen(
        ["setsid", "--ctty", *site.argv(run_of(script=f"echo first; {WAIT}; echo last; exit 3"))],
        env={**environment(site.slurm.env), "PATH": os.environ["PATH"]},
        cwd=site.folder,
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    site.ready()
    os.close(mine)
    folder = site.folder_of(site.last()["run"])
    messages = folder / "dsv.log"
    until(
        lambda: messages.exists() and "the run continues" in messages.read_text(),
        "the word of the terminal's end",
    )
    site.go()
    assert dsv.wait(PATIENCE) == 3
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 3)
    assert site.dsv("logs", record["run"]) == "first\nlast\n"
    assert not folder.exists(), "the record has it"


def test_a_job_that_slurm_takes_after_its_dsv_was_killed_is_ended(site: Site) -> None:
    late = site.folder / "bin" / "sbatch"
    late.parent.mkdir()
    wait = f"kill -9 $PPID; until [ -e {site.folder}/late ]; do sleep 0.1; done"
    late.write_text(f'#!/bin/sh\ncase "$*" in *--hold*) {wait} ;; esac\nexec {shutil.which("sbatch")} "$@"\n')
    late.chmod(0o755)
    site.start(*run_of(), path=f"{late.parent}:{os.environ['PATH']}").communicate(timeout=PATIENCE)
    assert "is still handing the job of run" in site.dsv("runs", code=None)
    assert site.last()["state"] == "submitted" and not site.queued()
    (site.folder / "late").touch()
    until(site.queued, "the job")
    until(lambda: site.last()["state"] == "not-launched", "its end")
    assert not site.queued()


def test_a_run_whose_submitter_is_gone_is_completed_by_any_dsv(site: Site) -> None:
    """On other machines, several at once: with the log and the metrics, and once."""
    script = f"""echo first; {WAIT}; echo last; echo '{{"acc": 0.9}}' >"$DSV_OUT/metrics.json"; exit 4"""
    terminal = site.start(*run_of(script=script))
    site.ready()
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    run = site.last()["run"]
    logs = site.start("logs", "-f", run, node="n2")
    waiting = [site.start("wait", run, node=node) for node in ("n2", "n3")]
    assert logs.stdout is not None and logs.stdout.readline() == "first\n"
    site.go()
    assert logs.communicate(timeout=PATIENCE)[0] == "last\n"
    assert [each.wait(PATIENCE) for each in waiting] == [4, 4]
    record = json.loads(site.dsv("runs", run, "--json", node="n1"))["items"][0]
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 4)
    assert record["sent"] and record["metrics"] == {"acc": 0.9} and len(record["parts"]) == 1
    assert site.dsv("runs", run, "--log", node="n1") == "first\nlast\n"
    assert not list(site.folder.glob("out/digits/*.job"))
    assert record.pop("series") == {}
    assert site.last() == record, "what this machine still had of it changes nothing"


def is_away(said: str) -> bool:
    """Slurm says so, unless the machine is too slow for Slurm to give up before dsv does."""
    return "Unable to contact slurm controller" in said or "no answer in" in said


def test_a_controller_that_is_away_costs_nothing(site: Site) -> None:
    """A run continues without it, and commands that need it say so in Slurm's words."""
    terminal = site.start(*run_of(script=f"{WAIT}; exit 5"))
    site.ready()
    run = site.last()["run"]
    waiting = site.start("wait", run)
    site.slurm.stop_controller()
    assert waiting.stderr is not None
    told = waiting.stderr.readline()
    assert "running is the last known state, of " in told or "queued is the last known state, of " in told, (
        told
    )
    assert "Slurm does not answer" in told
    assert site.held()
    said = site.dsv(*run_of(), code=125)
    assert is_away(said)
    assert is_away(site.dsv("stop", run, node="n3", code=6))
    site.go()
    site.slurm.start_controller()
    assert terminal.wait(PATIENCE) == waiting.wait(PATIENCE) == 5


def test_a_list_marks_states_that_are_the_last_known(site: Site) -> None:
    """It is printed whole, with the exit code of a cluster that is away; a state never goes backwards."""
    terminal = site.start(*run_of())
    site.ready()
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    until(lambda: site.last()["state"] == "running", "the state")
    site.slurm.stop_controller()
    said = site.dsv("runs", code=6)
    assert "running (last known)" in said and "is shown: Slurm does not answer" in said
    shown, _ = json.JSONDecoder().raw_decode(site.dsv("runs", "--json", code=6))
    assert [item["state"] for item in shown["items"]] == ["running"]
    site.go()
    folder = site.folder / "out" / "digits"
    until(lambda: list(folder.glob("*.job/end")) or not list(folder.glob("*.job")), "the end of the job")
    site.slurm.start_controller()
    until(lambda: site.last()["state"] == "ended", "the end of the run")
    assert site.last()["exit_code"] == 0


def test_a_run_that_nobody_looks_at_completes_its_own_record(site: Site) -> None:
    """dsv was killed: the node that the job ran on sends log, metrics and output, without the secret of the job."""
    script = f"""{WAIT}; echo "by $KEY"; echo '{{"acc": 0.9}}' >"$DSV_OUT/metrics.json"; exit 4"""
    terminal = site.start(*run_of("--keep-output", "-e", "KEY=hunter2hunter2", script=script))
    site.ready()
    (run,) = [path.name for path in (site.folder / "out" / "digits").iterdir() if path.suffix != ".job"]
    begun = site.folder / "store" / "runs" / "digits" / run / "start"
    until(begun.exists, "the start of the record")
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    site.go()
    until(begun.with_name("record").exists, "the record")
    record = json.loads(begun.with_name("record").read_text())
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 4)
    assert record["metrics"] == {"acc": 0.9} and len(record["parts"]) == 1
    assert begun.with_name("log").read_bytes() == b"by ***\n"
    assert record["output"]["files"] == 4 and record["output"]["error"] is None
    tree = f"digits@{record['output']['tree']}"
    assert json.loads(site.dsv("cat", f"{tree}:metrics.json")) == {"acc": 0.9}
    assert site.last()["output"] == record["output"], "what this machine still had of it changes nothing"


@pytest.mark.parametrize("program", ["dsv.cache.hold exec", "srun --ntasks", "slurm_script"])
def test_a_job_whose_own_programs_are_killed_was_lost_sight_of(site: Site, program: str) -> None:
    """It says so, with a reason, and the times of the command."""
    terminal = site.start(*run_of())
    site.ready()
    site.slurm.kill_program(program)
    terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 125
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("cut-off", "lost-sight", 125)
    assert "killed" in record["error"] and record["parts"][0]["host"].startswith("n")
    part = record["parts"][0]
    assert (record["started"], record["ended"]) == (part["started"], part["ended"])


def test_a_pending_job_that_somebody_cancels_says_so(site: Site) -> None:
    taken = site.slurm.call("sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    terminal = site.start(*run_of())
    until(lambda: site.queued() and site.state(site.queued()[0]) == "PENDING", "the job")
    until(lambda: "Resources" in site.slurm.call("squeue", "--noheader", "--format=%r"), "why it waits")
    said = site.dsv("runs", (run := site.last()["run"]))
    assert "it waits: Resources" in said and "started" not in said, said
    site.slurm.call("scancel", site.queued()[0])
    terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 125, run
    record = site.last()
    assert (record["end"], record["error"]) == ("cancelled", "it was cancelled before it began"), taken


@pytest.mark.parametrize("lives", [True, False])
def test_a_stopped_job_that_waited_never_began(site: Site, lives: bool) -> None:
    """lives: the dsv that submitted it does"""
    site.slurm.call("sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    terminal = site.start(*run_of())
    until(lambda: site.queued() and site.state(site.queued()[0]) == "PENDING", "the job")
    until(lambda: "Resources" in site.slurm.call("squeue", "--noheader", "--format=%r"), "why it waits")
    if not lives:
        os.killpg(terminal.pid, signal.SIGKILL)
    site.dsv("stop", site.last()["run"])
    terminal.communicate(timeout=PATIENCE)
    record = site.last()
    assert (record["state"], record["end"]) == ("not-launched", "cancelled")
    assert record["cancelled_by"] == f"{user_name(os.geteuid())}@{host_name()}"
    assert record["exit_code"] == (143 if lives else 125)


def test_an_end_while_the_controller_is_away_is_reported_by_the_node(site: Site) -> None:
    terminal = site.start(*run_of())
    site.ready()
    site.slurm.stop_controller()
    site.go()
    assert terminal.wait(PATIENCE) == 0
    (part,) = (record := site.last())["parts"]
    assert part["host"].startswith("n") and part["cache_hit"] is record["cache_hit"] is False
    assert (record["started"], record["ended"]) == (part["started"], part["ended"])
