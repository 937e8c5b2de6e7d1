"""What Kueue says of its queues, and of a job in one of them: of that a function of the Workload that it makes for the
Job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv.engines.kubernetes.api import SECONDS, KubernetesApi, Refusal
from dsv.engines.kubernetes.pods import Obstacle
from dsv.model.run_end import EndCause

_GROUP: Final = "/apis/kueue.x-k8s.io"
_JOB_LABEL: Final = "kueue.x-k8s.io/job-uid"
_NEVER: Final = re.compile(r"maximum capacity")
"""What Kueue says of a job that asks for more than a quota ever gives."""
_LATER: Final = re.compile(r"unused quota|more needed")
"""What it says of a quota that is used up. It names each kind of machine, and one that has room later is enough."""
_FOR_EVER, _PATIENT = 5.0, 60.0


def ask_queue(api: KubernetesApi, namespace: str, uid: str) -> Sequence[Mapping[str, Any]] | Refusal:
    """The Workloads of the Job with this uid, of which there is one at most."""
    version = _version(api)
    if isinstance(version, Refusal):
        return version
    where = f"/apis/{version}/namespaces/{namespace}/workloads"
    return api.items(where, labelSelector=f"{_JOB_LABEL}={uid}")


@dataclass(frozen=True, slots=True)
class Line:
    """waiting: how many jobs wait in a queue, None if the caller may not know that. closed: why it lets none begin."""

    waiting: int | None
    closed: str | None = None


def ask_line(api: KubernetesApi, queue: str, seconds: float) -> Line:
    version = _version(api, seconds)
    if isinstance(version, Refusal):
        return Line(0, _no_kueue(queue)) if version.status == 404 else Line(None)
    answer = api.get(api.path(f"{version}/localqueues", queue), seconds)
    if isinstance(answer, Refusal):
        return Line(0, f"the namespace has no queue {queue}") if answer.status == 404 else Line(None)
    active = _condition(answer, "Active")
    closed = active is not None and active.get("status") == "False"
    said = (
        _one_line(active.get("message") or str(active.get("reason")))
        if active is not None and closed
        else None
    )
    return Line(
        int((answer.get("status") or {}).get("pendingWorkloads") or 0),
        None if said is None else f"the queue {queue} is closed: {said}",
    )


def _version(api: KubernetesApi, seconds: float = SECONDS) -> str | Refusal:
    """Of Kueue's API, with its group."""
    group = api.get(_GROUP, seconds)
    return group if isinstance(group, Refusal) else str(group["preferredVersion"]["groupVersion"])


def waiting(queue: str, answer: Sequence[Mapping[str, Any]] | Refusal) -> Obstacle:
    """Why the queue does not let the job begin. Anyone who may not read that learns that it waits."""
    if isinstance(answer, Refusal) and answer.status == 404:
        return _obstacle(_no_kueue(queue), _PATIENT)
    said = None if isinstance(answer, Refusal) or not answer else _why(answer[0])
    if said is None:
        return _obstacle(f"the queue {queue} has not admitted it", None)
    never = _NEVER.search(said) is not None and _LATER.search(said) is None
    lasting = _FOR_EVER if never else _PATIENT if _is_missing(said) else None
    return _obstacle(f"the queue {queue} has not admitted it: {said}", lasting)


def put_back(answer: Sequence[Mapping[str, Any]] | Refusal) -> tuple[EndCause, str]:
    """Why the queue took the place of a job away that had begun."""
    found = None if isinstance(answer, Refusal) or not answer else _condition(answer[0], "Evicted")
    if found is None or found.get("status") != "True":
        return EndCause.PREEMPTED, "its queue took its place away"
    cause = EndCause.PREEMPTED if found.get("reason") == "Preempted" else EndCause.EVICTED
    return cause, _one_line(found.get("message") or str(found.get("reason")))


def _why(workload: Mapping[str, Any]) -> str | None:
    """Of a job that has a quota and waits for a check, what the check says; else why it has none."""
    status = workload.get("status") or {}
    reserved = _condition(workload, "QuotaReserved")
    if reserved is not None and reserved.get("status") == "True":
        checks = [each for each in status.get("admissionChecks") or () if each.get("state") != "Ready"]
        return next(
            (f"{each['name']}: {_one_line(each.get('message') or each['state'])}" for each in checks), None
        )
    return None if reserved is None else _one_line(reserved.get("message") or "") or None


def _condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def _no_kueue(queue: str) -> str:
    return f"the pool names the queue {queue}, and the cluster has no Kueue"


def _is_missing(said: str) -> bool:
    return "doesn't exist" in said


def _obstacle(reason: str, patience: float | None) -> Obstacle:
    return Obstacle(reason, EndCause.UNSCHEDULABLE, patience)


def _one_line(text: str) -> str:
    return " ".join(text.split())
