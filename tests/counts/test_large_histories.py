"""What merges, comparisons and logs of a large tree ask of a store: as much as differs, however large the tree is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsv.api.branches import BranchPath, create_branch
from dsv.api.context import Context
from dsv.api.diff import diff
from dsv.api.edits import EditRequest, Put, edit
from dsv.api.log import LogQuery, log
from dsv.api.merge import MergeRequest, merge
from dsv.repo.repository import Repository
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore, RequestCounts
from dsv.values.names import BranchName, Target
from tests.api.test_edits_at_scale import FILES, large, segments
from tests.kit.people import SCANS, Person, every_store_is

LEFT, RIGHT, AHEAD = (Target.parse(f"scans@{name}") for name in ("left", "right", "ahead"))


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[tuple[Person, OpenStore]]:
    """Branches of a large tree: `left` and `right` have other changes in two segments each, `ahead` has them on top."""
    store = OpenStore(MemoryStore())
    with every_store_is(store):
        maker = Person(tmp_path / "maker", "/nowhere")
        maker.init()
        large(Repository.open(store, None), FILES)
        context = maker.context()
        for target in (LEFT, RIGHT, AHEAD):
            assert target.rev is not None
            create_branch(context, BranchPath(SCANS, BranchName.parse(target.rev.text)), Target(SCANS))
        edit(context, LEFT, [Put("d0003/l", b"1"), Put("d0030/l", b"2")], EditRequest())
        edit(context, RIGHT, [Put("d0009/r", b"3"), Put("d0040/r", b"4")], EditRequest())
        edit(context, AHEAD, [Put("d0009/r", b"3"), Put("d0040/r", b"4")], EditRequest())
        assert segments(store) > 30
        yield Person(tmp_path / "ann", "/nowhere"), store


def test_a_comparison_reads_the_segments_that_differ(counted: tuple[Person, OpenStore]) -> None:
    person, store = counted
    with counting(person, store) as (context, spent), diff(context, LEFT, RIGHT) as found:
        assert len(found.found.differences) == 4
    # Of two commits each: the record, its locator and a node; of the segments those that lie together at once.
    assert spent().requests <= 18 and spent().ranges <= 6, spent()
    assert spent().puts == 0


def test_the_log_of_a_folder_reads_its_segment_of_each_commit(counted: tuple[Person, OpenStore]) -> None:
    person, store = counted
    query = LogQuery(paths=(b"d0003",))
    with counting(person, store) as (context, spent), log(context, LEFT, query) as items:
        assert len(list(items)) == 2
    assert spent().requests <= 23 and spent().ranges <= 5, spent()


def test_a_fast_forward_writes_a_move_and_no_tree(counted: tuple[Person, OpenStore]) -> None:
    person, store = counted
    with counting(person, store) as (context, spent):
        assert merge(context, MergeRequest(AHEAD, BranchName.parse("main"))).fast_forwarded
    # The trees are compared for the counts that are reported. The session's records and the move are written. The move
    # that it follows is read once more just before.
    assert spent().requests <= 25 and spent().puts <= 5, spent()
    assert spent().bytes_up < 1_000


def test_a_merge_uploads_the_segments_that_changed(counted: tuple[Person, OpenStore]) -> None:
    person, store = counted
    with counting(person, store) as (context, spent):
        done = merge(context, MergeRequest(RIGHT, BranchName.parse("left")))
        assert done.counts.added == 2 and not done.fast_forwarded
    # One pack with two segments and a node, an index, a commit with its locator, records of the session, the move; the
    # move that it follows is read once more just before.
    assert spent().requests <= 39 and spent().ranges <= 7 and spent().puts <= 9, spent()
    assert spent().bytes_up < 8_000


@contextmanager
def counting(person: Person, store: OpenStore) -> Iterator[tuple[Context, Callable[[], RequestCounts]]]:
    """A context of somebody without local copies, and what was asked of the store since."""
    person.home.mkdir()
    before = store.counts
    yield person.context(person.home), lambda: store.counts - before
