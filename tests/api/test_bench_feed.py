"""The accelerators of `dsv bench feed`, against simulations in virtual time. No test measures a time."""

from __future__ import annotations

import heapq
import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.api.bench_feed import LOADS, AcceleratorLoad, FeedRequest, Round, find_load, most_that_pass
from dsv.api.bench_feed_process import Received, Trained, batches, train
from dsv.errors import UsageError

SMALL = AcceleratorLoad("small", "x", "none", 2, 1.0, 100, 0, 3, 0.9)
ReadTime = Callable[[int, int, float], float]
"""When a batch is there, by its accelerator, its number, and when it was ordered."""


def trained(load: AcceleratorLoad, accelerators: int, steps: int, read: ReadTime) -> Trained:
    """Train in virtual time."""
    events: list[tuple[float, int, int]] = []
    next_of: dict[tuple[int, int], int] = {}  # of a worker: the batch that it reads next
    free: dict[tuple[int, int], float] = {}
    now = 0.0

    def order(accelerator: int, worker: int) -> None:
        number = next_of.setdefault((accelerator, worker), worker)
        next_of[accelerator, worker] += load.workers
        done = read(accelerator, number, max(now, free.get((accelerator, worker), 0.0)))
        free[accelerator, worker] = done
        heapq.heappush(events, (done, accelerator, number))

    def receive(until: float | None) -> Received:
        nonlocal now
        if until is not None and (not events or until <= events[0][0]):
            now = until
            return {}
        now, accelerator, number = heapq.heappop(events)
        return {(accelerator, number): (now, (1, 0, 0))}

    return train(FeedRequest(load, "folder", steps=steps, seconds=1e9), accelerators, 0.0, receive, order)


def recursion(load: AcceleratorLoad, times: list[list[float]], steps: int) -> float:
    """The utilization by the definition, without any events: when each batch is there follows from those before it."""
    every = load.workers * load.depth + steps
    ready = [[0.0] * every for _ in times]
    taken = [[0.0] * every for _ in times]
    begin = 0.0
    for step in range(every):
        for number, own in enumerate(times):
            ordered = (
                taken[number][step - load.workers * load.depth] if step >= load.workers * load.depth else 0.0
            )
            before = ready[number][step - load.workers] if step >= load.workers else 0.0
            ready[number][step] = max(ordered, before) + own[step]
            taken[number][step] = max(begin, ready[number][step])
        begin = max(row[step] for row in taken) + load.seconds
    first = every - steps
    computing = (steps - 1) * load.seconds
    return fmean(computing / (begin - (row[first] + load.seconds)) for row in taken)


@settings(max_examples=40)
@given(st.data())
def test_the_utilization_is_that_of_its_definition(data: st.DataObject) -> None:
    load = replace(
        SMALL, workers=data.draw(st.integers(1, 4)), seconds=data.draw(st.sampled_from([0.5, 1.0]))
    )
    steps, accelerators = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 3))
    every = load.workers * load.depth + steps + load.workers * load.depth
    one = st.lists(st.integers(0, 40).map(lambda n: n / 8), min_size=every, max_size=every)
    times = data.draw(st.lists(one, min_size=accelerators, max_size=accelerators))
    found = trained(load, accelerators, steps, lambda who, number, at: at + times[who][number])
    assert found.utilization == pytest.approx(recursion(load, times, steps))
    assert found.steps == steps and found.used == [accelerators * (steps - 1), 0, 0]
    assert (steps - 1) * load.seconds <= found.seconds + 1e-9


def test_who_never_waits_is_used_all_the_time() -> None:
    assert trained(SMALL, 3, 5, lambda who, number, at: at).utilization == pytest.approx(1)


def test_the_slowest_reader_keeps_all_waiting() -> None:
    """Each step ends for all of them at once. One reads a batch in 6 s with 3 workers: one in 2 s."""
    slow = trained(SMALL, 4, 30, lambda who, number, at: at + 6.0 * (who == 2))
    assert slow.utilization == pytest.approx(0.5, abs=0.01)


def test_what_was_read_ahead_before_does_not_count() -> None:
    """A storage that brings a batch in 4 s feeds one accelerator to a quarter, however short the round is."""
    last = 0.0

    def read(who: int, number: int, at: float) -> float:
        nonlocal last
        last = max(last, at) + 4.0
        return last

    assert trained(SMALL, 1, 2, read).utilization == pytest.approx(0.25)


@settings(max_examples=40)
@given(st.integers(1, 9), st.sampled_from([0.7, 0.85, 0.9]), st.integers(1, 6))
def test_the_search_finds_what_a_storage_can_feed(feeds: int, mark: float, workers: int) -> None:
    """A storage that reads one batch after the other, in such a time that `feeds` accelerators reach the mark."""
    load = replace(SMALL, workers=workers, mark=mark)
    each = load.seconds / mark / (feeds + 0.3)

    def passes(accelerators: int) -> bool:
        last = 0.0

        def read(who: int, number: int, at: float) -> float:
            nonlocal last
            last = max(last, at) + each
            return last

        return trained(load, accelerators, 25, read).utilization >= mark

    assert most_that_pass(passes, 64) == feeds


@given(st.sets(st.integers(1, 70)), st.integers(1, 64))
def test_the_search_measures_each_number_once(good: set[int], limit: int) -> None:
    asked: list[int] = []

    def passes(number: int) -> bool:
        asked.append(number)
        return number in good

    most = most_that_pass(passes, limit)
    assert len(asked) == len(set(asked)) <= 14 and max(asked) <= limit
    assert most == 0 or (most in asked and most in good)
    assert most == limit or (most + 1 in asked and most + 1 not in good)


@given(st.integers(0, 64), st.integers(1, 64))
def test_the_search_is_right_where_more_is_worse(best: int, limit: int) -> None:
    assert most_that_pass(lambda number: number <= best, limit) == min(best, limit)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 5), st.integers(0, 3))
def test_a_batch_of_files_is_a_part_of_a_random_order(sizes: list[int], accelerators: int, seed: int) -> None:
    batch_of = batches(sizes, SMALL, accelerators, by_bytes=False, seed=seed)
    steps = len(sizes) * 2  # so many batches have each file as often as any other
    read = [batch_of(who, step) for step in range(steps) for who in range(accelerators)]
    assert all(len(batch) == SMALL.batch for batch in read)
    files = Counter(file for batch in read for file, start, stop in batch)
    assert set(files) == {*range(len(sizes))} and len(set(files.values())) == 1
    assert all((start, stop) == (0, sizes[file]) for batch in read for file, start, stop in batch)
    epoch = [file for batch in read for file, _, _ in batch]
    assert epoch == [
        file
        for step in range(steps)
        for who in range(accelerators)
        for file, _, _ in batches(sizes, SMALL, accelerators, by_bytes=False, seed=seed)(who, step)
    ]


def test_accelerators_share_an_epoch() -> None:
    batch_of = batches([1] * 12, SMALL, 3, by_bytes=False, seed=1)
    read = [file for step in range(2) for who in range(3) for file, _, _ in batch_of(who, step)]
    assert sorted(read) == [*range(12)]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=12).filter(any), st.integers(1, 4))
def test_a_batch_of_bytes_has_those_of_the_model(sizes: list[int], accelerators: int) -> None:
    load, total = replace(SMALL, batch=3), sum(sizes)
    batch_of = batches(sizes, load, accelerators, by_bytes=True, seed=0)
    for who in range(accelerators):
        read: Counter[tuple[int, int]] = Counter()
        for step in range(total if total < 40 else 8):  # which is all bytes 300 times, or some of them
            batch = batch_of(who, step)
            assert sum(stop - start for _, start, stop in batch) == 300
            for file, start, stop in batch:
                assert 0 <= start < stop <= sizes[file]
                if total < 40:
                    read.update((file, at) for at in range(start, stop))
        if total < 40:
            assert set(read.values()) == {300} and len(read) == total


def test_the_figures_are_those_of_mlperf_storage() -> None:
    unet3d, retinanet = find_load("unet3d", "b200"), find_load("retinanet", None)
    assert (unet3d.batch, unet3d.seconds, unet3d.mark, unet3d.versions) == (7, 0.162, 0.9, "v3.0")
    assert (retinanet.batch, retinanet.seconds, retinanet.mark, retinanet.accelerator) == (
        24,
        0.04755,
        0.85,
        "b200",
    )
    assert unet3d.batch_bytes / unet3d.seconds == pytest.approx(6.33e9, rel=0.001)
    assert retinanet.batch_bytes / retinanet.seconds == pytest.approx(163e6, rel=0.001)
    assert all(0.6 < load.mark < 1 and load.depth * load.workers >= 2 for load in LOADS)
    assert len({(load.model, load.accelerator) for load in LOADS}) == len(LOADS)


def test_no_figure_is_invented() -> None:
    with pytest.raises(
        UsageError, match="no version of MLPerf Storage has a computation time of retinanet on 'h100'"
    ):
        find_load("retinanet", "h100")
    with pytest.raises(UsageError, match="no model 'bert'"):
        find_load("bert", None)


def test_sizes_are_spread_like_the_models() -> None:
    load = find_load("unet3d", None)
    sizes = list(load.sizes(2000 * load.sample, 1))
    assert fmean(sizes) == pytest.approx(load.sample, rel=0.1)
    assert pstdev(sizes) == pytest.approx(load.spread, rel=0.1)
    assert sum(sizes[:-1]) < 2000 * load.sample <= sum(sizes)
    assert sizes == list(load.sizes(2000 * load.sample, 1)) and min(sizes) >= 1
    assert list(find_load("resnet50", None).sizes(1, 0)) == [1251 * 114_660]


LATE = """
import time
from dsv.api import bench_feed_process

class Late(bench_feed_process._Accelerators):
    def _receive(self, until):
        time.sleep(0.5)
        return super()._receive(until)

bench_feed_process._Accelerators = Late
bench_feed_process.main()
"""


def test_the_error_of_a_worker_is_raised_though_a_batch_before_it_was_not_taken_yet(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(4)]
    load = replace(SMALL, batch=1, seconds=0.01, workers=1)
    second = paths[batches([1] * 4, load, 1, by_bytes=False, seed=20)(0, 1)[0][0]]
    for path in {*paths} - {second}:
        path.write_bytes(b"x")
    request = FeedRequest(load, "folder", steps=2, drop=False)
    order = pickle.dumps(sys.path) + pickle.dumps(Round(request, 1, [*map(str, paths)], [1] * 4, None))
    with subprocess.Popen(
        [sys.executable, "-c", LATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(order)
        process.stdin.flush()
        said = json.loads(process.stdout.read())
    assert said[0] == "Unreachable" and str(second) in said[1]
