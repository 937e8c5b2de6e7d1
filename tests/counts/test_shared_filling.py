"""What leaves the store when several processes fill one commit together, counted by the server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counts.observed import ObservedServer, Seen
from tests.counts.people import person, write
from tests.kit.dsv import Dsv
from tests.waiting import PATIENCE

FILES, SIZE, PART_FILES = 1000, 32_768, 50
PART = PART_FILES * SIZE
CONTENT = FILES * SIZE
# Format, ref, commit, locator, node and segments, which each process asks for that has none of them yet.
METADATA = 150_000
HURRIED = (sys.executable, "-m", "tests.nfs.hurried", "0", "0", str(PART_FILES), str(PART))
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[ObservedServer]:
    pytest.importorskip("moto.server", reason="needs moto[server]")
    server = ObservedServer()
    yield server
    server.close()


def fill(who: Dsv) -> subprocess.Popen[bytes]:
    """With parts so small that there is something to share."""
    return subprocess.Popen(
        [*HURRIED, "cache", "scans@v1", "--json", "--jobs", "1"],
        cwd=PROJECT,
        env=dict(who.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def chunks(seen: Seen) -> int:
    """Bytes of ranged reads of packs."""
    return sum(request.down for request in seen.requests if request.what.startswith("GET lake/packs/"))


@pytest.fixture
def people(server: ObservedServer, tmp_path: Path) -> list[Dsv]:
    """Four who share a cache, and have never seen the dataset that is in the store."""
    store = f"s3://{server.s3.bucket()}/lake"
    ann = person(tmp_path / "ann", store, server.s3.env)
    write(ann.cwd, range(FILES), SIZE, 1)
    for arguments in (["init", "scans"], ["sync"], ["tag", "v1"]):
        assert ann.process(*arguments).code == 0
    shared = {**server.s3.env, "DSV_CACHE": str(tmp_path / "cache")}
    return [person(tmp_path / f"p{number}", store, shared) for number in range(4)]


def test_each_byte_leaves_the_store_once(server: ObservedServer, people: list[Dsv]) -> None:
    with server.watch(0.1) as seen:  # so slow that none can have it all before another has started
        running = [fill(who) for who in people]
        answers = [process.communicate(timeout=PATIENCE)[0] for process in running]
    items = [json.loads(answer)["items"][0] for answer in answers]
    assert len({item["path"] for item in items}) == 1
    print(f"{chunks(seen) / CONTENT:.3f} of the content, {seen.down - chunks(seen)} bytes besides")
    assert CONTENT <= chunks(seen) <= 1.05 * CONTENT + 4 * METADATA
    assert sum(item["fetched_bytes"] > 0 for item in items) > 1, "one of them did it all"


@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_a_death_costs_one_part(server: ObservedServer, people: list[Dsv], quarter: int) -> None:
    with server.watch(0.02) as seen:
        doomed, *others = (fill(who) for who in people)
        deadline = time.monotonic() + 60
        while chunks(seen) < quarter * CONTENT // 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        doomed.kill()
        doomed.communicate()
        answers = [process.communicate(timeout=PATIENCE)[0] for process in others]
    assert len({json.loads(answer)["items"][0]["path"] for answer in answers}) == 1
    print(f"{(chunks(seen) - CONTENT) / PART:.2f} parts more than the content")
    assert CONTENT <= chunks(seen) <= 1.05 * CONTENT + 1.1 * PART + 4 * METADATA
