"""The order of samples: each once, the same for all workers and ranks, spread over the classes, within the window."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.training.order import Shape, TrainingPlan
from tests.exhaustive import examples

MB = 1 << 20
SIZES = st.lists(st.sampled_from([0, 1, 500, 90_000, 3 * MB, 30 * MB]), max_size=150)


def plan(*sizes: list[int], weights: list[float] | None = None, **options: Any) -> TrainingPlan:
    known = {"seed": 0, "window": 64 * MB, "shuffle": True, "length": sum(map(len, sizes))}
    return TrainingPlan(
        [Shape.of(np.array(one, np.uint64)) for one in sizes],
        weights or [1.0] * len(sizes),
        **known | options,
    )


def whole(one: TrainingPlan, epoch: int = 0, start: int = 0) -> list[int]:
    return [int(number) for samples, _ in one.sequence(epoch, start) for number in samples]


@settings(max_examples=examples(100))
@given(
    SIZES, st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([1, 5 * MB, 64 * MB]), st.booleans()
)
def test_each_sample_comes_once_from_any_place_on(
    sizes: list[int], epoch: int, seed: int, window: int, shuffle: bool
) -> None:
    one = plan(sizes, seed=seed, window=window, shuffle=shuffle)
    found = whole(one, epoch)
    assert sorted(found) == [*range(len(sizes))]
    assert found == sorted(found) or shuffle
    assert whole(one, epoch) == found
    for start in {0, len(sizes) // 3, len(sizes)}:
        assert whole(one, epoch, start) == found[start:]


@settings(max_examples=examples(100))
@given(SIZES)
def test_blocks_are_stretches_of_samples_of_a_bounded_size(sizes: list[int]) -> None:
    shape = Shape.of(np.array(sizes, np.uint64))
    starts = [int(one) for one in shape.starts]
    assert starts == sorted(set(starts))
    assert (starts[0], starts[-1]) == (0, len(sizes))
    for at, (start, end) in enumerate(pairwise(starts)):
        assert sum(sizes[start:end]) == shape.volumes[at]
        assert end - start == 1 or sum(sizes[start : end - 1]) <= 8 * MB
        assert [*shape.block_of(np.arange(start, end))] == [at] * (end - start)


def test_the_order_is_another_for_each_seed_and_epoch() -> None:
    orders = [whole(plan([90_000] * 3000, seed=seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(one) for one in orders}) == 4


def test_the_order_never_changes() -> None:
    """A saved state refers to it. If this fails, `VERSION` has to change."""
    found = whole(plan([90_000] * 3000, seed=7, window=48 * MB), 2)
    assert found[:8] == EXPECTED
    mixed = plan([90_000] * 300, [5] * 70, weights=[0.3, 0.7], seed=7)
    assert whole(mixed, 1)[:8] == EXPECTED_OF_A_MIXTURE


SHARES = {
    "images": (np.full(60_000, 110_000), 10, 3072 * MB),
    "many classes": (np.full(60_000, 110_000), 1000, 1024 * MB),
    "two classes": (np.full(40_000, 110_000), 2, 256 * MB),
    "tiny files, all in the window": (np.full(60_000, 800), 2, 3072 * MB),
    "tiny files": (np.full(400_000, 800), 10, 256 * MB),
    "large files": (np.full(20_000, 20 * MB), 10, 3072 * MB),
    "one class of tiny files": (np.repeat([1000, 1_000_000], 30_000), 2, 3072 * MB),
    "a rare class of large files": (np.repeat([20 * MB, 10_000], [2000, 48_000]), 25, 1024 * MB),
    "files of all sizes": (np.random.default_rng(0).lognormal(11, 1.5, 60_000).astype(int), 10, 512 * MB),
}


@pytest.mark.parametrize("case", SHARES)
def test_each_class_has_its_share_of_any_ten_thousand_samples(case: str) -> None:
    sizes, classes, window = SHARES[case]
    labels = np.arange(len(sizes)) * classes // len(sizes)  # sorted, as by folders
    true = np.bincount(labels) / len(sizes)
    found = labels[whole(plan(list(sizes), window=window))]
    for start in range(0, len(found) - 9_999, 2500):
        shares = np.bincount(found[start : start + 10_000], minlength=classes) / 10_000
        assert abs(shares - true).max() < 0.02


def test_what_is_under_way_takes_no_more_than_the_window() -> None:
    sizes = np.random.default_rng(1).integers(1, 400_000, 20_000)
    one = plan(list(sizes), window=256 * MB)
    [shape] = one.shapes
    order = np.array(whole(one))
    blocks = shape.block_of(order)
    first, last = np.full(len(shape.volumes), len(order)), np.zeros(len(shape.volumes), int)
    np.minimum.at(first, blocks, np.arange(len(order)))
    np.maximum.at(last, blocks, np.arange(len(order)))
    change = np.zeros(len(order) + 1, np.int64)
    np.add.at(change, first, shape.volumes)
    np.add.at(change, last + 1, -shape.volumes)
    assert np.cumsum(change).max() <= 256 * MB + shape.volumes.max()
    # and the first samples need only some of it
    assert len(set(blocks[:64])) < 30


def test_neighbours_in_the_order_are_no_neighbours_in_the_commit() -> None:
    for window in (256 * MB, 8192 * MB):
        order = np.array(whole(plan([110_000] * 20_000, window=window)))
        assert (abs(np.diff(order)) < 40).mean() < 0.05


@settings(max_examples=examples(100))
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=5),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_ranks_share_one_order_and_a_resume_with_other_ranks_continues_it(
    counts: list[int], size: int, rounds: list[tuple[int, int]], drop_last: bool, seed: int
) -> None:
    """rounds: how many steps are made by so many ranks, before others continue."""
    one = plan(*[[90_000] * count for count in counts], seed=seed, window=2 * MB)
    expected, place = whole(one), 0
    for steps, world in [*rounds, (10_000, 3)]:
        ranks = [[*one.batches(0, place, size, rank, world, drop_last)][:steps] for rank in range(world)]
        for step in range(max(map(len, ranks))):
            found = [rank[step] for rank in ranks if step < len(rank)]
            [end] = {end for end, _ in found}
            samples = [int(number) for _, samples in found for number in samples]
            assert sorted(samples) == sorted(expected[place:end])
            assert world > 1 or samples == expected[place:end]
            lengths = [len(samples) for _, samples in found] + [0] * (world - len(found))
            assert max(lengths) <= size
            assert max(lengths) - min(lengths) <= 1
            assert min(lengths) > 0 or size == 1 or end - place < world
            place = end
    left = len(expected) - place
    assert left < size * 3 if drop_last else not left


def test_ranks_of_many_hosts_need_few_of_the_same_blocks() -> None:
    one = plan([110_000] * 40_000, window=3072 * MB)
    [shape] = one.shapes
    needed = [
        {int(block) for _, samples in one.batches(0, 0, 64, rank, 16) for block in shape.block_of(samples)}
        for rank in range(16)
    ]
    assert sum(map(len, needed)) < 3 * len(shape.volumes)  # not 16 times each


def test_a_mixture_takes_from_each_by_its_weight_and_each_of_its_samples_once_in_turn() -> None:
    one = plan([90_000] * 3000, [10] * 500, weights=[3, 1], length=4000, seed=3)
    found = [number for epoch in range(3) for number in whole(one, epoch)]
    of_second = [number - 3000 for number in found if number >= 3000]
    assert abs(len(of_second) - 3000) < 150
    for source, count in ((of_second, 500), ([n for n in found if n < 3000], 3000)):
        for start in range(0, len(source) - count + 1, count):
            assert sorted(source[start : start + count]) == [*range(count)]
    assert whole(one, 2, 1234) == found[8000 + 1234 :]


EXPECTED = [2114, 2100, 2078, 2072, 2111, 2079, 2106, 2098]
EXPECTED_OF_A_MIXTURE = [324, 302, 346, 342, 305, 329, 369, 361]
