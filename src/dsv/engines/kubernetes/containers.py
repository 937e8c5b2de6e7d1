"""The containers of a pod: one that fetches the data, one that holds it, and the job's own."""

from __future__ import annotations

import json
import math
import shlex
from itertools import pairwise
from pathlib import PurePath, PurePosixPath

from dsv.engines.base import Job
from dsv.engines.kubernetes.names import (
    FAILED_KEY,
    GANG_PORT,
    GRACE_SECONDS,
    HOLDING,
    IGNORED_KEY,
    INDEX_KEY,
    JOB_UID_LABEL,
    MAIN,
    OUT,
    SIGNAL_KEY,
    STAGING,
    Manifest,
    credentials_name,
)
from dsv.engines.kubernetes.options import KubernetesOptions, Volume
from dsv.engines.kubernetes.resources import resources_of
from dsv.engines.kubernetes.scripts import HOLD, OWN, RUN, STAGE, STAGED, STOP, TOLD
from dsv.errors import UsageError
from dsv.model.node_env import PASSED, meeting_port, node_environment
from dsv.model.node_order import OUTPUT_SECONDS, NodeOrder


def known(job: Job) -> dict[str, str]:
    """dsv's own variables, which hold no secret and may stand in the manifest; but parameters may hold one."""
    return {
        name: value
        for name, value in job.env.items()
        if name.startswith("DSV_") and name != "DSV_ATTEMPT" and (name != "DSV_PARAMS" or value == "{}")
    }


def secret_names(job: Job) -> list[str]:
    """The variables whose values come with a Secret."""
    shown = known(job)
    return sorted(each for each in job.env if each not in shown and each != "DSV_ATTEMPT")


def main_container(job: Job, name: str, options: KubernetesOptions, mounts: list[Manifest]) -> Manifest:
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
    """Whether its nodes begin and end together. Without data there is nothing of dsv in the cluster that sees to it."""
    return job.nodes > 1 and bool(job.hold)


def _gang(job: Job, name: str) -> list[Manifest]:
    """What gang.py has to know."""
    if not is_gang(job):
        return []
    wanted = ("DSV_FAILED", "DSV_IGNORED", "DSV_NODES", "NODE_RANK", GANG_PORT)
    token = _from_pod("DSV_GANG_TOKEN", f"metadata.labels['{JOB_UID_LABEL}']")
    return [*(each for each in _environment(job, name) if each["name"] in wanted), token]


def _from_pod(name: str, field: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def literal(text: str) -> str:
    """Kubernetes takes `$(NAME)` in a command for a variable, and two dollars for one."""
    return text.replace("$", "$$")


def data_containers(job: Job, name: str, options: KubernetesOptions, forwarded: bool) -> list[Manifest]:
    """One that fetches the data and holds it for as long as the job's own lives, and one that waits until it does."""
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
    if job.close and job.order and secret_names(job):  # what the log must not show
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
            "command": ["/bin/sh", "-c", literal(HOLD), "hold", *(literal(each) for each in hold)],
            "env": _once(*env, *params, *left, *_gang(job, name), *_closing(job, options)),
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        },
        {
            "name": STAGING,
            "image": options.image,
            "securityContext": shared["securityContext"],
            "volumeMounts": [{"name": "own", "mountPath": OWN}],
            "command": ["/bin/sh", "-c", literal(STAGE)],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {"requests": {"cpu": "450m", "memory": "384Mi"}},  # for the other, while it fetches
        },
    ]


def _once(*variables: Manifest) -> list[Manifest]:
    """Each once, as two parts of the script may ask for one."""
    return list({each["name"]: each for each in variables}.values())


def _closing(job: Job, options: KubernetesOptions) -> list[Manifest]:
    """With what the container that holds the data completes the record of the run."""
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
    """For the job to end when it is told to; output that goes to the store takes as long as it does."""
    return OUTPUT_SECONDS if NodeOrder.sends_output(job.order, job.run) else GRACE_SECONDS


def _security(options: KubernetesOptions) -> Manifest:
    found: Manifest = {"allowPrivilegeEscalation": False}
    return found if options.root else {**found, "capabilities": {"drop": ["ALL"]}}


def mounts_of(job: Job, options: KubernetesOptions) -> tuple[list[Manifest], list[Manifest]]:
    """What the job's own container sees: of each volume only the folders that the job is to see."""
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
    """With their names, those that this job needs: for what it mounts, and for the cache and a store that are folders.

    Two folders of one claim share a name: the kubelet never starts a pod that has a claim twice.
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
        {"name": "told", "mountPath": TOLD, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


def _port(run: str) -> int:
    try:
        return meeting_port(run)
    except ValueError:  # no id of a run
        return meeting_port("-0")
