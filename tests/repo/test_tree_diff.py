from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.format.locator import Location, Locator
from dsv.format.segment import Segment
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import diff_entries, diff_trees
from dsv.repo.tree.reader import TreeReader, find_entries
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, SegmentId
from dsv.values.paths import PathSet
from tests.kit.repositories import commit, create

NAMES = [f"d{n // 500:03}/f{n:06}" for n in range(20_000)]


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
    """Give the segments that are read from now on."""
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


CONTENTS: list[bytes | None] = [b"", b"1", b"22", None, b"x" * 3_000_000]


@given(st.data())
@settings(max_examples=25)
def test_a_diff_is_what_differs_entry_by_entry(data: st.DataObject) -> None:
    """Segments begin and end alike, or do not; they have files only, or symlinks, folders and large files too."""
    repository = create(MemoryStore())
    names = [f"d{n // 300:02}/f{n:05}" for n in range(3000)]
    mixed = data.draw(st.booleans())
    start: dict[str, bytes | None] = {name: name.encode() for name in names}
    if mixed:
        start |= {"d03/l@": b"f00900", "d04/empty": None, "d05/large": b"y" * 3_000_000, "d06/none": b""}
    first = commit(repository, start)
    edits: dict[str, bytes | None] = {}
    removed = set[str]()
    for _ in range(data.draw(st.integers(0, 6))):
        at, count = data.draw(st.integers(0, 2990)), data.draw(st.sampled_from([1, 5, 60, 700]))
        what = data.draw(st.sampled_from(["edit", "remove", "add"]))
        for name in names[at : at + count]:
            if what == "remove":
                removed.add(name)
            elif what == "edit":
                edits[name] = data.draw(st.sampled_from(CONTENTS)) if mixed and count < 10 else b"new"
            else:
                edits[name + "x"] = b"new"
    removed -= edits.keys()
    if not edits and not removed:
        return
    second = commit(repository, edits, tuple(removed))
    one, other = tree(repository, first), tree(repository, second)
    for before, after in ((one, other), (other, one)):
        expected = diff_entries((entry for entry, _ in before.below(b"")), after.below(b""))
        assert list(diff_trees(before, after)) == list(expected)
