"""Runs that wait in the queues of a real Slurm, and move from one pool to the next."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from tests.run.slurm_site import Site
from tests.waiting import PATIENCE, until


def fill(site: Site) -> str:
    """Every GPU and every CPU is another job's."""
    wanted = ("--partition=urgent", "--nodes=3", "--gpus-per-node=2", "--exclusive")
    job = site.slurm.call(
        "sbatch", "--parsable", *wanted, "--output=/dev/null", "--wrap=sleep infinity"
    ).strip()
    until(lambda: site.state(job) == "RUNNING", "the job that takes all GPUs")
    return job


def two_queues(site: Site) -> None:
    for key, value in (("engine", "slurm"), ("out", str(site.folder / "out")), ("slurm.partition", "urgent")):
        site.dsv("config", f"pools.c.{key}", value)
    site.dsv("config", "pools.a.wait", "1s")


def test_a_run_moves_to_the_next_pool_if_it_does_not_begin(site: Site) -> None:
    """It waits in the queue of one pool, then of the other, which has the data, and its record says so."""
    two_queues(site)
    site.dsv("cache", "digits")
    blocker = fill(site)
    words = (
        "run",
        "digits",
        "--on",
        "a,c",
        "--gpus",
        "1",
        "--",
        "sh",
        "-c",
        'echo > "$DSV_OUT/x"',
    )
    terminal = site.start(*words)
    until(lambda: site.last().get("pool") == "c" and site.last()["state"] == "queued", "the second queue")
    run = site.last()["run"]
    shown = site.dsv("runs", run)
    assert "pool=a " in shown and "0 of 6 GPUs are free, for 1.0 s" in shown
    assert len(site.queued()) == 1, "the first job is gone"
    site.slurm.call("scancel", blocker)
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, err
    record = site.last()
    assert (record["state"], record["pool"], record["exit_code"]) == ("ended", "c", 0)
    assert [each["pool"] for each in record["passed_over"]] == ["a"]
    assert [part["cache_hit"] for part in record["parts"]] == [True]
    assert len(json.loads(site.dsv("runs", "--json"))["items"]) == 1, "it is one run"


def test_a_run_moves_to_this_machine_if_a_queue_is_longer_than_it_seemed(site: Site) -> None:
    fill(site)
    site.dsv("config", "pools.a.wait", "1s")
    site.dsv("run", "digits", "--on", "a,here", "--", "true")
    record = site.last()
    assert (record["pool"], record["engine"], record["exit_code"]) == ("here", "process", 0)
    assert [each["pool"] for each in record["passed_over"]] == ["a"] and site.queued() == []


@pytest.mark.parametrize(
    ("program", "word", "count"),
    [("scontrol", "hold", 1), ("scancel", "", 1), ("sbatch", "--hold", 2), ("scontrol", "release", 2)],
)
def test_a_run_killed_on_its_way_to_the_next_pool(site: Site, program: str, word: str, count: int) -> None:
    """Whatever was done last, the next dsv finds what is left: no job of the run stays, and the record ends."""
    two_queues(site)
    fill(site)
    shims = site.folder / "shims"
    shims.mkdir()
    real = shutil.which(program)
    (shims / program).write_text(
        f"""#!/bin/sh
{real} "$@"; code=$?
case "$*" in
  *{word}*) echo >>{shims}/calls; [ $(wc -l <{shims}/calls) -lt {count} ] || kill -9 $PPID ;;
esac
exit $code
"""
    )
    (shims / program).chmod(0o755)
    words = (
        "run",
        "digits",
        "--on",
        "a,c",
        "--gpus",
        "1",
        "--",
        "touch",
        str(site.folder / "began"),
    )
    killed = site.start(*words, path=f"{shims}:{os.environ['PATH']}")
    assert killed.wait(PATIENCE) == -signal.SIGKILL
    killed.communicate()
    run = site.last()["run"]
    site.dsv("stop", run)
    record = site.last()
    assert record["state"] in ("not-launched", "cut-off") and record["exit_code"], record
    assert site.queued() == [] and not (site.folder / "began").exists()


def test_a_run_that_is_taken_back_while_it_begins_runs_once(site: Site) -> None:
    """At the one pool or at the other, and its record says at which."""
    two_queues(site)
    site.dsv("cache", "digits")
    shims, real = site.folder / "shims", shutil.which("scontrol")
    shims.mkdir()
    # What keeps the job from beginning goes just before dsv has the job held.
    hold = f'scancel "$(cat {shims}/blocker)"; sleep "$(cat {shims}/pause)"'
    (shims / "scontrol").write_text(f'#!/bin/sh\n[ "$1" != hold ] || {{ {hold}; }}\nexec {real} "$@"\n')
    (shims / "scontrol").chmod(0o755)
    for number, pause in enumerate(("0", "0.2", "1.5")):
        (shims / "blocker").write_text(fill(site))
        (shims / "pause").write_text(pause)
        began = site.folder / f"began.{number}"
        script = f'echo "$SLURM_JOB_PARTITION" >>{began}'
        words = ("run", "digits", "--on", "a,c", "--gpus", "1", "--", "sh", "-c", script)
        terminal = site.start(*words, path=f"{shims}:{os.environ['PATH']}")
        _, err = terminal.communicate(timeout=PATIENCE)
        assert terminal.returncode == 0, err
        record = site.last()
        assert (record["state"], record["exit_code"], len(record["parts"])) == ("ended", 0, 1), record
        assert began.read_text() == {"a": "debug\n", "c": "urgent\n"}[record["pool"]]
        assert [each["pool"] for each in record["passed_over"]] == ["a"] * (record["pool"] == "c")
        until(lambda: site.queued() == [], "the end of all jobs of the run")


def test_data_without_room_in_the_pools_cache_ends_the_run(site: Site) -> None:
    """The cache became too small while the job waited: its node says so, and the command never begins."""
    blocker = fill(site)
    began = site.folder / "began"
    terminal = site.start("run", "digits", "--on", "a", "--gpus", "1", "--", "touch", str(began))
    until(lambda: site.last().get("state") == "queued", "the place in the queue")
    (site.folder / "cache").mkdir(exist_ok=True)
    (site.folder / "cache" / "dsv-cache.toml").write_text('protocol = 1\nmax_size = "1K"\n')
    site.slurm.call("scancel", blocker)
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 125 and "room" in err, err
    record = site.last()
    assert (record["state"], record["end"]) == ("not-launched", "not-started") and "room" in record["error"]
    assert not began.exists() and not list((site.folder / "cache").glob("digits/*/part0.npy"))
