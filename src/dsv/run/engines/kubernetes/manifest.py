"""The manifest of a job: computed from the job, the options of its pool and facts about the cluster.

It is one indexed Job, whose pods are the nodes of the run, and for several nodes a headless Service, which gives them
names. dsv creates the Secrets when it submits the job, so their values are not in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final, TypeAlias

from dsv.errors import UsageError
from dsv.repo.job_notes import FOLDER
from dsv.run.engines.base import OUT, Facts, Job
from dsv.run.engines.kubernetes.api import KubernetesOptions, Volume
from dsv.run.node_order import OUTPUT_SECONDS, PASSED, NodeOrder, meeting_port, node_environment
from dsv.run.part import REPORT
from dsv.run.resources import ALL_GPUS, is_type, tpu_chips

Manifest: TypeAlias = dict[str, Any]

RUN_KEY: Final = "dsv.run/run"
COMMIT_KEY: Final = "dsv.run/commit"
SIGNAL_KEY: Final = "dsv.run/signal"
STOPPED_KEY: Final = "dsv.run/stopped"
"""Annotations: the id of the run, its commit, the signals sent to the pod, and who asked dsv to end the job."""
LABEL: Final = "dsv.run/run"
MANAGED: Final = ("app.kubernetes.io/managed-by", "dsv")
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
INDEX_KEY: Final = "batch.kubernetes.io/job-completion-index"
JOB_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
FAILED_KEY: Final = "batch.kubernetes.io/job-index-failure-count"
IGNORED_KEY: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
MAIN, STAGING, HOLDING = "main", "stage", "hold"
GANG_PORT: Final = "DSV_GANG_PORT"
"""The variable with the port at which the nodes of a job agree to start and end together."""
CLOSE_SECONDS: Final = "DSV_CLOSE_SECONDS"
"""The variable with the seconds for completing the record of the run."""
GRACE_SECONDS: Final = 30
OWN: Final = "/dsv/own"
"""The empty folder that the containers of a pod share."""
KEPT_SECONDS: Final = 7 * 86_400
LATE_SECONDS: Final = 300
"""Seconds that a pod may live longer than `--time`, because it also fetches the data."""
_LONGEST_NAME: Final = 52  # the names of pods add the number of the node and five letters
NOT_AGAIN: Final = [124, 125, 126, 127]
SIGNALS: Final = "/dsv/signals"
"""The folder in which Kubernetes shows a pod its own annotation with the signals for the command."""
AGAIN_CODE: Final = 190
"""The exit code of a container that ended because the attempt was over on another node."""
_SCRIPTS: Final = Path(__file__).with_name("pod")
"""Plain shell, because the image of a job may have nothing else."""
_LARGEST: Final = 1_500_000
"""Bytes of a manifest: etcd takes 1.5 MiB, including what the cluster adds."""


def manifests(
    job: Job, options: KubernetesOptions, facts: Facts, *, forwarded: bool = False
) -> list[Manifest]:
    """Return the Job, and before it the Service if there are several nodes. Raises `UsageError`. forwarded:
    whether credentials are passed on to the job"""
    name = object_name(job.run)
    metadata = {
        "name": name,
        "labels": {LABEL: name, MANAGED[0]: MANAGED[1]},
        "annotations": {RUN_KEY: job.run},
        **_given(namespace=options.namespace),
    }
    template = {
        "metadata": {
            "labels": metadata["labels"],
            "annotations": {RUN_KEY: job.run, COMMIT_KEY: job.env.get("DSV_COMMIT", "")},
        },
        "spec": _pod(job, name, options, facts, forwarded),
    }
    made = [merge(_job(job, metadata, template, options), options.overlay)]
    if job.nodes > 1:
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: name}}
        made.insert(0, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
    if (size := max(len(json.dumps(manifest)) for manifest in made)) > _LARGEST:
        raise UsageError(
            f"the job makes a manifest of {size:,} bytes, and Kubernetes takes about {_LARGEST:,}",
            subject="CMD",
            hint="write what is long into a file in the folder of --code",
        )
    return made


def _given(**optional: Any) -> Manifest:
    """Return the entries that are neither empty nor False."""
    return {key: value for key, value in optional.items() if value}


def _job(job: Job, metadata: Manifest, template: Manifest, options: KubernetesOptions) -> Manifest:
    ignored = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    if is_gang(job):  # of the nodes that are ended with one that failed, only that one counts
        ignored += [_rule("Ignore", each, "In", [AGAIN_CODE]) for each in (MAIN, STAGING)]
    failing = [_rule("FailJob", MAIN, "In", NOT_AGAIN)]
    if job.hold:
        failing.append(_rule("FailJob", STAGING, "NotIn", [0]))
    queue = _given(**{QUEUE_LABEL: options.queue})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "labels": {**metadata["labels"], **queue}},
        "spec": {
            "suspend": options.queue is not None,
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            "backoffLimit": job.retries if is_gang(job) else job.retries * job.nodes,
            "backoffLimitPerIndex": job.retries,
            "maxFailedIndexes": 0,
            "podFailurePolicy": {"rules": [*(ignored if job.retries else []), *failing]},
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": template,
        },
    }


def _rule(action: str, container: str, operator: str, values: Sequence[int]) -> Manifest:
    codes = {"containerName": container, "operator": operator, "values": list(values)}
    return {"action": action, "onExitCodes": codes}


def _pod(job: Job, name: str, options: KubernetesOptions, facts: Facts, forwarded: bool) -> Manifest:
    volumes = _volumes_of(job, options)
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(job),
        "enableServiceLinks": False,
        "securityContext": {
            **_given(runAsNonRoot=not options.root),
            "supplementalGroups": [0],
            "fsGroupChangePolicy": "OnRootMismatch",  # not of each file of a cache
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_main_container(job, name, options, volumes)],
        "volumes": _volume_list(job, volumes),
        **_given(
            initContainers=_data_containers(job, name, options, volumes, forwarded),
            nodeSelector={**tpu_selectors(job), **options.node_selector},
            affinity=merge(gpu_affinity(job, facts), near_the_data(job, options, facts)),
            tolerations=[dict(each) for each in options.tolerations],
            priorityClassName=options.priority_class,
            serviceAccountName=options.service_account,
            imagePullSecrets=[{"name": each} for each in options.image_pull_secrets],
        ),
    }
    if options.service_account is None:
        pod["automountServiceAccountToken"] = False
    if job.time_seconds is not None:
        pod["activeDeadlineSeconds"] = job.time_seconds + LATE_SECONDS
    if job.nodes > 1:
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {LABEL: name}},
        }
        pod |= {"subdomain": name, "topologySpreadConstraints": [spread]}
    return pod


def as_yaml(found: Sequence[Manifest]) -> str:
    """Return YAML for people, with the lines of scripts as lines. Raises `UsageError`."""
    import yaml

    try:
        plain = json.loads(
            json.dumps(list(found), ensure_ascii=False).encode()
        )  # YAML would mark subclasses of str
    except UnicodeEncodeError as error:
        raise UsageError(
            "a word of the job is not UTF-8, and Kubernetes takes no other bytes",
            subject="CMD",
            hint="write it into a file in the folder of --code",
        ) from error
    dumper = type(
        "Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {}
    )  # the one in C is ten times as fast

    def text(to: Any, value: str) -> Any:
        return to.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    dumper.add_representer(str, text)  # type: ignore[attr-defined]
    return str(yaml.dump_all(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000))


def merge(base: Any, over: Any) -> Any:
    """Merge an overlay: tables by key (null removes one), lists of named objects by name; replace all
    else."""
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


def _main_container(
    job: Job, name: str, options: KubernetesOptions, volumes: Mapping[Volume, str]
) -> Manifest:
    stop = script("stop")
    return {
        "name": MAIN,
        "image": job.image,
        "command": ["/bin/sh", "-c", literal(run_script()), "dsv", *map(literal, job.command)],
        "env": _as_list(_variables(job, name)),
        "securityContext": _security(options),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", stop]}}},
        "volumeMounts": [
            *(_mount(each.source, each.target, each.writable, options, volumes) for each in job.mounts),
            {"name": "own", "mountPath": OWN},
            {"name": "signals", "mountPath": SIGNALS, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        **_given(resources=resources_of(job, options), workingDir=job.workdir),
    }


def _mount(
    source: PurePath, target: str, writable: bool, options: KubernetesOptions, volumes: Mapping[Volume, str]
) -> Manifest:
    """Mount the folder that the job may see, and not the whole volume."""
    volume = _volume_of(source, options)
    inside = str(PurePosixPath(source).relative_to(volume.prefix))
    mount = {"name": volumes[volume], "mountPath": target, "readOnly": not writable}
    return mount if inside == "." else {**mount, "subPath": inside}


def _data_containers(
    job: Job, name: str, options: KubernetesOptions, volumes: Mapping[Volume, str], forwarded: bool
) -> list[Manifest]:
    """Return the container that fetches and holds the data, and the one that waits until it is held."""
    if not job.hold:
        return []
    if options.image is None:
        raise UsageError(
            "the pool names no image of dsv, which fetches and holds the data in the cluster",
            subject="image",
            hint="dsv config pools.NAME.kubernetes.image REGISTRY/dsv:VERSION",
        )
    own = {"name": "own", "mountPath": OWN}
    sources: list[Manifest] = [{"secretRef": {"name": options.secret}}] if options.secret is not None else []
    sources += [{"secretRef": {"name": credentials_name(name)}}] if forwarded else []
    if job.close and job.order and job.hidden:  # masked in the log
        sources.append({"prefix": PASSED, "secretRef": {"name": name, "optional": True}})
    writable = [str(each.source) for each in job.mounts if each.writable]
    hold = (*writable, "-", options.dsv, *job.hold)
    shared = {"image": options.image, "securityContext": _security(options)}
    return [
        {
            "name": HOLDING,
            **shared,
            "restartPolicy": "Always",
            "command": ["/bin/sh", "-c", literal(script("hold")), "hold", *map(literal, hold)],
            "env": _as_list(_hold_variables(job, name, options)),
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
            "volumeMounts": [
                *({"name": each, "mountPath": str(volume.prefix)} for volume, each in volumes.items()),
                own,
            ],
            **_given(envFrom=sources),
        },
        {
            "name": STAGING,
            **shared,
            "command": ["/bin/sh", "-c", literal(script("stage"))],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            # for the other container, while it fetches
            "resources": {"requests": {"cpu": "450m", "memory": "384Mi"}},
            "volumeMounts": [own],
        },
    ]


def literal(text: str) -> str:
    """Escape text in a command, where Kubernetes replaces `$(NAME)`."""
    return text.replace("$", "$$")


def is_gang(job: Job) -> bool:
    """Return whether the nodes start and end together, which only the containers that hold data can do."""
    return job.nodes > 1 and bool(job.hold)


def _as_list(variables: Mapping[str, str | Manifest]) -> list[Manifest]:
    """Return variables of a container. The value of each is its text, or where Kubernetes gets it from."""
    return [
        {"name": name, **({"value": literal(value)} if isinstance(value, str) else {"valueFrom": value})}
        for name, value in variables.items()
    ]


def _field(path: str) -> Manifest:
    return {"fieldRef": {"fieldPath": path}}


def _annotation(key: str) -> Manifest:
    return _field(f"metadata.annotations['{key}']")


def _variables(job: Job, name: str) -> dict[str, str | Manifest]:
    """Return the variables of the job's container."""
    variables: dict[str, str | Manifest] = {**job.shown}
    variables |= {secret: {"secretKeyRef": {"name": name, "key": secret}} for secret in job.hidden}
    variables |= {
        "DSV_FAILED": _annotation(FAILED_KEY),
        "DSV_IGNORED": _annotation(IGNORED_KEY),
        "DSV_SECONDS": "" if job.time_seconds is None else str(job.time_seconds),
        "DSV_COPIED": "yes" if job.close and job.order else "",
    }
    if job.nodes > 1:
        addresses = [f"{name}-{index}.{name}" for index in range(job.nodes)]
        variables["DSV_NODES"] = " ".join(addresses)
        variables |= node_environment(addresses, meeting_port(job.run))
        variables |= dict.fromkeys(("NODE_RANK", "PET_NODE_RANK"), _annotation(INDEX_KEY))
    if is_gang(job):
        variables[GANG_PORT] = str(meeting_port(job.run) + 1)
    return variables


def _hold_variables(job: Job, name: str, options: KubernetesOptions) -> dict[str, str | Manifest]:
    of_job = _variables(job, name)
    variables: dict[str, str | Manifest] = {
        "HOME": OWN,
        REPORT: f"{OWN}/staged.json",
        **NodeOrder.shown(job.order, job.run),
        **_given(DSV_SETTINGS=job.access.settings, DSV_CERTIFICATES=job.access.certificates),
    }
    folder = next((each.source for each in job.mounts if each.target == "/out"), None)
    if folder is not None:
        variables |= {each: value for each, value in of_job.items() if each == "DSV_PARAMS"}
        variables["DSV_PARAMS_FILE"] = f"{folder}/params.json"
        variables["DSV_METRICS_FILE"] = f"{folder}/metrics.json"
        variables["DSV_NOTES_FOLDER"] = f"{folder}/{FOLDER}/{job.run}"
    if is_gang(job):
        variables |= {
            each: of_job[each] for each in ("DSV_FAILED", "DSV_IGNORED", "DSV_NODES", "NODE_RANK", GANG_PORT)
        }
        variables["DSV_GANG_TOKEN"] = _field(f"metadata.labels['{JOB_UID_LABEL}']")
    if job.close and job.order:  # to complete the record of the run
        variables |= {
            "DSV_CLOSE": shlex.join((options.dsv, *job.close)),
            "DSV_ORDER": job.order,
            CLOSE_SECONDS: str(grace_seconds(job) - 5),
            "DSV_INDEX": _annotation(INDEX_KEY),
            "DSV_FAILED": of_job["DSV_FAILED"],
            "DSV_IGNORED": of_job["DSV_IGNORED"],
            "DSV_HOST": _field("spec.nodeName"),
            **_given(DSV_QUEUED="yes" if options.queue is not None else ""),
        }
    return variables


def grace_seconds(job: Job) -> int:
    """Return the grace period of the pods: long enough to send output to the store, if the job does."""
    return OUTPUT_SECONDS if NodeOrder.sends_output(job.order, job.run) else GRACE_SECONDS


def _security(options: KubernetesOptions) -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        **_given(capabilities=None if options.root else {"drop": ["ALL"]}),
    }


def _volumes_of(job: Job, options: KubernetesOptions) -> dict[Volume, str]:
    """Return the volumes for the mounts, the cache and the store of this job, with their names. Folders of
    one claim share a name, because the kubelet never starts a pod that has one claim twice."""
    volumes = [_volume_of(mount.source, options) for mount in job.mounts]
    has_mounts = "volumeMounts" in json.dumps(options.overlay)
    for word in (*job.hold, *job.access.folders):
        if not word.startswith("/"):
            continue
        is_store = word in job.access.folders or ("--store", word) in pairwise(job.hold)
        if options.volume_of(PurePosixPath(word)) or (is_store and not has_mounts):
            volumes.append(_volume_of(PurePosixPath(word), options))
    sources = list(dict.fromkeys(json.dumps(volume.source) for volume in volumes))
    return {volume: f"volume-{sources.index(json.dumps(volume.source))}" for volume in volumes}


def _volume_of(path: PurePath, options: KubernetesOptions) -> Volume:
    if str(path) == OUT:
        return Volume(PurePosixPath(OUT), {"emptyDir": {}})
    volume = options.volume_of(PurePosixPath(path))
    if volume is None:
        top = "/".join(str(path).split("/")[:2])
        raise UsageError(
            f"the pool has no volume in which {path} is",
            subject=str(path),
            hint=f'dsv config pools.NAME.kubernetes.volumes \'{{"{top}": {{"claim": "CLAIM"}}}}\'',
        )
    return volume


def _volume_list(job: Job, volumes: Mapping[Volume, str]) -> list[Manifest]:
    sources = {name: volume.source for volume, name in volumes.items()}
    signals = {"path": "signal", **_annotation(SIGNAL_KEY)}
    size = None if job.shm_bytes is None else str(math.ceil(job.shm_bytes))
    return [
        *({"name": name, **source} for name, source in sources.items()),
        {"name": "own", "emptyDir": {}},
        {"name": "signals", "downwardAPI": {"items": [signals]}},
        {"name": "shm", "emptyDir": {"medium": "Memory", **_given(sizeLimit=size)}},
    ]


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


GPU_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
"""Labels of nodes for the type of their GPUs."""
_SLICES: Final = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
_FLAT: Final = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
"""Topologies of slices whose chips lie in a plane (v5e, v6e)."""


def resources_of(job: Job, options: KubernetesOptions) -> Manifest:
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
        chips = tpu_chips(job.tpu)
        if chips % job.nodes != 0:
            raise UsageError(
                f"{chips} chips of {job.tpu} can't be shared by {job.nodes} nodes",
                subject=job.tpu,
                hint="--nodes is the number of machines of the slice",
            )
        limits["google.com/tpu"] = str(chips // job.nodes)
    return _given(requests=requests, limits=limits)


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
    label = "cloud.google.com/gke-tpu"
    return {f"{label}-accelerator": _SLICES[version], f"{label}-topology": shape}


def gpu_affinity(job: Job, facts: Facts) -> Manifest:
    """Return the affinity for nodes with GPUs of the requested type. Raises `UsageError`."""
    if job.gpu_type is None:
        return {}
    fitting: dict[str, list[str]] = {}
    for label, value in facts.gpu_labels:
        if is_type(value, job.gpu_type):
            fitting.setdefault(label, []).append(value)
    if not fitting:
        there = ", ".join(sorted({value for _, value in facts.gpu_labels})) or "none that dsv may see"
        raise UsageError(
            f"no node is labelled with a GPU of the type {job.gpu_type}: there are {there}",
            subject=job.gpu_type,
            hint="leave out --gpu-type, and name the nodes by node_selector in the table of the pool",
        )
    terms = [
        {"matchExpressions": [{"key": label, "operator": "In", "values": sorted(values)}]}
        for label, values in sorted(fitting.items())
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def object_name(run: str) -> str:
    """Return the name of all objects of a run, always the same, so that they are created only once."""
    text = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    name = f"dsv-{text}"
    if f"dsv-{run}" == name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(run.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"


def credentials_name(name: str) -> str:
    return f"{name}-store"


def script(*names: str) -> str:
    """Return the text of these scripts, one after the other."""
    return "\n".join((_SCRIPTS / f"{name}.sh").read_text("utf-8") for name in names)


def run_script() -> str:
    return script("watch", "wait_for_nodes", "copy_log", "run")
