"""A run with `--once` that one engine has done, asked for on another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit import clusters
from tests.labs import registry
from tests.labs.docker_engine import ContainerEngine
from tests.labs.images import busybox_tar

JOB = 'echo "$DSV_PARAMS" > "$DSV_OUT/made"'


@contextmanager
def image_for(
    folder: Path, podman: ContainerEngine, docker: ContainerEngine, patch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Yield the name of an image by its digest, in a registry that both engines and containerd may ask."""
    with registry.serving(busybox_tar()) as image:
        where = image.partition("/")[0]
        (folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{where}"\ninsecure = true\n')
        patch.setenv("CONTAINERS_REGISTRIES_CONF", str(folder / "registries.conf"))
        patch.setenv("PATH", podman.env["PATH"])
        for name, value in docker.env.items():
            patch.setenv(name, value)
        (Path(docker.env["DOCKER_CONFIG"]) / "config.json").write_text("{}")  # podman reads it too
        yield image


def asked(site: clusters.Site, value: int, *where: str) -> tuple[str, bool]:
    """Return the run that has the result, and whether that is another one. value: of a parameter"""
    answer, receipt = site.folder / "answer.json", site.folder / f"made-{value}.txt"
    said = site.dsv(
        "run", "digits", "--once", *where, "-p", f"value={value}", "--into", f"made@v{value}", "--json-file",
        str(answer), "--receipt", str(receipt), "--", "sh", "-c", JOB, code=None,
    )  # fmt: skip
    item = json.loads(answer.read_text())
    assert item.get("exit_code") == 0, said
    assert json.loads(site.dsv("cat", f"made@v{value}:made")) == {"value": value}, said
    assert receipt.read_text() == "made@" + site.dsv("resolve", f"made@v{value}"), said
    return item["run"], item["hit"]


def check_each_way(site: clusters.Site, ways: list[tuple[str, ...]]) -> None:
    """Each engine runs something, which is a hit on all others."""
    for value, first in enumerate(ways):
        run, hit = asked(site, value, *first)
        assert not hit, first
        for other in ways:
            assert asked(site, value, *other) == (run, True), (first, other)
