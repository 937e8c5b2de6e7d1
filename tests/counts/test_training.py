"""What a training asks of a store before it has its first batch, counted by the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counts.observed import ObservedServer, Seen
from tests.counts.people import person, write
from tests.counts.test_requests import ROUND_TRIPS
from tests.training.test_torch import require_torch

FILES, SIZE = 2048, 8192
BLOCKS = FILES // 256
HURRIED = 192
"""Samples that are read by themselves, as nobody can wait for their blocks."""
OPENING = 4 + 3 + 2 + 2
"""The format twice, in the program and in the process of the window; and once what the branch names, the commit and its
locator, a node and the segments."""
TRAIN = """
import sys, dsv
from dsv.torch import Loader
samples = dsv.open("scans").samples(window=512 << 20)
batch, workers = int(sys.argv[1]), int(sys.argv[2])
loader = Loader(samples, batch, seed=1, num_workers=workers, transform=lambda sample: len(sample.data))
print([int(sum(sizes)) for _, sizes in zip(range(max(1, workers)), loader)])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    require_torch()
    pytest.importorskip("moto.server", reason="needs moto[server]")
    made = ObservedServer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def store(server: ObservedServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of somebody who has nothing of the store yet."""
    ann = person(tmp_path_factory.mktemp("home") / "ann", f"s3://{server.s3.bucket()}/lake", server.s3.env)
    write(ann.cwd, range(FILES), SIZE, 1)
    for words in (("init", "scans"), ("sync", "-q")):
        done = ann.process(*words)
        assert done.code == 0, done
    return {**os.environ, **server.s3.env, "DSV_STORE": ann.environ["DSV_STORE"]}


def train(store: dict[str, str], home: Path, batch: int, workers: int) -> None:
    """Train until each worker has delivered a batch."""
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAIN, str(batch), str(workers)],
        env={**store, "HOME": str(home), "DSV_CACHE": str(home / "cache")},
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[batch * SIZE] * max(1, workers)}\n"


def test_the_first_batch_takes_seven_round_trips(
    server: ObservedServer, store: dict[str, str], tmp_path: Path
) -> None:
    """Format and branch, head, commit and locator, node, segments; the format again, and the samples."""
    for round_trip in ROUND_TRIPS:  # see there
        with server.watch(round_trip) as seen:
            train(store, tmp_path / str(round_trip), 4, 0)
        awaited = Seen([one for one in seen.requests if one.down < 1 << 20])  # not the blocks
        assert len(awaited) <= OPENING + 4, str(seen)
        if awaited.rounds <= 7:
            return
    pytest.fail(str(seen))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [32, pytest.param(256, marks=pytest.mark.exhaustive)])
def test_workers_start_with_one_resolve_and_few_requests(
    server: ObservedServer, store: dict[str, str], tmp_path: Path, workers: int
) -> None:
    with server.watch() as seen:
        train(store, tmp_path / "home", 8, workers)
    assert len([one for one in seen.requests if "/refs/" in one.what]) == 3, str(seen)
    assert len(seen) <= OPENING + HURRIED + 8 + BLOCKS, str(seen)
    assert workers < 256 or len(seen) <= 2 * workers
