"""What leaves the store when several processes fill one commit together, counted by the server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.counts.observed import ObservedServer, Seen
from tests.counts.people import person, write
from tests.exhaustive import is_full
from tests.kit.dsv import Dsv
from tests.waiting import PATIENCE, until

FILES, SIZE, PART_FILES = 1000, 32_768, 50
PART = PART_FILES * SIZE
CONTENT = FILES * SIZE
# Format, ref, commit, locator, node and segments, which each process asks for that has none of them yet.
METADATA = 150_000
PEOPLE = 4
PATIENT = f"""
import sys
from msgspec.structs import replace
from dsv.cache.fill import workers
from dsv.cli.main import main
from dsv.stores.options import StoreOptions
from tests.nfs.hurried import hurry
hurry(part_files={PART_FILES}, part_bytes={PART})
workers.EXPIRY, usual = {PATIENCE}, StoreOptions.from_environment
StoreOptions.from_environment = lambda environ: replace(usual(environ), read_timeout={PATIENCE})
sys.exit(main())
"""
"""`dsv` with parts so small that there is something to share. A store and a process that are slow are not taken for
silent ones, so nobody asks twice."""
PROJECT = Path(__file__).parents[2]


class Meeting(ObservedServer):
    """If `together` is set, it gives nobody contents until all people have asked for some, each with their own key."""

    def __init__(self) -> None:
        self.together = False
        self._came: set[str] = set()
        super().__init__()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        first, _, last = environ.get("HTTP_RANGE", "").removeprefix("bytes=").partition("-")
        if self.together and last and int(last) - int(first) > METADATA:
            self._came.add(environ["HTTP_AUTHORIZATION"].partition("Credential=")[2].partition("/")[0])
            until(lambda: len(self._came) == PEOPLE, "the last of those who share the work")
        return super()._answer(environ, start_response)


@pytest.fixture
def server() -> Iterator[Meeting]:
    pytest.importorskip("moto.server", reason="needs moto[server]")
    server = Meeting()
    yield server
    server.close()


def fill(who: Dsv) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PATIENT, "cache", "scans@v1", "--json", "--jobs", "1"],
        cwd=PROJECT,
        env=dict(who.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def chunks(seen: Seen) -> int:
    """Bytes of ranged reads of packs."""
    return sum(request.down for request in seen.requests if request.what.startswith("GET lake/packs/"))


@pytest.fixture
def people(server: Meeting, tmp_path: Path) -> list[Dsv]:
    """Those who share a cache, and have never seen the dataset that is in the store."""
    store = f"s3://{server.s3.bucket()}/lake"
    ann = person(tmp_path / "ann", store, server.s3.env)
    write(ann.cwd, range(FILES), SIZE, 1)
    for arguments in (["init", "scans"], ["sync"], ["tag", "v1"]):
        assert ann.process(*arguments).code == 0
    shared = {**server.s3.env, "DSV_CACHE": str(tmp_path / "cache")}
    names = [f"p{number}" for number in range(PEOPLE)]
    return [person(tmp_path / name, store, {**shared, "AWS_ACCESS_KEY_ID": name}) for name in names]


def test_each_byte_leaves_the_store_once(server: Meeting, people: list[Dsv]) -> None:
    server.together = True
    with server.watch() as seen:
        running = [fill(who) for who in people]
        answers = [process.communicate(timeout=PATIENCE)[0] for process in running]
    items = [json.loads(answer)["items"][0] for answer in answers]
    assert len({item["path"] for item in items}) == 1
    print(f"{chunks(seen) / CONTENT:.3f} of the content, {seen.down - chunks(seen)} bytes besides")
    assert CONTENT <= chunks(seen) <= 1.05 * CONTENT + PEOPLE * METADATA
    assert all(item["fetched_bytes"] > 0 for item in items), "not all of them had a share in it"


@pytest.mark.parametrize("quarter", [1, 2, 3] if is_full() else [2])
def test_a_death_costs_one_part(server: Meeting, people: list[Dsv], quarter: int) -> None:
    server.together = True
    with server.watch(0.02) as seen:
        doomed, *others = (fill(who) for who in people)
        until(lambda: chunks(seen) >= quarter * CONTENT // 4, "so much of the content")
        doomed.kill()
        doomed.communicate()
        answers = [process.communicate(timeout=PATIENCE)[0] for process in others]
    assert len({json.loads(answer)["items"][0]["path"] for answer in answers}) == 1
    print(f"{(chunks(seen) - CONTENT) / PART:.2f} parts more than the content")
    assert CONTENT <= chunks(seen) <= 1.05 * CONTENT + 1.1 * PART + PEOPLE * METADATA
