"""A store with some datasets, and hosts that stay up from test to test."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs.nfs_hosts import NfsHosts
from tests.nfs.crew import SEARCHED, Crew

# Name of each dataset, and its files: how many, and how large in bytes.
DATASETS = {
    "large": ((12, 6_000_000), (200, 4_000)),
    "mixed": ((2, 6_000_000), (120, 3_000)),
    "small": ((800, 3_000),),
    "tiny": ((150, 2_000),),
}
CREWS = pytest.StashKey[list[Crew]]()


@pytest.fixture(scope="session")
def lake(nfs_hosts: NfsHosts) -> Path:
    """A folder with `store` and, under the datasets' names, what was synced to it; on hosts it is /mnt/out/lake."""
    lake = nfs_hosts.out / "lake"
    if lake.exists():  # of an earlier run, in a lab that is kept
        return lake
    folder = nfs_hosts.out / f"lake-{os.urandom(4).hex()}"
    environ = {**os.environ, **SEARCHED, "DSV_STORE": str(folder / "store"), "DSV_CONFIG": "/nonexistent"}
    for name, shapes in DATASETS.items():
        chance = random.Random(name)
        count = 0
        for many, size in shapes:
            for _ in range(many):
                path = folder / name / f"d{count % 7}" / f"{count:05d}.bin"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(chance.randbytes(size))
                count += 1
        for command in (("init", name), ("sync", "-q"), ("tag", "v1")):
            argv = [sys.executable, "-m", "dsv.cli.main", "-C", str(folder / name), *command]
            subprocess.run(argv, env=environ, check=True, stdout=subprocess.DEVNULL)
        (folder / name / ".dsv").rename(folder / f"{name}.bound")
    return folder.rename(lake)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test here the hosts go: each would take a share of the processor until the end."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for crew in item.session.stash.get(CREWS, []):
            crew.down()


@pytest.fixture(scope="session")
def _hosts(nfs_hosts: NfsHosts, lake: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    crew = Crew(nfs_hosts)
    request.session.stash.setdefault(CREWS, []).append(crew)
    yield crew
    crew.down()


@pytest.fixture
def crew(_hosts: Crew, request: pytest.FixtureRequest) -> Iterator[Crew]:
    """The hosts, with a new empty cache; a test that failed leaves them none that still work on its own."""
    _hosts.begin(request.node.name.partition("[")[0].removeprefix("test_")[:40])
    before = request.session.testsfailed
    yield _hosts
    if request.session.testsfailed > before:
        _hosts.down()
