"""What a sync asks of a store that many syncs were made to, and what a list of many datasets asks, exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv.api.datasets import dataset_item
from dsv.format.records import RefEntry, TagDeleted, TagValue
from dsv.repo.merge_indexes import GRACE_SECONDS, merge_indexes
from dsv.repo.refs.branches import Head
from dsv.stores.open import OpenStore, RequestCounts
from dsv.values.ids import Nonce
from dsv.values.names import MAIN, DatasetName, TagName
from tests.kit.repositories import DATASET, WRITER, commit, create
from tests.repo.test_merge_indexes import Clocked, add, reopened


def sync(store: OpenStore, number: int, folder: Path | None) -> RequestCounts:
    repository = reopened(store, folder)
    before = store.counts
    commit(repository, {"a": b"content %d" % number})
    return store.counts - before


@pytest.fixture(scope="module")
def ten() -> RequestCounts:
    """A cold sync with ten behind it."""
    store = OpenStore(Clocked())
    repository = create(store)
    commit(repository, {"a": b"1"})
    add(repository, 10)
    return sync(store, 1, None)


def test_a_cold_sync_reads_no_more_after_many_syncs(ten: RequestCounts) -> None:
    clocked = Clocked()
    store = OpenStore(clocked)
    repository = create(store)
    commit(repository, {"a": b"1"})
    add(repository, 1500)
    assert sync(store, 1, None).gets == ten.gets + 1490  # nobody has merged: one for each index file
    merge_indexes(reopened(clocked), WRITER)
    merged = sync(store, 2, None)
    assert merged.gets < ten.gets and merged.lists == ten.lists and merged.puts == ten.puts
    assert merged.listed > 1500  # what was replaced is still there
    clocked.now += GRACE_SECONDS
    merge_indexes(reopened(clocked), WRITER)
    later = sync(store, 3, None)
    assert later.gets < ten.gets and later.listed <= ten.listed and later.requests < ten.requests


def test_a_warm_sync_reads_no_index_file_but_new_ones(tmp_path: Path) -> None:
    store = OpenStore(Clocked())
    repository = create(store)
    commit(repository, {"a": b"1"})
    add(repository, 40)
    merge_indexes(reopened(store), WRITER)
    sync(store, 1, tmp_path)
    first = sync(store, 2, tmp_path)
    add(repository, 3, 40)
    assert sync(store, 3, tmp_path).gets == first.gets + 3
    assert sync(store, 4, tmp_path).gets == first.gets


def test_a_list_of_datasets_asks_the_same_however_many_moves_they_have() -> None:
    store = OpenStore(Clocked())
    repository = create(store)
    for number in range(30):
        name = DatasetName.parse(f"set-{number}")
        head = None
        for _ in range(number + 1):
            entry = RefEntry(None, False, Nonce.random(), 0, "Ann", "init")
            moved = repository.refs.move(name, MAIN, head, entry)
            assert isinstance(moved, Head)
            head = moved
    again = reopened(store)
    before = store.counts
    names = again.refs.datasets()
    assert len(names) == 31
    asked = store.counts - before
    assert (asked.lists, asked.listed, asked.gets) == (1, 31, 0)
    before = store.counts
    assert [item.dataset for name in names if (item := dataset_item(again, name))] == names
    asked = store.counts - before
    assert (asked.lists, asked.gets) == (
        31,
        62,
    )  # of each its newest moves, the first of them, and none behind it
    assert asked.listed <= 62


def test_a_deleted_tag_takes_no_request() -> None:
    store = OpenStore(Clocked())
    repository = create(store)
    made = commit(repository, {"a": b"1"})
    for number in range(30):
        tag = TagName.parse(f"v{number}")
        repository.refs.set_tag(DATASET, tag, TagValue(made, Nonce.random(), 0, "Ann", ""))
        if number % 10:
            repository.refs.delete_tag(DATASET, tag, TagDeleted(Nonce.random(), 0, "Ann", ""))
    again = reopened(store)
    before = store.counts
    assert [tag for tag, _ in again.refs.tags(DATASET)] == ["v0", "v10", "v20"]
    asked = store.counts - before
    assert (asked.lists, asked.gets) == (1, 6)  # of each that is left its value, and whether it is deleted
