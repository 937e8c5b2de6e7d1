"""Runs in a queue of a real Kueue: collected only if DSV_KUEUE says where it was built, see tests/labs/kueue.py."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.labs import kueue
from tests.run.test_kubernetes_runs import IMAGE, Site, run_of, site  # noqa: F401
from tests.waiting import PATIENCE, until

BOTH = """echo "$NODE_RANK begins"; touch "$DSV_OUT/ready.$NODE_RANK.$(cat /dsv/own/pod)"
until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done; echo "$NODE_RANK is done" """
URGENT = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "urgent",
        "namespace": "default",
        "labels": {"kueue.x-k8s.io/queue-name": kueue.QUEUE, "kueue.x-k8s.io/priority-class": kueue.URGENT},
    },
    "spec": {
        "suspend": True,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "command": ["sleep", "1"],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                    }
                ],
            }
        },
    },
}


@pytest.fixture
def queued(site: Site) -> Site:  # noqa: F811
    """Two pools on one cluster: `k8s`, whose jobs are in a queue, and `free`, whose are in none."""
    kueue.run(site.cluster, Path(os.environ.get("DSV_KUEUE") or kueue.program_folder()))
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "dsv" / "config.toml"
    text = config.read_text()
    config.write_text(text + "\n" + text[text.index("[pools.k8s]") :].replace("pools.k8s", "pools.free"))
    site.dsv("config", "pools.k8s.kubernetes.queue", kueue.QUEUE)
    return site


def test_a_run_that_waits_for_its_quota_says_so_and_goes_to_the_next_pool(queued: Site) -> None:
    first = queued.start(*run_of("--gpus", str(kueue.GPUS)))
    until(lambda: queued.has("ready"), "the start of the first")
    out = queued.out()
    waiting = queued.start(*run_of("--gpus", "1", script="echo second"))

    def counted() -> bool:
        pools = json.loads(queued.dsv("pools", "--json"))["items"]
        return any(each["pool"] == "k8s" and each["waiting"] == 1 for each in pools)

    until(counted, "the second in the queue")
    run = queued.last()["run"]
    until(lambda: "unused quota for nvidia.com/gpu" in queued.dsv("runs", run), "why it waits")
    queued.dsv("config", "pools.k8s.wait", "5s")
    moved = queued.dsv(*run_of("--on", "k8s,free", "--gpus", "1", script="echo third"))
    assert moved == "third\n"
    (out / "go").touch()
    assert first.communicate(timeout=PATIENCE) and first.returncode == 0
    printed, said = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, printed) == (0, "second\n") and "the job waits: the queue gpu" in said


def test_a_run_that_a_more_urgent_job_preempts_begins_again_and_its_record_has_both_attempts(
    queued: Site,
) -> None:
    terminal = queued.start(*run_of("--nodes", "2", "--gpus", "1", "--retries", "1", script=BOTH))
    until(lambda: len(list(queued.out().glob("ready.*"))) == 2, "both nodes")
    queued.cluster.kubectl("create", "-f", "-", given=json.dumps(URGENT))
    until(lambda: len(list(queued.out().glob("ready.*"))) == 4, "both nodes again")
    (queued.out() / "go").touch()
    _, said = terminal.communicate(timeout=PATIENCE)
    queued.cluster.kubectl("delete", "job", "urgent")
    assert terminal.returncode == 0 and "the job waits again: the queue gpu" in said, said
    record = queued.last()
    parts = [(each["attempt"], each["node"], each["end"]) for each in record["parts"]]
    gone = [each for each in parts if each[0] == 1]
    assert [each[:2] for each in gone] == [(1, 0), (1, 1)] and {each[2] for each in gone} <= TAKEN
    assert [each for each in parts if each[0] == 2] == [(2, 0, "exited"), (2, 1, "exited")]
    log = queued.dsv("logs", record["run"])
    assert log.count("begins") == 4 and log.count("is done") == 2


TAKEN = {"evicted", "preempted", "cancelled"}
"""What is said of a place that was taken away: by the pod, by whoever asked Kueue, by a pod that got it first from
the other."""


def test_a_run_that_asks_for_more_than_the_quota_ever_gives_ends(queued: Site) -> None:
    nodes = ("--nodes", "2", "--gpus", str(kueue.GPUS))
    assert "> maximum capacity (2)" in queued.dsv(*run_of("--on", "k8s", *nodes), code=125)
    assert queued.last()["end"] == "unschedulable"
