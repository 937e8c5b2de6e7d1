"""What one machine can give a job: checked against what it has, before anything is fetched for the job."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from dsv.engines.base import Engine, Task
from dsv.engines.machine import Machine
from dsv.errors import LaunchError, UsageError
from dsv.model.resources import Resources
from dsv.model.units import format_bytes

ONE_MACHINE: Final = frozenset({"gpus", "gpu_type", "cpus", "memory_bytes"})
"""The resources that an engine of one machine gives."""
SEEN_TO: Final = frozenset({"time_seconds", "retries"})
"""Of one machine's jobs dsv ends those that take too long, and starts those again that failed."""

_ASKED: Final[dict[str, tuple[str, Callable[[Resources], bool]]]] = {
    "gpus": ("--gpus", lambda wanted: wanted.gpus is not None),
    "gpu_type": ("--gpu-type", lambda wanted: wanted.gpu_type is not None),
    "tpu": ("--tpu", lambda wanted: wanted.tpu is not None),
    "tpu_topology": ("--tpu-topology", lambda wanted: wanted.tpu_topology is not None),
    "cpus": ("--cpus", lambda wanted: wanted.cpus is not None),
    "memory_bytes": ("--memory", lambda wanted: wanted.memory_bytes is not None),
    "time_seconds": ("--time", lambda wanted: wanted.time_seconds is not None),
    "nodes": ("--nodes", lambda wanted: wanted.nodes != 1),
    "retries": ("--retries", lambda wanted: wanted.retries != 0),
    "forward": ("--forward-credentials", lambda wanted: isinstance(wanted, Task) and wanted.forward),
}
"""What not every engine has: its option, and whether a job asks for it."""


def not_given(engine: Engine | type[Engine], wanted: Resources) -> tuple[str, ...]:
    """The options of what this engine can't give at all."""
    given = engine.gives | SEEN_TO
    return tuple(flag for name, (flag, asks) in _ASKED.items() if asks(wanted) and name not in given)


def check_given(engine: Engine | type[Engine], wanted: Resources) -> None:
    """Raises `UsageError` if the engine can't give what the job asks for on any machine."""
    missing = not_given(engine, wanted)
    if missing:
        raise UsageError(
            f"the {engine.name} engine can't give a job {', '.join(missing)}",
            subject=missing[0],
            hint=f"leave out {missing[0]}, or name a pool that has it by --on (dsv pools lists them)",
        )


def check_machine(wanted: Resources, machine: Machine) -> None:
    """Raises `LaunchError` if the machine doesn't have so much."""
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
    """So many of the CPUs that the caller may use. Which ones depends on the run, so that jobs that run at the same
    time don't all get the first. Raises `UsageError`."""
    count = int(wanted)
    if count != wanted:
        raise UsageError(
            f"a plain process can't be kept to {wanted:g} CPUs, only to whole ones",
            subject="--cpus",
            hint=f"--cpus {count + 1}, or --image IMAGE for a container",
        )
    start = zlib.crc32(run.encode()) % max(len(machine.cpus), 1)
    return tuple(sorted((*machine.cpus[start:], *machine.cpus[:start])[:count]))
