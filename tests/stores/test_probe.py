"""Stores that do not do what dsv needs are found out."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from dsv.errors import Denied, NotFound, Unreachable
from dsv.stores import probe
from dsv.stores.base import Bytes, ListedObject, PutResult
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.stores.open import open_store
from dsv.stores.options import StoreOptions
from dsv.stores.probe import WRITERS, prove
from dsv.stores.retry import Retrying
from tests.stores.buckets import Bucket
from tests.stores.wrapper import Wrapper
from tests.waiting import PATIENCE


class IgnoresTheCondition(MemoryStore):
    """Accepts If-None-Match, and overwrites."""

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self.delete(key)
        return super().put_if_absent(key, data)


class ChecksThenWrites(MemoryStore):
    """Honours the condition, unless somebody else's body comes in between, as it always does in a race."""

    looked: ClassVar[Counter[str]] = Counter()
    change: ClassVar = threading.Condition()

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        try:
            self.get(key)
        except NotFound:
            with self.change:
                self.looked[key] += 1
                self.change.notify_all()
                assert "/race/" not in key or self.change.wait_for(lambda: self.looked[key] > 1, PATIENCE)
            self.delete(key)
            return super().put_if_absent(key, data)
        return PutResult.LOST


class TellsNobodyThatHeWon(MemoryStore):
    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        super().put_if_absent(key, data)
        return PutResult.LOST


class TheLastOneStays(MemoryStore):
    """One writer gets the answer that it won, but another's bytes stay."""

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        put = super().put_if_absent(key, data)
        if put is PutResult.LOST:
            self.delete(key)
            super().put_if_absent(key, data)
        return put


class ListsLate(MemoryStore):
    """A listing shows only what is some time old."""

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        rows = [*super().list(prefix, start_after)]
        return iter(rows[:-1])


class ListsInAnyOrder(MemoryStore):
    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        rows = [*super().list(prefix, start_after)]
        random.Random(1).shuffle(rows)
        return iter(rows)


class IgnoresStartAfter(MemoryStore):
    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        return super().list(prefix)


@pytest.mark.parametrize(
    "store",
    [IgnoresTheCondition(), ChecksThenWrites(), TheLastOneStays()],
    ids=lambda store: type(store).__name__,
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_store_without_put_if_absent_is_found_out(store: MemoryStore, wrapped: bool) -> None:
    proof = prove(Retrying(store) if wrapped else store)
    assert not proof.put_if_absent_ok and not proof.ok
    assert proof.findings
    assert list(MemoryStore.list(store, "")) == []


def test_a_store_where_nobody_wins() -> None:
    proof = prove(TellsNobodyThatHeWon())
    assert not proof.put_if_absent_ok
    assert proof.findings == ("of 16 writers of one key 0 were reported as winners",)


def test_listings_that_come_late_are_found_out() -> None:
    proof = prove(ListsLate())
    assert proof.put_if_absent_ok and not proof.listing_ok and not proof.ok
    assert "lacked 1 of" in proof.findings[0]


@pytest.mark.parametrize(
    "store", [ListsInAnyOrder(), IgnoresStartAfter()], ids=lambda store: type(store).__name__
)
def test_order_is_reported_and_not_required(store: MemoryStore) -> None:
    proof = prove(store)
    assert proof.ok and not proof.ordered


def test_a_bucket_that_allows_no_deletion() -> None:
    class Keeps(MemoryStore):
        def delete(self, key: str) -> None:
            raise Denied("no deletion here")

    assert prove(Keeps()).ok


def test_what_was_written_is_removed_after_a_failure() -> None:
    class FailsLate(MemoryStore):
        def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
            raise Denied("no listing here")

    store = FailsLate()
    with pytest.raises(Denied):
        prove(store, rounds=1)
    assert list(MemoryStore.list(store, "")) == []


def test_probes_at_the_same_time_do_not_disturb_each_other() -> None:
    store, proofs = MemoryStore(), []
    threads = [threading.Thread(target=lambda: proofs.append(prove(store, rounds=2))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [proof.ok for proof in proofs] == [True] * 4


def test_every_round_races_all_writers() -> None:
    class Watches(Wrapper):
        def __init__(self) -> None:
            super().__init__(MemoryStore())
            self.inside = threading.Barrier(WRITERS)

        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            if "/race/" in key and bytes(data) != b"late":
                self.inside.wait(PATIENCE)
            return super().put_if_absent(key, data)

    assert prove(Watches()).ok


def test_a_server_that_ignores_if_none_match(lax_bucket: Bucket) -> None:
    """Over real HTTP: the header arrives, and the server, like rclone's, pays no attention to it."""
    store = open_store(f"s3://{lax_bucket.name}/p", StoreOptions.from_environment(lax_bucket.server.env))
    proof = prove(store)
    assert not proof.put_if_absent_ok
    assert "16 were reported as winners" in proof.findings[0]
    assert list(store.list("")) == []


def test_a_server_that_answers_ranges_with_the_whole(lax_bucket: Bucket) -> None:
    store = open_store(f"s3://{lax_bucket.name}/p", StoreOptions.from_environment(lax_bucket.server.env))
    store.put_if_absent("ranges", b"0123456789")
    assert store.get_range("ranges", 3, 4) == b"3456"


def test_a_race_whose_processes_hang_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 0.0)
    with closing(DirectoryStore(tmp_path)) as store:
        with pytest.raises(Unreachable, match=r"the test of .* took more than 0 s"):
            probe.race(store, StoreOptions(), keys=1)
        assert list(store.list("")) == []
