"""NVIDIA GPUs: which of them a job gets, and how much it uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsv.errors import LaunchError
from dsv.periodic import NEVER, Periodic
from dsv.run.engines import nvml
from dsv.run.engines.machine import GpuModel, Machine
from dsv.run.record import GpuUse
from dsv.run.resources import ALL_GPUS, is_type

INTERVAL: Final = 10.0


def pick(
    wanted: int, machine: Machine, gpu_type: str | None = None, *, by_index: bool = False
) -> tuple[str, ...] | None:
    """The indices or UUIDs of the GPUs that a job gets: the first `wanted` of those that the caller was given.

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
    """The indices or UUIDs of a job's GPUs; None for all of the machine's. Raises what `pick` raises."""
    names = pick(wanted, machine, gpu_type, by_index=True)
    if names is None and wanted != ALL_GPUS:
        return tuple(str(index) for index in range(wanted))
    return names


def granted(machine: Machine) -> tuple[GpuModel, ...]:
    """The GPUs that the caller may use, of those that say what they are."""
    if machine.visible_gpus is None:
        return machine.models
    return tuple(
        each for each in machine.models if any(each.is_called(name) for name in machine.visible_gpus)
    )


def _of_type(wanted: int, machine: Machine, gpu_type: str, *, by_index: bool) -> tuple[str, ...]:
    fitting = [each for each in granted(machine) if is_type(each.name, gpu_type)]
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
    """Samples the GPUs every ten seconds, if there are any. names: indices or UUIDs, None for all."""

    def __init__(self, names: tuple[str, ...] | None = None, interval: float = INTERVAL) -> None:
        self._names = names
        self._interval = interval
        self._sums: dict[str, _Sum] = {}
        self._sampling = Periodic("dsv-gpu", self._sample)

    def start(self) -> None:
        self._sampling.start()

    def stop(self) -> tuple[GpuUse, ...]:
        """The use of each GPU; empty if there are none."""
        self._sampling.stop()
        return tuple(
            GpuUse(each.name, round(each.utilization / each.samples, 1), each.peak)
            for each in self._sums.values()
        )

    def _sample(self) -> float:
        taken = nvml.samples()
        for sample in taken:
            if self._watched(sample.uuid, str(sample.index)):
                one = self._sums.setdefault(sample.uuid, _Sum(sample.name))
                one.samples += 1
                one.utilization += sample.utilization
                one.peak = max(one.peak, sample.memory_bytes)
        return self._interval if taken else NEVER

    def _watched(self, uuid: str, index: str) -> bool:
        if self._names is None:
            return True
        return any(name == index or (name and uuid.startswith(name)) for name in self._names)
