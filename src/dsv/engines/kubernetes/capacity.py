"""What the nodes of a cluster have, and what of it is free for a job of this pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dsv.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.engines.kubernetes.names import COMMIT_KEY
from dsv.engines.kubernetes.options import KubernetesOptions
from dsv.engines.kubernetes.pods import Pod, requests_of
from dsv.engines.kubernetes.queue import Line, ask_line
from dsv.engines.kubernetes.quotas import quantity, quota_says
from dsv.engines.kubernetes.resources import GPU_LABELS
from dsv.model.capacity import Capacity, GpuCount, NodeRoom
from dsv.model.resources import ALL_GPUS, Resources

_SECONDS: Final = 8.0
_KEEPS_OUT: Final = ("NoSchedule", "NoExecute")


def ask_capacity(api: KubernetesApi, options: KubernetesOptions, wanted: Resources) -> Capacity | Refusal:
    """Anyone who may not see nodes, quotas or the pods of others learns less, and `unseen` says so."""
    nodes = api.items("/api/v1/nodes", _SECONDS)
    if isinstance(nodes, Refusal) and (nodes.status == 401 or not nodes.is_denied):
        return nodes  # no answer, or one to nobody: it takes no job of a caller whom it doesn't know
    quotas = api.items(api.path("resourcequotas"), _SECONDS)
    live = "status.phase!=Succeeded,status.phase!=Failed"
    pods = api.items("/api/v1/pods", _SECONDS, fieldSelector=live)
    not_now, never = quota_says(quotas if isinstance(quotas, list) else [], options, wanted)
    line = Line(0) if options.queue is None else ask_line(api, options.queue, _SECONDS)
    asked = (("nodes", nodes), ("pods of all namespaces", pods), ("quotas", quotas))
    unseen = tuple(f"{what}: {answer.message}" for what, answer in asked if isinstance(answer, Refusal))
    seen = None if isinstance(pods, Refusal) else pods
    waiting = None if seen is None else sum(_waits(each) for each in seen)
    return Capacity(
        nodes=_unseen(wanted) if isinstance(nodes, Refusal) else tuple(rooms(nodes, seen, options)),
        waiting=None if waiting is None or line.waiting is None else waiting + line.waiting,
        grows=options.autoscaling or isinstance(nodes, Refusal),
        not_now=not_now or line.closed,
        never=never,
        unseen=unseen,
    )


def rooms(
    nodes: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]] | None, options: KubernetesOptions
) -> Iterable[NodeRoom]:
    """Of the nodes that jobs of this pool may run on. pods: None if nobody says which there are."""
    used: dict[str, dict[str, float]] = {}
    for pod in pods or ():
        name = (pod.get("spec") or {}).get("nodeName")
        if name is not None:
            taken = used.setdefault(name, {})
            for resource, amount in requests_of(pod).items():
                taken[resource] = taken.get(resource, 0.0) + amount
    for node in nodes:
        if _fits(node, options):
            yield _room(node, used.get(node["metadata"]["name"], {}), options, is_known=pods is not None)


def _unseen(wanted: Resources) -> tuple[NodeRoom, ...]:
    """Nodes that the caller may not list are no reason against a job: the cluster decides."""
    gpus = 0 if wanted.gpus in (None, ALL_GPUS) else wanted.gpus or 0
    room = NodeRoom(gpus=(GpuCount(wanted.gpu_type or "GPU", gpus, gpus),) if gpus else ())
    return (room,) * wanted.nodes


def gpu_labels(nodes: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    found = set()
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        found |= {(label, labels[label]) for label in GPU_LABELS if label in labels}
    return tuple(sorted(found))


def hosts_of(pods: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Commits with the nodes on which pods of dsv have fetched them."""
    found = set()
    for pod in map(Pod, pods):
        commit = pod.annotations.get(COMMIT_KEY)
        if commit and pod.host is not None and pod.stage_code == 0:
            found.add((commit, pod.host))
    return tuple(sorted(found))


def _fits(node: Mapping[str, Any], options: KubernetesOptions) -> bool:
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    taints = [each for each in spec.get("taints") or () if each.get("effect") in _KEEPS_OUT]
    tolerated = all(
        any(_tolerates(one, taint, options) for one in (*options.tolerations, {})) for taint in taints
    )
    chosen = all(labels.get(name) == value for name, value in options.node_selector.items())
    return ready and not spec.get("unschedulable") and tolerated and chosen


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any], options: KubernetesOptions) -> bool:
    """The taint of a GPU is tolerated by most clusters for pods that ask for one."""
    if not toleration:
        return taint.get("key") == options.gpu
    if toleration.get("effect") not in (None, taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, taint.get("key"))
    return toleration.get("key") == taint.get("key") and toleration.get("value", "") == taint.get("value", "")


def _room(
    node: Mapping[str, Any], taken: Mapping[str, float], options: KubernetesOptions, *, is_known: bool
) -> NodeRoom:
    there = (node.get("status") or {}).get("allocatable") or {}
    labels = node["metadata"].get("labels") or {}
    total = int(quantity(there.get(options.gpu, "0")))
    kind = next((labels[each] for each in GPU_LABELS if each in labels), "GPU")
    free = max(total - int(taken.get(options.gpu, 0.0)), 0) if is_known else total
    cpus, memory = quantity(there.get("cpu", "0")), int(quantity(there.get("memory", "0")))
    return NodeRoom(
        name=node["metadata"]["name"],
        gpus=(GpuCount(kind, free, total),) if total else (),
        free_cpus=cpus - taken.get("cpu", 0.0) if is_known else None,
        total_cpus=cpus or None,
        free_memory=memory - int(taken.get("memory", 0.0)) if is_known else None,
        total_memory=memory or None,
    )


def _waits(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") == "Pending" and not (pod.get("spec") or {}).get("nodeName")
