"""The plan covers every entry exactly once, whoever computes it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dsv.cache.fill.parts import (
    MAX_PARTS,
    PLAN,
    FillPart,
    FillPlan,
    SegmentLoad,
    blocks,
    cut_parts,
    estimated_room,
    part_size,
    slice_bounds,
)

LOADS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4096), st.integers(0, 1 << 36), st.integers(0, 100)),
    max_size=60,
)


def loads_of(raw: list[tuple[int, int, int, int]]) -> list[SegmentLoad]:
    loads, number = [], 0
    for gap, files, size, percent in raw:
        loads.append(SegmentLoad(number, files, size, size * percent // 100))
        number += 1 + gap
    return loads


@given(LOADS)
def test_each_segment_is_in_one_run_or_in_all_of_its_slices(raw: list[tuple[int, int, int, int]]) -> None:
    loads = loads_of(raw)
    parts = cut_parts(loads)
    covered: list[tuple[int, int, int]] = []
    for part in parts:
        assert part.slices == 1 or part.first == part.last
        covered += [(number, part.slice, part.slices) for number in range(part.first, part.last + 1)]
    assert sorted({number for number, _, _ in covered}) == [load.number for load in loads]
    assert len(set(covered)) == len(covered)
    for load in loads:
        mine = [(piece, of) for number, piece, of in covered if number == load.number]
        assert mine == [(piece, mine[0][1]) for piece in range(mine[0][1])]
    assert sum(part.entries for part in parts) == sum(load.entries for load in loads)
    assert sum(part.bytes for part in parts) == sum(load.bytes for load in loads)


@given(LOADS, st.integers(1, 1 << 30), st.integers(1, 5000))
def test_parts_are_not_much_larger_than_asked_for(
    raw: list[tuple[int, int, int, int]], part_bytes: int, part_entries: int
) -> None:
    loads = loads_of(raw)
    heavy = {load.number: load.heavy for load in loads}
    parts = cut_parts(loads, part_bytes, part_entries)
    limit = max(part_bytes, sum(heavy.values()) // (MAX_PARTS // 2))
    for part in parts:
        if part.first < part.last:
            assert sum(heavy.get(number, 0) for number in range(part.first, part.last + 1)) <= limit


def test_on_a_file_server_small_commits_are_shared_too() -> None:
    small, large = [SegmentLoad(0, 2000, 16 << 20, 16 << 20)], [SegmentLoad(0, 100_000, 1 << 30, 1 << 30)]
    assert len(cut_parts(small, *part_size(small, remote=False))) == 1
    assert len(cut_parts(small, *part_size(small, remote=True))) == 16
    assert max(part.entries for part in cut_parts(large, *part_size(large, remote=True))) <= 512
    few = [SegmentLoad(0, 100, 1 << 20, 1 << 20)]
    assert len(cut_parts(few, *part_size(few, remote=True))) == 2


def test_a_huge_commit_has_a_bounded_number_of_parts() -> None:
    loads = [SegmentLoad(number, 1000, 200 << 30, 200 << 30) for number in range(1000)]
    assert len(cut_parts(loads)) <= MAX_PARTS


@given(st.lists(st.integers(0, 1 << 32), max_size=300), st.integers(1, 40))
def test_slices_are_runs_that_cover_all(sizes: list[int], slices: int) -> None:
    bounds = slice_bounds(sizes, slices)
    assert len(bounds) == slices
    at = 0
    for start, end in bounds:
        assert start == at <= end
        at = end
    assert at == len(sizes)


def test_slices_of_equal_files_are_even() -> None:
    assert [end - start for start, end in slice_bounds([1 << 27] * 8, 4)] == [2, 2, 2, 2]


@given(st.lists(st.integers(0, 1 << 20), max_size=50))
def test_room_counts_whole_blocks(sizes: list[int]) -> None:
    assert all(blocks(size) % 4096 == 0 and 0 <= blocks(size) - size < 4096 for size in sizes)
    assert estimated_room(len(sizes), sum(sizes)) >= sum(sizes)


def test_a_plan_survives_its_encoding() -> None:
    plan = FillPlan(1, "f", "s", "c", ["a/b"], 1, 2, 3, 4, 5, [FillPart(0, 1, 0, 1, 2, 3)], [], False)
    assert PLAN.decode(msgspec.json.encode(plan)) == plan
