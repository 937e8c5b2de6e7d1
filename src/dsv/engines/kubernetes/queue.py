"""What Kueue says of a job that is in one of its queues: a function of the Workload that it makes for the Job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dsv.engines.kubernetes.api import KubernetesApi, Refusal
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
    group = api.get(_GROUP)
    if isinstance(group, Refusal):
        return group
    version = group["preferredVersion"]["groupVersion"]
    where = f"/apis/{version}/namespaces/{namespace}/workloads"
    return api.items(where, labelSelector=f"{_JOB_LABEL}={uid}")


def waiting(queue: str, answer: Sequence[Mapping[str, Any]] | Refusal) -> Obstacle:
    """Why the queue does not let the job begin. Anyone who may not read that learns that it waits."""
    if isinstance(answer, Refusal) and answer.status == 404:
        return _obstacle(f"the pool names the queue {queue}, and the cluster has no Kueue", _PATIENT)
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


def _condition(workload: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def _is_missing(said: str) -> bool:
    return "doesn't exist" in said


def _obstacle(reason: str, patience: float | None) -> Obstacle:
    return Obstacle(reason, EndCause.UNSCHEDULABLE, patience)


def _one_line(text: str) -> str:
    return " ".join(text.split())
