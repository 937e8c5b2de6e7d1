"""What the machines of a pool have, and what of it is free now: the facts by which a pool is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv.model.resources import ALL_GPUS, Resources, is_type
from dsv.model.units import format_bytes, format_count


@dataclass(frozen=True, slots=True)
class GpuCount:
    """GPUs of one kind: how they are called, how many there are, and how many nobody uses."""

    kind: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """One machine that jobs may run on. None: that is not known, and no reason against a job."""

    name: str = ""
    gpus: tuple[GpuCount, ...] = ()
    free_cpus: float | None = None
    total_cpus: float | None = None
    free_memory: int | None = None
    total_memory: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine says of its machines, asked with a certain job in mind.

    nodes: those that such a job may run on at all. waiting: jobs in the queue; None if the engine doesn't say. grows:
    the cluster adds machines on demand, so that none being there now means waiting, and not never. never: why this job
    can never run there; not_now: why it can't begin now though there is room, such as a quota. Both in the engine's
    words, and both may be None. unseen: what the caller may not see, so that less is known of it, with the reason.
    """

    nodes: tuple[NodeRoom, ...] = ()
    waiting: int | None = None
    grows: bool = False
    never: str | None = None
    not_now: str | None = None
    unseen: tuple[str, ...] = ()

    def gpus(self) -> tuple[GpuCount, ...]:
        """Of all nodes, by kind."""
        return counted(each for node in self.nodes for each in node.gpus)


def counted(counts: Iterable[GpuCount]) -> tuple[GpuCount, ...]:
    """Those of one kind together, in the order in which the kinds come first."""
    free: dict[str, int] = {}
    total: dict[str, int] = {}
    for each in counts:
        free[each.kind] = free.get(each.kind, 0) + each.free
        total[each.kind] = total.get(each.kind, 0) + each.total
    return tuple(GpuCount(kind, free[kind], total[kind]) for kind in total)


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a job can begin. never, not_now: why it never can, or can't now; None and None if it can."""

    never: str | None = None
    not_now: str | None = None


def fit(wanted: Resources, capacity: Capacity) -> Fit:
    """What the free room means for a job that asks for this."""
    if capacity.never is not None:
        return Fit(never=capacity.never)
    able = [node for node in capacity.nodes if _has(wanted, node, free=False)]
    if len(able) < wanted.nodes and not capacity.grows:
        return Fit(never=_lack(wanted, capacity.nodes, len(able)))
    if capacity.not_now is not None:
        return Fit(not_now=capacity.not_now)
    ready = [node for node in able if _has(wanted, node, free=True)]
    if len(ready) < wanted.nodes:
        return Fit(not_now=_busy(wanted, capacity, len(ready)))
    return Fit()


def _has(wanted: Resources, node: NodeRoom, *, free: bool) -> bool:
    cpus = node.free_cpus if free else node.total_cpus
    memory = node.free_memory if free else node.total_memory
    if wanted.cpus is not None and cpus is not None and cpus < wanted.cpus:
        return False
    if wanted.memory_bytes is not None and memory is not None and memory < wanted.memory_bytes:
        return False
    if wanted.gpus is None:
        return True
    fitting = [each for each in node.gpus if wanted.gpu_type is None or is_type(each.kind, wanted.gpu_type)]
    there = sum(each.free if free else each.total for each in fitting)
    if wanted.gpus == ALL_GPUS:
        return 0 < sum(each.total for each in fitting) == there
    return there >= wanted.gpus


def _lack(wanted: Resources, nodes: Sequence[NodeRoom], able: int) -> str:
    """Why there are too few machines for this, however long it waits."""
    if not nodes:
        return "it has no machine for such a job"
    if wanted.gpus is not None and able == 0:
        kinds = [each for node in nodes for each in node.gpus]
        of_type = [each for each in kinds if wanted.gpu_type is None or is_type(each.kind, wanted.gpu_type)]
        if not of_type:
            return f"it has no {wanted.gpu_type} GPU" if wanted.gpu_type else "it has no GPU"
        most = max(sum(each.total for each in node.gpus if each in of_type) for node in nodes)
        if wanted.gpus > most:
            return f"no machine of it has more than {format_count(most, 'such GPU')}"
    what = "" if wanted.nodes == 1 else f", and {wanted.nodes} are asked for"
    if able == 0:
        return f"no machine of it has {_in_words(wanted)}{what}"
    return f"it has {format_count(able, 'machine')} with {_in_words(wanted)}{what}"


def _busy(wanted: Resources, capacity: Capacity, ready: int) -> str:
    waiting = f", {format_count(capacity.waiting, 'job')} waiting" if capacity.waiting else ""
    if wanted.gpus is not None and wanted.nodes == 1:
        found = [
            each for each in capacity.gpus() if not wanted.gpu_type or is_type(each.kind, wanted.gpu_type)
        ]
        free, total = sum(each.free for each in found), sum(each.total for each in found)
        return f"{free} of {format_count(total, 'GPU')} {'is' if free == 1 else 'are'} free{waiting}"
    if wanted.nodes > 1:
        return f"{format_count(ready, 'machine')} of {wanted.nodes} could begin now{waiting}"
    return f"too little of {_in_words(wanted)} is free{waiting}"


def _in_words(wanted: Resources) -> str:
    parts = []
    if wanted.gpus is not None:
        count = "all" if wanted.gpus == ALL_GPUS else str(wanted.gpus)
        parts.append(f"{count} {wanted.gpu_type or ''} GPUs".replace("  ", " "))
    if wanted.cpus is not None:
        parts.append(f"{wanted.cpus:g} CPUs")
    if wanted.memory_bytes is not None:
        parts.append(f"{format_bytes(wanted.memory_bytes)} of memory")
    return ", ".join(parts) or "room"
