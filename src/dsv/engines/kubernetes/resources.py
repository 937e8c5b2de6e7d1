"""What a job asks for, in the words of Kubernetes, of NVIDIA's GPU operator and of GKE."""

from __future__ import annotations

from typing import Any, Final

from dsv.engines.base import Facts, Job
from dsv.engines.kubernetes.options import KubernetesOptions
from dsv.errors import UsageError
from dsv.model.resources import ALL_GPUS, is_type, tpu_chips

GPU_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
"""Labels of a node that say which GPUs it has."""
TPU: Final = "google.com/tpu"
TPU_LABEL: Final = "cloud.google.com/gke-tpu-accelerator"
TPU_SHAPE: Final = "cloud.google.com/gke-tpu-topology"
_SLICES: Final = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
_FLAT: Final = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
"""The shape of slices whose chips lie in a plane (v5e, v6e)."""


def resources_of(job: Job, options: KubernetesOptions) -> tuple[dict[str, str], dict[str, str]]:
    """requests and limits of the job's own container. Raises `UsageError`."""
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if job.cpus is not None:
        requests["cpu"] = f"{round(job.cpus * 1000)}m"
    if job.memory_bytes is not None:
        requests["memory"] = limits["memory"] = str(job.memory_bytes)
    if job.gpus == ALL_GPUS:
        raise UsageError("Kubernetes has to know how many GPUs", subject="--gpus", hint="--gpus 8")
    if job.gpus is not None:
        limits[options.gpu] = str(job.gpus)
    if job.tpu is not None:
        limits[TPU] = str(_chips_of_node(job, job.tpu))
    return requests, limits


def tpu_selectors(job: Job) -> dict[str, str]:
    """The nodes of GKE that have such a slice. Raises `UsageError`."""
    if job.tpu is None:
        return {}
    version = job.tpu.partition("-")[0]
    if version not in _SLICES:
        raise UsageError(
            f"GKE has no TPU {version}", subject=job.tpu, hint=f"--tpu with one of {', '.join(_SLICES)}"
        )
    shape = job.tpu_topology
    if shape is None and version in ("v5e", "v6e"):
        shape = _FLAT.get(tpu_chips(job.tpu))
    if shape is None:
        raise UsageError(
            f"GKE has to know the shape of the slice {job.tpu}", subject=job.tpu, hint="--tpu-topology 2x2x1"
        )
    return {TPU_LABEL: _SLICES[version], TPU_SHAPE: shape}


def gpu_affinity(job: Job, facts: Facts) -> dict[str, Any] | None:
    """The nodes that have GPUs of the type that was asked for. Raises `UsageError`."""
    if job.gpu_type is None:
        return None
    wanted = job.gpu_type
    fitting: dict[str, list[str]] = {}
    for label, value in facts.gpu_labels:
        if is_type(value, wanted):
            fitting.setdefault(label, []).append(value)
    if not fitting:
        there = ", ".join(sorted({value for _, value in facts.gpu_labels})) or "none that dsv may see"
        raise UsageError(
            f"no node is labelled with a GPU of the type {wanted}: there are {there}",
            subject=wanted,
            hint="leave out --gpu-type, and name the nodes by node_selector in the table of the pool",
        )
    terms = [
        {"matchExpressions": [{"key": label, "operator": "In", "values": sorted(values)}]}
        for label, values in sorted(fitting.items())
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _chips_of_node(job: Job, tpu: str) -> int:
    chips = tpu_chips(tpu)
    if chips % job.nodes != 0:
        raise UsageError(
            f"{chips} chips of {tpu} can't be shared by {job.nodes} nodes",
            subject=tpu,
            hint="--nodes is the number of machines of the slice",
        )
    return chips // job.nodes
