from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import IntegrityError
from dsv.format import keys
from dsv.format import tree as model_tree
from dsv.repo.history import PathHistory
from dsv.repo.objects.access import Access
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import diff_trees
from dsv.repo.tree.reader import TreeReader
from dsv.stores.base import _CONNECTIONS, LARGEST, NoAnswer
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import CommitId
from dsv.values.paths import PathSet
from tests.kit.repositories import DATASET, MAIN, commit, create

FILES = 6_000


def name(number: int) -> str:
    return f"d{number // 500:02}/f{number:05}"


def grow(repository: Repository, rounds: Iterable[dict[str, bytes | None]]) -> list[CommitId]:
    """A history: first all files, then edits; None removes."""
    made = [commit(repository, {name(number): b"x" for number in range(FILES)})]
    for edit in rounds:
        removed = tuple(path for path, content in edit.items() if content is None)
        made.append(commit(repository, {p: c for p, c in edit.items() if c is not None}, removed))
    return made


numbers = st.integers(0, FILES - 1)
edits = st.dictionaries(
    st.tuples(numbers, st.sampled_from(["", "", "-new"])).map(lambda pair: name(pair[0]) + pair[1]),
    st.one_of(st.none(), st.binary(min_size=1, max_size=2)),
    min_size=1,
    max_size=40,
)
scopes = st.lists(
    st.sampled_from([b"d00", b"d03", b"d11", b"d05/f02500", b"d05/f02501", b"nowhere"]), max_size=3
)


@settings(max_examples=12, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4), scopes)
def test_it_says_of_every_two_commits_what_a_diff_of_their_trees_says(
    rounds: list[dict[str, bytes | None]], paths: list[bytes]
) -> None:
    gone = set[str]()
    for edit in rounds:  # what is not there can't be removed
        for path in [p for p, content in edit.items() if content is None and (p in gone or "-new" in p)]:
            edit[path] = b"y"
        gone |= {path for path, content in edit.items() if content is None}
        gone -= {path for path, content in edit.items() if content is not None}
    repository = create(MemoryStore())
    made = grow(repository, rounds)
    scope = PathSet.of(paths)
    history = PathHistory(repository.objects, scope)
    for one in made:
        for other in made:
            left, right = (TreeReader(repository.objects, each) for each in (one, other))
            expected = next(diff_trees(left, right, scope), None) is not None
            assert history.differs(one, other) == expected
    nothing = next(diff_trees(None, TreeReader(repository.objects, made[-1]), scope), None) is None
    assert history.differs(None, made[-1]) == (not nothing)


def test_trees_of_other_heights_are_compared() -> None:
    repository = create(MemoryStore())
    small = commit(repository, {"d00/f00000": b"x", "d03/only": b"1"})
    large = commit(repository, {name(number): b"x" for number in range(FILES)})
    for path, expected in ((b"d00/f00000", False), (b"d03/only", False), (b"d03", True), (b"zzz", False)):
        history = PathHistory(repository.objects, PathSet.of([path]))
        assert history.differs(small, large) == expected


def test_commits_that_are_compared_are_no_reason_of_a_later_error() -> None:
    """An error is explained by an expired commit that was opened, for which the store is asked about each."""
    repository = create(MemoryStore())
    made = [commit(repository, {"a": b"%d" % number}) for number in range(3)]
    TreeReader(repository.objects, made[1])
    opened = set(repository.objects.opened)
    history = PathHistory(repository.objects, PathSet.of([b"a"]))
    assert all(history.differs(parent, child) for parent, child in pairwise(made))
    assert made[1] in opened
    assert repository.objects.opened == opened


@pytest.fixture
def low_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes with few children, so that a small tree has levels as one of millions of files."""
    monkeypatch.setattr(model_tree, "MIN_ENTRIES", 8)
    monkeypatch.setattr(model_tree, "MAX_ENTRIES", 16)


@pytest.mark.usefixtures("low_nodes")
def test_a_high_tree_is_read_on_the_way_to_the_paths_alone(tmp_path: Path) -> None:
    store = OpenStore(MemoryStore())
    writer = create(store)
    edits = [
        {name(n): b"%d" % n for n in random.Random(seed).sample(range(1_000, FILES), 5)} for seed in range(10)
    ]
    made = grow(writer, [*edits, {name(7): b"changed"}])
    height = writer.objects.commit(made[-1]).level
    assert height >= 3
    for cold in (True, False):
        repository = Repository.open(store, lambda _: tmp_path / "metadata", Access(writer.clock))
        history = PathHistory(repository.objects, PathSet.of([b"d00"]))
        before = store.counts
        changed = [history.differs(parent, child) for parent, child in pairwise(made)]
        assert changed == [False] * 10 + [True]
        asked = store.counts - before
        if cold:
            # The commit, its locator, and the nodes on the way; once the list of indexes and what they say.
            assert asked.requests <= (3 + height) * len(made) + 2 * len(made) + 5
        else:
            assert asked.requests == 0


def test_commits_of_a_long_history_are_read_together() -> None:
    store = OpenStore(MemoryStore())
    writer = create(store)
    made = [commit(writer, {"a": b"%d" % number}) for number in range(60)]
    repository = Repository.open(store, None, Access(writer.clock))
    repository.refs.head(DATASET, MAIN)
    singly: list[int] = []
    before = store.counts
    for commit_id in reversed(made):
        at_hand = repository.objects.is_at_hand(commit_id)
        assert repository.objects.commit(commit_id) == writer.objects.commit(commit_id)
        singly += [] if at_hand else [1]
    assert len(singly) <= 4 + 4  # four one by one, then 8, 16, 32 at a time
    assert (store.counts - before).gets <= 2 * len(made) + 4


def test_no_more_commits_are_read_than_asked_for() -> None:
    store = OpenStore(MemoryStore())
    writer = create(store)
    made = [commit(writer, {"a": b"%d" % number}) for number in range(60)]
    for most in (3, 6):
        repository = Repository.open(store, None, Access(writer.clock))
        repository.refs.head(DATASET, MAIN)
        repository.objects.expect_walk(made[-1], most)
        before = store.counts
        for commit_id in made[: -most - 1 : -1]:
            repository.objects.commit(commit_id)
        assert (store.counts - before).gets <= most + 4


def test_a_long_history_is_read_together_from_any_of_its_commits() -> None:
    """As from a tag: where it lies among the moves of its branch is found by halves."""
    store = OpenStore(MemoryStore())
    writer = create(store)
    made = [commit(writer, {"a": b"%d" % number}) for number in range(120)]
    repository = Repository.open(store, None, Access(writer.clock))
    singly: list[int] = []
    for number in range(59, -1, -1):
        at_hand = repository.objects.is_at_hand(made[number])
        assert repository.objects.commit(made[number]) == writer.objects.commit(made[number])
        singly += [] if at_hand else [number]
    assert singly[:8] == list(range(59, 51, -1)) and len(singly) <= 8 + 4
    assert not any(repository.objects.is_at_hand(later) for later in made[60:])


@pytest.mark.parametrize("is_searched", [True, False])
def test_a_history_is_read_although_a_move_of_its_branch_is_damaged(is_searched: bool) -> None:
    """Moves are read only to have commits at hand."""
    store = MemoryStore()
    writer = create(store)
    made = [commit(writer, {"a": b"%d" % number}) for number in range(40)]
    for number in (10, 20):
        key = keys.branch_key(DATASET, MAIN, number)
        store.delete(key)
        store.put_if_absent(key, b"damaged")
    repository = Repository.open(store, None, Access(writer.clock))
    if not is_searched:
        repository.refs.head(DATASET, MAIN)
    for commit_id in reversed(made):
        assert repository.objects.commit(commit_id) == writer.objects.commit(commit_id)


def test_a_history_is_read_up_to_a_damaged_commit() -> None:
    """It is read ahead with others, which may be all that are asked for."""
    store = MemoryStore()
    writer = create(store)
    made = [commit(writer, {"a": b"%d" % number}) for number in range(40)]
    bad = made[33]
    store.delete(keys.commit_key(bad))
    store.put_if_absent(keys.commit_key(bad), b"damaged")
    store.delete(keys.locator_key(bad))  # it has a copy
    repository = Repository.open(store, None, Access(writer.clock))
    repository.refs.head(DATASET, MAIN)
    for commit_id in reversed(made[34:]):
        assert repository.objects.commit(commit_id) == writer.objects.commit(commit_id)
    assert repository.objects.is_at_hand(bad), "it was read ahead"
    with pytest.raises(IntegrityError, match=str(bad)):
        repository.objects.commit(bad)


class Leaving(MemoryStore):
    """Gives no answer once it has gone away."""

    asked: int | None = None
    """The requests since."""

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        if self.asked is not None:
            self.asked += 1
            raise NoAnswer("it went away")
        return super().get(key, limit)


def test_a_store_that_went_away_is_not_asked_for_each_commit_that_would_be_read_ahead() -> None:
    """It would be given up only after many seconds, each time."""
    store = Leaving()
    writer = create(store)
    made = [commit(writer, {"a": b"%d" % number}) for number in range(140)]
    repository = Repository.open(store, None, Access(writer.clock))
    repository.refs.head(DATASET, MAIN)
    for commit_id in made[:82:-1]:  # four one by one, then 8, 16 and 32 at a time; 64 come next
        repository.objects.commit(commit_id)
    store.asked = 0
    with pytest.raises(NoAnswer):
        repository.objects.commit(made[82])
    assert store.asked <= _CONNECTIONS
