"""What the documentation shows for Kubernetes is taken by a real cluster, and means something to the engine."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest

from dsv.engines.kubernetes.engine import Kubernetes as Engine
from tests.labs.kubernetes import Kubernetes
from tests.labs.machine import LabError
from tests.run.kubernetes_site import DOCUMENTS, Site, made

ROOT_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: root, namespace: training}
spec: {containers: [{name: root, image: busybox}]}
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
    return training


def test_every_table_of_a_pool_means_something_to_the_engine() -> None:
    text = (DOCUMENTS.parent / "clusters.md").read_text()
    blocks = [
        tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    pools = [(name, pool) for block in blocks for name, pool in block["pools"].items()]
    assert len(pools) >= 4
    for name, pool in pools:
        Engine.check_options(pool["kubernetes"], f"pools.{name}.kubernetes")


def test_the_cluster_takes_every_manifest(kubernetes: Kubernetes) -> None:
    """Stands before the tests with a site, which has some of them already."""
    kubernetes.kubectl("apply", "-f", str(DOCUMENTS / "namespace.yaml"))
    names = sorted(path.name for path in DOCUMENTS.iterdir())
    assert names and all(name.endswith(".yaml") for name in names)
    for name in names:
        said = kubernetes.kubectl("apply", "--dry-run=server", "-f", str(DOCUMENTS / name))
        assert "server dry run" in said


def test_the_namespace_takes_no_pod_that_may_be_root(kubernetes: Kubernetes) -> None:
    kubernetes.kubectl("apply", "-f", str(DOCUMENTS / "namespace.yaml"))
    with pytest.raises(LabError, match="violates PodSecurity"):
        kubernetes.kubectl("apply", "--dry-run=server", "-f", "-", given=ROOT_POD)


def test_the_folders_are_made_for_any_user_of_group_0(site: Site) -> None:
    for name in ("dsv", "runs"):
        status = (site.export / name).stat()
        assert (oct(status.st_mode), status.st_gid) == ("0o42775", 0)
