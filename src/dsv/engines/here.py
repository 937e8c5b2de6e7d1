"""What this machine has free for a job: for the engines that run their jobs on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dsv.engines import nvml
from dsv.engines.machine import GpuModel, Machine, visible
from dsv.errors import UsageError
from dsv.fs.process import host_name
from dsv.model.capacity import Capacity, GpuCount, NodeRoom, counted
from dsv.model.json_values import Json

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def capacity_here(environ: Mapping[str, str], cpus: int, memory_bytes: int) -> Capacity:
    """The one machine, with the GPUs that the caller may use. Nothing is held back here, so nothing waits."""
    granted = visible(environ)
    gpus = [
        GpuCount(each.name or "GPU", 0 if each.in_use else 1, 1)
        for each in nvml.devices()
        if granted is None
        or any(GpuModel(each.index, each.uuid, each.name).is_called(name) for name in granted)
    ]
    node = NodeRoom(
        name=host_name(),
        gpus=counted(gpus),
        total_cpus=cpus or None,
        free_memory=_available(),
        total_memory=memory_bytes,
    )
    return Capacity(nodes=(node,), waiting=0)


def with_free_gpus(machine: Machine) -> Machine:
    """The machine with only those of its GPUs visible that nobody uses now, if some are in use."""
    devices = nvml.devices()
    names = tuple(each.uuid for each in devices if not each.in_use)
    granted = machine.visible_gpus
    if granted is not None:
        free = [each for each in devices if not each.in_use]
        models = [GpuModel(each.index, each.uuid, each.name) for each in free]
        names = tuple(each.uuid for each in models if any(each.is_called(name) for name in granted))
    return machine if not any(each.in_use for each in devices) else replace(machine, visible_gpus=names)


def refuse_options(engine: str, options: Mapping[str, Json], where: str) -> None:
    """For an engine that needs no table in the configuration of a pool. Raises `UsageError`."""
    for name in options:
        raise UsageError(
            f"{where}.{name} means nothing to the {engine} engine",
            subject=name,
            hint=f"dsv config --unset {where}.{name}",
        )


def _available() -> int | None:
    """Memory that a new job could have without others being swapped out."""
    try:
        match = _AVAILABLE.search(Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024
