"""Requests to the cluster about the Job of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final

from dsv.errors import LaunchError
from dsv.fs.process import host_name, user_name
from dsv.run.engines.base import JobStatus, NoPlaceYet
from dsv.run.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.run.engines.kubernetes.capacity import (
    ask_workloads,
    evicted_by_queue,
    is_beyond_quota,
    quantity,
    refusal,
    requests_of,
    waiting,
)
from dsv.run.engines.kubernetes.job_status import DELETED, NODE_LOST, JobSnapshot, Pod, status
from dsv.run.engines.kubernetes.options import (
    GRACE_SECONDS,
    LABEL,
    RUN_KEY,
    SIGNAL_KEY,
    STOPPED_KEY,
    Manifest,
)
from dsv.run.record import EndCause, RunState

_ID: Final = re.compile(r"([a-z0-9][a-z0-9.-]*)/([a-z0-9][a-z0-9.-]*)/([0-9a-f-]{8,64})", re.ASCII)
_DEAD: Final = GRACE_SECONDS + 15.0
"""Seconds after which a terminating pod on an unreachable machine is marked as failed."""


_KINDS: Final = {"Service": "services", "Secret": "secrets", "Job": "batch/v1/jobs"}
_PAUSE: Final = 0.3
_TRIES, _BETWEEN = 10, 1.0
"""How often a request is repeated that was refused for a moment, and the seconds between."""
_SIGNALS: Final = 8
"""Signals that the annotation of a pod holds at most."""


@dataclass(slots=True)
class KubernetesJob:
    """One Job. Remembers what was seen of pods that are gone."""

    api: KubernetesApi
    namespace: str
    name: str
    uid: str
    raw: Any = None
    pods: dict[str, Pod] = field(default_factory=dict)
    _told: list[str] = field(default_factory=list)
    _dying: dict[str, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of_id(cls, api: KubernetesApi, text: str) -> KubernetesJob | None:
        """Return None if the text is not the id of a Job."""
        found = _ID.fullmatch(text)
        return None if found is None else cls(api, found[1], found[2], found[3])

    @classmethod
    def of_object(cls, api: KubernetesApi, raw: Any) -> KubernetesJob:
        metadata = raw["metadata"]
        return cls(api, metadata["namespace"], metadata["name"], metadata["uid"])

    @property
    def id(self) -> str:
        """The id in a `JobRef`."""
        return f"{self.namespace}/{self.name}/{self.uid}"

    @property
    def path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.name}"

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def look(self) -> JobSnapshot | Refusal | None:
        """Ask the cluster for the Job and its pods. Returns None if there is no such Job; `known` has what was seen of
        it."""
        pods = self.api.items(self.pods_path, labelSelector=f"{LABEL}={self.name}")
        found = self.api.get(self.path)
        if isinstance(found, Refusal):
            return None if found.status == 404 else found
        if isinstance(pods, Refusal):
            return pods
        if found["metadata"]["uid"] != self.uid:
            return None
        own = {each["metadata"]["uid"]: Pod(each) for each in pods if self._owns(each)}
        with self._lock:
            for uid, pod in self.pods.items():
                if uid not in own:
                    own[uid] = Pod(pod.raw, gone=True, lost=pod.lost or self._cause_of_loss(pod))
            self._mark_evicted(JobSnapshot(found), own)
            self.raw, self.pods = found, own
        return self.known()

    def workloads(self) -> Sequence[Mapping[str, Any]] | Refusal:
        """Return the Workload that Kueue made for the Job."""
        return ask_workloads(self.api, self.namespace, self.uid)

    def why_queued(self, facts: JobSnapshot) -> str | None:
        """Return why the job waits, in the words of its queue or of the cluster."""
        if facts.queue is not None and facts.suspended:
            return waiting(facts.queue, self.workloads()).reason
        found = next((each for pod in facts.last if (each := pod.obstacle(True)) is not None), None)
        if found is not None or facts.last:
            return None if found is None else found.reason
        refused = refusal(self.messages())
        return None if refused is None else refused[0]

    def _mark_evicted(self, facts: JobSnapshot, own: dict[str, Pod]) -> None:
        """Mark the pods that the queue has evicted. They end with exit codes of their own, or silently."""
        for uid, pod in own.items():
            known = self.pods.get(uid)
            if known is not None and known.evicted_by_queue is not None:
                own[uid] = replace(pod, evicted_by_queue=known.evicted_by_queue)
            elif (
                facts.evicted_by_queue
                and pod.begun
                and (pod.is_terminating if known is None else not known.is_over)
            ):
                own[uid] = replace(pod, evicted_by_queue=evicted_by_queue(self.workloads()))

    def latest(self) -> JobSnapshot | None:
        """Return the Job as it is now, or as it was last seen if the cluster does not answer."""
        facts = self.look()
        return facts if isinstance(facts, JobSnapshot) else self.known()

    def known(self) -> JobSnapshot | None:
        """Return the Job as it was last seen."""
        return None if self.raw is None else JobSnapshot(self.raw, tuple(self.pods.values()))

    def messages(self) -> list[str]:
        """Return why the cluster creates no pods for the Job, in its own words; nothing if the caller may not read
        events."""
        return self._warnings(self.uid, "FailedCreate")

    def warnings_of(self, pod: Pod) -> list[str]:
        """Return the warnings about a pod that is on a node and does not start, such as a missing volume."""
        return self._warnings(pod.uid, None)

    def signal(self, name: str) -> Refusal | None:
        """Send a signal to the command on every node where it has begun. Returns the refusal of the cluster, if any.

        The annotation keeps the last signals, as a pod does not see a value that was replaced before it looked.
        """
        with self._lock:
            number = f"{len(self._told)}.{os.getpid()}.{int(monotonic() * 1000)}"
            self._told.append(f"{number} {name}\n")
            told = "".join(self._told[-_SIGNALS:])
            alive = [each for each in self.pods.values() if each.begun and not each.is_over]
        problem = None
        for pod in alive:
            body = {"metadata": {"annotations": {SIGNAL_KEY: told}}}
            answer = self.api.patch(f"{self.pods_path}/{pod.name}", body)
            if isinstance(answer, Refusal) and answer.status != 404:
                problem = answer
        return problem

    def record_stop(self, how: str) -> Refusal | None:
        """Write into the Job who ended it, and let the cluster make no further attempt. The first one is recorded."""
        said = self.raw["metadata"].get("annotations") or {} if self.raw is not None else {}
        by = said.get(STOPPED_KEY) or f"{user_name(os.geteuid())} on {host_name()} ({how})"
        body = {"metadata": {"annotations": {STOPPED_KEY: by}}, "spec": {"backoffLimit": 0}}
        answer = self.api.patch(self.path, body)
        if isinstance(answer, Refusal):
            return answer
        self.raw = answer
        return None

    def delete(self, grace: float | None = None) -> Refusal | None:
        """Delete the Job with its pods. Deleting a Job that is gone succeeds."""
        if grace is not None:
            for pod in self.pods.values():
                if not pod.is_over:
                    self.api.delete(f"{self.pods_path}/{pod.name}", grace)
        answer = self.api.delete(self.path)
        return answer if isinstance(answer, Refusal) and answer.status != 404 else None

    def end_waiting_pods(self, facts: JobSnapshot) -> None:
        """End pods that wait for nodes that have ended, and keep the pods of those.

        A `successPolicy` would delete the pods of the other nodes with their logs, while they may still send their
        output.
        """
        if facts.waits_for_ended_nodes:
            self.api.patch(self.path, {"spec": {"activeDeadlineSeconds": 1}})

    def delete_if_never_begun(self) -> bool:
        """Delete a Job that was never resumed, for a caller who may not list pods. Returns whether it was one."""
        found = self.api.get(self.path)
        if isinstance(found, Refusal) or found["metadata"]["uid"] != self.uid:
            return False
        facts, status = JobSnapshot(found), found.get("status") or {}
        began = status.get("startTime") or status.get("active")
        return facts.suspended and facts.queue is None and not began and self.delete() is None

    def withdraw_step(self, facts: JobSnapshot) -> bool:
        """Do one step towards the deletion of a job that does not seem to have begun, and return whether it was the
        last step.

        The Job is suspended before it is deleted: the cluster then ends its pods as usual, and shows how the command
        ended if it had begun after all. A Job of a queue is deleted at once, as the queue would resume it. facts: from
        the last look.
        """
        quiet = facts.suspended and all(each.is_over for each in facts.pods)
        if not quiet and facts.queue is None:
            self.api.patch(self.path, {"spec": {"suspend": True}})
            return False
        return self.delete() is None

    def wait_until_withdrawn(self, seconds: float) -> JobStatus | None:
        """Return `NOT_LAUNCHED` if the command has not begun and never will, or how it ended if it had begun."""
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            facts = self.look()
            if facts is None:
                return JobStatus(RunState.CUT_OFF)
            if isinstance(facts, JobSnapshot):
                if facts.begun:
                    over = self.wait_until_over(max(deadline - monotonic(), 0.0))
                    if over is not None and facts.suspended:
                        self.delete()
                    return over
                if self.withdraw_step(facts):
                    return JobStatus(RunState.NOT_LAUNCHED)
            sleep(_PAUSE)
        return None

    def wait_until_over(self, seconds: float) -> JobStatus | None:
        """Return how the job ended, if it ends in time; `CUT_OFF` if it is gone."""
        deadline = monotonic() + seconds
        while True:
            facts = self.look()
            if facts is None:
                return JobStatus(RunState.CUT_OFF)
            if isinstance(facts, JobSnapshot) and not (now := status(facts)).lives:
                return now
            if monotonic() >= deadline:
                return None
            sleep(_PAUSE)

    def fail_lost_pods(self) -> Refusal | None:
        """Mark terminating pods on unreachable machines as failed. Returns the refusal of the cluster, if any.

        The cluster replaces a pod only after its end, which nobody reports if its machine is gone; it waits for ever.
        """
        problem = None
        for uid, pod in list(self.pods.items()):
            if not pod.is_terminating or pod.host is None:
                self._dying.pop(uid, None)
                continue
            if monotonic() - self._dying.setdefault(uid, monotonic()) < _DEAD:
                continue
            if self._is_lost(pod.host):
                body = {"status": {"phase": "Failed", "reason": NODE_LOST, "message": f"{pod.host} is lost"}}
                answer = self.api.patch(f"{self.pods_path}/{pod.name}/status", body)
                if isinstance(answer, Refusal):
                    problem = answer if answer.status != 404 else problem
                else:
                    self.pods[uid] = Pod(answer, evicted_by_queue=pod.evicted_by_queue)
                    self.api.delete(f"{self.pods_path}/{pod.name}", 0)
        return problem

    def _cause_of_loss(self, pod: Pod) -> tuple[EndCause, str] | None:
        """Return why a pod is gone of whose end the cluster has said nothing."""
        if pod.gone or pod.command_ended or pod.host is None or not pod.begun:
            return None
        lost = self._is_lost(pod.host)
        if lost is None:
            return EndCause.LOST_SIGHT, f"the cluster does not have the pod {pod.name} any more"
        return (EndCause.NODE_LOST, f"{pod.host} is lost") if lost else (EndCause.CANCELLED, DELETED)

    def _is_lost(self, host: str) -> bool | None:
        """Return whether a machine is unreachable for the cluster; None if that is not known."""
        node = self.api.get(f"/api/v1/nodes/{host}")
        if isinstance(node, Refusal):
            return True if node.status == 404 else None
        return _is_unreachable(node)

    def fits_no_node(self, pod: Pod) -> bool:
        """Return whether the pod asks for more than any machine of the cluster has; False if that is not known."""
        nodes = self.api.items("/api/v1/nodes")
        if isinstance(nodes, Refusal) or not nodes:
            return False
        asked = requests_of(pod.raw)
        return not any(all(_has(node, name) >= asked[name] for name in asked) for node in nodes)

    def _warnings(self, uid: str, reason: str | None) -> list[str]:
        which = f"involvedObject.uid={uid},type=Warning" + (f",reason={reason}" if reason else "")
        events = self.api.items(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=which)
        if isinstance(events, Refusal):
            return []
        events.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
        return [str(each.get("message") or "") for each in events]

    def _owns(self, pod: Any) -> bool:
        return any(each.get("uid") == self.uid for each in pod["metadata"].get("ownerReferences") or ())


def make(api: KubernetesApi, thing: Manifest, run: str) -> Any:
    """Create an object and return it, also if it exists and belongs to this run. Raises the error of the cluster."""
    kind, name = thing["kind"], thing["metadata"]["name"]
    path = api.path(_KINDS[kind])
    answer = api.create(path, thing)
    for _ in range(_TRIES):
        if not (isinstance(answer, Refusal) and answer.passes):
            break
        sleep(_BETWEEN)
        answer = api.create(path, thing)
    if isinstance(answer, Refusal) and (answer.is_away or answer.status == 409):
        # the object may exist although its answer was lost
        there = api.get(f"{path}/{name}")
        if not isinstance(there, Refusal):
            if there["metadata"].get("deletionTimestamp") is not None:
                raise NoPlaceYet(f"the cluster has not deleted its former {kind} {name} yet", subject=name)
            if (there["metadata"].get("annotations") or {}).get(RUN_KEY) == run:
                return there
            raise LaunchError(
                f"the cluster has a {kind} {name} already, which is not of this run", subject=name
            )
    if isinstance(answer, Refusal):
        if is_beyond_quota(answer.message) is False:
            finished = _finished(api) if "count/jobs.batch" in answer.message else []
            kept = f"; these Jobs have ended and are still kept: {', '.join(finished)}" if finished else ""
            hint = (
                f"kubectl delete job {' '.join(finished)}" if finished else "kubectl describe resourcequota"
            )
            raise NoPlaceYet(answer.message + kept, subject=name, hint=hint)
        raise answer.error(f"the cluster does not take the {kind} {name}", name)
    return answer


def _finished(api: KubernetesApi) -> list[str]:
    """Return the names of Jobs that have ended and that a quota still counts."""
    found = api.items(api.path("batch/v1/jobs"))
    jobs = [] if isinstance(found, Refusal) else [JobSnapshot(each) for each in found]
    return [each.name for each in jobs if each.condition("Complete") or each.condition("Failed")]


def _has(node: Any, resource: str) -> float:
    """Return how much a machine has for pods. While it prepares its devices it reports 0 for them."""
    status = node.get("status") or {}
    amount = (status.get("allocatable") or {}).get(resource, "0")
    capacity = (status.get("capacity") or {}).get(resource, "0") if "/" in resource else "0"
    return max(quantity(str(amount)), quantity(str(capacity)))


def _is_unreachable(node: Any) -> bool:
    """Return whether the cluster has lost contact with a machine. A machine that reports to be unready ends its pods
    itself."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "Unknown" for each in conditions)
