from __future__ import annotations

import gc
import heapq
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsv.errors import IntegrityError
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Kind
from dsv.repo.objects.objects import SegmentDecoder
from dsv.repo.tree.diff import diff_trees
from dsv.repo.tree.reader import TreeReader
from dsv.stores.memory import MemoryStore
from dsv.values.ids import FileId, SegmentId
from tests.kit.repositories import commit, create

ENTRIES = [
    Entry(b"a/%04d" % number, Kind.FILE, 5, FileId(bytes([number % 251]) * 32)) for number in range(700)
]
DATA = Segment.of(ENTRIES).encode()
ID = SegmentId.hash(DATA)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the number of entries of each segment that was checked."""
    found: list[int] = []
    check = Segment._check

    def counting(self: Segment) -> None:
        found.append(len(self))
        check(self)

    monkeypatch.setattr(Segment, "_check", counting)
    return found


def test_a_segment_in_use_is_not_decoded_again() -> None:
    decoder = SegmentDecoder()
    first = decoder.decode(ID, DATA)
    assert decoder.decode(ID, DATA) is first
    assert list(first.entries()) == ENTRIES


def test_what_was_checked_is_decoded_without_a_second_check(checks: list[int]) -> None:
    decoder = SegmentDecoder()
    for _ in range(3):
        segment = decoder.decode(ID, DATA)
        assert list(segment.entries()) == ENTRIES and segment.encode(decoder.paths.split) == DATA
        del segment
        gc.collect()
    assert len(checks) == 1 + 3  # the last three are of encoding


@pytest.mark.parametrize("change", [(b"a/0001", b"a/0000"), (b"\0\5\0", b"\0\6\0")])
def test_what_is_no_segment_is_refused_each_time(change: tuple[bytes, bytes]) -> None:
    decoder = SegmentDecoder()
    decoder.decode(ID, DATA)
    wrong = DATA.replace(*change, 1)[:-1]
    for _ in range(2):
        with pytest.raises(IntegrityError, match="segment is damaged"):
            decoder.decode(SegmentId.hash(wrong), wrong)


def test_two_comparisons_in_step_read_the_common_tree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a merge makes them. There are no local copies here, so whatever is read comes from the store."""
    store = MemoryStore()
    repository = create(store)
    names = [f"d{number // 500:03}/f{number:06}" for number in range(6000)]
    base = commit(repository, {name: name.encode() for name in names})
    left = commit(repository, dict.fromkeys(names[::300], b"left"))
    right = commit(repository, dict.fromkeys(names[150::300], b"right"))
    trees = [TreeReader(repository.objects, one) for one in (base, left, base, right)]
    of_base, of_left = ({leaf.id for leaf in tree.leaves()} for tree in trees[:2])
    assert not of_base & of_left and len(of_base) > 3
    read: list[str] = []
    get_range = store.get_range

    def noting(key: str, start: int, length: int) -> memoryview:
        read.append(key)
        return get_range(key, start, length)

    monkeypatch.setattr(store, "get_range", noting)
    for pair in (trees[:2], trees[2:]):
        assert len(list(diff_trees(*pair))) >= 20
    apart = len(read)
    read.clear()
    in_step = heapq.merge(diff_trees(*trees[:2]), diff_trees(*trees[2:]), key=lambda change: change.path)
    assert len(list(in_step)) >= 40
    assert 0 < len(read) < apart


def test_threads_decode_segments_of_one_store() -> None:
    """As those that read from several caches do."""
    made = [
        Segment.of([Entry(b"%d/%d" % (number, each), Kind.EMPTY_DIRECTORY) for each in range(3)])
        for number in range(40)
    ]
    encoded = [(SegmentId.hash(segment.encode()), segment, segment.encode()) for segment in made]
    decoder = SegmentDecoder()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(10_000):
            segment_id, segment, data = chance.choice(encoded)
            assert decoder.decode(segment_id, data).paths == segment.paths

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
    finally:
        sys.setswitchinterval(interval)
