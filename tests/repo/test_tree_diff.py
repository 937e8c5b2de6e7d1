from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from dsv.model.ids import CommitId, SegmentId
from dsv.model.location import Location
from dsv.model.locator import Locator
from dsv.model.path_set import PathSet
from dsv.model.segment import Segment
from dsv.repo.repository import Repository
from dsv.repo.tree_diff import diff_trees, find_entries
from dsv.repo.trees import TreeReader
from dsv.store.memory import MemoryStore
from tests.repo.worlds import commit, create

NAMES = [f"d{n // 500:03}/f{n:06}" for n in range(20_000)]


@pytest.fixture
def repository() -> Repository:
    return create(MemoryStore())


def tree(repository: Repository, commit_id: CommitId) -> TreeReader:
    return TreeReader(repository.objects, commit_id)


def ids(repository: Repository, commit_id: CommitId) -> set[SegmentId]:
    return {leaf.id for leaf in tree(repository, commit_id).leaves()}


def test_only_segments_that_differ_are_read(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    first = commit(repository, {name: name.encode() for name in NAMES})
    second = commit(repository, {"d007/f003777": b"changed", "d030/new": b"new"}, ("d012/f006001",))
    one_side = ids(repository, first) ^ ids(repository, second)
    assert 2 <= len(one_side) < len(ids(repository, first))
    read = note_segments(repository, monkeypatch)
    changes = list(diff_trees(tree(repository, first), tree(repository, second)))
    assert [change.path for change in changes] == [b"d007/f003777", b"d012/f006001", b"d030/new"]
    assert len(read) == len(one_side) and set(read) == one_side


def test_a_change_says_where_its_new_content_lies(repository: Repository) -> None:
    first = commit(repository, {"a": b"old", "b": b"stays", "c": b"goes"})
    second = tree(repository, commit(repository, {"a": b"new"}, ("c",)))
    changed, removed = diff_trees(tree(repository, first), second)
    found = second.entry(b"a")
    assert found is not None and found[1] is not None
    assert (changed.after, changed.location) == found
    assert (removed.after, removed.location) == (None, None)


def test_no_tree_is_an_empty_tree(repository: Repository) -> None:
    only = tree(repository, commit(repository, {"a": b"1", "b/c": b"2"}))
    entries = [entry for entry, _ in only.below(b"")]
    assert [change.after for change in diff_trees(None, only)] == entries
    assert [change.before for change in diff_trees(only, None)] == entries
    assert list(diff_trees(None, None)) == []


def test_only_segments_of_the_scope_are_read(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    first = commit(repository, {name: name.encode() for name in NAMES})
    second = commit(repository, {"d007/f003777": b"changed", "d030/f015000": b"new"}, ("d012/f006001",))
    read = note_segments(repository, monkeypatch)
    scope = PathSet.of([b"d007", b"d012/f006001"])
    changes = list(diff_trees(tree(repository, first), tree(repository, second), scope))
    assert [change.path for change in changes] == [b"d007/f003777", b"d012/f006001"]
    assert len(read) == 4


def test_entries_are_found_with_one_read_of_each_segment(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = tree(repository, commit(repository, {name: name.encode() for name in NAMES}))
    read = note_segments(repository, monkeypatch)
    wanted = [b"d000/f000000", b"d000/f000001", b"d039/f019999", b"d007/none", b"zzz"]
    found = find_entries(only, wanted)
    assert list(found) == [b"d000/f000000", b"d000/f000001", b"d039/f019999"]
    assert all(path == entry.path and where is not None for path, (entry, where) in found.items())
    assert len(read) == len(set(read)) <= 3
    assert find_entries(None, wanted) == {}


def note_segments(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> list[SegmentId]:
    """Which segments are read from now on."""
    read: list[SegmentId] = []
    original = repository.objects.segments

    def segments(
        wanted: Iterable[tuple[SegmentId, Location | None]],
    ) -> Iterator[tuple[Segment, Locator | None]]:
        asked = list(wanted)
        read.extend(segment_id for segment_id, _ in asked)
        return original(asked)

    monkeypatch.setattr(repository.objects, "segments", segments)
    return read
