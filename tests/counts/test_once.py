"""What a run that is not repeated asks of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.counts.observed import ObservedServer
from tests.counts.people import person, write
from tests.waiting import PATIENCE

MOST = 4
"""The claims, the newest of them, its run's record, and the commit of its output."""


def test_a_hit_asks_little_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("moto.server", reason="needs moto[server]")
    server = ObservedServer()
    try:
        store = f"s3://{server.s3.bucket()}/lake"
        ann, bob, eve = (person(tmp_path / name, store, server.s3.env) for name in ("ann", "bob", "eve"))
        write(ann.cwd, range(20), 200_000, 1)
        assert ann.process("init", "scans").code == 0 and ann.process("sync", "-q").code == 0
        job = ("run", "scans", "--once", "-q", "--", "sh", "-c", 'cp "$DSV_DATA/000/00001.bin" "$DSV_OUT"')
        assert bob.process(*job).code == 0
        asked = {}
        for who, words in (("names", ("resolve", "scans", "-q")), ("hit", job), ("again", job)):
            with server.watch() as seen:
                with eve.start(*words) as process:
                    _, errors = process.communicate(timeout=PATIENCE)
                assert process.returncode == 0, errors
            asked[who] = seen
            print(f"{who}:\n{seen}\n")
        assert len(asked["hit"]) <= len(asked["names"]) + MOST, asked["hit"]
        assert len(asked["again"]) <= len(asked["names"]) - 1 + MOST, "the commit of the branch is known here"
        assert asked["hit"].down < 30_000 and asked["hit"].up == 0, "no file, and nothing is written"
        assert not list((tmp_path / "eve/cache").rglob("00001.bin"))
    finally:
        server.close()
