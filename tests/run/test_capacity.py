"""Whether a job fits into what a pool has, now or ever."""

from __future__ import annotations

import pytest

from dsv.run.resources import ALL_GPUS, Capacity, GpuCount, NodeRoom, Resources, counted, fit

A100 = "NVIDIA A100-SXM4-80GB"


def node(free: int, total: int, kind: str = A100, **more: object) -> NodeRoom:
    return NodeRoom("n", (GpuCount(kind, free, total),), **more)  # type: ignore[arg-type]


PLAIN = NodeRoom("n", free_memory=10, total_memory=100, free_cpus=2, total_cpus=8)


@pytest.mark.parametrize(
    ("wanted", "capacity", "expected"),
    [
        (Resources(), Capacity((PLAIN,)), Capacity()),
        (Resources(gpus=2), Capacity((node(2, 8),)), Capacity()),
        (Resources(gpus=2), Capacity((node(1, 8),)), Capacity(not_now="1 of 8 GPUs is free")),
        (
            Resources(gpus=2),
            Capacity((node(1, 8),), waiting=3),
            Capacity(not_now="1 of 8 GPUs is free, 3 jobs waiting"),
        ),
        (Resources(gpus=9), Capacity((node(8, 8),)), Capacity(never="no machine of it has 9 GPUs")),
        (Resources(gpus=1), Capacity((PLAIN,)), Capacity(never="no machine of it has 1 GPU")),
        (
            Resources(gpus=1, gpu_type="H100"),
            Capacity((node(8, 8),)),
            Capacity(never="no machine of it has 1 H100 GPU"),
        ),
        (Resources(gpus=1, gpu_type="a100"), Capacity((node(8, 8),)), Capacity()),
        (Resources(gpus=ALL_GPUS), Capacity((node(8, 8),)), Capacity()),
        (Resources(gpus=ALL_GPUS), Capacity((node(7, 8),)), Capacity(not_now="7 of 8 GPUs are free")),
        # Free GPUs on different machines are not free GPUs of one.
        (Resources(gpus=2), Capacity((node(1, 8), node(1, 8))), Capacity(not_now="2 of 16 GPUs are free")),
        (Resources(gpus=8, nodes=2), Capacity((node(8, 8), node(8, 8))), Capacity()),
        (
            Resources(gpus=8, nodes=2),
            Capacity((node(8, 8), node(4, 8))),
            Capacity(not_now="1 machine of 2 could begin now"),
        ),
        (
            Resources(gpus=8, nodes=3),
            Capacity((node(8, 8), node(8, 8))),
            Capacity(never="2 machines of it have 8 GPUs, and 3 are asked for"),
        ),
        (
            Resources(gpus=8, nodes=3),
            Capacity((), grows=True),
            Capacity(not_now="0 machines of 3 could begin now"),
        ),
        (Resources(), Capacity(()), Capacity(never="no machine of it has room")),
        (
            Resources(memory_bytes=50),
            Capacity((PLAIN,)),
            Capacity(not_now="too little of 50 B of memory is free"),
        ),
        (
            Resources(memory_bytes=500),
            Capacity((PLAIN,)),
            Capacity(never="no machine of it has 500 B of memory"),
        ),
        (Resources(cpus=4), Capacity((PLAIN,)), Capacity(not_now="too little of 4 CPUs is free")),
        (Resources(cpus=9), Capacity((PLAIN,)), Capacity(never="no machine of it has 9 CPUs")),
        (
            Resources(),
            Capacity((PLAIN,), not_now="quota: 8 of 8 GPUs"),
            Capacity(not_now="quota: 8 of 8 GPUs"),
        ),
        (Resources(), Capacity((PLAIN,), never="time limit is 1h"), Capacity(never="time limit is 1h")),
        # What isn't known is no reason against it.
        (Resources(cpus=4, memory_bytes=5), Capacity((NodeRoom("n"),)), Capacity()),
    ],
)
def test_a_job_and_the_room_for_it(wanted: Resources, capacity: Capacity, expected: Capacity) -> None:
    found = fit(wanted, capacity)
    assert (found.never, found.not_now) == (expected.never, expected.not_now)


def test_gpus_of_one_kind_are_counted_together() -> None:
    counts = (GpuCount("A", 1, 2), GpuCount("B", 0, 1), GpuCount("A", 3, 4))
    assert counted(counts) == (GpuCount("A", 4, 6), GpuCount("B", 0, 1))


def test_the_gpus_of_machines_that_are_alike_are_not_added_up() -> None:
    nodes = tuple(NodeRoom(name=name, gpus=(GpuCount("a100", 2, 2),)) for name in ("n1", "n2", "n3"))
    assert fit(Resources(gpus=9), Capacity(nodes)).never == "no machine of it has 9 GPUs"
