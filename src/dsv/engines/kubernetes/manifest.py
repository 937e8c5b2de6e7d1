"""What a cluster is given for a job: a pure function of the job, of what its pool says, and of what is known.

One indexed Job, whose pods are the nodes of the run, and for several nodes a headless Service by whose name they find
the first. The Secrets that it names are made by dsv when it submits the job, as their values stand nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from dsv.engines.base import Facts, Job
from dsv.engines.kubernetes.containers import (
    data_containers,
    grace_seconds,
    is_gang,
    main_container,
    mounts_of,
    own_volumes,
)
from dsv.engines.kubernetes.names import (
    COMMIT_KEY,
    KEPT_SECONDS,
    LABEL,
    LATE_SECONDS,
    MAIN,
    MANAGED,
    NOT_AGAIN,
    QUEUE_LABEL,
    RUN_KEY,
    STAGING,
    Manifest,
    object_name,
)
from dsv.engines.kubernetes.options import KubernetesOptions
from dsv.engines.kubernetes.resources import gpu_affinity, tpu_selectors
from dsv.engines.kubernetes.scripts import AGAIN_CODE
from dsv.errors import UsageError

_LARGEST: Final = 1_500_000
"""Bytes of a manifest: etcd takes 1.5 MiB, with what the cluster adds."""


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
        "backoffLimit": job.retries if is_gang(job) else job.retries * job.nodes,
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


def check_size(found: Sequence[Manifest]) -> None:
    """Refuses what the database of Kubernetes does not take, for which the cluster has no clear words."""
    size = max(len(json.dumps(each)) for each in found)
    if size > _LARGEST:
        raise UsageError(
            f"the job makes a manifest of {size:,} bytes, and Kubernetes takes about {_LARGEST:,}",
            subject="CMD",
            hint="write what is long into a file in the folder of --code",
        )


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
    ignored: list[Manifest] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    failing = [{"action": "FailJob", "onExitCodes": _codes(MAIN, "In", NOT_AGAIN)}]
    if job.hold:
        failing.append({"action": "FailJob", "onExitCodes": _codes(STAGING, "NotIn", [0])})
    if is_gang(job):  # of the nodes that one takes along only that one counts
        ignored += [
            {"action": "Ignore", "onExitCodes": _codes(each, "In", [AGAIN_CODE])} for each in (MAIN, STAGING)
        ]
    return [*(ignored if job.retries else []), *failing]


def _codes(container: str, operator: str, values: list[int]) -> Manifest:
    return {"containerName": container, "operator": operator, "values": values}


def _template(job: Job, name: str, options: KubernetesOptions, facts: Facts, forwarded: bool) -> Manifest:
    mounts, volumes = mounts_of(job, options)
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(job),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            **({} if options.root else {"runAsNonRoot": True}),
            "supplementalGroups": [0],
            "fsGroupChangePolicy": "OnRootMismatch",  # of a group that the cluster gives: not for each file of a cache
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": data_containers(job, name, options, forwarded),
        "containers": [main_container(job, name, options, mounts)],
        "volumes": [*volumes, *own_volumes(job)],
    }
    if job.nodes > 1:
        spec["subdomain"] = name
        spec["topologySpreadConstraints"] = [_apart(name)]
    if job.time_seconds is not None:
        spec["activeDeadlineSeconds"] = job.time_seconds + LATE_SECONDS
    selectors = {**tpu_selectors(job), **options.node_selector}
    affinity = merge(gpu_affinity(job, facts) or {}, near_the_data(job, options, facts))
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
    annotations = {RUN_KEY: job.run, COMMIT_KEY: job.env.get("DSV_COMMIT", "")}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def near_the_data(job: Job, options: KubernetesOptions, facts: Facts) -> Manifest:
    """If each node has a cache of its own, those that have had the commit come first."""
    commit = job.env.get("DSV_COMMIT")
    data = next((each for each in job.mounts if each.target == "/data"), None)
    volume = None if data is None else options.volume_of(PurePosixPath(data.source))
    hosts = sorted({host for which, host in facts.hosts if which == commit})
    if volume is None or "hostPath" not in volume.source or not hosts:
        return {}
    names = [{"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}]
    preferred = [{"weight": 100, "preference": {"matchExpressions": names}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _apart(name: str) -> Manifest:
    """The nodes of a run go to different machines if they can."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {LABEL: name}},
    }
