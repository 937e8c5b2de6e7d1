"""Credentials that expire half way: nothing is lost, and what was done is not done again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.inputs.scene import CACHE, CLONE, RUN, Scene, nothing_partial, refused, write
from tests.inputs.troubled import Server, Trouble, troubled_server
from tests.kit.dsv import Dsv
from tests.kit.people import Files, read_folder

NOISE = random.Random(4)
LARGE: Files = {f"{number}.bin": NOISE.randbytes(1 << 20) for number in range(24)}
HINT = "hint: aws configure, aws sso login, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY\n"


@pytest.fixture
def server() -> Iterator[Server]:
    with troubled_server() as running:
        yield running


@pytest.fixture
def ann(scene: Scene, server: Server) -> Dsv:
    """In a workspace of `set` with `LARGE` in it, not synced yet."""
    person = scene.newcomer(**server.environ)
    write(person.cwd, LARGE)
    person.ok("init", "set")
    return person


def expire_at(server: Server, part: str) -> None:
    """From the first request on that has this in it."""
    expired = False

    def trouble(number: int) -> Trouble | None:
        nonlocal expired
        expired = expired or part in server.log[-1]
        return Trouble.EXPIRED if expired else None

    server.misbehave(trouble)


def expire_in_the_middle(server: Server) -> None:
    """The second half of the data can't be read; in which order its pieces are asked for is not assumed."""
    pack = data_pack(server)

    def trouble(number: int) -> Trouble | None:
        _, path, asked = server.log[-1].split(" ", 2)
        first = int(asked.removeprefix("bytes=").partition("-")[0] or 0)
        return Trouble.EXPIRED if pack in path and first >= len(server.objects[pack]) // 2 else None

    server.misbehave(trouble)


def data_pack(server: Server) -> str:
    """The files' contents; they are read in four pieces."""
    return max(server.objects, key=lambda key: len(server.objects[key]))


def test_a_sync_continues_from_the_uploaded_data(ann: Dsv, server: Server) -> None:
    expire_at(server, "/dsv/commits/")
    before = server.refs()
    result = ann("sync")
    refused(result, 8, "expired", "s3://lake/dsv")
    assert result.err.endswith(HINT)
    assert server.refs() == before
    server.heal()
    assert ann.ok("sync", "--json").json["uploaded_bytes"] < 10_000
    assert ann.ok("cat", "set:3.bin").code == 0


def test_a_cache_continues_from_the_fetched_data(scene: Scene, ann: Dsv, server: Server) -> None:
    ann.ok("sync")
    person = scene.newcomer(**server.environ)
    expire_in_the_middle(server)
    result = CACHE(person, "set")
    refused(result, 8, "expired", "s3://lake/dsv")
    assert result.err.endswith(HINT)
    nothing_partial(person)
    server.heal()
    (item,) = person.ok("cache", "set", "--json").json["items"]
    assert item["bytes"] == 24 << 20
    assert item["fetched_bytes"] <= 17 << 20
    assert CACHE.result(person, "set") == LARGE


def test_a_clone_continues_from_the_fetched_data(scene: Scene, ann: Dsv, server: Server) -> None:
    ann.ok("sync")
    person = scene.newcomer(**server.environ)
    expire_in_the_middle(server)
    refused(CLONE(person, "set"), 8, "expired")
    nothing_partial(person, LARGE)
    server.heal()
    assert CLONE(person, "set").code == 0
    assert sum(data_pack(server) in line for line in server.log) <= 3
    assert read_folder(person.cwd / "clone") == LARGE


def test_a_job_is_not_started(scene: Scene, ann: Dsv, server: Server) -> None:
    ann.ok("sync")
    person = scene.newcomer(**server.environ)
    server.fail(Trouble.EXPIRED, 6)
    refused(RUN(person, "set"), 125, "expired")
    nothing_partial(person)
    server.heal()
    assert RUN(person, "set").code == 0


def test_a_jobs_exit_code_stands_where_they_expire_before_its_record_is_sent(
    scene: Scene, ann: Dsv, server: Server
) -> None:
    """The record waits for the next run."""
    ann.ok("sync")
    person = scene.newcomer(**server.environ)
    expire_at(server, "/dsv/runs/")
    result = person.process("run", "set", "--", "sh", "-c", "exit 3")
    assert (result.code, result.out) == (3, "")
    assert "warning: the record is kept here" in result.err
    assert "expired" in result.err
    server.heal()
    assert person.process("run", "set", "--", "true").code == 0
    assert sorted(key.rpartition("/")[2] for key in server.objects if "/runs/" in key).count("record") == 2
