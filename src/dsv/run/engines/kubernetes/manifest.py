"""The manifest of a job: computed from the job, the options of its pool and facts about the cluster.

It is one indexed Job, whose pods are the nodes of the run, and for several nodes a headless Service, which gives them
names. dsv creates the Secrets when it submits the job, so their values are not in the manifest.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath, PurePosixPath
from typing import Any, Final

from dsv.errors import UsageError
from dsv.run.engines.base import OUT, Facts, Job
from dsv.run.engines.kubernetes.options import (
    COMMIT_KEY,
    FAILED_KEY,
    GANG_PORT,
    GRACE_SECONDS,
    HOLDING,
    IGNORED_KEY,
    INDEX_KEY,
    JOB_UID_LABEL,
    KEPT_SECONDS,
    LABEL,
    LATE_SECONDS,
    MAIN,
    MANAGED,
    NOT_AGAIN,
    OWN,
    QUEUE_LABEL,
    RUN_KEY,
    SIGNAL_KEY,
    STAGING,
    KubernetesOptions,
    Manifest,
    Volume,
    credentials_name,
    object_name,
)
from dsv.run.engines.kubernetes.pod_files import AGAIN_CODE, SIGNALS, STAGED, run_script, script
from dsv.run.node_order import OUTPUT_SECONDS, PASSED, NodeOrder, meeting_port, node_environment
from dsv.run.resources import ALL_GPUS, is_type, tpu_chips

_LARGEST: Final = 1_500_000
"""Bytes of a manifest: etcd takes 1.5 MiB, including what the cluster adds."""


def manifests(
    job: Job, options: KubernetesOptions, facts: Facts, *, forwarded: bool = False
) -> list[Manifest]:
    """Return the Job, and before it the Service if there are several nodes. Raises `UsageError`.

    forwarded: whether credentials are passed on to the job.
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
    """Return YAML for people, with the lines of scripts as lines."""
    import yaml

    dumper = type("Dumper", (yaml.SafeDumper,), {})

    def text(to: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return to.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    dumper.add_representer(str, text)  # type: ignore[attr-defined]
    plain = json.loads(json.dumps(list(found)))  # YAML would mark subclasses of str
    return str(yaml.dump_all(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000))


def check_size(found: Sequence[Manifest]) -> None:
    """Raise `UsageError` for a manifest that is too large: the cluster's own message does not say so."""
    size = max(len(json.dumps(each)) for each in found)
    if size > _LARGEST:
        raise UsageError(
            f"the job makes a manifest of {size:,} bytes, and Kubernetes takes about {_LARGEST:,}",
            subject="CMD",
            hint="write what is long into a file in the folder of --code",
        )


def merge(base: Any, over: Any) -> Any:
    """Merge an overlay: tables by key, where null removes a key; lists of named objects by name; anything else is
    replaced."""
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
    """Return the rules of `podFailurePolicy`: disruptions do not count as retries, and some exit codes are never
    retried."""
    ignored: list[Manifest] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    failing = [{"action": "FailJob", "onExitCodes": _codes(MAIN, "In", NOT_AGAIN)}]
    if job.hold:
        failing.append({"action": "FailJob", "onExitCodes": _codes(STAGING, "NotIn", [0])})
    if is_gang(job):  # of the nodes that are ended with one that failed, only that one counts
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
            "fsGroupChangePolicy": "OnRootMismatch",  # not of each file of a cache
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": data_containers(job, name, options, forwarded),
        "containers": [main_container(job, name, options, mounts)],
        "volumes": [*volumes, *own_volumes(job)],
    }
    if job.nodes > 1:
        spec["subdomain"] = name
        spec["topologySpreadConstraints"] = [_spread(name)]
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
    """Prefer the nodes whose own cache has the commit, if each node has a cache of its own."""
    commit = job.env.get("DSV_COMMIT")
    data = next((each for each in job.mounts if each.target == "/data"), None)
    volume = None if data is None else options.volume_of(PurePosixPath(data.source))
    hosts = sorted({host for which, host in facts.hosts if which == commit})
    if volume is None or "hostPath" not in volume.source or not hosts:
        return {}
    names = [{"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}]
    preferred = [{"weight": 100, "preference": {"matchExpressions": names}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _spread(name: str) -> Manifest:
    """Spread the nodes of a run over the machines, if possible."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {LABEL: name}},
    }


def known(job: Job) -> dict[str, str]:
    """Return dsv's own variables, which may stand in the manifest. Parameters may hold a secret."""
    return {
        name: value
        for name, value in job.env.items()
        if name.startswith("DSV_") and name != "DSV_ATTEMPT" and (name != "DSV_PARAMS" or value == "{}")
    }


def secret_names(job: Job) -> list[str]:
    """Return the names of the variables that are in the Secret."""
    shown = known(job)
    return sorted(each for each in job.env if each not in shown and each != "DSV_ATTEMPT")


def main_container(job: Job, name: str, options: KubernetesOptions, mounts: list[Manifest]) -> Manifest:
    requests, limits = resources_of(job, options)
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    container: Manifest = {
        "name": MAIN,
        "image": job.image,
        "command": ["/bin/sh", "-c", literal(run_script()), "dsv", *(literal(each) for each in job.command)],
        "env": _environment(job, name),
        "securityContext": _security(options),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", script("stop")]}}},
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
    found += [
        {"name": each, "valueFrom": {"secretKeyRef": {"name": name, "key": each}}}
        for each in secret_names(job)
    ]
    found += [
        _from_pod("DSV_FAILED", f"metadata.annotations['{FAILED_KEY}']"),
        _from_pod("DSV_IGNORED", f"metadata.annotations['{IGNORED_KEY}']"),
        {"name": "DSV_SECONDS", "value": "" if job.time_seconds is None else str(job.time_seconds)},
        {"name": "DSV_COPIED", "value": "yes" if job.close and job.order else ""},
    ]
    if job.nodes > 1:
        addresses = [f"{name}-{index}.{name}" for index in range(job.nodes)]
        found.append({"name": "DSV_NODES", "value": " ".join(addresses)})
        meeting = node_environment(0, addresses, _port(job.run))
        ranks = ("NODE_RANK", "PET_NODE_RANK")
        found += [{"name": each, "value": value} for each, value in meeting.items() if each not in ranks]
        found += [_from_pod(each, f"metadata.annotations['{INDEX_KEY}']") for each in ranks]
    if is_gang(job):
        found.append({"name": GANG_PORT, "value": str(_port(job.run) + 1)})
    return found


def is_gang(job: Job) -> bool:
    """Return whether the nodes start and end together. Only the containers that hold the data see to that."""
    return job.nodes > 1 and bool(job.hold)


def _gang(job: Job, name: str) -> list[Manifest]:
    """Return the variables of gang.py."""
    if not is_gang(job):
        return []
    wanted = ("DSV_FAILED", "DSV_IGNORED", "DSV_NODES", "NODE_RANK", GANG_PORT)
    token = _from_pod("DSV_GANG_TOKEN", f"metadata.labels['{JOB_UID_LABEL}']")
    return [*(each for each in _environment(job, name) if each["name"] in wanted), token]


def _from_pod(name: str, field: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def literal(text: str) -> str:
    """Escape text in a command, where Kubernetes replaces `$(NAME)`."""
    return text.replace("$", "$$")


def data_containers(job: Job, name: str, options: KubernetesOptions, forwarded: bool) -> list[Manifest]:
    """Return the container that fetches the data and holds it while the job runs, and the one that waits until it is
    held."""
    if not job.hold:
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
            *({"name": name, "mountPath": str(volume.prefix)} for name, volume in used),
            {"name": "own", "mountPath": OWN},
        ],
    }
    sources: list[Manifest] = [{"secretRef": {"name": options.secret}}] if options.secret is not None else []
    sources += [{"secretRef": {"name": credentials_name(name)}}] if forwarded else []
    if job.close and job.order and secret_names(job):  # masked in the log
        sources.append({"prefix": PASSED, "secretRef": {"name": name, "optional": True}})
    if sources:
        shared["envFrom"] = sources
    env = [{"name": "HOME", "value": OWN}]
    passed_on = {"DSV_SETTINGS": job.access.settings, "DSV_CERTIFICATES": job.access.certificates}
    env += [{"name": each, "value": literal(value)} for each, value in passed_on.items() if value]
    folder = next((each.source for each in job.mounts if each.target == "/out"), None)
    left = (
        [] if folder is None else [{"name": "DSV_METRICS_FILE", "value": literal(f"{folder}/metrics.json")}]
    )
    params = [] if folder is None else [
        *(each for each in _environment(job, name) if each["name"] == "DSV_PARAMS"),
        {"name": "DSV_PARAMS_FILE", "value": literal(f"{folder}/params.json")},
    ]  # fmt: skip
    hold = (*writable, "-", options.dsv, *job.hold[:-1], "--json-file", STAGED, "--")
    return [
        {
            "name": HOLDING,
            **shared,
            "restartPolicy": "Always",
            "command": ["/bin/sh", "-c", literal(script("hold")), "hold", *(literal(each) for each in hold)],
            "env": _once(*env, *params, *left, *_gang(job, name), *_closing(job, options)),
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        },
        {
            "name": STAGING,
            "image": options.image,
            "securityContext": shared["securityContext"],
            "volumeMounts": [{"name": "own", "mountPath": OWN}],
            "command": ["/bin/sh", "-c", literal(script("stage"))],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {
                "requests": {"cpu": "450m", "memory": "384Mi"}
            },  # for the other container, while it fetches
        },
    ]


def _once(*variables: Manifest) -> list[Manifest]:
    """Return each variable once."""
    return list({each["name"]: each for each in variables}.values())


def _closing(job: Job, options: KubernetesOptions) -> list[Manifest]:
    """Return the variables with which the container `hold` completes the record of the run."""
    if not job.close or not job.order:
        return []
    return [
        {"name": "DSV_CLOSE", "value": literal(shlex.join((options.dsv, *job.close)))},
        {"name": "DSV_ORDER", "value": literal(job.order)},
        {"name": "DSV_CLOSE_SECONDS", "value": str(grace_seconds(job) - 5)},
        _from_pod("DSV_INDEX", f"metadata.annotations['{INDEX_KEY}']"),
        _from_pod("DSV_FAILED", f"metadata.annotations['{FAILED_KEY}']"),
        _from_pod("DSV_IGNORED", f"metadata.annotations['{IGNORED_KEY}']"),
        _from_pod("DSV_HOST", "spec.nodeName"),
        *([{"name": "DSV_QUEUED", "value": "yes"}] if options.queue is not None else []),
    ]


def grace_seconds(job: Job) -> int:
    """Return the grace period of the pods: long enough to send output to the store, if the job does."""
    return OUTPUT_SECONDS if NodeOrder.sends_output(job.order, job.run) else GRACE_SECONDS


def _security(options: KubernetesOptions) -> Manifest:
    found: Manifest = {"allowPrivilegeEscalation": False}
    return found if options.root else {**found, "capabilities": {"drop": ["ALL"]}}


def mounts_of(job: Job, options: KubernetesOptions) -> tuple[list[Manifest], list[Manifest]]:
    """Return the mounts of the job's container, only of the folders that the job may see, and the volumes."""
    used = _volumes_of(job, options)
    names = {volume.prefix: name for name, volume in used}
    mounts = []
    for each in job.mounts:
        volume = _volume_of(each.source, options)
        inside = PurePosixPath(each.source).relative_to(volume.prefix)
        mount = {"name": names[volume.prefix], "mountPath": each.target, "readOnly": not each.writable}
        mounts.append(mount if inside == PurePosixPath(".") else {**mount, "subPath": str(inside)})
    sources = {name: volume.source for name, volume in used}
    return mounts, [{"name": name, **source} for name, source in sources.items()]


def _volumes_of(job: Job, options: KubernetesOptions) -> list[tuple[str, Volume]]:
    """Return the volumes that this job needs, for its mounts, its cache and its store, with their names.

    Two folders of one claim share a name: the kubelet never starts a pod that has one claim twice.
    """
    found: dict[PurePosixPath, Volume] = {}
    for each in job.mounts:
        volume = _volume_of(each.source, options)
        found.setdefault(volume.prefix, volume)
    for word in (*job.hold, *job.access.folders):
        if not word.startswith("/"):
            continue
        there = options.volume_of(PurePosixPath(word))
        if there is not None:
            found.setdefault(there.prefix, there)
        elif (word in job.access.folders or _is_store(word, job)) and "volumeMounts" not in json.dumps(
            options.overlay
        ):
            raise _no_volume(word)
    sources = list({json.dumps(volume.source): None for volume in found.values()})
    return [(f"volume-{sources.index(json.dumps(each.source))}", each) for each in found.values()]


def _volume_of(path: PurePath | str, options: KubernetesOptions) -> Volume:
    if str(path) == OUT:
        return Volume(PurePosixPath(OUT), {"emptyDir": {}})
    volume = options.volume_of(PurePosixPath(path))
    if volume is None:
        raise _no_volume(str(path))
    return volume


def _is_store(word: str, job: Job) -> bool:
    return ("--store", word) in pairwise(job.hold)


def _no_volume(folder: str) -> UsageError:
    top = "/".join(folder.split("/")[:2])
    return UsageError(
        f"the pool has no volume in which {folder} is",
        subject=folder,
        hint=f'dsv config pools.NAME.kubernetes.volumes \'{{"{top}": {{"claim": "CLAIM"}}}}\'',
    )


def own_volumes(job: Job) -> list[Manifest]:
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
        {"name": "told", "mountPath": SIGNALS, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


def _port(run: str) -> int:
    try:
        return meeting_port(run)
    except ValueError:  # not the id of a run
        return meeting_port("-0")


GPU_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
"""Labels of nodes for the type of their GPUs."""
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
"""Topologies of slices whose chips lie in a plane (v5e, v6e)."""


def resources_of(job: Job, options: KubernetesOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Return the requests and limits of the job's container. Raises `UsageError`."""
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
    """Return the labels of GKE nodes with such a slice. Raises `UsageError`."""
    if job.tpu is None:
        return {}
    version = job.tpu.partition("-")[0]
    if version not in _SLICES:
        raise UsageError(
            f"GKE has no TPU {version}",
            subject=job.tpu,
            hint=f"dsv config pools.NAME.tpu with one of {', '.join(_SLICES)}",
        )
    shape = job.tpu_topology
    if shape is None and version in ("v5e", "v6e"):
        shape = _FLAT.get(tpu_chips(job.tpu))
    if shape is None:
        raise UsageError(
            f"GKE has to know the shape of the slice {job.tpu}",
            subject=job.tpu,
            hint="dsv config pools.NAME.tpu_topology 2x2x1",
        )
    return {TPU_LABEL: _SLICES[version], TPU_SHAPE: shape}


def gpu_affinity(job: Job, facts: Facts) -> dict[str, Any] | None:
    """Return the affinity for nodes with GPUs of the requested type. Raises `UsageError`."""
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
