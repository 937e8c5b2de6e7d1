"""This machine's GPUs, as NVIDIA's management library reports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

IDLE_MEMORY: Final = 1 << 30
"""Bytes in use up to which a GPU counts as free: drivers and displays take some themselves."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU at one moment; 0 for what the library doesn't report."""

    index: int
    """As NVIDIA's own tools count, in the order of the PCI bus."""
    uuid: str
    name: str
    in_use: bool = False
    """A process computes on it."""
    utilization: float = 0.0
    """In per cent."""
    memory_bytes: int = 0
    """Bytes in use."""

    def is_called(self, name: str) -> bool:
        """Check that this index, UUID, or beginning of a UUID means it."""
        return name == str(self.index) or (bool(name) and self.uuid.startswith(name))

    def is_among(self, names: tuple[str, ...] | None) -> bool:
        """Check that one of these names means it; None is for all."""
        return names is None or any(self.is_called(name) for name in names)


def count() -> int:
    """Return the number of GPUs; 0 without the library or a driver."""
    with _loaded() as found:
        return found


def gpus() -> list[Gpu]:
    """Return each GPU that answers."""
    import pynvml

    found = []
    with _loaded() as total:
        for index in range(total):
            with suppress(pynvml.NVMLError):  # it failed, or the caller may not use it
                found.append(_read(index))
    return found


def _read(index: int) -> Gpu:
    import pynvml

    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    utilization, used, processes = 0.0, 0, 0
    with suppress(pynvml.NVMLError):
        utilization = float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
    with suppress(pynvml.NVMLError):
        used = int(pynvml.nvmlDeviceGetMemoryInfo(device).used)
    with suppress(pynvml.NVMLError):
        processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(device))
    return Gpu(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(device)),
        name=str(pynvml.nvmlDeviceGetName(device)),
        in_use=processes > 0
        or used > IDLE_MEMORY,  # processes of another container may be hidden from this one
        utilization=utilization,
        memory_bytes=used,
    )


@contextmanager
def _loaded() -> Iterator[int]:
    """Yield the number of GPUs while the library is in use."""
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
