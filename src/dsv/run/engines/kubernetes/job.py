"""Requests to the cluster about the Job of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final

from dsv.errors import LaunchError
from dsv.run.engines.attach import asked_by
from dsv.run.engines.base import JobStatus, NoPlaceYet
from dsv.run.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.run.engines.kubernetes.capacity import (
    has_room,
    is_beyond_quota,
    refusal_of_pods,
    requests_of,
    why_evicted,
    why_not_admitted,
    workloads,
)
from dsv.run.engines.kubernetes.job_status import (
    DELETED,
    NODE_LOST,
    JobSnapshot,
    Obstacle,
    Pod,
    condition,
    one_line,
    status,
)
from dsv.run.engines.kubernetes.manifest import (
    GRACE_SECONDS,
    JOB_UID_LABEL,
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
_SILENT: Final = 12.0
"""Seconds for which a machine may say nothing of a pod that it is to start."""
_SIGNALS: Final = 8
"""Signals that the annotation of a pod holds at most."""


@dataclass(slots=True)
class KubernetesJob:
    """One Job. It remembers pods that are gone. Looking raises `Refusal`."""

    api: KubernetesApi
    namespace: str
    name: str
    uid: str
    raw: Any = None
    pods: dict[str, Pod] = field(default_factory=dict)
    _signals: list[str] = field(default_factory=list)
    _terminating: dict[str, float] = field(default_factory=dict)
    """The times at which the deletion of pods was seen."""
    _waiting: dict[str, float] = field(default_factory=dict)
    """The times at which pods were first seen to wait."""
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

    def look(self) -> JobSnapshot | None:
        """Ask the cluster for the Job and its pods. Return None if there is no such Job."""
        pods: list[Any] | Refusal
        try:
            pods = self.api.items(self.pods_path, labelSelector=f"{JOB_UID_LABEL}={self.uid}")
        except Refusal as refusal:
            pods = refusal
        found = self._get()
        if found is None:
            return None
        if isinstance(pods, Refusal):
            raise pods
        own = {each["metadata"]["uid"]: Pod(each) for each in pods}
        with self._lock:
            for uid, pod in self.pods.items():
                if uid not in own:
                    own[uid] = Pod(pod.raw, gone=True, lost=pod.lost or self._cause_of_loss(pod))
            self._mark_evicted(JobSnapshot(found), own)
            self.raw, self.pods = found, own
        return self.known()

    def known(self) -> JobSnapshot | None:
        """Return the Job as it was last seen."""
        return None if self.raw is None else JobSnapshot(self.raw, tuple(self.pods.values()))

    def latest(self) -> JobSnapshot | None:
        """Return the Job as it is now, or as it was last seen if it is gone or the cluster does not answer."""
        with suppress(Refusal):
            return self.look() or self.known()
        return self.known()

    def _get(self) -> Any | None:
        """Return the Job, None if it does not exist."""
        try:
            found = self.api.get(self.path)
        except Refusal as refusal:
            if refusal.status == 404:
                return None
            raise
        return found if found["metadata"]["uid"] == self.uid else None

    def obstacle(self, facts: JobSnapshot, autoscaling: bool = True) -> Obstacle | None:
        """Return why the job waits, in the words of its queue or of the cluster: what it can wait for least."""
        if facts.suspended:
            return None if facts.queue is None else why_not_admitted(facts.queue, self._workloads())
        waiting = [each for each in facts.last if not (each.begun or each.is_over)]
        found = [each for pod in waiting if (each := self._obstacle_of(pod, autoscaling)) is not None]
        if len(facts.last) < facts.nodes and (
            refused := refusal_of_pods(self._warnings(self.uid, reason="FailedCreate"))
        ):
            found.append(refused)
        return min(found, key=lambda each: inf if each.patience is None else each.patience, default=None)

    def _obstacle_of(self, pod: Pod, autoscaling: bool) -> Obstacle | None:
        """Return why a pod has not begun. A node that says nothing of it for a while is asked for its warnings."""
        found = pod.obstacle(autoscaling)
        since = self._waiting.setdefault(pod.uid, monotonic())
        if found is not None or pod.host is None or monotonic() - since < _SILENT:
            return found
        if warnings := self._warnings(pod.uid):
            return Obstacle(one_line(warnings[-1]), EndCause.NOT_STARTED)
        if not pod.has_no_container:
            return None
        silent = f"{pod.host} has not started any container of the pod {pod.name} yet"
        return Obstacle(silent, EndCause.NOT_STARTED)

    def _warnings(self, uid: str, **fields: str) -> list[str]:
        """Return the messages of the warnings about an object, the newest last; none if the caller may not read
        events."""
        wanted = {"involvedObject.uid": uid, "type": "Warning", **fields}
        selector = ",".join(f"{name}={value}" for name, value in wanted.items())
        try:
            events = self.api.items(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=selector)
        except Refusal:
            return []
        events.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
        return [str(each.get("message") or "") for each in events]

    def signal(self, name: str) -> bool:
        """Send a signal to the command on every node where it has begun. Return False if the cluster refuses it.

        The annotation keeps the last signals, as a pod does not see a value that was replaced before it looked.
        """
        with self._lock:
            number = f"{len(self._signals)}.{os.getpid()}.{int(monotonic() * 1000)}"
            self._signals.append(f"{number} {name}\n")
            text = "".join(self._signals[-_SIGNALS:])
            alive = [each for each in self.pods.values() if each.begun and not each.is_over]
        sent = True
        for pod in alive:
            try:
                body = {"metadata": {"annotations": {SIGNAL_KEY: text}}}
                self.api.patch(f"{self.pods_path}/{pod.name}", body)
            except Refusal as refusal:
                sent = sent and refusal.status == 404
        return sent

    def record_stop(self, how: str) -> bool:
        """Write into the Job who ended it, and let the cluster make no further attempt. The first one is recorded.
        Return False if the cluster refuses it."""
        by = None if self.raw is None else JobSnapshot(self.raw).stopped
        by = by or asked_by(how)
        body = {"metadata": {"annotations": {STOPPED_KEY: by}}, "spec": {"backoffLimit": 0}}
        with suppress(Refusal):
            self.raw = self.api.patch(self.path, body)
            return True
        return False

    def delete(self, grace: float | None = None) -> bool:
        """Delete the Job with its pods. Return False if the cluster refuses it."""
        if grace is not None:
            for pod in self.pods.values():
                if not pod.is_over:
                    with suppress(Refusal):
                        self.api.delete(f"{self.pods_path}/{pod.name}", grace)
        with suppress(Refusal):
            self.api.delete(self.path)
            return True
        return False

    def end_waiting_pods(self, facts: JobSnapshot) -> None:
        """End pods that wait for nodes that have ended, and keep the pods of those.

        A `successPolicy` would delete the pods of the other nodes with their logs, while they may still send their
        output.
        """
        if facts.waits_for_ended_nodes:
            with suppress(Refusal):
                self.api.patch(self.path, {"spec": {"activeDeadlineSeconds": 1}})

    def delete_if_never_begun(self) -> bool:
        """Delete a Job that was never resumed, for a caller who may not list pods. Return whether it was one."""
        with suppress(Refusal):
            found = self._get()
            if found is not None:
                facts, state = JobSnapshot(found), found.get("status") or {}
                began = state.get("startTime") or state.get("active")
                return facts.suspended and facts.queue is None and not began and self.delete()
        return False

    def withdraw_step(self, facts: JobSnapshot) -> bool:
        """Do a step towards the deletion of a job that seems not to have begun. Return whether it was the last one.

        The Job is suspended before it is deleted: the cluster then ends its pods as usual, and shows how the command
        ended if it had begun after all. A Job of a queue is deleted at once, as the queue would resume it. facts: from
        the last look.
        """
        quiet = facts.suspended and all(each.is_over for each in facts.pods)
        if quiet or facts.queue is not None:
            return self.delete()
        with suppress(Refusal):
            self.api.patch(self.path, {"spec": {"suspend": True}})
        return False

    def wait(self, seconds: float, *, withdraw: bool = False) -> JobStatus | None:
        """Return how the job ended, if it ends in time; `CUT_OFF` if it is gone.

        withdraw: delete it unless the command has begun, which is then `NOT_LAUNCHED`.
        """
        deadline = monotonic() + seconds
        while True:
            with suppress(Refusal):
                facts = self.look()
                if facts is None:
                    return JobStatus(RunState.CUT_OFF)
                if withdraw and not facts.begun:
                    if self.withdraw_step(facts):
                        return JobStatus(RunState.NOT_LAUNCHED)
                elif not (now := status(facts)).lives:
                    if withdraw and facts.suspended:
                        self.delete()
                    return now
            if monotonic() >= deadline:
                return None
            sleep(_PAUSE)

    def fail_lost_pods(self) -> str | None:
        """Mark terminating pods on unreachable machines as failed. Return the refusal of the cluster, if any.

        The cluster replaces a pod only after its end, which nobody reports if its machine is gone; it waits for ever.
        """
        problem = None
        for uid, pod in list(self.pods.items()):
            if not pod.is_terminating or pod.host is None:
                self._terminating.pop(uid, None)
                continue
            since = self._terminating.setdefault(uid, monotonic())
            if monotonic() - since < _DEAD or not self._is_lost(pod.host):
                continue
            body = {"status": {"phase": "Failed", "reason": NODE_LOST, "message": f"{pod.host} is lost"}}
            path = f"{self.pods_path}/{pod.name}"
            try:
                self.pods[uid] = Pod(self.api.patch(f"{path}/status", body), pod.evicted_by_queue)
                self.api.delete(path, 0)
            except Refusal as refusal:
                problem = problem if refusal.status == 404 else refusal.message
        return problem

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
                own[uid] = replace(pod, evicted_by_queue=why_evicted(self._workloads()))

    def _workloads(self) -> Sequence[Any] | Refusal:
        return workloads(self.api, self.namespace, self.uid)

    def _cause_of_loss(self, pod: Pod) -> tuple[EndCause, str] | None:
        """Return why a pod is gone of whose end the cluster has said nothing."""
        if pod.gone or pod.command_ended or pod.host is None or not pod.begun:
            return None
        lost = self._is_lost(pod.host)
        if lost is None:
            return EndCause.LOST_SIGHT, f"the cluster does not have the pod {pod.name} any more"
        return (EndCause.NODE_LOST, f"{pod.host} is lost") if lost else (EndCause.CANCELLED, DELETED)

    def _is_lost(self, host: str) -> bool | None:
        """Return whether the cluster has lost contact with a machine; None if that is not known.

        A machine that reports to be unready ends its pods itself.
        """
        try:
            node = self.api.get(f"/api/v1/nodes/{host}")
        except Refusal as refusal:
            return True if refusal.status == 404 else None
        return condition(node, "Ready", "Unknown") is not None

    def fits_no_node(self, pod: Pod) -> bool:
        """Return whether the pod asks for more than any machine of the cluster has; False if that is not known."""
        try:
            nodes = self.api.items("/api/v1/nodes")
        except Refusal:
            return False
        asked = requests_of(pod.raw)
        return bool(nodes) and not any(has_room(node, asked) for node in nodes)


def make(api: KubernetesApi, thing: Manifest, run: str) -> Any:
    """Create an object and return it, also if it exists and belongs to this run. Raise the error of the cluster."""
    kind, name = thing["kind"], thing["metadata"]["name"]
    path = api.path(_KINDS[kind])
    try:
        return api.create(path, thing)
    except Refusal as refused:
        refusal = refused
    if refusal.is_away or refusal.status == 409:  # it may exist although the answer was lost
        with suppress(Refusal):
            found = api.get(f"{path}/{name}")
            metadata = found["metadata"]
            if metadata.get("deletionTimestamp") is not None:
                raise NoPlaceYet(f"the cluster has not deleted its former {kind} {name} yet", subject=name)
            if (metadata.get("annotations") or {}).get(RUN_KEY) != run:
                taken = f"the cluster has a {kind} {name} already, which is not of this run"
                raise LaunchError(taken, subject=name)
            return found
    if is_beyond_quota(refusal.message) is not False:
        raise refusal.as_error(f"the cluster does not take the {kind} {name}", name) from refusal
    ended: list[str] = []
    if "count/jobs.batch" in refusal.message:
        with suppress(Refusal):
            jobs = map(JobSnapshot, api.items(path))
            ended = [each.name for each in jobs if each.end]
    if not ended:
        raise NoPlaceYet(refusal.message, subject=name, hint="kubectl describe resourcequota")
    kept = f"{refusal.message}; these Jobs have ended and are still kept: {', '.join(ended)}"
    raise NoPlaceYet(kept, subject=name, hint=f"kubectl delete job {' '.join(ended)}")
