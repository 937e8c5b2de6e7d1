"""Counting requests and bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dsv.errors import NotFound
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore, RequestCounts


def test_counts_by_kind() -> None:
    store = OpenStore(MemoryStore())
    store.put_if_absent("a", b"12345")
    store.put_if_absent("a", memoryview(b"12"))
    store.get("a")
    store.get_range("a", 1, 3)
    with pytest.raises(NotFound):
        store.get("absent")
    assert [item.key for item in store.list("")] == ["a"]
    store.delete("a")
    expected = RequestCounts(
        gets=2, ranges=1, puts=2, won=1, lists=1, listed=1, deletes=1, bytes_up=7, bytes_down=8
    )
    assert store.counts == expected
    assert store.counts.requests == 7


def test_the_difference_is_what_happened_since() -> None:
    store = OpenStore(MemoryStore())
    store.put_if_absent("a", b"12345")
    before = store.counts
    store.get("a")
    assert store.counts - before == RequestCounts(gets=1, bytes_down=5)


def test_no_call_is_lost_between_threads() -> None:
    store = OpenStore(MemoryStore())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put_if_absent(f"{number % 500}", b"xy"), range(2000)))
    assert store.counts == RequestCounts(puts=2000, won=500, bytes_up=4000)
