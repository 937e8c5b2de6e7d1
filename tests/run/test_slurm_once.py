"""One key for Slurm and for the engines of a single machine."""

from __future__ import annotations

import pytest

from tests.labs.docker_engine import ContainerEngine
from tests.run.once_elsewhere import check_each_way, image_for
from tests.run.slurm_site import Site


def test_without_images_slurm_and_a_process_have_the_same_results(site: Site) -> None:
    check_each_way(site, [("--on", "a"), ("--engine", "process")])


def test_one_digest_has_the_same_results_on_slurm_docker_and_podman(
    site: Site, podman: ContainerEngine, docker_engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.dsv("config", "pools.a.slurm.container", "podman")
    with image_for(site.folder, podman, docker_engine, monkeypatch) as image:
        podman.call("pull", "--tls-verify=false", image)  # the nodes have none of our settings
        engines = (("--on", "a"), ("--engine", "docker"), ("--engine", "podman"))
        check_each_way(site, [(*engine, "--image", image) for engine in engines])
