"""One key for Kubernetes and for the engines of a single machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs.docker_engine import ContainerEngine
from tests.labs.kubernetes import Kubernetes
from tests.run.once_elsewhere import check_each_way, image_for
from tests.run.test_kubernetes_runs import Site, prepare


@pytest.fixture
def site(tmp_path: Path, kubernetes: Kubernetes) -> Site:
    return prepare(Site(tmp_path, kubernetes))


def test_one_digest_has_the_same_results_on_kubernetes_docker_and_podman(
    site: Site, podman: ContainerEngine, docker_engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with image_for(site.folder, podman, docker_engine, monkeypatch) as image:
        site.cluster.pull(image)
        engines = (("--on", "k8s"), ("--engine", "docker"), ("--engine", "podman"))
        check_each_way(site, [(*engine, "--image", image) for engine in engines])
