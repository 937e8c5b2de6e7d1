"""Rounds of whatever people do to a store, with garbage collections among it, some of them killed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dsv.errors import DsvError
from dsv.format.expiry import ExpiryAction
from dsv.repo.expiry import append, read_expiry
from dsv.repo.merge_indexes import merge_indexes
from dsv.repo.refs.branches import Moved
from dsv.repo.repository import Repository
from dsv.repo.session import point_branch
from dsv.store.base import Store
from dsv.store.memory import MemoryStore
from dsv.store.open import open_raw, open_store
from dsv.store.options import StoreOptions
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName
from tests.exhaustive import is_full
from tests.kit.repositories import DATASET, WRITER, Files, commit, create, read
from tests.labs.s3_server import S3Server
from tests.store.faulty import Crash, Fault, Faulty, Kind
from tests.upkeep.gc_world import Beside, Writing, collect

ROUNDS = 300 if is_full() else 12
REQUESTS = 200
"""About as many as a gc of such a store has."""


class Rounds:
    """A store, what each commit had when it was made, and a writer that was stopped."""

    def __init__(self, store: Store, folder: Path, seed: int) -> None:
        self.store = store
        self.folder = folder
        self.chance = random.Random(seed)
        self.contents = [self.chance.randbytes(size) for size in (80, 700, 5_000, 30_000, 60_000, 1_500_000)]
        self.files: dict[CommitId, Files] = {}
        self.stopped: Writing | None = None
        self.collected = self.killed = self.fenced = 0
        self.number = 0
        create(store)
        self.put()

    def open(self) -> Repository:
        return Repository.open(self.store, None)

    def some_files(self) -> Mapping[str, bytes | None]:
        names = [f"{folder}/{number}" for folder in "ab" for number in range(4)]
        return {
            name: self.chance.choice(self.contents) + bytes([self.chance.randrange(3)])
            for name in self.chance.sample(names, self.chance.randrange(1, 5))
        }

    def put(self) -> None:
        repository, files = self.open(), self.some_files()
        head = repository.refs.head(DATASET, MAIN).commit
        before = {} if head is None else self.files[head]
        made = commit(repository, files)
        self.files[made] = {**before, **files}

    def stop(self) -> None:
        """Begin to write, and be stopped."""
        if self.stopped is None:
            self.stopped = Writing(self.store, self.some_files())

    def wake(self) -> None:
        """Go on with what was stopped. Its branch has moved on, it was fenced, or it publishes."""
        stopped, self.stopped = self.stopped, None
        if stopped is None:
            return
        if self.open().refs.head(DATASET, MAIN).commit != stopped.head.commit:
            stopped.session.close()
            stopped.session.__exit__()
        elif stopped.publish():
            self.files[stopped.commit] = stopped.files
        else:
            self.fenced += 1

    def expire(self) -> None:
        repository = self.open()
        heads, _ = repository.refs.names(DATASET)
        named = {head.commit for head in heads}
        old = [one for one in list(self.files)[:-2] if one not in named]
        chosen = [one for one in old if self.chance.random() < 0.6]
        append(repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: chosen)

    def undo(self) -> None:
        repository = self.open()
        append(repository, WRITER, DATASET, ExpiryAction.UNDO, lambda log: list(log.expired)[:1])

    def branch(self) -> None:
        """A branch at an older commit, if that is not expired."""
        commit_id = self.chance.choice(list(self.files))
        where = DATASET, BranchName.parse(f"b{self.number}-{self.chance.randrange(1 << 30)}")
        try:
            moved = point_branch(self.open(), WRITER, where, None, commit_id, "create")
        except DsvError as error:
            assert "expired" in error.message or "gc" in error.message
        else:
            assert isinstance(moved, Moved)

    def merge(self) -> None:
        merge_indexes(self.open(), WRITER)

    def collect(self) -> None:
        """A gc, with others beside it, that is killed or whose requests fail."""
        others = [self.put, self.stop, self.wake, self.expire, self.undo, self.branch, self.merge]
        beside: dict[int | str, Callable[[], None]] = {
            self.chance.randrange(1, REQUESTS): self.chance.choice(others) for _ in range(3)
        }
        kind = self.chance.choice(
            [Kind.CRASH_AFTER, Kind.CRASH_BEFORE, Kind.LOST_ANSWER, Kind.SLOW, Kind.SLOW]
        )
        faulty = Faulty(Beside(self.store, beside), {self.chance.randrange(1, REQUESTS): Fault(kind)})
        self.number += 1
        try:
            collect(faulty, self.folder / str(self.number))
            self.collected += 1
        except (Crash, DsvError):
            self.killed += 1

    def check(self) -> None:
        """Every commit that is not freed restores byte for byte."""
        repository = self.open()
        freed = read_expiry(repository.refs, DATASET).freed
        for one, files in self.files.items():
            if one not in freed:
                assert read(repository, one) == files
        repository.objects.threads.close()

    def run(self, rounds: int) -> None:
        actions = [self.put, self.stop, self.wake, self.expire, self.undo, self.branch, self.merge]
        for _ in range(rounds):
            for action in self.chance.choices(actions, k=4):
                action()
            self.collect()
            self.check()
        assert self.collected
        collect(self.store, self.folder / "last")
        self.check()


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_commits_that_are_not_expired_restore_whatever_happens(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore()
    if kind == "folder":
        store = open_raw(str(tmp_path / "store"), StoreOptions(), create=True)
    rounds = Rounds(store, tmp_path / "ids", 7)
    rounds.run(ROUNDS)
    print(f"{rounds.collected} gcs, {rounds.killed} more that failed, {rounds.fenced} writers fenced")
    store.close()


def test_commits_that_are_not_expired_restore_from_ceph(ceph_s3: S3Server, tmp_path: Path) -> None:
    bucket = ceph_s3.bucket()
    store = open_store(f"s3://{bucket}/rounds", StoreOptions.from_environment(ceph_s3.env))
    rounds = Rounds(store, tmp_path / "ids", 11)
    rounds.run(ROUNDS if is_full() else 4)
    assert rounds.collected
    store.close()
    ceph_s3.remove_bucket(bucket)
