"""Servers that the stores' tests talk to, all on loopback."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dsv.api import environment
from tests.labs.s3_server import S3Server
from tests.stores import azure
from tests.stores.azure import Azurite
from tests.stores.buckets import Bucket
from tests.stores.opened import Opened, S
from tests.stores.proxy import proxy
from tests.stores.servers_on_moto import GcsOnMoto, LaxServer, ServerOnMoto
from tests.stores.split_world import World

_DESCRIPTORS = Path("/proc/self/fd")  # empty where there is no /proc


@pytest.fixture(autouse=True)
def _stores_are_closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that leaves a file or folder of its own open fails: descriptors would run out some day."""
    base = str(tmp_path_factory.getbasetemp())
    before = _open_below(base)
    yield
    if not _open_below(base) <= before:
        gc.collect()  # a mapped file is closed when nobody refers to it any more, and a traceback may be a circle
    assert _open_below(base) <= before


def _open_below(base: str) -> set[tuple[str, str]]:
    found = set()
    for descriptor in _DESCRIPTORS.glob("*"):
        with suppress(OSError):  # the one that lists them
            found.add((descriptor.name, os.readlink(descriptor)))
    return {one for one in found if one[1].startswith(base)}


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:

        def close_at_the_end(store: S) -> S:
            stack.callback(store.close)
            return store

        yield close_at_the_end


@pytest.fixture(scope="session")
def moto_bucket(moto_s3: S3Server) -> Bucket:
    """On moto's S3: an S3 server's presence, and no measure of speed."""
    return _bucket(moto_s3)


@pytest.fixture(scope="session")
def ceph_bucket(ceph_s3: S3Server) -> Iterator[Bucket]:
    """On Ceph's RADOS Gateway."""
    bucket = _bucket(ceph_s3)
    yield bucket
    bucket.server.remove_bucket(bucket.name)


@pytest.fixture(scope="session")
def gcs_bucket() -> Iterator[Bucket]:
    """Give a bucket for gs:// stores; its `server` is the same by S3, for looking at it from outside."""
    yield from _bucket_on(GcsOnMoto)


@pytest.fixture(scope="session")
def lax_bucket() -> Iterator[Bucket]:
    """On a server that ignores conditions and ranges."""
    yield from _bucket_on(LaxServer)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Azurite with an empty container `box`."""
    if shutil.which(azure.PROGRAM) is None:
        pytest.skip("needs Azurite (npm install -g azurite)")
    with azure.running(tmp_path_factory.mktemp("azurite")) as server:
        status, body = server.request("PUT", "box", {"restype": "container"})
        assert status == 201, body
        yield server


def _bucket(server: S3Server) -> Bucket:
    return Bucket(server, server.bucket(), server.client())


def _bucket_on(kind: type[ServerOnMoto]) -> Iterator[Bucket]:
    pytest.importorskip("moto.server", reason="needs moto[server]")
    server = kind()
    yield _bucket(S3Server(server.endpoint, "testing", "secret-testing"))
    server.close()


@pytest.fixture
def world(ceph_s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "etc/config.toml")
    bucket = ceph_s3.bucket()
    with proxy(ceph_s3) as (server, does):
        yield World(tmp_path, server, bucket, does)
    ceph_s3.remove_bucket(bucket)


@pytest.fixture(params=["ignores", "501", pytest.param("honours", marks=pytest.mark.exhaustive)])
def kept(request: pytest.FixtureRequest, world: World) -> World:
    """The same with a server of each kind; most tests of `world` have one that honours conditions."""
    world.does.ignores_condition = request.param == "ignores"
    world.does.condition_answer = 501 if request.param == "501" else None
    return world
