"""What a job asks of the machines that run it, in words that fit every engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dsv.errors import UsageError

ALL_GPUS: Final = -1
MAX_NODES: Final = 10_000
MAX_RETRIES: Final = 1000

_CPUS = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,3})?", re.ASCII)
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}", re.ASCII)
_TPU = re.compile(r"(v[0-9]{1,2}[a-z]?)-([1-9][0-9]{0,4})", re.ASCII)
_TOPOLOGY = re.compile(r"[1-9][0-9]{0,3}(?:x[1-9][0-9]{0,3}){1,2}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one run asks for. All but `nodes`, `tpu`, `retries` are for each node.

    gpus: how many, `ALL_GPUS`, or None. gpu_type: a part of the model's name, such as A100. tpu: a slice such as
    v5e-8, and tpu_topology its shape such as 2x4. cpus: may be a fraction. time_seconds: how long one attempt may
    last. retries: how many more attempts there are after one that failed.
    """

    gpus: int | None = None
    gpu_type: str | None = None
    tpu: str | None = None
    tpu_topology: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    time_seconds: int | None = None
    nodes: int = 1
    retries: int = 0


def parse_gpus(text: str) -> int:
    """A number from 1, or `all`. Raises `UsageError`."""
    if text == "all":
        return ALL_GPUS
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII):
        raise UsageError(f"{text!r} is no number of GPUs", subject=text, hint="--gpus 2, or --gpus all")
    return int(text)


def parse_gpu_type(text: str) -> str:
    """Raises `UsageError`."""
    if _GPU_TYPE.fullmatch(text) is None:
        raise UsageError(f"{text!r} is no type of GPU", subject=text, hint="--gpu-type A100")
    return text


def parse_tpu(text: str) -> str:
    """A slice: the version, and the number of chips. Raises `UsageError`."""
    if _TPU.fullmatch(text) is None:
        raise UsageError(f"{text!r} is no TPU slice", subject=text, hint="--tpu v5e-8")
    return text


def parse_topology(text: str) -> str:
    """Raises `UsageError`."""
    if _TOPOLOGY.fullmatch(text) is None:
        raise UsageError(f"{text!r} is no topology of a TPU slice", subject=text, hint="--tpu-topology 2x4")
    return text


def parse_cpus(text: str) -> float:
    """Raises `UsageError`."""
    value = float(text) if _CPUS.fullmatch(text) else 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is no number of CPUs", subject=text, hint="--cpus 4, or --cpus 1.5")
    return value


def parse_nodes(text: str | int) -> int:
    """Raises `UsageError`."""
    return _whole(str(text), "number of nodes", 1, MAX_NODES, "--nodes 2")


def parse_retries(text: str | int) -> int:
    """Raises `UsageError`."""
    return _whole(str(text), "number of retries", 0, MAX_RETRIES, "--retries 2")


def check_resources(wanted: Resources) -> None:
    """What can't be asked for together. Raises `UsageError`."""
    if wanted.gpu_type is not None and wanted.gpus is None:
        raise UsageError(
            "--gpu-type says which GPUs, and not how many",
            subject=wanted.gpu_type,
            hint=f"--gpus 1 --gpu-type {wanted.gpu_type}",
        )
    if wanted.tpu_topology is not None and wanted.tpu is None:
        raise UsageError(
            "--tpu-topology is the shape of a TPU slice, and none is asked for",
            subject=wanted.tpu_topology,
            hint=f"--tpu v5e-8 --tpu-topology {wanted.tpu_topology}",
        )
    if wanted.tpu is not None and wanted.gpus is not None:
        raise UsageError("no machine has GPUs and TPUs", subject=wanted.tpu, hint="leave out --gpus or --tpu")
    if wanted.tpu is None or wanted.tpu_topology is None:
        return
    chips, product = tpu_chips(wanted.tpu), _product(wanted.tpu_topology)
    if product != chips:
        raise UsageError(
            f"the topology {wanted.tpu_topology} has {product} chips, and {wanted.tpu} has {chips}",
            subject=wanted.tpu_topology,
        )


def tpu_chips(tpu: str) -> int:
    """How many chips a slice of this name has."""
    match = _TPU.fullmatch(tpu)
    assert match is not None  # it was parsed
    return int(match[2])


def is_type(model: str, wanted: str) -> bool:
    """Whether a GPU of this model is of the type that was asked for: its words are all in the model's name.

    `A100` means `NVIDIA A100-SXM4-80GB`, `a100-80gb` does too, and `A10` doesn't.
    """
    return set(_words(wanted)) <= set(_words(model))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _whole(text: str, what: str, least: int, most: int, hint: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) or not least <= int(text) <= most:
        raise UsageError(f"{text!r} is no {what} ({least} to {most:,})", subject=text, hint=hint)
    return int(text)


def _product(topology: str) -> int:
    result = 1
    for side in topology.split("x"):
        result *= int(side)
    return result
