"""What `dsv copy` asks of both stores together, counted by the server. As in `test_requests`, bounds leave no room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counts.observed import ObservedServer, Seen
from tests.counts.people import person, write
from tests.kit.dsv import Dsv
from tests.waiting import PATIENCE

FILES, SIZE = 2000, 8192
MOST = {
    # The store is made, and its put-if-absent proved by many writers.
    "first copy": 320,
    # Of each store: format 2, the branches 1, main's head and what may follow it 2.
    "nothing new": 10,
    # As that, and the commit, its locator, node and segment 4 | session, gc, index 3 | the metadata and its index 2,
    # the parent 1, the commit and its locator 2, verdict, the proofs of a sync 3, ref, that read back, the format log,
    # end of session 8 | the chunk read, and its pack.
    "one file": 30 + 2,
    # That knows nothing yet: the base's commit, locator, node and segment, two index files, a commit of the source.
    "one file from another machine": 38,
    "nothing new, with tags": 12,
    "nothing new, of all": 13,
}


@pytest.fixture
def server() -> Iterator[ObservedServer]:
    pytest.importorskip("moto.server", reason="needs moto[server]")
    made = ObservedServer()
    yield made
    made.close()


def watched(server: ObservedServer, who: Dsv, *arguments: str) -> Seen:
    with server.watch() as seen, who.start(*arguments) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return seen


@pytest.mark.timeout(300)
def test_a_copy_asks_for_no_more_than_it_needs(tmp_path: Path, server: ObservedServer) -> None:
    here, there = f"s3://{server.s3.bucket()}/lake", f"s3://{server.s3.bucket()}/copy"
    ann = person(tmp_path / "ann", here, server.s3.env)
    write(ann.cwd, range(FILES), SIZE, 1)
    assert ann.process("init", "scans").code == 0
    assert ann.process("sync", "-q").code == 0
    cron, other = (person(tmp_path / name, here, server.s3.env) for name in ("cron", "other"))
    seen = {"first copy": watched(server, cron, "copy", "scans", "--to", there, "--create", "-q")}
    seen["nothing new"] = watched(server, cron, "copy", "scans", "--to", there, "-q")
    write(ann.cwd, [512], SIZE, 2)
    assert ann.process("sync", "-q").code == 0
    seen["one file"] = watched(server, cron, "copy", "scans", "--to", there, "-q")
    write(ann.cwd, [513], SIZE, 3)
    assert ann.process("sync", "-q").code == 0
    seen["one file from another machine"] = watched(server, other, "copy", "scans", "--to", there, "-q")
    seen["nothing new, with tags"] = watched(server, other, "copy", "scans", "--to", there, "--tags", "-q")
    seen["nothing new, of all"] = watched(server, other, "copy", "--all", "--to", there, "--tags", "-q")
    for work, found in seen.items():
        print(f"{work}: {len(found)}\n{found}\n")
        assert len(found) <= MOST[work], f"{work}\n{found}"
    assert (
        sum(
            "packs/" in request.what and request.what.startswith("PUT")
            for request in seen["one file"].requests
        )
        == 2
    )
    assert seen["one file"].up < SIZE + 30_000  # the file and its segment
    assert seen["nothing new"].up == 0
