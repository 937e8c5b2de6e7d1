"""Sixty rounds in a full run (`tests.upkeep.gc_rounds`) on each kind of store, and some in any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv.api import environment
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import open_raw, open_store
from dsv.stores.options import StoreOptions
from tests.exhaustive import is_full
from tests.kit.dsv import Dsv
from tests.labs.s3_server import S3Server
from tests.upkeep.gc_rounds import Rounds

ROUNDS = int(os.environ.get("GC_ROUNDS", "60" if is_full() else "0"))
SEED = int(os.environ.get("GC_SEED", "7"))
DAY = 24 * 3600.0
pytestmark = pytest.mark.timeout(DAY if ROUNDS else 900)


@pytest.fixture(autouse=True)
def _no_system_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "none")


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_commits_that_are_not_expired_restore_whatever_happens(kind: str, tmp_path: Path) -> None:
    store: StoreBackend = MemoryStore()
    dsv = None
    if kind == "folder":
        store = open_raw(str(tmp_path / "store"), StoreOptions(), create=True)
        dsv = Dsv.of(tmp_path / "home", DSV_STORE=str(tmp_path / "store"), DSV_CACHE=str(tmp_path / "cache"))
    rounds = Rounds(store, tmp_path / "ids", SEED, dsv, f"file://{tmp_path}/elsewhere")
    rounds.run(ROUNDS or (12 if dsv is None else 4))
    store.close()


def test_commits_that_are_not_expired_restore_from_ceph(ceph_s3: S3Server, tmp_path: Path) -> None:
    bucket = ceph_s3.bucket()
    url = f"s3://{bucket}/rounds"
    store = open_store(url, StoreOptions.from_environment(ceph_s3.env))
    dsv = Dsv.of(tmp_path / "home", None, DSV_STORE=url, DSV_CACHE=str(tmp_path / "cache"), **ceph_s3.env)
    Rounds(store, tmp_path / "ids", SEED + 4, dsv, f"s3://{bucket}/elsewhere").run(ROUNDS or 2)
    store.close()
    ceph_s3.remove_bucket(bucket)
