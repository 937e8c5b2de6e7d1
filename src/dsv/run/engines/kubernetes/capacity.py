"""The room in a cluster: its nodes, the quotas of the namespace, and the queues of Kueue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dsv.run.engines.kubernetes.api import KubernetesApi, KubernetesOptions, Refusal, is_transient
from dsv.run.engines.kubernetes.manifest import COMMIT_KEY, GPU_LABELS
from dsv.run.engines.kubernetes.pod import Obstacle, Pod, condition, one_line
from dsv.run.part import EndCause
from dsv.run.resources import ALL_GPUS, Capacity, GpuCount, NodeRoom, Resources

_SECONDS: Final = 8.0


def ask_capacity(api: KubernetesApi, options: KubernetesOptions, wanted: Resources) -> Capacity:
    """Return what is free for a job. `unseen` names what the caller may not list: nodes, quotas, pods of
    others. Raises `Refusal` without an answer, or if the caller is not logged in."""
    nodes = _items(api, "/api/v1/nodes")
    if isinstance(nodes, Refusal) and nodes.status != 403:
        raise nodes
    quotas = _items(api, api.path("resourcequotas"))
    pods = _items(api, "/api/v1/pods", fieldSelector="status.phase!=Succeeded,status.phase!=Failed")
    not_now, never = quota_refuses(quotas if isinstance(quotas, list) else [], options, wanted)
    queued, closed = (0, None) if options.queue is None else queue_state(api, options.queue)
    asked = (("nodes", nodes), ("pods of all namespaces", pods), ("quotas", quotas))
    seen = None if isinstance(pods, Refusal) else pods
    if isinstance(nodes, Refusal):  # the cluster decides
        gpus = 0 if wanted.gpus in (None, ALL_GPUS) else wanted.gpus or 0
        room = NodeRoom(gpus=(GpuCount(wanted.gpu_type or "GPU", gpus, gpus),) if gpus else ())
    return Capacity(
        nodes=(room,) * wanted.nodes if isinstance(nodes, Refusal) else tuple(rooms(nodes, seen, options)),
        waiting=None if seen is None or queued is None else sum(map(_waits, seen)) + queued,
        grows=options.autoscaling or isinstance(nodes, Refusal),
        not_now=not_now or closed,
        never=never,
        unseen=tuple(f"{what}: {answer.message}" for what, answer in asked if isinstance(answer, Refusal)),
    )


def _items(api: KubernetesApi, path: str, **query: str) -> list[Any] | Refusal:
    try:
        return api.items(path, _SECONDS, **query)
    except Refusal as refusal:
        return refusal


def rooms(
    nodes: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]] | None, options: KubernetesOptions
) -> Iterable[NodeRoom]:
    """Yield the nodes that jobs of this pool may run on. pods: None if the caller may not list them."""
    used: dict[str | None, dict[str, float]] = {}
    for pod in pods or ():
        taken = used.setdefault((pod.get("spec") or {}).get("nodeName"), {})
        for resource, amount in requests_of(pod).items():
            taken[resource] = taken.get(resource, 0.0) + amount
    for node in nodes:
        if not _fits(node, options):
            continue
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        there, taken = (node.get("status") or {}).get("allocatable") or {}, used.get(name, {})
        kind = next((labels[each] for each in GPU_LABELS if each in labels), "GPU")
        cpus, memory, total = (quantity(there.get(each, "0")) for each in ("cpu", "memory", options.gpu))
        is_known = pods is not None
        free = max(int(total) - int(taken.get(options.gpu, 0)), 0)
        yield NodeRoom(
            name=name,
            gpus=(GpuCount(kind, free, int(total)),) if total else (),
            free_cpus=cpus - taken.get("cpu", 0) if is_known else None,
            total_cpus=cpus or None,
            free_memory=int(memory) - int(taken.get("memory", 0)) if is_known else None,
            total_memory=int(memory) or None,
        )


def gpu_labels(nodes: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return the labels of nodes for the type of their GPUs, with their values."""
    labels = [node["metadata"].get("labels") or {} for node in nodes]
    return tuple(sorted({(name, each[name]) for each in labels for name in GPU_LABELS if name in each}))


def hosts_of(pods: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return pairs of a commit and a node on which a pod of dsv has fetched it."""
    found = {
        (commit, pod.host)
        for pod in map(Pod, pods)
        if (commit := pod.annotations.get(COMMIT_KEY)) and pod.host is not None and pod.stage_code == 0
    }
    return tuple(sorted(found))


def _fits(node: Mapping[str, Any], options: KubernetesOptions) -> bool:
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    chosen = all(labels.get(name) == value for name, value in options.node_selector.items())
    taints = [each for each in spec.get("taints") or () if each.get("effect") in ("NoSchedule", "NoExecute")]
    tolerated = all(
        taint.get("key") == options.gpu  # most clusters let pods that ask for GPUs tolerate theirs
        or any(_tolerates(each, taint) for each in options.tolerations)
        for taint in taints
    )
    return bool(condition(node, "Ready") and not spec.get("unschedulable") and tolerated and chosen)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, taint.get("key"))
    return toleration.get("key") == taint.get("key") and toleration.get("value", "") == taint.get("value", "")


def _waits(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") == "Pending" and not (pod.get("spec") or {}).get("nodeName")


def requests_of(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources that a pod takes: those of its containers, or of one larger init container."""
    spec = pod.get("spec") or {}
    total: dict[str, float] = {}
    most: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        sidecar = container.get("restartPolicy") == "Always"
        for name, amount in _asked(container):
            if sidecar:
                total[name] = total.get(name, 0.0) + amount
            else:
                most[name] = max(most.get(name, 0.0), amount)
    for container in spec.get("containers") or ():
        for name, amount in _asked(container):
            total[name] = total.get(name, 0.0) + amount
    return {name: max(total.get(name, 0.0), most.get(name, 0.0)) for name in {*total, *most}}


def _asked(container: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    resources = container.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return [(name, quantity(str(amount))) for name, amount in both.items()]


def has_room(node: Mapping[str, Any], asked: Mapping[str, float]) -> bool:
    """Return whether an empty node has this much. Its allocatable devices are 0 while it prepares them."""
    status = node.get("status") or {}
    capacity = {name: value for name, value in (status.get("capacity") or {}).items() if "/" in name}
    amounts = [status.get("allocatable") or {}, capacity]
    return all(
        max(quantity(str(each.get(name, "0"))) for each in amounts) >= amount
        for name, amount in asked.items()
    )


_UNITS: Final = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def quantity(text: str) -> float:
    """Return the value of a Kubernetes quantity such as 500m or 2Gi; 0 for anything else."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([a-zA-Z]*)", text)
    if found is None or found[2] not in _UNITS:
        return 0.0
    return float(found[1]) * _UNITS[found[2]]


_REFUSED: Final = re.compile(r"exceeded quota: .*?requested: (\S+), used: (\S+), limited: (\S+)")


def is_beyond_quota(message: str) -> bool | None:
    """Return whether a request exceeds a whole quota; False if only its rest, None if no quota refused it."""
    refusal = _REFUSED.search(message)
    if refusal is None:
        return None
    # such as `requests.nvidia.com/gpu=8,pods=1` and `requests.nvidia.com/gpu=4,pods=20`
    asked, limits = (dict(amount.partition("=")[::2] for amount in refusal[n].split(",")) for n in (1, 3))
    return any(quantity(asked[name]) > quantity(limits[name]) for name in asked if name in limits)


def refusal_of_pods(messages: Sequence[str]) -> Obstacle | None:
    """Return why the cluster creates no pods, from its events. A quota may be freed, anything else is final."""
    if not messages:
        return None
    text = one_line(messages[-1]).removeprefix("Error creating: ")
    beyond = is_beyond_quota(text)
    is_final = not is_transient(text) if beyond is None else beyond
    return Obstacle(text, patience=5.0 if is_final else None)


def quota_refuses(
    quotas: Sequence[Mapping[str, Any]], options: KubernetesOptions, wanted: Resources
) -> tuple[str | None, str | None]:
    """Return why a job can't begin now, and why it never can."""
    asked = {"pods": float(wanted.nodes), "count/pods": float(wanted.nodes), "count/jobs.batch": 1.0}
    if wanted.gpus is not None and wanted.gpus != ALL_GPUS:
        asked[f"requests.{options.gpu}"] = float(wanted.gpus * wanted.nodes)
    if wanted.cpus is not None:
        asked["requests.cpu"] = asked["cpu"] = wanted.cpus * wanted.nodes
    if wanted.memory_bytes is not None:
        asked["requests.memory"] = asked["memory"] = float(wanted.memory_bytes * wanted.nodes)
    if wanted.nodes > 1:
        asked["services"] = asked["count/services"] = 1.0
    for each in quotas:
        spec, status = each.get("spec") or {}, each.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue  # which may not apply to these pods: the cluster knows
        for name, amount in asked.items():
            hard = (status.get("hard") or {}).get(name)
            if hard is None:
                continue
            taken = (status.get("used") or {}).get(name, "0")
            said = f"the quota {each['metadata']['name']} has {name}: {taken} of {hard} in use"
            if amount > quantity(hard):
                return None, said
            if amount > quantity(hard) - quantity(taken):
                return said, None
    return None, None


_GROUP: Final = "/apis/kueue.x-k8s.io"
_JOB_LABEL: Final = "kueue.x-k8s.io/job-uid"
_NEVER: Final = re.compile(r"maximum capacity")
"""In Kueue's message for a job that asks for more than a quota ever allows."""
_LATER: Final = re.compile(r"unused quota|more needed")
"""In Kueue's message for a quota that is used up. The message names all flavors, and a job may wait for one of them."""
_FOR_EVER, _PATIENT = 5.0, 60.0


def workloads(api: KubernetesApi, namespace: str, uid: str) -> Sequence[Mapping[str, Any]] | Refusal:
    """Return the Workload that Kueue made for the Job with this uid, in a list of at most one."""
    try:
        version = api.get(_GROUP)["preferredVersion"]["groupVersion"]
        where = f"/apis/{version}/namespaces/{namespace}/workloads"
        return api.items(where, labelSelector=f"{_JOB_LABEL}={uid}")
    except Refusal as refusal:
        return refusal


def queue_state(api: KubernetesApi, queue: str) -> tuple[int | None, str | None]:
    """Return how many jobs wait in a queue, None if the caller may not know, and why the queue admits none."""
    missing = _no_kueue(queue)
    try:
        version = api.get(_GROUP, _SECONDS)["preferredVersion"]["groupVersion"]
        missing = f"the namespace has no queue {queue}"
        answer = api.get(api.path(f"{version}/localqueues", queue), _SECONDS)
    except Refusal as refusal:
        return (0, missing) if refusal.status == 404 else (None, None)
    waiting = int((answer.get("status") or {}).get("pendingWorkloads") or 0)
    closed = condition(answer, "Active", "False")
    if closed is None:
        return waiting, None
    return waiting, f"the queue {queue} is closed: {_words(closed)}"


def why_not_admitted(queue: str, answer: Sequence[Mapping[str, Any]] | Refusal) -> Obstacle:
    """Return why the queue does not admit the job. A caller who may not read the reason learns only that it waits."""
    if isinstance(answer, Refusal) and answer.status == 404:
        return Obstacle(_no_kueue(queue), patience=_PATIENT)
    said = None if isinstance(answer, Refusal) or not answer else _admission_problem(answer[0])
    if said is None:
        return Obstacle(f"the queue {queue} has not admitted it")
    patience = _PATIENT if "doesn't exist" in said else None
    if _NEVER.search(said) is not None and _LATER.search(said) is None:
        patience = _FOR_EVER
    return Obstacle(f"the queue {queue} has not admitted it: {said}", patience=patience)


def why_evicted(answer: Sequence[Mapping[str, Any]] | Refusal) -> tuple[EndCause, str]:
    """Return why the queue evicted a job that had begun."""
    found = None if isinstance(answer, Refusal) or not answer else condition(answer[0], "Evicted")
    if found is None:
        return EndCause.PREEMPTED, "its queue took its place away"
    return (EndCause.PREEMPTED if found.get("reason") == "Preempted" else EndCause.EVICTED), _words(found)


def _admission_problem(workload: Mapping[str, Any]) -> str | None:
    """Return the message of an admission check if the job waits for one, else why it has no quota."""
    if condition(workload, "QuotaReserved"):
        checks = (workload.get("status") or {}).get("admissionChecks") or ()
        waiting = (each for each in checks if each.get("state") != "Ready")
        return next(
            (f"{each['name']}: {one_line(each.get('message') or each['state'])}" for each in waiting), None
        )
    return one_line((condition(workload, "QuotaReserved", "False") or {}).get("message") or "") or None


def _words(found: Mapping[str, Any]) -> str:
    return one_line(found.get("message") or str(found.get("reason")))


def _no_kueue(queue: str) -> str:
    return f"the pool names the queue {queue}, and the cluster has no Kueue"
