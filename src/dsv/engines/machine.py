"""The machine and the caller, as far as starting a job depends on them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv.engines import nvml
from dsv.fs.process import user_name

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MEM_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Machine:
    """memory_bytes: all of the machine's. gpus: how many NVIDIA GPUs it has.

    visible_gpus: the indices or UUIDs that the caller was given (by Slurm for instance), None for all.
    """

    memory_bytes: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    user: str = ""
    selinux: bool = False
    gpus: int | None = None
    visible_gpus: tuple[str, ...] | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Machine:
        """This machine and the user of this process."""
        uid, gid = os.geteuid(), os.getegid()
        return cls(
            memory_bytes=_memory(),
            uid=uid,
            gid=gid,
            groups=tuple(sorted(set(os.getgroups()) - {gid})),
            user=user_name(uid),
            selinux=_reads(Path("/sys/fs/selinux/enforce")),
            gpus=_gpu_count(),
            visible_gpus=visible(environ),
        )


def visible(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The GPUs in `CUDA_VISIBLE_DEVICES`; as in CUDA, those after a -1 don't count. None if it isn't set."""
    text = environ.get(_VISIBLE)
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    valid = names[: names.index("-1")] if "-1" in names else names
    return tuple(name for name in valid if name)


def _memory() -> int:
    try:
        match = _MEM_TOTAL.search(Path("/proc/meminfo").read_text())
    except OSError:
        match = None
    if match is not None:
        return int(match[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _reads(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def _gpu_count() -> int:
    """From the driver's files; on WSL and Jetson, which have none, from NVIDIA's library."""
    try:
        return sum(1 for _ in Path("/proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return nvml.count()
