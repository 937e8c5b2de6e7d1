"""This machine's GPUs, as NVIDIA's management library reports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

IDLE_MEMORY: Final = 1 << 30
"""Bytes in use up to which a GPU counts as free: drivers and displays take some themselves."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A GPU at one moment. utilization: per cent; memory_bytes: in use. 0 if the library doesn't report it."""

    index: int
    uuid: str
    name: str
    utilization: float
    memory_bytes: int


def count() -> int:
    """The number of GPUs; 0 without the library or a driver."""
    with _loaded() as found:
        return found


def samples() -> list[Sample]:
    """One of each GPU that answers."""
    import pynvml

    taken = []
    with _loaded() as found:
        for index in range(found):
            with suppress(pynvml.NVMLError):  # it failed, or the caller may not use it
                taken.append(_sample(index))
    return taken


@dataclass(frozen=True, slots=True)
class Device:
    """in_use: whether somebody computes on it now."""

    index: int
    uuid: str
    name: str
    in_use: bool


def devices() -> list[Device]:
    """Each GPU that answers, and whether it is free."""
    import pynvml

    found = []
    with _loaded() as count_:
        for index in range(count_):
            with suppress(pynvml.NVMLError):
                found.append(_device(index))
    return found


def _device(index: int) -> Device:
    """Memory counts as well as processes: those of another container may be hidden from this one."""
    import pynvml

    sample, processes = _sample(index), 0
    with suppress(pynvml.NVMLError):
        processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(index)))
    return Device(index, sample.uuid, sample.name, processes > 0 or sample.memory_bytes > IDLE_MEMORY)


def _sample(index: int) -> Sample:
    import pynvml

    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    utilization, used = 0.0, 0
    with suppress(pynvml.NVMLError):
        utilization = float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
    with suppress(pynvml.NVMLError):
        used = int(pynvml.nvmlDeviceGetMemoryInfo(device).used)
    return Sample(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(device)),
        name=str(pynvml.nvmlDeviceGetName(device)),
        utilization=utilization,
        memory_bytes=used,
    )


@contextmanager
def _loaded() -> Iterator[int]:
    """The number of GPUs while the library is in use."""
    import pynvml

    try:
        pynvml.nvmlInit()
        found = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        yield 0
        return
    try:
        yield found
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
