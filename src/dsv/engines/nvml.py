"""This machine's GPUs, as NVIDIA's management library reports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


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
