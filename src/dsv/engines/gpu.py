"""NVIDIA GPUs: which of them a job gets, and what it makes of them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from shutil import which
from threading import Event, Thread
from typing import Final

from dsv.engines.base import ALL_GPUS
from dsv.engines.machine import Machine
from dsv.errors import LaunchError
from dsv.model.run import GpuUse

INTERVAL: Final = 10.0
_QUERY: Final = "uuid,index,name,utilization.gpu,memory.used"


def pick(wanted: int, machine: Machine) -> tuple[str, ...] | None:
    """The indices or UUIDs that a job of `wanted` GPUs gets: the first ones that the caller was given.

    None where the caller was given no certain ones and wants all, or any so many. Raises `LaunchError` where
    there are too few.
    """
    if machine.visible_gpus is None:
        return None
    granted = len(machine.visible_gpus)
    count = max(granted, 1) if wanted == ALL_GPUS else wanted
    if count > granted:
        raise LaunchError(
            f"{'all' if wanted == ALL_GPUS else wanted} GPUs were asked for, and CUDA_VISIBLE_DEVICES grants {granted}",
            subject="CUDA_VISIBLE_DEVICES",
            hint="ask for fewer with --gpus, or for more where the job was allocated",
        )
    return machine.visible_gpus[:count]


def names_of(wanted: int, machine: Machine) -> tuple[str, ...] | None:
    """The indices or UUIDs of a job's GPUs, None for all of the machine's. Raises as `pick`."""
    names = pick(wanted, machine)
    if names is None and wanted != ALL_GPUS:
        return tuple(str(index) for index in range(wanted))
    return names


@dataclass(slots=True)
class _Sum:
    name: str
    samples: int = 0
    utilization: float = 0.0
    peak: int = 0


@dataclass(slots=True)
class GpuWatch:
    """Samples nvidia-smi every ten seconds, where there is one. names: indices or UUIDs, None for all."""

    environ: Mapping[str, str]
    names: tuple[str, ...] | None = None
    interval: float = INTERVAL
    _sums: dict[str, _Sum] = field(default_factory=dict)
    _stop: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def start(self) -> None:
        program = which("nvidia-smi", path=self.environ.get("PATH"))
        if program is not None:
            self._thread = Thread(target=self._run, args=(program,), name="dsv-gpu", daemon=True)
            self._thread.start()

    def stop(self) -> tuple[GpuUse, ...]:
        """What was seen, by GPU; empty where there was nothing to see."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return tuple(
            GpuUse(each.name, round(each.utilization / each.samples, 1), each.peak)
            for each in self._sums.values()
        )

    def _run(self, program: str) -> None:
        argv = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        while True:
            self._sample(argv)
            if self._stop.wait(self.interval):
                return

    def _sample(self, argv: list[str]) -> None:
        try:
            done = subprocess.run(
                argv,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) != 5 or not self._watched(cells[0], cells[1]):
                continue
            one = self._sums.setdefault(cells[0], _Sum(cells[2]))
            one.samples += 1
            one.utilization += _number(cells[3])
            one.peak = max(one.peak, int(_number(cells[4])) << 20)

    def _watched(self, uuid: str, index: str) -> bool:
        if self.names is None:
            return True
        return any(name == index or (name and uuid.startswith(name)) for name in self.names)


def _number(text: str) -> float:
    """nvidia-smi writes `[N/A]` for what a GPU doesn't tell."""
    try:
        return float(text)
    except ValueError:
        return 0.0
