"""Runs on a real Slurm whose node loses power while they are launched, at moments that are seen and not timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run.slurm_site import Site, run_of
from tests.waiting import PATIENCE, until

FIRST_WAITS = 'echo begun; [ "$DSV_ATTEMPT" != 1 ] || sleep 3600'


def job(site: Site, name: str) -> Path:
    """A file in the folder of the job."""
    folders = list((site.folder / "out" / "digits").glob("*.job"))
    return (folders or [Path("/none")])[0] / name


def has(name: str) -> Callable[[Site], bool]:
    return lambda site: job(site, name).exists()


def first_step(site: Site) -> bool:
    return ".0 " in site.slurm.call("squeue", "--steps", "--noheader", "--format=%i ")


MOMENTS: dict[str, Callable[[Site], bool]] = {
    "has nodes": lambda site: (
        "n2" in site.slurm.call("scontrol", "show", "hostnames", site.nodes() or "none")
    ),
    "script began": has("slurm.log"),
    "hosts known": has("hosts.1"),
    "step created": first_step,
    "prolog": lambda site: site.slurm.is_in_prolog("n2"),
    "task began": has("err.1"),
    "data held": has("stage.1.1"),
    "command began": has("node.1.1"),
    "first line": lambda site: job(site, "out.1").read_text() == "begun\n",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_whose_node_is_lost_in_its_launch_is_finished_by_its_retry(site: Site, moment: str) -> None:
    if moment == "prolog":
        site.slurm.hold_prolog("n2")
    terminal = site.start(*run_of("--nodes", "2", "--retries", "1", script=FIRST_WAITS))
    until(lambda: MOMENTS[moment](site), moment)
    site.slurm.power_off("n2")
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 0)
    parts = [(part["attempt"], part["host"], part["end"]) for part in record["parts"]]
    assert (1, "n2", "node-lost") in parts
    assert parts[-2:] == [(2, "n1", "exited"), (2, "n3", "exited")]


def test_a_node_that_is_lost_while_the_job_waits_costs_nothing(site: Site) -> None:
    taken = site.slurm.call("sbatch", "--parsable", "--nodes=3", "--exclusive", "--wrap=sleep 600").strip()
    terminal = site.start(*run_of("--nodes", "2", script="true"))
    until(lambda: "Resources" in site.slurm.call("squeue", "--noheader", "--format=%r"), "why it waits")
    site.slurm.power_off("n2")
    site.slurm.call("scancel", taken)
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    assert [(part["attempt"], part["host"]) for part in site.last()["parts"]] == [(1, "n1"), (1, "n3")]


@pytest.mark.parametrize("seen", ["err.1", "node.1.1"])
def test_one_of_three_nodes_that_is_lost_has_a_part(site: Site, seen: str) -> None:
    terminal = site.start(*run_of("--nodes", "3", script=FIRST_WAITS))
    until(lambda: job(site, seen).exists(), seen)
    site.slurm.power_off("n2")
    _, err = terminal.communicate(timeout=PATIENCE)
    record = site.last()
    assert record["end"] == "node-lost" and "n2" in record["error"], err
    assert terminal.returncode == {"not-launched": 125, "ended": 143}[record["state"]]
    assert ("n2", "node-lost") in [(part["host"], part["end"]) for part in record["parts"]]


def test_a_run_whose_only_node_is_lost_ended_when_that_gave_its_last_sign(site: Site) -> None:
    terminal = site.start(*run_of(script=FIRST_WAITS))
    until(lambda: job(site, "alive.1.0").exists(), "a sign of the node")
    site.slurm.power_off(site.nodes())
    assert terminal.wait(PATIENCE) == 137
    record = site.last()
    (part,) = record["parts"]
    assert (record["state"], record["end"], part["end"]) == ("ended", "node-lost", "node-lost")
    assert record["started"] == part["started"] < record["ended"] == part["ended"]
    assert record["took_seconds"] > 0
