"""What a cluster is given for a job: a pure function of the job, of what its pool says, and of what is known.

One indexed Job, whose pods are the nodes of the run, and for several nodes a headless Service by whose name they find
the first. The Secrets that it names are made by dsv when it submits the job, as their values stand nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from dsv.engines.base import Facts, Job, Mount
from dsv.engines.kubernetes_options import KubernetesOptions, Volume
from dsv.engines.kubernetes_resources import gpu_affinity, resources_of, tpu_selectors
from dsv.engines.kubernetes_scripts import HOLD, OWN, RUN, STAGE, STOP, TOLD
from dsv.errors import UsageError
from dsv.model.node_env import meeting_port, node_environment

Manifest: TypeAlias = dict[str, Any]

RUN_KEY: Final = "dsv.run/run"
SIGNAL_KEY: Final = "dsv.run/signal"
STOPPED_KEY: Final = "dsv.run/stopped"
"""Annotations: the id of the run; the last signal that was sent to the pod; who asked dsv to end the job."""
LABEL: Final = "dsv.run/run"
MANAGED: Final = ("app.kubernetes.io/managed-by", "dsv")
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
INDEX_KEY: Final = "batch.kubernetes.io/job-completion-index"
FAILED_KEY: Final = "batch.kubernetes.io/job-index-failure-count"
IGNORED_KEY: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
MAIN, STAGING, HOLDING = "main", "stage", "hold"
GRACE_SECONDS: Final = 30
KEPT_SECONDS: Final = 7 * 86_400
LATE_SECONDS: Final = 300
"""How much longer than `--time` the cluster lets a pod live, with the time in which the data is fetched."""
_LONGEST_NAME: Final = 52  # the pods add the number of the node and five letters
_NOT_AGAIN: Final = [124, 125, 126, 127]


def object_name(run: str) -> str:
    """The name that all objects of a run have: the same whoever makes them, so that it is made once."""
    text = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    name = f"dsv-{text}"
    if f"dsv-{run}" == name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(run.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"


def known(job: Job) -> dict[str, str]:
    """dsv's own variables, which hold no secret and may stand in the manifest; but parameters may hold one."""
    return {
        name: value
        for name, value in job.env.items()
        if name.startswith("DSV_") and name != "DSV_ATTEMPT" and (name != "DSV_PARAMS" or value == "{}")
    }


def manifests(
    job: Job, options: KubernetesOptions, facts: Facts, *, forwarded: bool = False
) -> list[Manifest]:
    """The Service, if there are several nodes, and the Job. forwarded: whether credentials come with the job.

    Raises `UsageError` for what can't be.
    """
    name = object_name(job.run)
    metadata: Manifest = {
        "name": name,
        "labels": {LABEL: name, MANAGED[0]: MANAGED[1]},
        "annotations": {RUN_KEY: job.run},
    }
    if options.namespace is not None:
        metadata["namespace"] = options.namespace
    found: list[Manifest] = []
    if job.nodes > 1:
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: name}}
        found.append({"apiVersion": "v1", "kind": "Service", "metadata": dict(metadata), "spec": service})
    own = {**metadata, "labels": dict(metadata["labels"])}
    if options.queue is not None:
        own["labels"][QUEUE_LABEL] = options.queue
    spec = {
        "suspend": options.queue is not None,
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": job.retries * job.nodes,  # a node that fails takes the others along, which count too
        "backoffLimitPerIndex": job.retries,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {"rules": _rules(job)},
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": _template(job, name, options, facts, forwarded),
    }
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": spec}
    found.append(merge(whole, options.overlay))
    return found


def as_yaml(found: Sequence[Manifest]) -> str:
    """As people write it: scripts as they are, line by line."""
    import yaml

    dumper = type("Dumper", (yaml.SafeDumper,), {})

    def text(to: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return to.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    dumper.add_representer(str, text)  # type: ignore[attr-defined]
    plain = json.loads(json.dumps(list(found)))  # no subclasses of str, which YAML would tell apart
    return str(yaml.dump_all(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000))


def merge(base: Any, over: Any) -> Any:
    """Tables key by key, where null takes one away; lists of named things by their names; all else is replaced."""
    if isinstance(base, dict) and isinstance(over, Mapping):
        result = {name: value for name, value in base.items() if over.get(name, value) is not None}
        for name, value in over.items():
            if value is not None:
                result[name] = merge(base[name], value) if name in base else value
        return result
    if isinstance(base, list) and isinstance(over, list) and _named(base) and _named(over):
        by_name = {each["name"]: each for each in over}
        known_names = {each["name"] for each in base}
        merged = [merge(each, by_name.get(each["name"], {})) for each in base]
        return merged + [each for each in over if each["name"] not in known_names]
    return over


def _named(items: Sequence[Any]) -> bool:
    return all(isinstance(each, dict) and "name" in each for each in items)


def _rules(job: Job) -> list[Manifest]:
    """A disruption counts for nothing, if the job may begin again at all. Some ends would come again."""
    ignored = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    failing = [{"action": "FailJob", "onExitCodes": _codes(MAIN, "In", _NOT_AGAIN)}]
    if job.stage:
        failing.append({"action": "FailJob", "onExitCodes": _codes(STAGING, "NotIn", [0])})
    return [*(ignored if job.retries else []), *failing]


def _codes(container: str, operator: str, values: list[int]) -> Manifest:
    return {"containerName": container, "operator": operator, "values": values}


def _template(job: Job, name: str, options: KubernetesOptions, facts: Facts, forwarded: bool) -> Manifest:
    mounts, volumes = _mounts(job, options)
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            **({} if options.root else {"runAsNonRoot": True}),
            "supplementalGroups": [0],
            "fsGroupChangePolicy": "OnRootMismatch",  # of a group that the cluster gives: not for each file of a cache
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": _data_containers(job, name, options, forwarded),
        "containers": [_main(job, name, options, mounts)],
        "volumes": [*volumes, *_own_volumes(job)],
    }
    if job.nodes > 1:
        spec["subdomain"] = name
        spec["topologySpreadConstraints"] = [_apart(name)]
    if job.time_seconds is not None:
        spec["activeDeadlineSeconds"] = job.time_seconds + LATE_SECONDS
    selectors = {**tpu_selectors(job), **options.node_selector}
    affinity = gpu_affinity(job, facts)
    optional = {
        "nodeSelector": selectors,
        "affinity": affinity,
        "tolerations": [dict(each) for each in options.tolerations],
        "priorityClassName": options.priority_class,
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": each} for each in options.image_pull_secrets],
    }
    spec.update({key: value for key, value in optional.items() if value})
    if options.service_account is not None:
        del spec["automountServiceAccountToken"]
    if not spec["initContainers"]:
        del spec["initContainers"]
    labels = {LABEL: name, MANAGED[0]: MANAGED[1]}
    return {"metadata": {"labels": labels, "annotations": {RUN_KEY: job.run}}, "spec": spec}


def _apart(name: str) -> Manifest:
    """The nodes of a run go to different machines if they can."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {LABEL: name}},
    }


def _main(job: Job, name: str, options: KubernetesOptions, mounts: list[Manifest]) -> Manifest:
    requests, limits = resources_of(job, options)
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    container: Manifest = {
        "name": MAIN,
        "image": job.image,
        "command": ["/bin/sh", "-c", literal(RUN), "dsv", *(literal(each) for each in job.command)],
        "env": _environment(job, name),
        "securityContext": _security(options),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", STOP]}}},
        "volumeMounts": [*mounts, *_own_mounts(job)],
    }
    if resources:
        container["resources"] = resources
    if job.workdir is not None:
        container["workingDir"] = job.workdir
    return container


def _environment(job: Job, name: str) -> list[Manifest]:
    shown = known(job)
    found: list[Manifest] = [{"name": each, "value": literal(value)} for each, value in sorted(shown.items())]
    secret = sorted(each for each in job.env if each not in shown and each != "DSV_ATTEMPT")
    found += [{"name": each, "valueFrom": {"secretKeyRef": {"name": name, "key": each}}} for each in secret]
    found += [
        _from_pod("DSV_FAILED", f"metadata.annotations['{FAILED_KEY}']"),
        _from_pod("DSV_IGNORED", f"metadata.annotations['{IGNORED_KEY}']"),
        {"name": "DSV_SECONDS", "value": "" if job.time_seconds is None else str(job.time_seconds)},
    ]
    if job.nodes > 1:
        addresses = [f"{name}-{index}.{name}" for index in range(job.nodes)]
        found.append({"name": "DSV_NODES", "value": " ".join(addresses)})
        meeting = node_environment(0, addresses, _port(job.run))
        ranks = ("NODE_RANK", "PET_NODE_RANK")
        found += [{"name": each, "value": value} for each, value in meeting.items() if each not in ranks]
        found += [_from_pod(each, f"metadata.annotations['{INDEX_KEY}']") for each in ranks]
    return found


def _from_pod(name: str, field: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def literal(text: str) -> str:
    """Kubernetes takes `$(NAME)` in a command for a variable, and two dollars for one."""
    return text.replace("$", "$$")


def _data_containers(job: Job, name: str, options: KubernetesOptions, forwarded: bool) -> list[Manifest]:
    """One that fetches the data and ends, and one that holds it for as long as the job's own lives."""
    if not job.stage:
        return []
    if options.image is None:
        raise UsageError(
            "the pool names no image of dsv, which fetches and holds the data in the cluster",
            subject="image",
            hint="dsv config pools.NAME.kubernetes.image REGISTRY/dsv:VERSION",
        )
    writable = [str(each.source) for each in job.mounts if each.writable]
    used = _volumes_of(job, options)
    shared: Manifest = {
        "image": options.image,
        "securityContext": _security(options),
        "volumeMounts": [
            *({"name": each, "mountPath": str(volume.prefix)} for each, volume in used.items()),
            {"name": "own", "mountPath": OWN},
        ],
    }
    sources = [{"secretRef": {"name": options.secret}}] if options.secret is not None else []
    sources += [{"secretRef": {"name": credentials_name(name)}}] if forwarded else []
    if sources:
        shared["envFrom"] = sources
    env = [{"name": "HOME", "value": OWN}]
    if job.settings:
        env.append({"name": "DSV_SETTINGS", "value": literal(job.settings)})
    folder = next((each.source for each in job.mounts if each.target == "/out"), None)
    left = (
        [] if folder is None else [{"name": "DSV_METRICS_FILE", "value": literal(f"{folder}/metrics.json")}]
    )
    params = [] if folder is None else [
        *(each for each in _environment(job, name) if each["name"] == "DSV_PARAMS"),
        {"name": "DSV_PARAMS_FILE", "value": literal(f"{folder}/params.json")},
    ]  # fmt: skip
    words = [literal(each) for each in (*writable, "-", options.dsv, *job.stage)]
    held = [literal(each) for each in (options.dsv, *job.hold)]
    return [
        {
            "name": STAGING,
            **shared,
            "command": ["/bin/sh", "-c", literal(STAGE), "stage", *words],
            "env": [*env, *params],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        },
        {
            "name": HOLDING,
            **shared,
            "restartPolicy": "Always",
            "command": ["/bin/sh", "-c", literal(HOLD), "hold", *held],
            "env": [*env, *left],
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        },
    ]


def credentials_name(name: str) -> str:
    return f"{name}-store"


def _security(options: KubernetesOptions) -> Manifest:
    found: Manifest = {"allowPrivilegeEscalation": False}
    return found if options.root else {**found, "capabilities": {"drop": ["ALL"]}}


def _mounts(job: Job, options: KubernetesOptions) -> tuple[list[Manifest], list[Manifest]]:
    """What the job's own container sees: of each volume only the folders that the job is to see."""
    used = _volumes_of(job, options)
    names = {volume.prefix: name for name, volume in used.items()}
    mounts = []
    for each in job.mounts:
        volume = _volume_of(each, options)
        inside = PurePosixPath(each.source).relative_to(volume.prefix)
        mount = {"name": names[volume.prefix], "mountPath": each.target, "readOnly": not each.writable}
        mounts.append(mount if inside == PurePosixPath(".") else {**mount, "subPath": str(inside)})
    return mounts, [{"name": name, **volume.source} for name, volume in used.items()]


def _volumes_of(job: Job, options: KubernetesOptions) -> dict[str, Volume]:
    """By name, those that this job needs: for what it mounts, and for the cache and a store that are folders."""
    found: dict[PurePosixPath, Volume] = {}
    for each in job.mounts:
        volume = _volume_of(each, options)
        found.setdefault(volume.prefix, volume)
    for word in job.stage:
        there = options.volume_of(PurePosixPath(word)) if word.startswith("/") else None
        if there is not None:
            found.setdefault(there.prefix, there)
    return {f"volume-{number}": volume for number, volume in enumerate(found.values())}


def _volume_of(mount: Mount, options: KubernetesOptions) -> Volume:
    volume = options.volume_of(PurePosixPath(mount.source))
    if volume is None:
        top = "/".join(str(mount.source).split("/")[:2])
        raise UsageError(
            f"the pool has no volume in which {mount.source} is",
            subject=str(mount.source),
            hint=f'dsv config pools.NAME.kubernetes.volumes \'{{"{top}": {{"claim": "CLAIM"}}}}\'',
        )
    return volume


def _own_volumes(job: Job) -> list[Manifest]:
    told = {"path": "signal", "fieldRef": {"fieldPath": f"metadata.annotations['{SIGNAL_KEY}']"}}
    shm: Manifest = {"medium": "Memory"}
    if job.shm_bytes is not None:
        shm["sizeLimit"] = str(math.ceil(job.shm_bytes))
    return [
        {"name": "own", "emptyDir": {}},
        {"name": "told", "downwardAPI": {"items": [told]}},
        {"name": "shm", "emptyDir": shm},
    ]


def _own_mounts(job: Job) -> list[Manifest]:
    return [
        {"name": "own", "mountPath": OWN},
        {"name": "told", "mountPath": TOLD, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


def _port(run: str) -> int:
    try:
        return meeting_port(run)
    except ValueError:  # no id of a run
        return meeting_port("-0")
