"""The CPUs, memory and GPUs of this machine: what is free, what a job gets, and how much of the GPUs it uses."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from dsv.errors import LaunchError, UsageError
from dsv.fs.process import host_name
from dsv.periodic import NEVER, Periodic
from dsv.run.engines import nvml
from dsv.run.engines.base import Engine, NoEngine
from dsv.run.engines.machine import Machine, memory, visible
from dsv.run.record import GpuUse
from dsv.run.resources import ALL_GPUS, Capacity, GpuCount, NodeRoom, Resources, counted, is_type
from dsv.values.units import format_bytes


class LocalEngine(Engine):
    """An `Engine` of this machine. It holds nothing back, so nothing waits."""

    gives: ClassVar[frozenset[str]] = frozenset({"gpus", "gpu_type", "cpus", "memory_bytes"})

    def capacity(self, wanted: Resources) -> Capacity | NoEngine:
        """Return the one machine, with the GPUs that the caller may use."""
        facts = self.probe()
        if isinstance(facts, NoEngine):
            return facts
        names = visible(self.environ)
        gpus = [
            GpuCount(each.name or "GPU", 0 if each.in_use else 1, 1)
            for each in nvml.gpus()
            if each.is_among(names)
        ]
        node = NodeRoom(
            name=host_name(),
            gpus=counted(gpus),
            total_cpus=len(facts.machine.cpus) or None,
            free_memory=memory("MemAvailable"),  # what a new job could have without others being swapped out
            total_memory=facts.machine.memory_bytes,
        )
        return Capacity(nodes=(node,), waiting=0)


def with_free_gpus(machine: Machine) -> Machine:
    """Return the machine with only those of its GPUs visible that nobody uses now, if some are in use."""
    gpus = nvml.gpus()
    if not any(each.in_use for each in gpus):
        return machine
    free = [each.uuid for each in gpus if not each.in_use and each.is_among(machine.visible_gpus)]
    return replace(machine, visible_gpus=tuple(free))


def check_machine(wanted: Resources, machine: Machine) -> None:
    """Raise `LaunchError` if the machine doesn't have so much."""
    if wanted.memory_bytes is not None and wanted.memory_bytes > machine.memory_bytes:
        raise LaunchError(
            f"{format_bytes(wanted.memory_bytes)} of memory were asked for, and this machine has "
            f"{format_bytes(machine.memory_bytes)}",
            subject="--memory",
            hint="ask for less with --memory",
        )
    if wanted.cpus is not None and machine.cpus and wanted.cpus > len(machine.cpus):
        raise LaunchError(
            f"{wanted.cpus:g} CPUs were asked for, and {len(machine.cpus)} may be used on this machine",
            subject="--cpus",
            hint="ask for fewer with --cpus",
        )


def choose_cpus(wanted: float, machine: Machine, run: str) -> tuple[int, ...]:
    """Choose CPUs that the caller may use. The first depends on the run, so that jobs that run at the same time don't
    all get the same. Raise `UsageError`."""
    count = int(wanted)
    if count != wanted:
        raise UsageError(
            f"a plain process can't be kept to {wanted:g} CPUs, only to whole ones",
            subject="--cpus",
            hint=f"--cpus {count + 1}, or --image IMAGE for a container",
        )
    start = zlib.crc32(run.encode()) % max(len(machine.cpus), 1)
    return tuple(sorted((*machine.cpus[start:], *machine.cpus[:start])[:count]))


INTERVAL: Final = 10.0


def pick(
    wanted: int, machine: Machine, gpu_type: str | None = None, *, by_index: bool = False
) -> tuple[str, ...] | None:
    """Return the indices or UUIDs of the GPUs that a job gets: the first `wanted` of those that the caller was given.

    gpu_type: only of this type, and then by their UUIDs unless `by_index`. None if the caller may use all GPUs, so
    that the engine can choose. Raises `LaunchError` if there are too few.
    """
    if gpu_type is not None:
        return _of_type(wanted, machine, gpu_type, by_index=by_index)
    if machine.visible_gpus is None:
        return None
    granted = len(machine.visible_gpus)
    count = max(granted, 1) if wanted == ALL_GPUS else wanted
    if count > granted:
        raise LaunchError(
            f"{_said(wanted)} GPUs were asked for, and CUDA_VISIBLE_DEVICES grants {granted}",
            subject="CUDA_VISIBLE_DEVICES",
            hint="ask for fewer with --gpus, or have more allocated",
        )
    return machine.visible_gpus[:count]


def names_of(wanted: int, machine: Machine, gpu_type: str | None = None) -> tuple[str, ...] | None:
    """Return the indices or UUIDs of a job's GPUs; None for all of the machine's. Raises what `pick` raises."""
    names = pick(wanted, machine, gpu_type, by_index=True)
    if names is None and wanted != ALL_GPUS:
        return tuple(str(index) for index in range(wanted))
    return names


def _of_type(wanted: int, machine: Machine, gpu_type: str, *, by_index: bool) -> tuple[str, ...]:
    fitting = [
        each
        for each in machine.models
        if each.is_among(machine.visible_gpus) and is_type(each.name, gpu_type)
    ]
    count = max(len(fitting), 1) if wanted == ALL_GPUS else wanted
    if count > len(fitting):
        raise LaunchError(
            f"{_said(wanted)} GPUs of the type {gpu_type} were asked for, and there are {len(fitting)} here",
            subject=gpu_type,
            hint="nvidia-smi -L lists the GPUs and what they are called",
        )
    return tuple(str(each.index) if by_index or not each.uuid else each.uuid for each in fitting[:count])


def _said(wanted: int) -> str:
    return "all" if wanted == ALL_GPUS else str(wanted)


@dataclass(slots=True)
class _Sum:
    name: str
    samples: int = 0
    utilization: float = 0.0
    peak: int = 0


class GpuWatch:
    """Samples the GPUs with these indices or UUIDs (None: all) every ten seconds."""

    def __init__(self, names: tuple[str, ...] | None = None, interval: float = INTERVAL) -> None:
        self._names = names
        self._interval = interval
        self._sums: dict[str, _Sum] = {}
        self._sampling = Periodic("dsv-gpu", self._sample)

    def start(self) -> None:
        self._sampling.start()

    def stop(self) -> tuple[GpuUse, ...]:
        """Return the use of each GPU; empty if there are none."""
        self._sampling.stop()
        return tuple(
            GpuUse(each.name, round(each.utilization / each.samples, 1), each.peak)
            for each in self._sums.values()
        )

    def _sample(self) -> float:
        taken = nvml.gpus()
        for gpu in taken:
            if gpu.is_among(self._names):
                one = self._sums.setdefault(gpu.uuid, _Sum(gpu.name))
                one.samples += 1
                one.utilization += gpu.utilization
                one.peak = max(one.peak, gpu.memory_bytes)
        return self._interval if taken else NEVER
