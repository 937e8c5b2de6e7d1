"""Copies of many commits together: of histories whose trees share some segments, and have more or fewer levels."""

from __future__ import annotations

import random

import pytest

from dsv.format import tree as cutting
from dsv.format.records import RefEntry
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.memory import MemoryStore
from dsv.upkeep.copy import CommitCopy, Receiver
from dsv.values.ids import CommitId
from dsv.values.names import MAIN
from dsv.values.progress import NoProgress
from tests.kit.repositories import DATASET, WRITER, Files, commit, create, read


def copied(store: MemoryStore, commits: list[CommitId], first: int) -> Repository:
    """Copy the first few commits, then the others."""
    source, there, base = Repository.open(store, None), create(MemoryStore()), None
    for some in filter(None, (commits[:first], commits[first:])):
        with Session.open(there, WRITER, resumed=False) as session:
            with Receiver(session) as receiver:
                CommitCopy(source.objects, session, receiver, NoProgress(), base).copy(some, set())
            base, before = some[-1], there.refs.newest(DATASET, MAIN)
            session.publish(DATASET, MAIN, before, RefEntry.of(WRITER, 0, base, "copy"))
    return Repository.open(there.store, None)


def test_segments_of_several_commits_are_copied_in_the_order_of_each_tree() -> None:
    files: Files = {f"{number:05}": b"%d" % number for number in range(5000)}
    store = MemoryStore()
    repository = create(store)
    edits: list[Files] = [files, {"04999": b"new"}, {"00000": b"new"}]
    commits = [commit(repository, edit) for edit in edits]
    there = copied(store, commits, 3)
    assert read(there, commits[1]) == files | edits[1]
    assert read(there, commits[2]) == files | edits[1] | edits[2]


@pytest.mark.parametrize("seed", range(3))
def test_trees_of_different_levels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MIN_ENTRIES", 3)
    monkeypatch.setattr(cutting, "MAX_ENTRIES", 12)
    chance, store = random.Random(seed), MemoryStore()
    repository, now, commits, states = (
        create(store),
        dict[str, bytes | None](),
        list[CommitId](),
        list[Files](),
    )
    for _ in range(8):
        new = {
            f"{chance.randrange(999):03}": chance.randbytes(9) for _ in range(chance.choice([1, 3, 40, 150]))
        }
        gone = chance.sample(sorted(now), chance.choice([0, len(now) // 2, len(now)]))
        gone = [name for name in gone if name not in new]
        commits.append(commit(repository, new, removed=tuple(gone)))
        now = {**{name: now[name] for name in now if name not in gone}, **new}
        states.append(now)
    there = copied(store, commits, seed)
    assert [read(there, made) for made in commits] == states
