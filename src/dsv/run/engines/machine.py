"""The machine and the caller, as far as starting a job depends on them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv.fs.process import user_name
from dsv.run.engines import nvml
from dsv.run.engines.nvml import Gpu

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVERS_GPUS = Path("/proc/driver/nvidia/gpus")


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
    """The GPUs that say what they are."""
    cpus: tuple[int, ...] = ()
    """The numbers of those that the caller may use."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Machine:
        uid, gid = os.geteuid(), os.getegid()
        return cls(
            memory_bytes=memory("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            uid=uid,
            gid=gid,
            groups=tuple(sorted(set(os.getgroups()) - {gid})),
            user=user_name(uid),
            selinux=_reads(Path("/sys/fs/selinux/enforce")),
            gpus=_gpu_count(),
            visible_gpus=visible(environ),
            models=_gpu_models(),
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


def _reads(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def _gpu_count() -> int:
    """Read the driver's files; on WSL and Jetson, which have none, from NVIDIA's library."""
    try:
        return sum(1 for _ in _DRIVERS_GPUS.iterdir())
    except OSError:
        return nvml.count()


def _gpu_models() -> tuple[Gpu, ...]:
    """Read the same places."""
    try:
        texts = [(folder / "information").read_text() for folder in sorted(_DRIVERS_GPUS.iterdir())]
    except OSError:
        return tuple(Gpu(each.index, each.uuid, each.name) for each in nvml.gpus())
    return tuple(read_model(index, text) for index, text in enumerate(texts))


def read_model(index: int, text: str) -> Gpu:
    """Read the driver's file about one GPU, a `NAME: VALUE` on each line."""
    pairs = (line.partition(":") for line in text.splitlines())
    known = {name.strip(): value.strip() for name, _, value in pairs}
    return Gpu(index, known.get("GPU UUID", ""), known.get("Model", ""))
