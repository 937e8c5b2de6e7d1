from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsv.errors import Conflict, Denied, IntegrityError, NotFound
from dsv.format import keys
from dsv.format.records import RefEntry, TagDeleted, TagValue
from dsv.repo.errors import name_denied_write
from dsv.repo.refs import listing as listed_module
from dsv.repo.refs.branches import Head, LostRace, Refs, deleted
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, TagName
from tests.kit.repositories import DATASET, commit
from tests.stores.wrapper import Wrapper


def entry(number: int) -> RefEntry:
    return RefEntry(CommitId(bytes([number]) * 32), False, Nonce.random(), 0, "a", "sync")


def test_of_many_moves_one_wins_and_the_others_know_it(repository: Repository) -> None:
    head = repository.refs.head(DATASET, MAIN)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: repository.refs.move(DATASET, MAIN, head, entry(n)), range(8)))
    winners = [result for result in results if isinstance(result, Head)]
    assert len(winners) == 1
    losers = [result for result in results if isinstance(result, LostRace)]
    assert {loser.winner.entry for loser in losers} == {winners[0].entry}
    assert repository.refs.head(DATASET, MAIN).number == 1


def test_a_move_that_is_denied_names_the_branch(repository: Repository) -> None:
    class Denying(Wrapper):
        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            raise Denied(f"writing {self.url}/{key} was refused: Access Denied", subject=key, hint="log in")

    refs = Refs(Denying(repository.store))
    head = refs.head(DATASET, MAIN)
    deletion = RefEntry(None, True, Nonce.random(), 0, "a", "delete")
    for write in (
        lambda: refs.move(DATASET, MAIN, head, deletion),
        lambda: refs.set_tag(
            DATASET, TagName.parse("v1"), TagValue(CommitId(b"1" * 32), Nonce.random(), 0, "a", "")
        ),
    ):
        with pytest.raises(Denied) as told:
            write()
        assert "of scans was not changed" in told.value.message and "refs/" not in told.value.message
        assert (told.value.hint, str(told.value.subject).split()[0]) in {
            ("log in", "branch"),
            ("log in", "tag"),
        }


def test_the_history_is_the_reflog(repository: Repository) -> None:
    for number in range(1, 5):
        repository.refs.move(DATASET, MAIN, repository.refs.head(DATASET, MAIN), entry(number))
    head = repository.refs.head(DATASET, MAIN)
    commits = [one.commit for one in repository.refs.history(head)]
    assert commits == [entry(4).commit, entry(3).commit, entry(2).commit, entry(1).commit, None]


def test_a_stale_listing_is_seen_through(repository: Repository) -> None:
    """The newest entries are found even where the listing does not show them yet."""
    for number in range(1, 4):
        repository.refs.move(DATASET, MAIN, repository.refs.head(DATASET, MAIN), entry(number))

    class Stale(MemoryStore):
        def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
            rows = list(super().list(prefix, start_after))
            return iter(rows[2:] if prefix.startswith("refs/") else rows)

    stale = Stale()
    for item in repository.store.list(""):
        stale.put_if_absent(item.key, repository.store.get(item.key))
    assert Refs(stale).head(DATASET, MAIN).number == 3


def test_a_newer_move_of_another_is_seen_by_who_has_asked_before(repository: Repository) -> None:
    before = Refs(repository.store)
    assert before.head(DATASET, MAIN).number == 0
    for number in range(1, 4):
        repository.refs.move(DATASET, MAIN, repository.refs.head(DATASET, MAIN), entry(number))
    assert before.head(DATASET, MAIN) == repository.refs.head(DATASET, MAIN)
    late = BranchName.parse("late")
    assert before.head_or_none(DATASET, late) is None
    repository.refs.move(DATASET, late, None, entry(9))
    assert before.branch_or_tag(DATASET, "late") == repository.refs.head(DATASET, late)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_was_listed_ahead_is_where_the_search_begins(repository: Repository, ordered: bool) -> None:
    """And no more than that: others move on meanwhile, and the format may forbid to trust the order."""
    for number in range(1, 4):
        repository.refs.move(DATASET, MAIN, repository.refs.head(DATASET, MAIN), entry(number))
    store = OpenStore(repository.store)
    refs = Refs(store)
    refs.expect(DATASET, MAIN)
    repository.refs.move(DATASET, MAIN, repository.refs.head(DATASET, MAIN), entry(4))
    store.ordered_listing = ordered
    assert refs.head(DATASET, MAIN).number == 4
    assert store.counts.lists == (1 if ordered else 2)


def test_a_store_that_no_longer_lets_one_writer_win() -> None:
    """Both get the answer that they won; the one whose move is gone finds out."""

    class Overwrites(Wrapper):
        other: Callable[[], object] | None = None

        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            self.inner.delete(key)
            self.inner.put_if_absent(key, data)
            if self.other is not None:
                other, self.other = self.other, None
                other()
            return PutResult.WON

    store = Overwrites(MemoryStore())
    ann, bob = Refs(store), Refs(store)
    ann.move(DATASET, MAIN, None, entry(1))
    head = ann.head(DATASET, MAIN)
    store.other = lambda: bob.move(DATASET, MAIN, head, entry(3))
    with pytest.raises(IntegrityError, match="no longer lets one writer win") as caught:
        ann.move(DATASET, MAIN, head, entry(2))
    assert caught.value.subject == keys.branch_key(DATASET, MAIN, 1)
    assert Refs(store).head(DATASET, MAIN).commit == entry(3).commit


@pytest.mark.parametrize("passed", [2, 1000])
def test_names_below_many_moves_are_listed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, passed: int
) -> None:
    monkeypatch.setattr(listed_module, "_PASSED", passed)
    for name in ("b", "scans-2", "scans.old", "team/a", "scans0"):
        if len(name) > 1:
            repository.refs.move(DatasetName.parse(name), MAIN, None, entry(1))
    for number in range(1, 9):
        repository.refs.move(DATASET, MAIN, repository.refs.head(DATASET, MAIN), entry(number))
    repository.refs.move(DATASET, BranchName.parse("fix/typo"), None, entry(3))
    assert repository.refs.datasets() == ["scans", "scans-2", "scans.old", "scans0", "team/a"] or sorted(
        repository.refs.datasets()
    ) == ["scans", "scans-2", "scans.old", "scans0", "team/a"]
    assert [head.branch for head in repository.refs.heads(DATASET)] == ["fix/typo", "main"]


def test_a_tag_never_moves_and_never_comes_back(repository: Repository) -> None:
    tag = TagName.parse("v1")
    one = TagValue(CommitId(b"1" * 32), Nonce.random(), 0, "a", "")
    two = TagValue(CommitId(b"2" * 32), Nonce.random(), 0, "a", "")
    repository.refs.set_tag(DATASET, tag, one)
    again = repository.refs.set_tag(DATASET, tag, TagValue(one.commit, Nonce.random(), 1, "b", ""))
    assert again.nonce == one.nonce
    with pytest.raises(Conflict, match="never moves"):
        repository.refs.set_tag(DATASET, tag, two)
    repository.refs.delete_tag(DATASET, tag, TagDeleted(Nonce.random(), 0, "a", ""))
    assert repository.refs.tag(DATASET, tag) is None
    assert repository.refs.tags(DATASET) == []
    with pytest.raises(Conflict, match="its name cannot be reused"):
        repository.refs.set_tag(DATASET, tag, one)


def test_what_people_type_finds_one_commit(repository: Repository) -> None:
    ids = [commit(repository, {f"f{n}": b"x"}) for n in range(3)]
    repository.refs.set_tag(DATASET, TagName.parse("v1"), TagValue(ids[0], Nonce.random(), 0, "a", ""))

    def found(text: str | None) -> CommitId:
        rev = None if text is None else Rev.parse(text)
        return resolve(repository.refs, repository.objects, DATASET, rev).commit

    assert found(None) == found("main") == ids[2]
    assert found("main~1") == ids[1]
    assert found("v1") == ids[0]
    assert found(str(ids[1])[:10]) == ids[1]
    assert found(str(ids[1])) == ids[1]
    assert found(f"{str(ids[2])[:8]}~2") == ids[0]
    with pytest.raises(NotFound, match="only 2 ancestors"):
        found("main~3")
    with pytest.raises(NotFound, match="no branch or tag v2"):
        found("v2")
    with pytest.raises(NotFound, match="no commit"):
        found("0123456789")
    with pytest.raises(NotFound, match="no dataset other"):
        resolve(repository.refs, repository.objects, DatasetName.parse("other"), None)


@pytest.mark.parametrize("ordered", [True, False])
def test_datasets_are_listed_without_their_moves(ordered: bool) -> None:
    store = OpenStore(MemoryStore())
    store.ordered_listing = ordered
    refs = Refs(store)
    for name in ("scans", "scans-2", "team/a"):
        for number in range(20):
            head = refs.head(DatasetName.parse(name), MAIN) if number else None
            refs.move(DatasetName.parse(name), MAIN, head, entry(number + 1))
    before = store.counts
    assert refs.datasets() == ["scans", "scans-2", "team/a"]
    asked = store.counts - before
    assert (asked.lists, asked.listed, asked.requests) == (1, 3, 1)


def test_the_head_of_a_long_branch_takes_one_listing_of_few_rows() -> None:
    store = OpenStore(MemoryStore())
    head = None
    for number in range(3000):
        moved = Refs(store).move(DATASET, MAIN, head, entry(number % 256))
        assert isinstance(moved, Head)
        head = moved
    before = store.counts
    assert Refs(store).head(DATASET, MAIN).number == 2999
    asked = store.counts - before
    assert (asked.lists, asked.listed, asked.gets) == (1, 2, 2)


@pytest.mark.parametrize(
    ("refused", "place"),
    [
        ("refs/scans/1 in s3://names/dsv", "s3://names/dsv"),
        ("/nfs/names/refs/scans/1", "/nfs/names"),
        ("refs/scans/1", "s3://lake/dsv"),
    ],
)
def test_a_refusal_names_the_place_that_refused(refused: str, place: str) -> None:
    """Also if it is not that of the data."""
    with (
        pytest.raises(Denied) as told,
        name_denied_write("s3://lake/dsv", "refs/scans/1", "branch main of scans"),
    ):
        raise Denied(f"{refused} was refused: 403", subject=refused)
    assert told.value.message == f"branch main of scans was not changed: {place} was refused: 403"


@pytest.mark.parametrize("verb", ["rename", "rename dataset"])
def test_a_command_has_no_words_of_who_deleted_a_branch(repository: Repository, verb: str) -> None:
    head = repository.refs.head(DATASET, MAIN)
    gone = RefEntry(None, True, Nonce.random(), 0, "a", f"{verb}: to x $(reboot)")
    repository.refs.move(DATASET, MAIN, head, gone)
    tombstone = repository.refs.newest(DATASET, MAIN)
    assert tombstone is not None and tombstone.entry.deleted
    kept = {
        "rename": "dsv switch 'x $(reboot)'",
        "rename dataset": f"dsv branch --restore {DATASET}@main brings",
    }
    assert kept[verb] in (deleted(tombstone).hint or "")
