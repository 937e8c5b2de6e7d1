"""What the nodes of a Slurm have, and what of it is free."""

from __future__ import annotations

import re
from typing import Final

from dsv.run.engines.slurm.options import SlurmOptions
from dsv.run.resources import Capacity, GpuCount, NodeRoom

_UNFIT: Final = {
    "DOWN",
    "DRAIN",
    "DRAINING",
    "DRAINED",
    "FAIL",
    "FAILING",
    "NOT_RESPONDING",
    "FUTURE",
    "MAINT",
    "UNKNOWN",
}
_GPU: Final = re.compile(r"gpu(?::([^:(),]+))?:([0-9]+)")


def read_capacity(nodes: str, pending: str, options: SlurmOptions) -> Capacity:
    """From `scontrol --oneliner --details show node` and from one line for each job that waits."""
    found = []
    partitions: set[str] = set()
    for line in nodes.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        partitions |= set(fields.get("Partitions", "").split(","))
        if "NodeName" in fields and _fits(fields, options):
            found.append(_room(fields))
    never = None
    if options.partition and partitions.isdisjoint(options.partition.split(",")):
        never = f"no machine of this Slurm is in the partition {options.partition}"
    return Capacity(nodes=tuple(found), waiting=len(pending.split()), never=never)


def _fits(fields: dict[str, str], options: SlurmOptions) -> bool:
    state = fields.get("State", "UNKNOWN")
    partitions = fields.get("Partitions", "").split(",")
    features = set(re.split(r"[,&|]", fields.get("ActiveFeatures", "")))
    wanted = (
        set(re.findall(r"\w+", options.constraint))
        if options.constraint and "|" not in options.constraint
        else set()
    )
    if state.endswith("*") or _UNFIT & set(re.split(r"[+*]", state)):
        return False
    named = options.partition.split(",") if options.partition else partitions
    return bool(set(named) & set(partitions)) and wanted <= features


def _room(fields: dict[str, str]) -> NodeRoom:
    total, used = _gpus(fields.get("Gres", "")), _gpus(fields.get("GresUsed", ""))
    cpus, memory = _number(fields, "CPUTot"), _number(fields, "RealMemory")
    return NodeRoom(
        name=fields["NodeName"],
        gpus=tuple(GpuCount(kind, max(count - used.get(kind, 0), 0), count) for kind, count in total.items()),
        free_cpus=cpus - _number(fields, "CPUAlloc"),
        total_cpus=cpus,
        free_memory=(memory - _number(fields, "AllocMem")) << 20,
        total_memory=memory << 20,
    )


def _gpus(text: str) -> dict[str, int]:
    """By kind, of `gpu:a100:8(S:0-1),gpu:t4:2` or `gpu:a100:3(IDX:0-2)`."""
    counts: dict[str, int] = {}
    for kind, count in _GPU.findall(text):
        name = kind if kind and kind != "(null)" else "GPU"
        counts[name] = counts.get(name, 0) + int(count)
    return counts


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0
