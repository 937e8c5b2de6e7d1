"""This machine and the caller: its CPUs, memory and GPUs, what of them a job gets, and how much it uses."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from dsv.errors import LaunchError, UsageError
from dsv.files.process import user_name
from dsv.periodic import NEVER, Periodic
from dsv.run.record import GpuUse
from dsv.run.resources import ALL_GPUS, GpuCount, Resources, counted, is_type
from dsv.values.units import format_bytes

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

    def is_among(self, names: tuple[str, ...] | None) -> bool:
        """Check that it has one of these indices, UUIDs or beginnings of UUIDs; None means all."""
        if names is None:
            return True
        return any(name == str(self.index) or (name and self.uuid.startswith(name)) for name in names)


def gpus_now() -> list[Gpu]:
    """Return each GPU that answers; none without NVIDIA's library or a driver."""
    import pynvml

    found: list[Gpu] = []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return found
    with suppress(pynvml.NVMLError):
        for index in range(int(pynvml.nvmlDeviceGetCount())):
            with suppress(pynvml.NVMLError):  # it failed, or the caller may not use it
                found.append(_read(index))
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
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


_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVERS_GPUS = Path("/proc/driver/nvidia/gpus")
_DEVICES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg")
"""The devices of NVIDIA's drivers: on any machine, on Jetson, on WSL. The library takes long to import."""


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, and the user of this process."""

    memory_bytes: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    user: str = ""
    selinux: bool = False
    gpus: int | None = None
    """The number of NVIDIA GPUs."""
    visible_gpus: tuple[str, ...] | None = None
    """The indices or UUIDs that the caller was given (by Slurm for instance), None for all."""
    models: tuple[Gpu, ...] = ()
    """The GPUs whose models are known."""
    cpus: tuple[int, ...] = ()
    """The numbers of those that the caller may use."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Machine:
        uid, gid, models = os.geteuid(), os.getegid(), _gpu_models()
        return cls(
            memory_bytes=memory("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            uid=uid,
            gid=gid,
            groups=tuple(sorted(set(os.getgroups()) - {gid})),
            user=user_name(uid),
            selinux=os.access("/sys/fs/selinux/enforce", os.R_OK),
            gpus=len(models),
            visible_gpus=visible(environ),
            models=models,
            cpus=tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (),
        )


def visible(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs in `CUDA_VISIBLE_DEVICES`; as in CUDA, those after a -1 don't count. None if it isn't set."""
    text = environ.get(_VISIBLE)
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    valid = names[: names.index("-1")] if "-1" in names else names
    return tuple(name for name in valid if name)


def memory(kind: str) -> int | None:
    """Return the bytes of a line of `/proc/meminfo`; None if the system has none."""
    try:
        match = re.search(rf"^{kind}:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024


def _gpu_models() -> tuple[Gpu, ...]:
    """Read the driver's files; on WSL and Jetson, which have none, ask NVIDIA's library."""
    try:
        texts = [(folder / "information").read_text() for folder in sorted(_DRIVERS_GPUS.iterdir())]
    except OSError:
        here = gpus_now() if any(Path(device).exists() for device in _DEVICES) else ()
        return tuple(Gpu(each.index, each.uuid, each.name) for each in here)
    return tuple(read_model(index, text) for index, text in enumerate(texts))


def read_model(index: int, text: str) -> Gpu:
    """Read the driver's file about one GPU, a `NAME: VALUE` on each line."""
    pairs = (line.partition(":") for line in text.splitlines())
    known = {name.strip(): value.strip() for name, _, value in pairs}
    return Gpu(index, known.get("GPU UUID", ""), known.get("Model", ""))


def gpu_counts(names: tuple[str, ...] | None) -> tuple[GpuCount, ...]:
    """Count the GPUs with these indices or UUIDs (None: all) by kind."""
    gpus = [gpu for gpu in gpus_now() if gpu.is_among(names)]
    return counted(GpuCount(gpu.name or "GPU", 0 if gpu.in_use else 1, 1) for gpu in gpus)


def with_free_gpus(machine: Machine) -> Machine:
    """Return the machine with only its unused GPUs visible, if some GPUs are in use."""
    gpus = gpus_now()
    if not any(each.in_use for each in gpus):
        return machine
    free = [each.uuid for each in gpus if not each.in_use and each.is_among(machine.visible_gpus)]
    return replace(machine, visible_gpus=tuple(free))


def check_machine(wanted: Resources, machine: Machine) -> None:
    """Raises `LaunchError` if the machine doesn't have enough memory or CPUs."""
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
    """Choose from the caller's CPUs, the first by the run, to spread concurrent jobs. Raises `UsageError`."""
    count = int(wanted)
    if count != wanted:
        raise UsageError(
            f"a plain process can't be kept to {wanted:g} CPUs, only to whole ones",
            subject="--cpus",
            hint=f"--cpus {count + 1}, or --image IMAGE for a container",
        )
    start = zlib.crc32(run.encode()) % max(len(machine.cpus), 1)
    return tuple(sorted((*machine.cpus[start:], *machine.cpus[:start])[:count]))


INTERVAL_SECONDS: Final = 10.0


def choose_gpus(
    wanted: int, machine: Machine, gpu_type: str | None = None, *, by_index: bool = False
) -> tuple[str, ...] | None:
    """Return the indices or UUIDs of a job's GPUs: the first of those given to the caller, or of this type.

    None for all GPUs of the machine. by_index: no UUIDs of GPUs of a type. Raises `LaunchError` if the caller
    or the machine has too few.
    """
    if gpu_type is not None:
        here = [each for each in machine.models if each.is_among(machine.visible_gpus)]
        fitting = [each for each in here if is_type(each.name, gpu_type)]
        names = tuple(str(each.index) if by_index or not each.uuid else each.uuid for each in fitting)
        of_type, hint = f" of the type {gpu_type}", "nvidia-smi -L lists the GPUs and what they are called"
    elif machine.visible_gpus is not None and machine.gpus != 0:  # else the variable is a leftover
        names, of_type = machine.visible_gpus, ""
        hint = "ask for fewer with --gpus, or have more allocated, as CUDA_VISIBLE_DEVICES says"
    elif machine.gpus is not None and machine.gpus < (1 if wanted == ALL_GPUS else wanted):
        raise too_few_gpus(wanted, "", machine.gpus, "nvidia-smi -L lists the GPUs")
    else:
        return None if wanted == ALL_GPUS else tuple(str(index) for index in range(wanted))
    count = max(len(names), 1) if wanted == ALL_GPUS else wanted
    if count > len(names):
        raise too_few_gpus(wanted, of_type, len(names), hint)
    return names[:count]


def too_few_gpus(wanted: int, of_type: str, found: int, hint: str) -> LaunchError:
    asked = "all" if wanted == ALL_GPUS else str(wanted)
    said = f"{asked} GPUs{of_type} were asked for, and there are {found} for this job"
    return LaunchError(said, subject="--gpus", hint=hint)


class GpuWatch:
    """Samples the GPUs with these indices or UUIDs (None: all) every ten seconds."""

    def __init__(self, names: tuple[str, ...] | None = None, interval: float = INTERVAL_SECONDS) -> None:
        self._names = names
        self._interval = interval
        self._seen: dict[str, tuple[int, GpuUse]] = {}  # by UUID: the number of samples, and their result
        self._sampling = Periodic("dsv-gpu", self._sample)
        self.start = self._sampling.start

    def stop(self) -> tuple[GpuUse, ...]:
        """Return the use of each GPU; empty if there are none."""
        self._sampling.stop()
        return tuple(replace(use, utilization=round(use.utilization, 1)) for _, use in self._seen.values())

    def _sample(self) -> float:
        taken = gpus_now()
        for gpu in taken:
            if gpu.is_among(self._names):
                count, use = self._seen.get(gpu.uuid, (0, GpuUse(gpu.name, 0.0, 0)))
                mean = (use.utilization * count + gpu.utilization) / (count + 1)
                peak = max(use.peak_memory_bytes, gpu.memory_bytes)
                self._seen[gpu.uuid] = count + 1, GpuUse(gpu.name, mean, peak)
        return self._interval if taken else NEVER


SAMPLE_SECONDS: Final = 0.5
Sample: TypeAlias = tuple[int | None, float | None]
"""The bytes of memory and the seconds of processor time that a job uses; None for what is not known."""


class UsageSampler:
    """Samples a job's usage, twice a second and more often at first. The result stays readable at the end."""

    def __init__(
        self,
        read: Callable[[], Sample | None],
        *,
        limit: int | None = None,
        exceeded: Callable[[], None] = lambda: None,
        first: float = 0.0,
    ) -> None:
        """read: returns None before the job begins. exceeded: called for each sample above limit, in bytes. first:
        seconds before the first sample"""
        self.peak_memory_bytes: int | None = None
        self.cpu_seconds: float | None = None
        self.was_exceeded = False
        self._read = read
        self._limit = limit
        self._exceeded = exceeded
        self._wait = 0.02
        self._sampling = Periodic("dsv-usage", self._sample, first=first)
        self.start = self._sampling.start
        self.stop = self._sampling.stop

    def _sample(self) -> float:
        found = self._read()
        memory, seconds = found or (None, None)
        if memory:
            self.peak_memory_bytes = max(memory, self.peak_memory_bytes or 0)
        if seconds is not None:
            self.cpu_seconds = max(seconds, self.cpu_seconds or 0.0)
        if self._limit is not None and (memory or 0) > self._limit:
            self.was_exceeded = True
            self._exceeded()
        self._wait = min(2 * self._wait, 4 * SAMPLE_SECONDS if found is None else SAMPLE_SECONDS)
        return self._wait


def session_memory(session: int, proc: Path = Path("/proc")) -> int:
    """Return the bytes that a session uses: all private memory, and the most shared memory of a process."""
    private, shared = 0, 0
    with suppress(OSError):
        for folder in proc.iterdir():
            if folder.name.isdecimal() and _session_of(folder) == str(session):
                figures = _figures(folder / "status")
                private += figures.get("RssAnon", 0) * 1024
                shared = max(shared, figures.get("RssShmem", 0) * 1024)
    return private + shared


def _session_of(process: Path) -> str | None:
    with suppress(OSError, IndexError):
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[3]
    return None


def control_group(
    find_pid: Callable[[], int | None], root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")
) -> Callable[[], Sample | None]:
    """Return a function that reads the control group of a container, in version 1 or 2. find_pid: returns the
    container's first process; None until it has started"""
    folders: list[Path] | None = None

    def read() -> Sample | None:
        nonlocal folders
        if folders is None:
            pid = find_pid()
            if pid is None:
                return None
            folders = _group_folders(_lines(proc / str(pid)), _lines(proc / "self"), root)
        memory = (used_memory for folder in folders if (used_memory := _memory_of(folder)) is not None)
        seconds = (used for folder in folders if (used := _cpu_of(folder)) is not None)
        return next(memory, None), next(seconds, None)

    return read


def _group_folders(lines: list[str], own: list[str], root: Path) -> list[Path]:
    """Return the folders that may hold the figures, the best first."""
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # A rootless engine that can't create groups leaves the container in the caller's, and the root group has the
        # figures of the whole machine.
        if line not in own and (below := path.strip("/")):
            folders += [root / name / below for name in (controllers, *controllers.split(","))]
    return folders


def _lines(process: Path) -> list[str]:
    with suppress(OSError):
        return (process / "cgroup").read_text().splitlines()
    return []


def _memory_of(folder: Path) -> int | None:
    figures = _figures(folder / "memory.stat")
    names = ("total_rss", "total_shmem") if "total_rss" in figures else ("anon", "shmem")
    return sum(figures.get(name, 0) for name in names) if names[0] in figures else None


def _cpu_of(folder: Path) -> float | None:
    micros = _figures(folder / "cpu.stat").get("usage_usec")
    if micros is not None:
        return micros / 1e6
    with suppress(OSError, ValueError):
        return int((folder / "cpuacct.usage").read_text()) / 1e9
    return None


def _figures(path: Path) -> dict[str, int]:
    """Return the figures of a file that has a name and a number on each line."""
    try:
        lines = [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
