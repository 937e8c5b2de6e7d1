"""Runs on a real Kubernetes, and their leases, when something goes wrong.

They run as at a site that was set up by the documentation, under the strictest Pod Security standard.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.labs.kubernetes import Kubernetes
from tests.run.kubernetes_site import WAIT, Site, made, run_of
from tests.waiting import PATIENCE, until

EVICTION = """\
{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{0}", "namespace": "training"}}}}
"""


@pytest.fixture(scope="module")
def training(
    kubernetes_cluster: Kubernetes, dsv_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    kubernetes_cluster.make_ready()
    with made(kubernetes_cluster, tmp_path_factory.mktemp("training"), dsv_image) as site:
        yield site


@pytest.fixture
def site(training: Site, kubernetes: Kubernetes) -> Site:
    training.forget()
    return training


def test_a_pod_that_is_evicted_and_one_that_is_deleted_are_followed_by_others(site: Site) -> None:
    """The same run continues while it has retries, and nobody can evict its data meanwhile."""
    terminal = site.start(*run_of("--retries", "2"))
    site.ready(terminal)
    first = site.pod()["metadata"]["name"]
    path = f"/api/v1/namespaces/training/pods/{first}/eviction"
    site.cluster.kubectl("create", "--raw", path, "-f", "-", given=EVICTION.format(first))
    site.ready(terminal, attempt=2)
    assert site.held()
    site.cluster.kubectl("-n", "training", "delete", "pod", site.pod()["metadata"]["name"], "--wait=false")
    site.ready(terminal, attempt=3)
    site.go()
    assert site.end(terminal)[:2] == (0, "exited")
    parts = site.last()["parts"]
    assert [part["attempt"] for part in parts] == [1, 2, 3]
    assert parts[0]["end"] == "evicted" and parts[1]["error"] == "its pod was deleted"
    until(lambda: not site.held(), "the end of the lease")


@pytest.mark.exhaustive
def test_an_evicted_pod_without_retries_ends_the_run(site: Site) -> None:
    terminal = site.start(*run_of())
    site.ready(terminal)
    pod = site.pod()["metadata"]["name"]
    path = f"/api/v1/namespaces/training/pods/{pod}/eviction"
    site.cluster.kubectl("create", "--raw", path, "-f", "-", given=EVICTION.format(pod))
    code, end, _ = site.end(terminal)
    assert (code != 0, end) == (True, "evicted")
    until(lambda: not site.held(), "the end of the lease")


def test_an_api_server_that_is_away_costs_nothing(site: Site) -> None:
    """The job keeps running and its data stays held. `dsv stop` says what it waits for."""
    terminal = site.start(*run_of(script=f"trap 'exit 9' TERM; {WAIT}"))
    site.ready(terminal)
    site.pod()  # a job that the cluster doesn't know to run yet would be taken back
    site.cluster.stop_api()
    assert site.held()
    assert "Kubernetes does not answer" in site.dsv("pools", code=6)
    stop = site.start("stop", "--grace", "10m", site.out().name)
    asked = site.folder / "home/.local/state/dsv/running"
    until(lambda: any(asked.glob("*.stop")), "the request")
    site.cluster.start_api()
    _, error = stop.communicate(timeout=PATIENCE)
    assert stop.returncode == 0, error
    assert site.end(terminal)[:2] == (9, "cancelled")
    until(lambda: not site.held(), "the end of the lease")


@pytest.mark.exhaustive
def test_an_image_that_cannot_be_pulled(site: Site) -> None:
    words = ("run", "digits", "--image", "registry.invalid/none:1", "--", "true")
    code, end, error = site.end(site.start(*words))
    assert (code, end) == (125, "image-not-pulled")
    assert "registry.invalid/none:1" in error
    until(lambda: not site.held(), "the end of the lease")


def test_a_job_beyond_its_memory(site: Site) -> None:
    script = "head -c 300000000 /dev/zero | tail"
    code, end, _ = site.end(site.start(*run_of("--memory", "60M", script=script)))
    assert (code, end) == (137, "out-of-memory")


@pytest.mark.exhaustive
def test_a_closed_terminal_ends_nothing(site: Site) -> None:
    terminal = site.start(*run_of(script=f"{WAIT}; exit 3"))
    site.ready(terminal)
    os.killpg(terminal.pid, signal.SIGHUP)
    assert site.held()
    site.go()
    site.dsv("wait", site.out().name, code=3)
    until(lambda: site.last()["state"] == "ended", "the record")
    assert (site.last()["end"], site.last()["exit_code"]) == ("exited", 3)
    until(lambda: not site.held(), "the end of the lease")


@pytest.mark.exhaustive
def test_two_stop_one_run_whose_own_terminal_is_gone(site: Site) -> None:
    terminal = site.start(*run_of(script=f"trap 'exit 9' TERM; {WAIT}"))
    site.ready(terminal)
    run = site.out().name
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    assert site.held()
    both = [site.start("stop", "--grace", "10m", run) for _ in range(2)]
    said = [each.communicate(timeout=PATIENCE) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    site.dsv("runs")
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "cancelled", 9)
    until(lambda: not site.held(), "the end of the lease")


@pytest.mark.exhaustive
def test_nodes_of_an_image_without_getent_find_each_other(site: Site) -> None:
    """The nslookup of busybox does not complete names."""
    script = 'nslookup "$MASTER_ADDR.training.svc.cluster.local" && test "$TOKEN" = hunter2'
    assert site.end(site.start(*run_of("--nodes", "2", "-e", "TOKEN=hunter2", script=script)))[:2] == (
        0,
        "exited",
    )


HANGS = f"""\
touch "$DSV_OUT/began.$DSV_ATTEMPT.$NODE_RANK"
[ "$DSV_ATTEMPT" = 1 ] || exit 0
{WAIT}
[ "$NODE_RANK" = 0 ] || exit 3
trap '' TERM
while :; do sleep 1; done
"""


@pytest.mark.exhaustive
def test_a_node_that_fails_ends_the_others_and_all_begin_again_together(site: Site) -> None:
    """Also one that hangs in what they do together, and although the terminal is gone."""
    terminal = site.start(*run_of("--nodes", "2", "--retries", "1", script=HANGS))
    until(lambda: len(list(site.export.glob("runs/digits/*/began.1.*"))) == 2, "both nodes")
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    run = site.out().name
    site.go()
    site.dsv("wait", run)
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 0)
    parts = [(part["attempt"], part["node"], part["end"], part["exit_code"]) for part in record["parts"]]
    assert parts == [
        (1, 0, "cancelled", 137),
        (1, 1, "exited", 3),
        (2, 0, "exited", 0),
        (2, 1, "exited", 0),
    ]
    assert record["parts"][0]["error"].endswith("node 1 failed first, with exit code 3")
    until(lambda: not site.held(), "the end of the lease")


@pytest.mark.exhaustive
def test_nodes_that_fail_at_the_same_moment_use_up_one_retry(site: Site) -> None:
    terminal = site.start(*run_of("--nodes", "2", "--retries", "1", script="exit $((4 + NODE_RANK))"))
    code, end, error = site.end(terminal)
    assert code in (4, 5) and end == "exited" and f"node {code - 4} " in error
    assert {(part["attempt"], part["node"]) for part in site.last()["parts"]} == {
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    }


ALIVE = """\
until [ -e "$DSV_OUT/go" ]; do touch "$DSV_OUT/alive.$DSV_ATTEMPT.$NODE_RANK"; sleep 0.1; done
"""


@pytest.mark.exhaustive
def test_nodes_that_are_cut_off_from_each_other_end_before_others_begin(site: Site) -> None:
    """Each finds by itself that it can't continue, as the cluster sees nothing wrong with either."""

    def bridge(state: str) -> None:
        inside = ["ip", "netns", "exec", site.cluster.network.namespace]
        subprocess.run([*inside, "ip", "link", "set", "lab2", state], check=True)

    def failed() -> int:
        pods = site.cluster.get("pods", "-n", "training", "--field-selector=status.phase=Failed")["items"]
        return sum(each["metadata"]["name"].startswith(f"dsv-{site.out().name}") for each in pods)

    def alive(attempt: int) -> dict[str, float]:
        found = site.export.glob(f"runs/digits/*/alive.{attempt}.*")
        return {each.name: each.stat().st_mtime for each in found}

    terminal = site.start(*run_of("--nodes", "2", "--gpus", "2", "--retries", "1", script=ALIVE))
    until(lambda: len(alive(1)) == 2, "both nodes")
    bridge("down")
    try:
        until(lambda: failed() == 2, "the end of the attempt")
    finally:
        bridge("up")
    until(lambda: len(alive(2)) == 2, "the next attempt")
    before = alive(1)
    site.go()
    assert site.end(terminal)[:2] == (0, "exited")
    assert alive(1) == before
    parts = site.last()["parts"]
    assert [(part["attempt"], part["end"]) for part in parts[:2]] == [(1, "cancelled"), (1, "cancelled")]
    assert all("was silent for 60 s" in part["error"] for part in parts[:2])
