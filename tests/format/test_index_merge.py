"""Merging index files, choosing which, their filters, and what the records of merges say."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.format.codec import Codec
from dsv.format.index import BLOCK_ROWS, ROW_SIZE, Index, IndexFilter, encode_filter, merge_all
from dsv.format.locator import Location, ObjectKind
from dsv.format.records import IndexMerge, MergedFile
from dsv.repo.merge_indexes import Unit, _units, choose
from dsv.repo.objects.indexes import ListedIndexes, stand
from dsv.values.ids import Id, IndexId, PackId
from tests.format.strategies import mutations
from tests.format.test_index import KINDS, ROWS, Rows, built

INDEX = IndexId(b"i" * 16)
PACK = PackId(b"p" * 16)


def places(indexes: list[Index]) -> dict[tuple[ObjectKind, Id], set[Location]]:
    found: dict[tuple[ObjectKind, Id], set[Location]] = {}
    for index in indexes:
        for kind, object_id, place in index.rows():
            found.setdefault((kind, object_id), set()).add(place)
    return found


@given(st.lists(ROWS, max_size=6), st.sampled_from([1, 3, 1000]))
@settings(deadline=None)
def test_a_merge_has_every_place_of_every_object_once(dicts: list[Rows], rows_per_file: int) -> None:
    indexes = [Index.parse(built(rows)) for rows in dicts]
    merged = [Index.parse(encoded) for encoded in merge_all(indexes, rows_per_file)]
    assert places(merged) == places(indexes)
    assert sum(map(len, merged)) == sum(map(len, places(indexes).values()))
    assert all(len(one) for one in merged)
    if rows_per_file == 1000:
        assert len(merged) == max(map(len, places(indexes).values()), default=0)


def many(count: int, seed: int = 1) -> dict[tuple[ObjectKind, Id], Location]:
    rng = random.Random(seed)
    return {
        (ObjectKind.CHUNK, Id(rng.randbytes(32))): Location(PACK, 8 + at, 1, 1, Codec.RAW)
        for at in range(count)
    }


def test_files_of_a_run_follow_each_other() -> None:
    rows = many(20_000)
    run = [Index.parse(encoded) for encoded in merge_all([Index.parse(built(rows))], 6000)]
    bounds = [one.bounds for one in run]
    assert len(run) == 4 and all(len(one) <= 6000 for one in run)
    assert bounds == sorted(bounds)
    assert all(first[1] <= second[0] for first, second in pairwise(bounds))
    assert bounds[0][0] == int.from_bytes(min(object_id for _, object_id in rows)[:4], "big")


def test_an_erased_row_takes_the_place_of_all_others() -> None:
    rows = many(3)
    (_, object_id), *_ = rows
    encoded = bytearray(built({key: place for key, place in rows.items() if key[1] == object_id}))
    encoded[-32 - ROW_SIZE + 33] = 2
    encoded[-32:] = blake3(encoded[:-32]).digest()
    for order in (1, -1):
        indexes = [Index.parse(built(rows)), Index.parse(encoded)][::order]
        (merged,) = [Index.parse(one) for one in merge_all(indexes, 1000)]
        assert len(merged) == 3 and len(list(merged.rows())) == 2
        with pytest.raises(NotFound, match="was erased"):
            merged.find(ObjectKind.CHUNK, object_id)


@given(ROWS.filter(bool), KINDS, st.randoms(use_true_random=False))
def test_a_filter_finds_what_its_index_has(rows: Rows, kind: ObjectKind, rng: random.Random) -> None:
    index = Index.parse(built(rows))
    known = IndexFilter.parse(encode_filter(INDEX, index), INDEX)
    assert len(known) == len(index) and known.packs == index.packs
    for wanted, object_id in [*rows, (kind, Id(rng.randbytes(32)))]:
        found = [known.find(index.row_bytes, wanted, object_id) for _ in known.blocks(object_id)]
        assert next(filter(None, found), None) == index.find(wanted, object_id)


def test_a_filter_of_many_rows() -> None:
    """Each block is found where it lies in the file, and few others are read for nothing."""
    rows = many(70_000)
    encoded = built(rows)
    index = Index.parse(encoded)
    data = encode_filter(INDEX, index)
    known = IndexFilter.parse(data, INDEX)
    assert len(data) < 2.1 * len(rows)
    for (kind, object_id), place in random.Random(2).sample(sorted(rows.items()), 300):
        found = []
        for block in known.blocks(object_id):
            offset, length = known.span(block)
            assert length <= BLOCK_ROWS * ROW_SIZE
            part = memoryview(encoded)[offset : offset + length]
            assert known.is_block(block, part) and not known.is_block(block + 1, part)
            found.append(known.find(part, kind, object_id))
        assert place in found
    rng = random.Random(3)
    for_nothing = sum(len(list(known.blocks(Id(rng.randbytes(32))))) for _ in range(20_000))
    assert for_nothing < 20_000 / 256 * 2


@given(mutations(encode_filter(INDEX, Index.parse(built(many(600))))))
def test_a_damaged_filter_is_refused(data: bytes) -> None:
    with pytest.raises((IntegrityError, Unsupported)):
        IndexFilter.parse(data, INDEX)


def test_a_filter_with_counts_that_its_bytes_do_not_have_is_refused() -> None:
    """The hash is right: somebody made it so."""
    good = bytearray(encode_filter(INDEX, Index.parse(built(many(600)))))
    for at, value in ((24, 0), (24, 1 << 31), (28, 0), (28, 599), (28, 1 << 28), (28, (1 << 32) - 1)):
        changed = bytearray(good)
        struct.pack_into("<I", changed, at, value)
        changed[-32:] = blake3(changed[:-32]).digest()
        with pytest.raises(IntegrityError, match="damaged"):
            IndexFilter.parse(changed, INDEX)
    with pytest.raises(IntegrityError, match="one of another index"):
        IndexFilter.parse(good, IndexId(b"j" * 16))
    newer = b"dsvfltr2" + good[8:]
    with pytest.raises(Unsupported, match="version 2"):
        IndexFilter.parse(newer, INDEX)


def file(number: int) -> MergedFile:
    return MergedFile(IndexId(bytes([number]) * 16), 0, 0xFFFF_FFFF)


def record(runs: list[list[int]], replaced: list[int]) -> IndexMerge:
    return IndexMerge.of([tuple(map(file, run)) for run in runs], ids(*replaced), 0, "test")


def ids(*numbers: int) -> list[IndexId]:
    return [file(number).id for number in numbers]


def test_a_record_is_what_was_written() -> None:
    one = record([[7, 8], [9]], [1, 2])
    assert IndexMerge.decode(one.encode()) == one
    assert one.by_run == (tuple(map(file, (7, 8))), (file(9),))
    with pytest.raises(ValueError, match="sorted"):
        replace(one, replaced=tuple(ids(2, 1))).encode()
    for wrong in (
        record([], [1]),
        record([[7], []], [1]),
        replace(one, runs=(2,)),
        replace(one, runs=(3, 1)),
    ):
        with pytest.raises(ValueError, match="its runs"):
            wrong.encode()
    upside_down = replace(one, files=(MergedFile(INDEX, 2, 1),), runs=(1,))
    with pytest.raises(ValueError, match="before its first"):
        upside_down.encode()


def test_what_stands_after_a_merge() -> None:
    standing = stand(ids(1, 2, 3, 8, 9), [record([[8, 9]], [1, 2, 7])])
    assert standing.loose == tuple(ids(3)) and standing.replaced == set(ids(1, 2))
    assert list(standing.files) == ids(8, 9, 3)


def test_a_merge_counts_only_if_all_of_its_files_are_there() -> None:
    standing = stand(ids(1, 2, 8), [record([[8, 9]], [1, 2])])
    assert standing.loose == tuple(ids(1, 2, 8)) and not standing.runs


def test_two_merges_at_once() -> None:
    """Both merged the same files; the second took the file of the first, which had no record yet, for one of a sync."""
    listed = ids(1, 2, 3, 8, 9)
    standing = stand(listed, [record([[8]], [1, 2]), record([[9]], [1, 3, 8])])
    assert list(standing.files) == ids(9)


def test_small_units_are_merged_until_each_is_larger_than_all_smaller_ones() -> None:
    assert choose([Unit((INDEX,), 5)] * 30, 1000) == [Unit((INDEX,), 5)] * 30
    left = [Unit((INDEX,), rows) for rows in (900, 300, 90, 4, 4, 3)]
    assert [unit.rows for unit in choose(left, 100_000)] == [3, 4, 4]
    assert [unit.rows for unit in choose(left, 1000)] == [3, 4, 4]
    assert choose([Unit((INDEX,), rows) for rows in (600, 600)], 1000) == []


@given(st.integers(100, 3000), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_all_merging_takes_n_log_n_and_leaves_few_units(syncs: int, rng: random.Random) -> None:
    most, written, total, left = 24, 0, 0, list[Unit]()
    for _ in range(syncs):
        rows = rng.choice([1, 5, 5, 5, 40, 1000])
        left.append(Unit((INDEX,), rows))
        total += rows
        if len(left) > most:
            chosen = choose(left, 1 << 40)
            for unit in chosen:
                left.remove(unit)
            merged = sum(unit.rows for unit in chosen)
            written += merged
            left.append(Unit((INDEX,), merged))
            assert len(left) <= 3 + total.bit_length()
    assert len(left) <= most + 1
    assert written <= total * total.bit_length()


def test_units_are_runs_and_loose_files() -> None:
    standing = stand(ids(1, 3, 8, 9), [record([[8, 9]], [1])])
    sizes = {one: number * ROW_SIZE for one, number in zip(ids(1, 3, 8, 9), (1, 3, 8, 9), strict=True)}
    listed = ListedIndexes(sizes, frozenset(), {}, standing)
    assert [unit.rows for unit in _units(listed)] == [17, 3]
