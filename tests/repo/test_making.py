"""Several who make a store at one place at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dsv.errors import Conflict
from dsv.format import keys
from dsv.repo.format_log import has_layout
from dsv.repo.repository import Repository
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from tests.stores.faulty import Crash, Fault, Faulty, Kind
from tests.stores.wrapper import Wrapper

MAKERS = 8


def create(store: StoreBackend, author: str) -> Repository:
    return Repository.create(store, None, author=author, tool="t")


def test_who_loses_the_race_adopts_the_winners_store() -> None:
    store, ready = MemoryStore(), Barrier(MAKERS)

    def make(number: int) -> Repository:
        ready.wait()
        return create(store, f"maker {number}")

    with ThreadPoolExecutor(MAKERS) as pool:
        made = list(pool.map(make, range(MAKERS)))
    assert len({repository.id for repository in made}) == 1
    assert len({repository.format.entries[0].author for repository in made}) == 1
    assert [item.key for item in store.list(keys.FORMAT_PREFIX)] == [keys.format_key(0)]
    assert b"dsv" in store.get(keys.README_KEY)


class Interrupted(Wrapper):
    """Runs `meanwhile` once, just before entry 0 of the format log is put or just after it."""

    def __init__(self, inner: StoreBackend, meanwhile: Callable[[], object], *, before: bool) -> None:
        super().__init__(inner)
        self._meanwhile: Callable[[], object] | None = meanwhile
        self._before = before

    def _run(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if key == keys.format_key(0) and self._before:
            self._run()
        put = self.inner.put_if_absent(key, data)
        if key == keys.format_key(0):
            self._run()
        return put


@pytest.mark.parametrize("before", [True, False])
def test_one_place_for_names_gets_those_of_one_store(before: bool) -> None:
    """Ann and Bob name one place for the names of two stores; each entry of it is put while the other is at work."""
    names, of_ann, of_bob = MemoryStore(), MemoryStore(), MemoryStore()
    made: dict[str, Repository | Conflict] = {}

    def bob() -> None:
        try:
            made["bob"] = create(OpenStore(of_bob, names), "bob")
        except Conflict as error:
            made["bob"] = error

    try:
        made["ann"] = create(OpenStore(of_ann, Interrupted(names, bob, before=before)), "ann")
    except Conflict as error:
        made["ann"] = error
    winner, loser = ("bob", "ann") if before else ("ann", "bob")
    assert isinstance(made[winner], Repository)
    assert isinstance(made[loser], Conflict)
    assert "has the names of another store" in str(made[loser])
    won, lost = (of_bob, of_ann) if before else (of_ann, of_bob)
    assert [item.key for item in won.list(keys.FORMAT_PREFIX)] == [keys.format_key(0)]
    assert not list(lost.list(""))
    assert not has_layout(OpenStore(lost, MemoryStore()))


@pytest.mark.parametrize("before", [True, False])
def test_makers_of_one_store_in_two_places_share_it(before: bool) -> None:
    names, data = MemoryStore(), MemoryStore()
    made: list[Repository] = []
    other = Interrupted(names, lambda: made.append(create(OpenStore(data, names), "bob")), before=before)
    made.append(create(OpenStore(data, other), "ann"))
    assert len({repository.id for repository in made}) == 1
    for store in (names, data):
        assert [item.key for item in store.list(keys.FORMAT_PREFIX)] == [keys.format_key(0)]


def test_a_store_in_two_places_is_completed_wherever_its_maker_was_killed() -> None:
    number = 0
    while True:
        number += 1
        names, data = MemoryStore(), MemoryStore()
        plan = {number: Fault(Kind.CRASH_BEFORE)}
        try:
            create(OpenStore(Faulty(data, plan), names), "ann")
        except Crash:
            again = create(OpenStore(data, names), "bob")
            assert again.format.entries[0].author in ("ann", "bob")
            continue
        break
    assert number > 4
