"""Rounds of whatever people do to a store, with garbage collections among it, some of them killed.

python -m tests.upkeep.gc_rounds STORE FOLDER SEED ROUNDS    on a host of its own: of one that writes and collects
python -m tests.upkeep.gc_rounds STORE FOLDER SEED           of one that only collects, until FOLDER/stop is there
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from dsv.errors import Conflict, DsvError, IntegrityError
from dsv.format.expiry import ExpiryAction
from dsv.repo.expiry import append, read_expiry
from dsv.repo.merge_indexes import merge_indexes
from dsv.repo.refs.branches import Moved
from dsv.repo.repository import Repository
from dsv.repo.session import point_branch
from dsv.store.base import Store
from dsv.store.open import open_raw, open_store
from dsv.store.options import StoreOptions
from dsv.upkeep.rename import rename_dataset
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName
from tests.kit.dsv import Dsv
from tests.kit.repositories import DATASET, WRITER, Files, commit, create, read
from tests.store.faulty import Crash, Fault, Faulty, Kind
from tests.upkeep.gc_world import Beside, Meanwhile, Writing, collect

OTHER = DatasetName.parse("another")
REQUESTS = 200
"""About as many as a gc of such a store has."""


class Rounds:
    """A store, what each commit had when it was made, and a writer that was stopped."""

    def __init__(
        self, store: Store, folder: Path, seed: int, dsv: Dsv | None = None, *, alone: bool = True
    ) -> None:
        """dsv: somebody who uses the same store by commands. alone: nobody else collects."""
        self.store = store
        self.dsv = dsv
        self.alone = alone
        self.folder = folder
        self.chance = random.Random(seed)
        self.contents = [self.chance.randbytes(size) for size in (80, 700, 5_000, 30_000, 60_000, 1_500_000)]
        self.files: dict[CommitId, Files] = {}
        self.stopped: Writing | None = None
        self.collected = self.killed = self.fenced = self.refused = self.read = self.told = self.renamed = 0
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
        try:
            made = commit(repository, files)
        except Conflict as error:
            self.refuse(error)
        else:
            self.files[made] = {**before, **files}

    def stop(self) -> None:
        """Begin to write, and be stopped."""
        if self.stopped is None:
            try:
                self.stopped = Writing(self.store, self.some_files())
            except Conflict as error:
                self.refuse(error)

    def refuse(self, error: Conflict) -> None:
        """What the head has may lie in packs that were condemned when somebody had just found it there; and a gc on
        another host may fence a writer at any moment."""
        assert "gc may be about to remove" in error.message or not self.alone, error.message
        self.refused += 1

    def wake(self) -> None:
        """Go on with what was stopped. Its branch has moved on, it was fenced, or it publishes."""
        stopped, self.stopped = self.stopped, None
        if stopped is None:
            return
        if self.open().refs.head(DATASET, MAIN).number != stopped.head.number:
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
            assert "expired" in error.message or "gc" in error.message or not self.alone
        else:
            assert isinstance(moved, Moved)

    def merge(self) -> None:
        merge_indexes(self.open(), WRITER)

    def rename(self) -> None:
        """Give the dataset another name, and then its own again. Whoever does so is killed, and a gc comes between."""
        for old, new in ((DATASET, OTHER), (OTHER, DATASET)):
            kind = self.chance.choice([Kind.CRASH_AFTER, Kind.CRASH_BEFORE, Kind.LOST_ANSWER])
            faulty = Faulty(self.store, {self.chance.randrange(1, REQUESTS): Fault(kind)})
            with suppress(Crash, DsvError):
                rename_dataset(Repository.open(faulty, None), WRITER, old, new)
            self.collect(alone=True)
            rename_dataset(self.open(), WRITER, old, new)
            self.renamed += 1

    def collect(self, *, alone: bool = False) -> None:
        """A gc, with others beside it, that is killed or whose requests fail. alone: without others."""
        others = [self.put, self.stop, self.wake, self.expire, self.undo, self.branch, self.merge]
        beside: dict[int | str, Callable[[], None]] = {
            self.chance.randrange(1, REQUESTS): self.chance.choice(others) for _ in range(0 if alone else 3)
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

    def read_while_collecting(self) -> None:
        """Run a command that reads a commit, with a gc between two of its requests."""
        if self.dsv is None:
            return
        commit_id = self.chance.choice(list(self.files))
        files = {name: data for name, data in self.files[commit_id].items() if data is not None}
        kind, name = self.chance.choice(["cat", "export", "cache"]), self.chance.choice(list(files))
        out = self.folder / f"out {self.number}"
        self.number += 1
        target = f"{DATASET}@{commit_id}"
        words = {"cat": [f"{target}:{name}"], "export": [target, str(out)], "cache": [target]}[kind]
        with pytest.MonkeyPatch.context() as patch:
            Meanwhile(patch, self.chance.randrange(1, 25), self.collect)
            done = self.dsv(kind, *words)
        if done.code:
            assert done.code == 3 and "was expired on" in done.err, (words, done)
            assert commit_id in read_expiry(self.open().refs, DATASET).states, done
            self.told += 1
            return
        if kind == "cat":
            assert done.out.encode("utf-8", "surrogateescape") == files[name]
        else:
            top = out if kind == "export" else Path(done.out.strip())
            assert {one: (top / one).read_bytes() for one in files} == files
        self.read += 1
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(self.dsv.home / ".cache", ignore_errors=True)

    def verify(self) -> None:
        if self.dsv is not None:
            done = self.dsv("verify", "--json")
            assert done.code == 0 and done.json["whole"], done

    def check(self) -> None:
        """Every commit that is not freed restores byte for byte."""
        repository = self.open()
        freed = read_expiry(repository.refs, DATASET).freed
        for one, files in self.files.items():
            if one not in freed:
                try:
                    found = read(repository, one)
                except IntegrityError:
                    if self.alone or one not in read_expiry(self.open().refs, DATASET).freed:
                        raise
                else:
                    assert found == files
        repository.objects.threads.close()

    def run(self, rounds: int) -> None:
        actions = [
            self.put,
            self.stop,
            self.wake,
            self.expire,
            self.undo,
            self.branch,
            self.merge,
            self.rename,
        ]
        if self.dsv is not None:
            actions += [self.read_while_collecting, self.read_while_collecting]
        for _ in range(rounds):
            for action in self.chance.choices(actions, k=4):
                action()
            self.collect()
            self.check()
            if self.alone:
                self.verify()
        if self.alone:
            assert self.collected
            collect(self.store, self.folder / "last")
            self.check()
        print(
            f"{rounds} rounds: {self.collected} gcs, {self.killed} more that failed, {self.fenced} writers fenced, "
            f"{self.refused} refused, {self.renamed} renamings, {self.read} reads beside a gc, {self.told} more that "
            "ended as expired"
        )


def only_collect(store: Store, folder: Path, seed: int) -> None:
    chance, collected, killed = random.Random(seed), 0, 0
    while not (folder / "stop").exists():
        kind = chance.choice([Kind.CRASH_AFTER, Kind.LOST_ANSWER, Kind.SLOW, Kind.SLOW])
        faulty = Faulty(store, {chance.randrange(1, REQUESTS): Fault(kind)})
        try:
            collect(faulty, folder / f"{seed} {collected + killed}")
            collected += 1
        except (Crash, DsvError):
            killed += 1
    print(f"{collected} gcs, {killed} more that failed")


def main(url: str, where: str, seed: str, rounds: str = "") -> None:
    folder = Path(where)
    if not rounds:
        while not (folder / "begun").exists():
            time.sleep(0.1)
        only_collect(open_store(url, StoreOptions()), folder, int(seed))
        return
    store = open_raw(url, StoreOptions(), create=True)
    (folder / "begun").touch()
    dsv = Dsv.of(folder / "home", DSV_STORE=url, DSV_CACHE=str(folder / "cache"))
    try:
        Rounds(store, folder / "ids", int(seed), dsv, alone=False).run(int(rounds))
    finally:
        (folder / "stop").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
