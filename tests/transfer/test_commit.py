"""One commit of changes on a branch, without a workspace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

import pytest
from msgspec.structs import replace

from dsv.errors import Conflict, IntegrityError, Unsupported
from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.locator import Location
from dsv.format.records import RefEntry
from dsv.format.tree import Entry, Kind
from dsv.repo.refs.branches import LostRace
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.transfer.commit import Committed, Draft, Unchanged, commit_changes
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId, FileId, Nonce, PackId
from dsv.values.names import MAIN, BranchName, DatasetName
from dsv.values.paths import sort_key
from tests.kit.repositories import DATASET, WRITER, change, commit, condemn, create, packs, read

Edit = Mapping[str, bytes | None]
"""Path -> content, or None for a path that goes; a key that ends in '@' is a symlink."""


@pytest.fixture
def repository() -> Repository:
    return create(MemoryStore())


def draft(repository: Repository, dataset: DatasetName = DATASET, branch: BranchName = MAIN) -> Draft:
    after = repository.refs.newest(dataset, branch)
    head = None if after is None else after.commit
    return Draft(dataset, branch, after, () if head is None else (head,), "why", "put")


def edit(files: Edit) -> Callable[[Uploader], Iterable[TreeChange]]:
    names = sorted(files, key=lambda name: sort_key(name.removesuffix("@").encode()))
    return lambda uploader: [change(uploader, name, files[name], files[name] is None) for name in names]


def make(repository: Repository, files: Edit, what: Draft | None = None) -> Committed | Unchanged | LostRace:
    what = what or draft(repository)
    base = TreeReader(repository.objects, what.parents[0]) if what.parents else None
    return commit_changes(repository, WRITER, what, base, edit(files))


def made(found: Committed | Unchanged | LostRace) -> Committed:
    assert isinstance(found, Committed)
    return found


def test_the_branch_gets_the_changes_on_top_of_its_head(repository: Repository) -> None:
    first = commit(repository, {"a": b"1", "b": b"2"})
    done = made(make(repository, {"a": None, "c/d": b"3", "b": b"4"}))
    assert read(repository, done.id) == {"b": b"4", "c/d": b"3"}
    assert repository.objects.commit(done.id) == done.commit
    assert (done.commit.parents, done.commit.message, done.commit.files) == ((first,), "why", 2)
    head = repository.refs.head(DATASET, MAIN)
    assert head == done.head and head.commit == done.id
    assert (head.entry.action, head.entry.author) == ("put", WRITER.author)


def test_a_branch_without_a_commit_gets_its_first(repository: Repository) -> None:
    done = made(make(repository, {"a": b"1"}))
    assert done.commit.parents == () and done.head.number == 1
    assert read(repository, done.id) == {"a": b"1"}


def test_a_dataset_is_made_with_its_first_commit(repository: Repository) -> None:
    """There is no moment at which it is there without it."""
    new = DatasetName.parse("new")
    assert not repository.refs.exists(new)
    done = made(make(repository, {"a": b"1"}, draft(repository, new)))
    assert done.head.number == 0 and done.head.commit == done.id
    assert repository.refs.datasets() == [new, DATASET]
    other = Repository.open(repository.store, None)
    assert other.refs.head(new, MAIN).commit == done.id


def test_a_deleted_branch_is_continued(repository: Repository) -> None:
    side = BranchName.parse("side")
    done = made(make(repository, {"a": b"1"}, draft(repository, branch=side)))
    gone = RefEntry(None, True, Nonce.random(), 1, WRITER.author, "delete")
    repository.refs.move(DATASET, side, done.head, gone)
    again = made(make(repository, {"b": b"2"}, draft(repository, branch=side)))
    assert again.head.number == 2 and read(repository, again.id) == {"b": b"2"}


def test_what_changes_nothing_is_not_published(repository: Repository) -> None:
    assert make(repository, {}) == Unchanged(None)
    first = commit(repository, {"a": b"1"})
    before = repository.refs.head(DATASET, MAIN)
    assert make(repository, {"a": b"1", "b": None}) == Unchanged(first)
    assert repository.refs.head(DATASET, MAIN) == before


def test_several_parents_are_kept_even_if_the_tree_is_that_of_one(repository: Repository) -> None:
    first = commit(repository, {"a": b"1"})
    second = commit(repository, {"b": b"2"})
    what = replace(draft(repository), parents=(second, first), action="merge")
    done = made(make(repository, {}, what))
    assert done.commit.parents == (second, first)
    assert read(repository, done.id) == {"a": b"1", "b": b"2"}


def test_a_lost_race_publishes_nothing_and_names_the_winner(repository: Repository) -> None:
    commit(repository, {"a": b"1"})
    stale = draft(repository)
    winner = commit(repository, {"b": b"2"})
    lost = make(repository, {"c": b"3"}, stale)
    assert isinstance(lost, LostRace) and lost.winner.commit == winner
    assert repository.refs.head(DATASET, MAIN).commit == winner
    done = made(make(repository, {"c": b"3"}))
    assert read(repository, done.id) == {"a": b"1", "b": b"2", "c": b"3"}


def test_what_a_lost_race_uploaded_is_not_uploaded_again(repository: Repository) -> None:
    commit(repository, {"a": b"1"})
    stale = draft(repository)
    commit(repository, {"b": b"2"})
    content = bytes(range(256)) * 900
    assert isinstance(make(repository, {"c": content}, stale), LostRace)
    before = {key: len(repository.store.get(key)) for key in packs(repository)}
    made(make(repository, {"c": content}))
    new = [key for key in packs(repository) if key not in before]
    assert sum(len(repository.store.get(key)) for key in new) < 2000


def test_a_parent_that_the_store_has_lost_is_refused(repository: Repository) -> None:
    first = commit(repository, {"a": b"1"})
    what = draft(repository)
    repository.store.delete(keys.commit_key(first))
    fresh = Repository.open(repository.store, None)
    with pytest.raises(IntegrityError, match=str(first)):
        commit_changes(fresh, WRITER, what, None, edit({"b": b"2"}))


def test_another_parent_that_gc_is_removing_is_refused(repository: Repository) -> None:
    first = commit(repository, {"a": b"1"})
    doomed = packs(repository)
    second = commit(repository, {"a": b"2"})
    condemn(repository, 0, doomed)
    fresh = Repository.open(repository.store, None)
    what = replace(draft(fresh), parents=(second, first))
    with pytest.raises(Conflict, match="being removed"):
        commit_changes(fresh, WRITER, what, TreeReader(fresh.objects, second), edit({}))
    assert fresh.refs.head(DATASET, MAIN).commit == second


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({"d/link@": b"../x"}, {"link@": b"../x"}),
        ({"deep/er/f": b"1", "s@": b"deep/er", "l@": b"s/../../f"}, {"s": None}),
        ({"deep/er/f": b"1", "s@": b"deep/er", "l@": b"s/../../f"}, {"s": b"now a file"}),
    ],
)
def test_no_change_makes_a_symlink_lead_out(
    repository: Repository, before: dict[str, bytes | None], change: Edit
) -> None:
    """A symlink that stays as it is may lead out because of another one."""
    head = commit(repository, before)
    with pytest.raises(Unsupported, match="would lead out"):
        make(repository, change)
    assert repository.refs.head(DATASET, MAIN).commit == head


class Dying(MemoryStore):
    """Takes so many writes and then none, as if the writer had been killed."""

    left = 1 << 30

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if self.left <= 0:
            raise Killed
        self.left -= 1
        return super().put_if_absent(key, data)


class Killed(BaseException):
    pass


def test_killed_before_any_write_there_is_nothing_or_all_of_it() -> None:
    new = DatasetName.parse("new")
    outcomes: list[CommitId | None] = []
    for writes in range(30):
        store = Dying()
        repository = create(store)
        store.left = writes
        with contextlib.suppress(Killed):
            make(repository, {"a": b"1", "b": b"2"}, draft(repository, new))
        store.left = 1 << 30
        fresh = Repository.open(store, None)
        head = fresh.refs.head_or_none(new, MAIN)
        assert fresh.refs.exists(new) == (head is not None)
        outcomes.append(None if head is None else head.commit)
        if head is not None:
            assert head.commit is not None and read(fresh, head.commit) == {"a": b"1", "b": b"2"}
    assert outcomes[0] is None and outcomes[-1] is not None
    assert outcomes == sorted(outcomes, key=lambda commit: commit is not None)


def in_a_pack_that_is_gone(repository: Repository, content: bytes) -> Location:
    """As a local copy of a commit's metadata says that a content lies, which the store has lost."""
    return Location(PackId.random(), 8, len(content), len(content), Codec.RAW)


def test_content_whose_pack_is_gone_is_not_referred_to(repository: Repository) -> None:
    commit(repository, {"a": b"1"})
    what = draft(repository)
    entry = Entry(b"lost", Kind.FILE, 4, FileId.hash(b"lost"))
    gone = TreeChange(b"lost", entry, in_a_pack_that_is_gone(repository, b"lost"))
    with pytest.raises(IntegrityError, match="the content of 'lost' is not in"):
        commit_changes(
            repository, WRITER, what, TreeReader(repository.objects, what.parents[0]), lambda _: [gone]
        )
    assert repository.refs.head(DATASET, MAIN).commit == what.head


def test_content_that_has_another_place_is_referred_to_there(repository: Repository) -> None:
    commit(repository, {"a": b"here"})
    what = draft(repository)
    entry = Entry(b"b", Kind.FILE, 4, FileId.hash(b"here"))
    stale = TreeChange(b"b", entry, in_a_pack_that_is_gone(repository, b"here"))
    base = TreeReader(repository.objects, what.parents[0])
    done = made(commit_changes(repository, WRITER, what, base, lambda _: [stale]))
    places = {where for _, where in TreeReader(repository.objects, done.id).below(b"")}
    assert len(places) == 1 and stale.location not in places
