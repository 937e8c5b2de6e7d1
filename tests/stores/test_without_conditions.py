"""Buckets that take no condition: what is written there all the same, and what is not."""

from __future__ import annotations

import pytest

import dsv
from dsv.errors import Conflict, Unsupported
from dsv.format import keys
from dsv.run.record import RECORD, RunId
from dsv.run.record_store import RunStore
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.stores.retry import Retrying
from dsv.values.names import DatasetName
from tests.stores.split_world import World


def test_the_first_record_of_a_run_stays_in_a_bucket_without_conditions(world: World) -> None:
    """Two programs may complete one record, each with what it knows."""
    world.does.condition_answer = 501
    ann = world.person("ann")
    ann.ok("init", "xrays")
    environ = {**ann.environ, "DSV_CONFIG": "/nonexistent"}
    context = dsv.store(world.url, environ=environ, cwd=world.root, names=str(world.names)).context
    with context.repository() as repository:
        runs, run = RunStore(repository.store), RunId("20261122-101112-0123abcd")
        xrays = DatasetName("xrays")
        assert runs.add(xrays, run, RECORD, b"first") == b"first"
        assert runs.add(xrays, run, RECORD, b"second") == b"first"
        with pytest.raises(Conflict, match="differs"):
            runs.write(xrays, run, RECORD, b"third")


def test_names_that_are_in_the_bucket_again_are_not_written_without_a_condition() -> None:
    """As while a writer waits for names that are being moved away."""
    data = MemoryStore()
    store = OpenStore(Retrying(data))
    store.follow(MemoryStore())
    store.names = store.data
    data.put_if_absent = refuse  # type: ignore[method-assign]
    with pytest.raises(Unsupported):
        store.put_if_absent(keys.format_key(0), b"")
    assert data.conditional


def refuse(key: str, data: Bytes) -> PutResult:
    raise Unsupported(f"{key}: no conditions")
