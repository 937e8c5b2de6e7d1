"""The settings of a pool on Slurm: the table [pools.NAME.slurm] of the configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import msgspec

from dsv.errors import UsageError
from dsv.run.engines.base import Job, Mount, OptionKind, of_type, read_options
from dsv.values.json import Json
from dsv.values.units import parse_duration

STAGE_SECONDS: Final = 1800
"""Seconds of Slurm's time limit besides the command's own time and its grace, if the pool says nothing."""
_SBATCH: Final = ("partition", "account", "qos", "constraint", "reservation", "gres")
"""Options of sbatch that have a key of their own."""


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The settings of a Slurm pool."""

    sbatch: tuple[str, ...] = ()
    """Options of sbatch."""
    container: str | None = None
    """The program that runs images on the nodes, if there is one."""
    dsv: str = "dsv"
    """The program on the nodes."""
    partition: str | None = None
    constraint: str | None = None
    stage_seconds: int = STAGE_SECONDS
    """Added to the command's time to get the job's time limit."""

    @classmethod
    def read(cls, options: Mapping[str, Json], where: str = "slurm") -> Self:
        """Raise `UsageError` for an unknown key or a wrong value."""
        found = read_options(options, where, "slurm", _KINDS)
        own = [f"--{key}={found[key]}" for key in _SBATCH if key in found]
        container = found.get("container", "none")
        return cls(
            sbatch=(*own, *found.get("sbatch", ())),
            container=None if container == "none" else container,
            dsv=found.get("dsv") or _dsv_here(),
            partition=found.get("partition"),
            constraint=found.get("constraint"),
            stage_seconds=found.get("stage_time", STAGE_SECONDS),
        )


def contained(container: str, job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs the job's own in its image on a node. passed: names of variables for the job."""
    return CONTAINERS[container](job, passed)


def _podman(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """Run it in the job's own control group, so that Slurm limits it, counts what it takes, and ends it."""
    words = [
        "podman",
        "run",
        "--rm",
        "--cgroups=disabled",
        "--network=host",
        "--ipc=host",
        "--log-driver=none",
    ]
    for mount in job.mounts:
        words += [
            "--mount",
            f"type=bind,source={_plain(mount)},target={mount.target}{'' if mount.writable else ',ro'}",
        ]
    words += [word for name in passed for word in ("--env", name)]
    words += ["--workdir", job.workdir] if job.workdir else []
    words += ["--device", "nvidia.com/gpu=all", "--env", "CUDA_VISIBLE_DEVICES"] if job.gpus else []
    return (*words, str(job.image), *job.command)


def _apptainer(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """It passes the environment on by itself."""
    words = ["apptainer", "exec", "--no-home"]
    for mount in job.mounts:
        words += ["--bind", f"{_plain(mount)}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    words += ["--pwd", job.workdir] if job.workdir else []
    words += ["--nv"] if job.gpus else []
    image = str(job.image)
    is_named = "://" in image or image.startswith(("/", "./", "../")) or image.endswith(".sif")
    return (*words, image if is_named else f"docker://{image}", *job.command)


def _enroot(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """The image is a squashfs file, or a container that `enroot create` made on each node. It has no option for the
    working directory."""
    words = ["enroot", "start"]
    for mount in job.mounts:
        how = "rw" if mount.writable else "ro"
        words += ["--mount", f"{_plain(mount)}:{mount.target}:none:x-create=auto,bind,{how}"]
    words += [word for name in passed for word in ("--env", name)]
    inside = ("sh", "-c", 'cd "$0" && exec "$@"', job.workdir) if job.workdir else ()
    return (*words, str(job.image), *inside, *job.command)


CONTAINERS: Final[dict[str, Callable[[Job, tuple[str, ...]], tuple[str, ...]]]] = {
    "podman": _podman,
    "apptainer": _apptainer,
    "enroot": _enroot,
}


def _plain(mount: Mount) -> str:
    """Raise `UsageError` for a folder that can't be written in an option of a mount."""
    source = str(mount.source)
    if any(each in source for each in ",:\n"):
        raise UsageError(f"{source} can't be mounted: its name has a comma or a colon", subject=source)
    return source


def _dsv_here() -> str:
    """Return the program beside the Python that runs this, as nodes share the folders of users in most places."""
    beside = Path(sys.executable).with_name("dsv")
    return str(beside) if beside.exists() else "dsv"


_line: Final = of_type(Annotated[str, msgspec.Meta(pattern=r"\A[^\n]+\Z")])
_KINDS: Final[dict[str, OptionKind]] = {
    **dict.fromkeys((*_SBATCH, "dsv"), ("a word", "VALUE", _line)),
    "sbatch": ("a list of options", '["--exclusive"]', of_type(tuple[str, ...])),
    "container": (f"one of none, {', '.join(CONTAINERS)}", "podman", of_type(Literal["none", *CONTAINERS])),
    "stage_time": ("a duration", "30m", lambda value: parse_duration(_line(value))),
}
