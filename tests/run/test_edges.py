"""The edges by which lineage finds runs: which there are, when they are written, and when they go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsv.errors import Denied, Unreachable
from dsv.format import keys
from dsv.run.edges import Edge, edge_keys, edges_of
from dsv.run.record import IntoBranch, RunCommit, RunOutput, RunState
from dsv.run.record_store import RunStore
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import BranchName, DatasetName
from tests.run.test_record import RECORD as ANY

ROOTS = [NodeId.hash(bytes([number])) for number in range(6)]
PART, WHOLE, OUT, INTO, READ, MADE = (root.hex() for root in ROOTS)
OTHER = DatasetName.parse("models")
RECORD = replace(
    ANY,
    state=RunState.ENDED,
    data=(replace(ANY.data[0], root=PART, commit_root=WHOLE),),
    output=RunOutput(
        tree=CommitId.hash(b"tree").hex(),
        root=OUT,
        into=IntoBranch(OTHER, BranchName.parse("main"), CommitId.hash(b"into"), INTO),
    ),
    read=(RunCommit(OTHER, CommitId.hash(b"read"), READ),),
    made=(RunCommit(OTHER, CommitId.hash(b"made"), MADE),),
)


def edges(store: MemoryStore) -> list[str]:
    return [item.key for item in store.list(keys.LINEAGE_PREFIX)]


def test_a_run_has_an_edge_to_each_tree_that_it_read_or_made() -> None:
    read = {Edge(root, "read") for root in (ROOTS[0], ROOTS[1], ROOTS[4])}
    assert edges_of(RECORD) == read | {Edge(root, "made") for root in (ROOTS[2], ROOTS[3], ROOTS[5])}
    assert edges_of(replace(RECORD, state=RunState.NOT_LAUNCHED)) == set()
    assert edges_of(replace(RECORD, state=RunState.RUNNING)) == set()
    assert edges_of(replace(ANY, state=RunState.ENDED, data=ANY.data, output=None)) == set()


def test_keys_of_edges_are_parsed_as_they_were_built() -> None:
    parsed = [keys.parse_lineage_key(key) for key in edge_keys(RECORD)]
    assert {(row[0], row[1]) for row in parsed if row is not None} == edges_of(RECORD)
    assert {row[2:] for row in parsed if row is not None} == {(RECORD.dataset, RECORD.run)}
    for wrong in (
        "lineage/x/made/pets/r",
        f"lineage/{OUT}/seen/pets/r",
        f"lineage/{OUT}/made/pets",
        "runs/a/b/c",
    ):
        assert keys.parse_lineage_key(wrong) is None


def test_edges_are_there_before_the_record_and_go_before_it() -> None:
    store = MemoryStore()
    runs = RunStore(store)
    runs.write(RECORD.dataset, RECORD.run, "start", replace(RECORD, state=RunState.RUNNING).encode())
    assert edges(store) == []

    put = store.put_if_absent

    def fails_for_the_record(key: str, data: bytes) -> object:
        if key.endswith("/record"):
            raise Unreachable("the store is away")
        return put(key, data)

    store.put_if_absent = fails_for_the_record  # type: ignore[method-assign,assignment]
    with pytest.raises(Unreachable):
        runs.add_end(RECORD, None)
    assert edges(store) == sorted(edge_keys(RECORD))
    store.put_if_absent = put  # type: ignore[method-assign]
    runs.add_end(RECORD, None)
    (stored,) = runs.listing(RECORD.dataset)
    runs.delete(stored)
    assert edges(store) == []
    assert runs.listing(RECORD.dataset) == []


def test_who_may_not_put_edges_can_still_put_the_record() -> None:
    """A policy from before edges allows `runs/` and not `lineage/`."""
    store = MemoryStore()
    put = store.put_if_absent

    def denied(key: str, data: bytes) -> object:
        if key.startswith(keys.LINEAGE_PREFIX):
            raise Denied("not there")
        return put(key, data)

    store.put_if_absent = denied  # type: ignore[method-assign,assignment]
    assert RunStore(store).add_end(RECORD, None) == RECORD
    assert edges(store) == []


def test_a_record_that_another_dsv_has_sent_gets_its_edges_by_the_spool_too() -> None:
    store = MemoryStore()
    RunStore(store).write(RECORD.dataset, RECORD.run, "record", RECORD.encode())
    assert edges(store) == sorted(edge_keys(RECORD))
