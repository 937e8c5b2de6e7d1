"""Deleting a dataset and bringing it back: killed at any write, and with others at work at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from dsv.errors import Conflict, NotFound
from dsv.format import keys
from dsv.format.records import DELETE_DATASET, ExpiryAction, RefEntry, TagValue, WriterIdentity
from dsv.repo.expiry import append, read_expiry
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.repo.session import naming, point_branch
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.upkeep.datasets import delete_dataset, undelete_dataset
from dsv.upkeep.roots import read_names, read_roots
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, Rev, TagName
from tests.kit.repositories import DATASET, WRITER, commit, create, read
from tests.stores.wrapper import Wrapper

DEV, OLD, V1 = BranchName.parse("dev"), BranchName.parse("old"), TagName.parse("v1")


class Died(Exception):
    pass


class Dying(Wrapper):
    """Dies before or behind the n-th write, or calls something before the write of a key."""

    def __init__(self, inner: StoreBackend, at: int = -1, *, behind: bool = False) -> None:
        super().__init__(inner)
        self.at, self.behind, self.puts = at, behind, 0
        self.before: dict[str, Callable[[], object]] = {}

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self.before.pop(key, lambda: None)()
        number, self.puts = self.puts, self.puts + 1
        if number == self.at and not self.behind:
            raise Died
        done = super().put_if_absent(key, data)
        if number == self.at:
            raise Died
        return done


def opened(store: StoreBackend) -> Repository:
    return Repository.open(store, None)


def make() -> tuple[MemoryStore, list[CommitId]]:
    """Three commits on `main`, `dev` at the second, the tag v1 at the first, and a deleted branch `old`."""
    store = MemoryStore()
    repository = create(store)
    commits = [commit(repository, {"a": b"%d" % number}) for number in range(3)]
    for branch in (DEV, OLD):
        assert isinstance(
            point_branch(repository, WRITER, (DATASET, branch), None, commits[1], "create"), Head
        )
    gone = RefEntry(None, True, Nonce.random(), 0, "a", "delete")
    repository.refs.move(DATASET, OLD, repository.refs.head(DATASET, OLD), gone)
    value = TagValue(commits[0], Nonce.random(), 0, "a", "")
    with naming(repository, WRITER, DATASET, commits[0], "tag v1"):
        repository.refs.set_tag(DATASET, V1, value)
    return store, commits


def heads(store: StoreBackend) -> dict[str, CommitId | None]:
    return {str(head.branch): head.commit for head in opened(store).refs.heads(DATASET)}


def check_deleted(store: StoreBackend, commits: list[CommitId]) -> None:
    repository = opened(store)
    assert heads(store) == {}
    assert set(read_expiry(repository.refs, DATASET).expired) == set(commits)
    for text in (None, "dev", "v1", "v1~0", str(commits[2]), "main~1"):
        rev = None if text is None else Rev.parse(text)
        with pytest.raises(NotFound, match="was deleted") as told:
            resolve(repository.refs, repository.objects, DATASET, rev)
        assert "dsv datasets --undelete scans" in str(told.value.hint)
    with pytest.raises(Conflict, match="its name is not used again"):
        repository.refs.check_new_dataset(DATASET)
    assert set(read_roots(repository)) == set(commits), "until they are freed, all of it stays"


def check_back(store: StoreBackend, commits: list[CommitId]) -> None:
    repository = opened(store)
    assert heads(store) == {"main": commits[2], "dev": commits[1]}
    assert read_expiry(repository.refs, DATASET).states == {}
    assert [value.commit for _, value in repository.refs.tags(DATASET)] == [commits[0]]
    assert read(repository, commits[2]) == {"a": b"2"}


def test_a_dataset_is_deleted_and_comes_back() -> None:
    store, commits = make()
    done = delete_dataset(opened(store), WRITER, DATASET, "too old")
    assert (done.commits, done.already, done.author) == (3, False, WRITER.author)
    check_deleted(store, commits)
    assert delete_dataset(opened(store), WRITER, DATASET).already
    undelete_dataset(opened(store), WRITER, DATASET)
    check_back(store, commits)
    with pytest.raises(Conflict, match="is not deleted"):
        undelete_dataset(opened(store), WRITER, DATASET)
    with pytest.raises(NotFound, match="deleted"):
        opened(store).refs.head(DATASET, OLD)  # it was deleted before, and alone


@pytest.mark.parametrize("behind", [False, True])
def test_killed_at_any_write_the_same_command_finishes(behind: bool) -> None:
    for at in count():
        store, commits = make()
        dying = Dying(store, at, behind=behind)
        try:
            delete_dataset(opened(dying), WRITER, DATASET)
        except Died:
            delete_dataset(opened(store), WRITER, DATASET)
        check_deleted(store, commits)
        if dying.puts <= at:
            break
    assert at > 5
    for at in count():
        store, commits = make()
        delete_dataset(opened(store), WRITER, DATASET)
        dying = Dying(store, at, behind=behind)
        try:
            undelete_dataset(opened(dying), WRITER, DATASET)
        except Died:
            if opened(store).refs.deleted_dataset(DATASET) is not None:
                undelete_dataset(opened(store), WRITER, DATASET)
        check_back(store, commits)
        if dying.puts <= at:
            break
    assert at > 5


@pytest.mark.parametrize("behind", [False, True])
def test_a_deletion_that_was_killed_can_be_taken_back_at_any_write(behind: bool) -> None:
    for at in count():
        store, commits = make()
        dying = Dying(store, at, behind=behind)
        try:
            delete_dataset(opened(dying), WRITER, DATASET)
        except Died:
            if opened(store).refs.deleted_dataset(DATASET) is None:
                check_back(store, commits)
                continue
        undelete_dataset(opened(store), WRITER, DATASET)
        check_back(store, commits)
        if dying.puts <= at:
            break


def test_a_sync_that_is_first_keeps_its_dataset() -> None:
    store, commits = make()
    dying = Dying(store)
    made: list[CommitId] = []
    number = opened(store).refs.head(DATASET, MAIN).number + 1
    dying.before[keys.branch_key(DATASET, MAIN, number)] = lambda: made.append(
        commit(opened(store), {"b": b"x"})
    )
    with pytest.raises(Conflict, match="somebody else has moved main of scans meanwhile"):
        delete_dataset(opened(dying), WRITER, DATASET)
    assert heads(store) == {"main": made[0], "dev": commits[1]}
    assert read_expiry(opened(store).refs, DATASET).states == {}


def test_of_two_who_delete_at_once_both_know_who_was_first() -> None:
    store, commits = make()
    dying = Dying(store)
    number = opened(store).refs.head(DATASET, MAIN).number + 1
    eve = WriterIdentity("eve", "host", "test")
    dying.before[keys.branch_key(DATASET, MAIN, number)] = lambda: delete_dataset(opened(store), eve, DATASET)
    done = delete_dataset(opened(dying), WRITER, DATASET)
    assert (done.author, done.commits) == ("eve", 3)
    check_deleted(store, commits)


def test_a_sync_after_a_deletion_says_who_deleted_the_dataset() -> None:
    store, commits = make()
    late = opened(store)
    head = late.refs.head(DATASET, MAIN)
    delete_dataset(opened(store), WRITER, DATASET)
    entry = RefEntry(commits[1], False, Nonce.random(), 0, "bob", "sync")
    lost = late.refs.move(DATASET, MAIN, head, entry)
    assert isinstance(lost, LostRace) and lost.winner.entry.action == DELETE_DATASET


def test_a_move_of_another_branch_that_a_deletion_does_not_see_is_reported() -> None:
    """It was opened before the store had any deletion, and its branch is deleted by the next call."""
    store, commits = make()
    late = opened(store)
    delete_dataset(opened(store), WRITER, DATASET)
    entry = RefEntry(commits[1], False, Nonce.random(), 0, "bob", "sync")
    with pytest.raises(Conflict, match=r"dataset scans was deleted .*, while branch dev was moved to"):
        late.refs.move(DATASET, DEV, late.refs.newest(DATASET, DEV), entry)
    assert heads(store) == {"dev": commits[1]}
    assert not delete_dataset(opened(store), WRITER, DATASET).already
    check_deleted(store, commits)


def test_a_branch_that_moves_during_a_deletion_goes_with_it() -> None:
    store, commits = make()
    dying = Dying(store)
    other = opened(store)
    after = other.refs.newest(DATASET, DEV)
    assert after is not None

    def move() -> None:
        entry = RefEntry(commits[2], False, Nonce.random(), 0, "bob", "sync")
        with pytest.raises(Conflict, match="was deleted"):
            other.refs.move(DATASET, DEV, after, entry)

    dying.before[keys.branch_key(DATASET, DEV, after.number + 1)] = move
    delete_dataset(opened(dying), WRITER, DATASET)
    check_deleted(store, commits)


def test_of_an_undeletion_and_a_gc_one_wins() -> None:
    store, commits = make()
    delete_dataset(opened(store), WRITER, DATASET)
    tags = [one for one in read_names(opened(store)) if one.why.startswith("tag")]
    assert [one.holds for one in tags] == [False]
    append(opened(store), WRITER, DATASET, ExpiryAction.FREE, lambda log: list(log.expired))
    with pytest.raises(Conflict, match="gc has removed the content of dataset scans"):
        undelete_dataset(opened(store), WRITER, DATASET)
    assert heads(store) == {}
    freed = read_expiry(opened(store).refs, DATASET).freed
    assert freed == set(commits)
    assert read_roots(opened(store), freed=lambda _: freed) == [], "the tag keeps nothing either"


def test_who_deletes_and_who_brings_back_at_once_both_know() -> None:
    store, commits = make()
    dying = Dying(store)
    dying.before[keys.expiry_key(DATASET, 0)] = lambda: undelete_dataset(opened(store), WRITER, DATASET)
    with pytest.raises(Conflict, match="somebody else has moved main of scans meanwhile"):
        delete_dataset(opened(dying), WRITER, DATASET)
    check_back(store, commits)
