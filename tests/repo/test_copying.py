"""A store that is copied while others write to it: docs/internals/format-writing.md, "Copying a store"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsv.errors import DsvError
from dsv.format import keys
from dsv.repo.objects.access import Access
from dsv.repo.repository import Repository
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId
from dsv.values.names import MAIN
from tests.kit.repositories import DATASET, commit, create, read

DOC = (Path(__file__).parents[2] / "docs/internals/format-writing.md").read_text()


def written_order() -> list[str]:
    """The prefixes in the order of the document."""
    section = DOC.split("## 10. Copying a store")[1]
    steps = re.findall(r"^[0-9]\. (.*)$", section, re.MULTILINE)
    return [prefix for step in steps for prefix in re.findall("`([^`]+)`", step)]


class Busy:
    """Somebody who commits each time the copy has done something: after each listing, and after each key."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.made: dict[CommitId, dict[str, bytes | None]] = {}
        self._files: dict[str, bytes | None] = {}

    def work(self) -> None:
        number = len(self.made)
        if number >= 60:
            return
        new: dict[str, bytes | None] = {f"d{number % 3}/f{number}": b"content of %d" % number}
        self._files = {**self._files, **new}
        self.made[commit(self.repository, new)] = self._files


def copied(store: StoreBackend, busy: Busy, order: list[str]) -> MemoryStore:
    copy = MemoryStore()
    for prefix in order:
        found = [item.key for item in store.list(prefix)]
        busy.work()
        for number, key in enumerate(found):
            copy.put_if_absent(key, store.get(key))
            if number % 7 == 0:
                busy.work()
    return copy


def moves(repository: Repository) -> list[CommitId]:
    """Return the commit that each move of the branch names."""
    head = repository.refs.head(DATASET, MAIN)
    entries = [repository.refs.entry(DATASET, MAIN, number) for number in range(head.number + 1)]
    return [entry.commit for entry in entries if entry is not None and entry.commit is not None]


def start() -> tuple[MemoryStore, Busy]:
    store = MemoryStore()
    busy = Busy(create(store))
    for _ in range(5):
        busy.work()
    return store, busy


def test_a_copy_in_the_written_order_has_all_that_its_names_name() -> None:
    store, busy = start()
    before = len(busy.made)
    copy = Repository.open(copied(store, busy, written_order()), None)
    assert len(busy.made) > before + 10
    names = moves(copy)
    assert len(names) >= before
    for commit_id in names:
        assert read(copy, commit_id) == busy.made[commit_id]


def test_the_copy_can_be_written_to() -> None:
    store, busy = start()
    copy = Repository.open(copied(store, busy, written_order()), None, Access(busy.repository.clock))
    last = busy.made[moves(copy)[-1]]
    assert read(copy, commit(copy, {"new": b"new"})) == {**last, "new": b"new"}


def test_an_unfinished_copy_is_no_store() -> None:
    store, busy = start()
    copy = copied(store, busy, written_order()[:-1])
    with pytest.raises(DsvError, match="which makes it one, is gone"):
        Repository.open(copy, None)


@pytest.mark.parametrize("early", [["packs/"], ["commits/", "locators/"]])
def test_what_is_copied_before_the_names_may_lack_what_they_need(early: list[str]) -> None:
    """So the order is needed, and this test would find a wrong one. A locator has a copy of its commit."""
    store, busy = start()
    order = [*early, *(prefix for prefix in written_order() if prefix not in early)]
    copy = Repository.open(copied(store, busy, order), None)
    with pytest.raises(DsvError):
        for commit_id in moves(copy):
            read(copy, commit_id)


def test_every_prefix_is_copied_or_said_not_to_be() -> None:
    section = DOC.split("## 10. Copying a store")[1]
    known = {
        keys.README_KEY, keys.FORMAT_PREFIX, keys.PACK_PREFIX, keys.INDEX_PREFIX, keys.COMMIT_PREFIX,
        keys.LOCATOR_PREFIX, keys.REFS_PREFIX, keys.SESSIONS_PREFIX, keys.GC_PREFIX, keys.RUNS_PREFIX,
        keys.PROBE_PREFIX, keys.ERASURE_PREFIX, keys.LINEAGE_PREFIX, keys.ONCE_PREFIX, keys.BEATS_PREFIX, "names/",
        keys.METRICS_PREFIX,
    }  # fmt: skip
    assert known == set(written_order()) | {"sessions/", "gc/", "beats/", "metrics/", "probe/"}
    assert "`sessions/`, `gc/`, `beats/`, `metrics/` and `probe/` are not copied" in " ".join(section.split())
