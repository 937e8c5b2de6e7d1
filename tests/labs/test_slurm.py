"""The Slurm of the tests is a real one: its nodes lose power, drain and come back, and its controller goes away."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.labs.machine import LabError
from tests.labs.slurm import NODES, SlurmNodes
from tests.waiting import until


def submit(slurm: SlurmNodes, folder: Path, script: str, *options: str) -> str:
    """The number of a job that runs this on one node."""
    return slurm.call(
        "sbatch", "--parsable", f"--chdir={folder}", "--output=out", *options, f"--wrap={script}"
    ).strip()


def state(slurm: SlurmNodes, job: str) -> str:
    return slurm.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def test_nodes_are_hosts_with_two_gpus_each(slurm_nodes: SlurmNodes) -> None:
    said = slurm_nodes.call(
        "srun", "--nodes=3", "--gres=gpu:2", "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES"
    )
    assert sorted(said.splitlines()) == [f"{name} 0,1" for name in NODES]
    there = subprocess.run(
        slurm_nodes.on_node("n2", ["hostname"]), capture_output=True, text=True, check=True
    )
    assert there.stdout == "n2\n"


def test_a_node_that_loses_power_takes_its_job_along(slurm_nodes: SlurmNodes, tmp_path: Path) -> None:
    """The job begins again elsewhere, and no process of the node is left."""
    began = tmp_path / "began"
    submit(slurm_nodes, tmp_path, 'echo $(hostname) >> began; test "$SLURM_RESTART_COUNT" || sleep 1234.5')
    until(lambda: began.exists() and began.read_text(), "the start of the job")
    node = began.read_text().strip()
    slurm_nodes.power_off(node)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 1234.5" not in running
    until(lambda: len(began.read_text().splitlines()) == 2, "the second attempt")
    assert began.read_text().split()[1] in {*NODES} - {node}


def test_a_controller_that_was_away_learns_what_ended(slurm_nodes: SlurmNodes, tmp_path: Path) -> None:
    job = submit(slurm_nodes, tmp_path, "touch began; until [ -e go ]; do sleep 0.1; done; exit 3")
    until((tmp_path / "began").exists, "the start of the job")
    slurm_nodes.stop_controller()
    assert not slurm_nodes.answers()
    (tmp_path / "go").touch()
    slurm_nodes.start_controller()
    until(lambda: state(slurm_nodes, job) == "FAILED", "the end of the job")


def test_a_job_beyond_its_memory_is_ended(slurm_nodes: SlurmNodes, tmp_path: Path) -> None:
    job = submit(slurm_nodes, tmp_path, "head -c 200000000 /dev/zero | tail", "--mem=40")
    until(lambda: state(slurm_nodes, job) == "OUT_OF_MEMORY", "the end of the job")


def test_a_drained_node_takes_no_job(slurm_nodes: SlurmNodes, tmp_path: Path) -> None:
    slurm_nodes.drain("n3")
    job = submit(slurm_nodes, tmp_path, "true", "--nodelist=n3")

    def reason() -> str:
        return slurm_nodes.call("squeue", "--noheader", f"--jobs={job}", "--format=%T %r").strip()

    until(lambda: reason() == "PENDING ReqNodeNotAvail, UnavailableNodes:n3", "the reason of the wait")


def test_an_error_says_what_slurm_said(slurm_nodes: SlurmNodes) -> None:
    try:
        slurm_nodes.call("scontrol", "show", "job", "999999")
    except LabError as error:
        assert "Invalid job id" in str(error)
    else:
        raise AssertionError
