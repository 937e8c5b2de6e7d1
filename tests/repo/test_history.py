from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import IntegrityError
from dsv.format import keys
from dsv.format.records import CommitRecord
from dsv.repo.history import ahead_behind, is_ancestor, merge_bases, walk
from dsv.repo.repository import Repository
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, NodeId
from tests.kit.repositories import commit as make_commit
from tests.kit.repositories import create


class Graph:
    """Commits in memory; the number of each is its place in `ids`."""

    def __init__(self, parents: list[list[int]], times: list[int] | None = None) -> None:
        self.ids: list[CommitId] = []
        self.read: list[CommitId] = []
        self._commits: dict[CommitId, CommitRecord] = {}
        for number, above in enumerate(parents):
            time = number if times is None else times[number]
            made = CommitRecord(
                root=NodeId(bytes(32)), level=1, parents=tuple(self.ids[one] for one in above), author="Ann",
                time_ms=time, message=str(number), files=0, bytes=0, entries=0,
            )  # fmt: skip
            self.ids.append(made.id)
            self._commits[made.id] = made

    def commit(self, commit_id: CommitId) -> CommitRecord:
        self.read.append(commit_id)
        return self._commits[commit_id]

    def parents(self, commit_id: CommitId) -> tuple[CommitId, ...]:
        return self._commits[commit_id].parents

    def reach(self, commit_id: CommitId) -> set[CommitId]:
        """A commit and all its ancestors, the naive way."""
        found, left = {commit_id}, [commit_id]
        while left:
            for parent in self.parents(left.pop()):
                if parent not in found:
                    found.add(parent)
                    left.append(parent)
        return found

    def numbers(self, found: list[tuple[CommitId, CommitRecord]]) -> list[int]:
        return [int(commit.message) for _, commit in found]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph of up to 14 commits, with clocks that may be wrong, and several first commits now and then."""
    count = draw(st.integers(1, 14))
    parents: list[list[int]] = [[]]
    for number in range(1, count):
        near = st.integers(max(0, number - 4), number - 1)
        size = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 0]))
        parents.append(draw(st.lists(near, min_size=min(size, number), max_size=size, unique=True)))
    right = st.just(list(range(count)))
    wrong = st.lists(st.integers(0, 20), min_size=count, max_size=count)
    return Graph(parents, draw(st.one_of(right, wrong)))


def any_of(data: st.DataObject, graph: Graph) -> CommitId:
    return data.draw(st.sampled_from(graph.ids))


@given(graphs(), st.data())
@settings(max_examples=200)
def test_a_walk_gives_every_ancestor_once_and_children_before_parents(
    graph: Graph, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(st.sampled_from(graph.ids), min_size=1, max_size=3))
    found = [commit_id for commit_id, _ in walk(graph, starts)]
    assert sorted(found) == sorted(set().union(*map(graph.reach, starts)))
    place = {commit_id: at for at, commit_id in enumerate(found)}
    for commit_id in found:
        assert all(place[parent] > place[commit_id] for parent in graph.parents(commit_id))


@given(graphs(), st.data())
@settings(max_examples=200)
def test_the_ancestors_of_a_commit_are_those_that_it_reaches(graph: Graph, data: st.DataObject) -> None:
    one, other = any_of(data, graph), any_of(data, graph)
    assert is_ancestor(graph, one, other) == (one in graph.reach(other))


@given(graphs(), st.data())
@settings(max_examples=200)
def test_merge_bases_are_the_common_ancestors_below_no_other_one(graph: Graph, data: st.DataObject) -> None:
    one, other = any_of(data, graph), any_of(data, graph)
    common = graph.reach(one) & graph.reach(other)
    best = {base for base in common if not any(base in graph.reach(c) for c in common - {base})}
    found = merge_bases(graph, one, other)
    assert set(found) == best and len(found) == len(best)
    assert found == merge_bases(graph, other, one)


@given(graphs(), st.data())
@settings(max_examples=200)
def test_ahead_and_behind_count_what_one_side_alone_has(graph: Graph, data: st.DataObject) -> None:
    one, other = any_of(data, graph), any_of(data, graph)
    left, right = graph.reach(one), graph.reach(other)
    assert ahead_behind(graph, one, other) == (len(left - right), len(right - left))


def test_a_walk_with_right_clocks_is_newest_first() -> None:
    graph = Graph([[], [0], [0], [1], [2], [3, 4]])
    assert graph.numbers(list(walk(graph, [graph.ids[5]]))) == [5, 4, 3, 2, 1, 0]


def test_a_child_whose_clock_is_behind_comes_before_its_parent_all_the_same() -> None:
    graph = Graph([[], [0], [1], [1, 2]], times=[30, 20, 1, 2])
    assert graph.numbers(list(walk(graph, [graph.ids[3]]))) == [3, 2, 1, 0]


def test_a_line_is_given_as_it_is_read() -> None:
    graph = Graph([[], *([number] for number in range(999))])
    walking = walk(graph, [graph.ids[-1]])
    assert [next(walking)[0] for _ in range(3)] == graph.ids[:-4:-1]
    assert graph.read == graph.ids[:-4:-1]


def test_two_histories_are_read_down_to_their_merge_base_and_no_further() -> None:
    line = [[], *([number] for number in range(999))]
    graph = Graph([*line, [999], [1000], [999]])
    left, right = graph.ids[1001], graph.ids[1002]
    assert merge_bases(graph, left, right) == (graph.ids[999],)
    assert ahead_behind(graph, left, right) == (2, 1)
    assert set(graph.read) <= set(graph.ids[998:])
    for _ in pairwise(walk(graph, [left, right])):
        break
    assert set(graph.read) <= set(graph.ids[998:])


def test_a_criss_cross_has_two_merge_bases() -> None:
    graph = Graph([[], [0], [0], [1, 2], [2, 1]])
    assert merge_bases(graph, graph.ids[3], graph.ids[4]) == (graph.ids[2], graph.ids[1])


def test_a_missing_parent_is_reported_as_damage_after_the_intact_commits() -> None:
    store = MemoryStore()
    repository = create(store)
    first, second, third = (make_commit(repository, {f"{number}.txt": b"x"}) for number in range(3))
    store.delete(keys.commit_key(first))
    store.delete(keys.locator_key(first))  # it has a copy
    fresh = type(repository).open(store, None)
    walking = walk(fresh.objects, [third])
    assert [next(walking)[0] for _ in range(2)] == [third, second]
    with pytest.raises(IntegrityError, match=str(first)):
        next(walking)
    with pytest.raises(IntegrityError, match=str(first)):
        is_ancestor(fresh.objects, first, third)


def test_commits_are_read_when_only_the_objects_of_a_repository_are_kept() -> None:
    store = MemoryStore()
    made = make_commit(create(store), {"a": b"1"})
    objects = Repository.open(store, None).objects
    assert objects.commit(made).files == 1
