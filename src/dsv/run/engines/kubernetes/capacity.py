"""The room in a cluster: its nodes, the quotas of the namespace, and the queues of Kueue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dsv.run.engines.kubernetes.api import SECONDS, KubernetesApi, Refusal, passes
from dsv.run.engines.kubernetes.job_status import Obstacle, Pod, one_line
from dsv.run.engines.kubernetes.manifest import GPU_LABELS
from dsv.run.engines.kubernetes.options import COMMIT_KEY, KubernetesOptions
from dsv.run.record import EndCause
from dsv.run.resources import ALL_GPUS, Capacity, GpuCount, NodeRoom, Resources

_SECONDS: Final = 8.0
_KEEPS_OUT: Final = ("NoSchedule", "NoExecute")


def ask_capacity(api: KubernetesApi, options: KubernetesOptions, wanted: Resources) -> Capacity | Refusal:
    """Return what is free for a job. `unseen` names what the caller may not list: nodes, quotas, pods of others."""
    nodes = api.items("/api/v1/nodes", _SECONDS)
    if isinstance(nodes, Refusal) and (nodes.status == 401 or not nodes.is_denied):
        return nodes  # no answer, or the caller is not logged in
    quotas = api.items(api.path("resourcequotas"), _SECONDS)
    live = "status.phase!=Succeeded,status.phase!=Failed"
    pods = api.items("/api/v1/pods", _SECONDS, fieldSelector=live)
    not_now, never = quota_refuses(quotas if isinstance(quotas, list) else [], options, wanted)
    waiting_in_queue, closed = (
        (0, None) if options.queue is None else ask_queue_state(api, options.queue, _SECONDS)
    )
    asked = (("nodes", nodes), ("pods of all namespaces", pods), ("quotas", quotas))
    unseen = tuple(f"{what}: {answer.message}" for what, answer in asked if isinstance(answer, Refusal))
    seen = None if isinstance(pods, Refusal) else pods
    waiting = None if seen is None else sum(_waits(each) for each in seen)
    return Capacity(
        nodes=_unseen(wanted) if isinstance(nodes, Refusal) else tuple(rooms(nodes, seen, options)),
        waiting=None if waiting is None or waiting_in_queue is None else waiting + waiting_in_queue,
        grows=options.autoscaling or isinstance(nodes, Refusal),
        not_now=not_now or closed,
        never=never,
        unseen=unseen,
    )


def rooms(
    nodes: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]] | None, options: KubernetesOptions
) -> Iterable[NodeRoom]:
    """Yield the nodes that jobs of this pool may run on. pods: None if the caller may not list them."""
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
    """Return nodes that fit the job, for a caller who may not list nodes: the cluster decides."""
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
    """Return pairs of a commit and a node on which a pod of dsv has fetched it."""
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
    """Return whether a pod may run despite a taint. Most clusters let pods that ask for GPUs tolerate theirs."""
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


def requests_of(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return what a pod takes of its node: all its containers together, or one init container if that asks for more."""
    spec = pod.get("spec") or {}
    total: dict[str, float] = {}
    most: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            total = _sum(total, asked)
        else:
            most = {name: max(most.get(name, 0.0), asked.get(name, 0.0)) for name in {*most, *asked}}
    for container in spec.get("containers") or ():
        total = _sum(total, _asked(container))
    return {name: max(total.get(name, 0.0), most.get(name, 0.0)) for name in {*total, *most}}


def _asked(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(str(amount)) for name, amount in both.items()}


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {*one, *other}}


_REFUSED: Final = re.compile(r"exceeded quota: .*?requested: (\S+), used: (\S+), limited: (\S+)")


def is_beyond_quota(message: str) -> bool | None:
    """Return whether a refused request is more than the quota ever allows; False if there may be room later, None if no
    quota has refused it."""
    found = _REFUSED.search(message)
    return None if found is None else _beyond(found[1], found[3])


def refusal(messages: Iterable[str]) -> tuple[str, bool] | None:
    """Return why the cluster creates no pods, from its events, and whether that is final: a quota may be freed."""
    found = None
    for message in messages:
        text = " ".join(message.split()).removeprefix("Error creating: ")
        for_good = is_beyond_quota(text)
        found = (text, not passes(text) if for_good is None else for_good)
    return found


def quota_refuses(
    quotas: Sequence[Mapping[str, Any]], options: KubernetesOptions, wanted: Resources
) -> tuple[str | None, str | None]:
    """Return why a job can't begin now, and why it never can."""
    asked = {}
    if wanted.gpus is not None and wanted.gpus != ALL_GPUS:
        asked[f"requests.{options.gpu}"] = float(wanted.gpus * wanted.nodes)
    if wanted.cpus is not None:
        asked["requests.cpu"] = asked["cpu"] = wanted.cpus * wanted.nodes
    if wanted.memory_bytes is not None:
        asked["requests.memory"] = asked["memory"] = float(wanted.memory_bytes * wanted.nodes)
    asked["pods"] = asked["count/pods"] = float(wanted.nodes)
    asked["count/jobs.batch"] = 1.0
    if wanted.nodes > 1:
        asked["services"] = asked["count/services"] = 1.0
    for each in quotas:
        spec = each.get("spec") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue  # which may not apply to these pods: the cluster knows
        status = each.get("status") or {}
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


def _beyond(requested: str, limited: str) -> bool:
    """Return whether a request such as `requests.nvidia.com/gpu=8` is more than a limit such as `…=4`."""
    limits = dict(each.partition("=")[::2] for each in limited.split(","))
    asked = dict(each.partition("=")[::2] for each in requested.split(","))
    return any(quantity(asked[name]) > quantity(limits[name]) for name in asked if name in limits)


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


_GROUP: Final = "/apis/kueue.x-k8s.io"
_JOB_LABEL: Final = "kueue.x-k8s.io/job-uid"
_NEVER: Final = re.compile(r"maximum capacity")
"""In Kueue's message for a job that asks for more than a quota ever allows."""
_LATER: Final = re.compile(r"unused quota|more needed")
"""In Kueue's message for a quota that is used up. The message names all flavors, and a job may wait for one of them."""
_FOR_EVER, _PATIENT = 5.0, 60.0


def ask_workloads(api: KubernetesApi, namespace: str, uid: str) -> Sequence[Mapping[str, Any]] | Refusal:
    """Return the Workload that Kueue made for the Job with this uid, in a list of at most one."""
    version = _version(api)
    if isinstance(version, Refusal):
        return version
    where = f"/apis/{version}/namespaces/{namespace}/workloads"
    return api.items(where, labelSelector=f"{_JOB_LABEL}={uid}")


def ask_queue_state(api: KubernetesApi, queue: str, seconds: float) -> tuple[int | None, str | None]:
    """Return how many jobs wait in a queue, None if the caller may not know, and why the queue admits none."""
    version = _version(api, seconds)
    if isinstance(version, Refusal):
        return (0, _no_kueue(queue)) if version.status == 404 else (None, None)
    answer = api.get(api.path(f"{version}/localqueues", queue), seconds)
    if isinstance(answer, Refusal):
        return (0, f"the namespace has no queue {queue}") if answer.status == 404 else (None, None)
    active = _condition(answer, "Active")
    closed = active is not None and active.get("status") == "False"
    said = (
        one_line(active.get("message") or str(active.get("reason")))
        if active is not None and closed
        else None
    )
    return (
        int((answer.get("status") or {}).get("pendingWorkloads") or 0),
        None if said is None else f"the queue {queue} is closed: {said}",
    )


def _version(api: KubernetesApi, seconds: float = SECONDS) -> str | Refusal:
    """Return the group and version of Kueue's API."""
    group = api.get(_GROUP, seconds)
    return group if isinstance(group, Refusal) else str(group["preferredVersion"]["groupVersion"])


def waiting(queue: str, answer: Sequence[Mapping[str, Any]] | Refusal) -> Obstacle:
    """Return why the queue does not admit the job. A caller who may not read the reason learns only that it waits."""
    if isinstance(answer, Refusal) and answer.status == 404:
        return _obstacle(_no_kueue(queue), _PATIENT)
    said = None if isinstance(answer, Refusal) or not answer else _why(answer[0])
    if said is None:
        return _obstacle(f"the queue {queue} has not admitted it", None)
    never = _NEVER.search(said) is not None and _LATER.search(said) is None
    lasting = _FOR_EVER if never else _PATIENT if _is_missing(said) else None
    return _obstacle(f"the queue {queue} has not admitted it: {said}", lasting)


def evicted_by_queue(answer: Sequence[Mapping[str, Any]] | Refusal) -> tuple[EndCause, str]:
    """Return why the queue evicted a job that had begun."""
    found = None if isinstance(answer, Refusal) or not answer else _condition(answer[0], "Evicted")
    if found is None or found.get("status") != "True":
        return EndCause.PREEMPTED, "its queue took its place away"
    cause = EndCause.PREEMPTED if found.get("reason") == "Preempted" else EndCause.EVICTED
    return cause, one_line(found.get("message") or str(found.get("reason")))


def _why(workload: Mapping[str, Any]) -> str | None:
    """Return the message of an admission check if the job waits for one, else why it has no quota."""
    status = workload.get("status") or {}
    reserved = _condition(workload, "QuotaReserved")
    if reserved is not None and reserved.get("status") == "True":
        checks = [each for each in status.get("admissionChecks") or () if each.get("state") != "Ready"]
        return next(
            (f"{each['name']}: {one_line(each.get('message') or each['state'])}" for each in checks), None
        )
    return None if reserved is None else one_line(reserved.get("message") or "") or None


def _condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def _no_kueue(queue: str) -> str:
    return f"the pool names the queue {queue}, and the cluster has no Kueue"


def _is_missing(said: str) -> bool:
    return "doesn't exist" in said


def _obstacle(reason: str, patience: float | None) -> Obstacle:
    return Obstacle(reason, EndCause.UNSCHEDULABLE, patience)
