"""Several who make a store at one place at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from dsv.format import keys
from dsv.repo.repository import Repository
from dsv.store.memory import MemoryStore

MAKERS = 8


def test_who_loses_the_race_adopts_the_winners_store() -> None:
    store, ready = MemoryStore(), Barrier(MAKERS)

    def make(number: int) -> Repository:
        ready.wait()
        return Repository.create(store, None, author=f"maker {number}", tool="t")

    with ThreadPoolExecutor(MAKERS) as pool:
        made = list(pool.map(make, range(MAKERS)))
    assert len({repository.id for repository in made}) == 1
    assert len({repository.format.entries[0].author for repository in made}) == 1
    assert [item.key for item in store.list(keys.FORMAT_PREFIX)] == [keys.format_key(0)]
    assert b"dsv" in store.get(keys.README_KEY)
