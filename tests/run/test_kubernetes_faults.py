"""What becomes of runs on a real Kubernetes, and of their leases, when something goes wrong.

They run as at a site that was set up by the documentation, under the strictest Pod Security standard.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs.kubernetes import Kubernetes
from tests.run.kubernetes_site import Site, made, run_of
from tests.waiting import until

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
    """The same run goes on while it has retries, and nobody can evict its data meanwhile."""
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
    assert parts[0]["end"] == "evicted"
    until(lambda: not site.held(), "the end of the lease")


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


def test_nodes_of_an_image_without_getent_find_each_other(site: Site) -> None:
    """The nslookup of busybox does not complete names."""
    script = 'nslookup "$MASTER_ADDR.training.svc.cluster.local" && test "$TOKEN" = hunter2'
    assert site.end(site.start(*run_of("--nodes", "2", "-e", "TOKEN=hunter2", script=script)))[:2] == (
        0,
        "exited",
    )
