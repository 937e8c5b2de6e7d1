"""The Job of a run: its state and its end, computed from the Job and its pods; and requests about it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from threading import Lock
from time import monotonic, time
from typing import Any, Final

from dsv.run.engines.attach import asked_by
from dsv.run.engines.base import CANNOT_LAUNCH, Ended, JobStatus, until_over
from dsv.run.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.run.engines.kubernetes.capacity import (
    has_room,
    refusal_of_pods,
    requests_of,
    why_evicted,
    why_not_admitted,
    workloads,
)
from dsv.run.engines.kubernetes.manifest import (
    CLOSE_SECONDS,
    GANG_PORT,
    GRACE_SECONDS,
    HOLDING,
    JOB_UID_LABEL,
    QUEUE_LABEL,
    RUN_KEY,
    SIGNAL_KEY,
    STOPPED_KEY,
)
from dsv.run.engines.kubernetes.pod import (
    CUT_SHORT,
    DELETED,
    NODE_LOST,
    Obstacle,
    Pod,
    condition,
    milliseconds,
    one_line,
    stage_error,
)
from dsv.run.part import TIMED_OUT, EndCause, RunPart, deciding_part
from dsv.run.record import JobUsage, RunState, joint_usage


class JobSnapshot:
    """A Job as the cluster describes it, with all pods that were seen, including those that are gone."""

    def __init__(self, raw: Mapping[str, Any], pods: Sequence[Pod] = ()) -> None:
        self.raw, self.pods = raw, pods
        metadata, spec, self.status = (raw.get(each) or {} for each in ("metadata", "spec", "status"))
        annotations = metadata.get("annotations") or {}
        self.name = str(metadata.get("name"))
        self.run: str | None = annotations.get(RUN_KEY)
        self.queue: str | None = (metadata.get("labels") or {}).get(QUEUE_LABEL)
        self.stopped: str | None = annotations.get(STOPPED_KEY)
        """The user who asked dsv to end the job."""
        self.suspended = bool(spec.get("suspend"))
        self.evicted_by_queue = self.queue is not None and self.suspended and self.stopped is None
        """Its queue has suspended the job, maybe after it had begun."""
        self.may_try_again = int(spec.get("backoffLimit") or 0) > 0
        self.nodes = int(spec.get("completions") or 1)
        init = ((spec.get("template") or {}).get("spec") or {}).get("initContainers") or ()
        holding = [each.get("env") or () for each in init if each.get("name") == HOLDING]
        variables = {each.get("name"): each.get("value") for env in holding for each in env}
        self.is_gang = GANG_PORT in variables
        """The nodes end together, so that a node succeeds only if all nodes do."""
        self.sends_output = int(variables.get(CLOSE_SECONDS) or 0) > GRACE_SECONDS
        """Its pods send the output to the store after the command."""
        self.failed = condition(raw, "Failed")
        self.end = condition(raw, "Complete") or self.failed
        """The condition with which the cluster ended the Job."""
        self.ended_ms = milliseconds((self.end or {}).get("lastTransitionTime"))
        """By the clock of the cluster."""
        self.begun = any(each.begun for each in pods)
        newest = {each.number: each for each in sorted(pods, key=lambda each: each.age)}
        self.last = tuple(newest[number] for number in sorted(newest))
        """The newest pod of each node, in the order of the nodes."""

    @property
    def completed(self) -> frozenset[int]:
        """The nodes that have succeeded; `0,2-4` in the words of the cluster."""
        found: set[int] = set()
        for piece in str(self.status.get("completedIndexes") or "").split(","):
            first, _, last = piece.partition("-")
            if first.isdecimal():
                found.update(range(int(first), int(last or first) + 1))
        return frozenset(found)


def waits_for_ended_nodes(job: JobSnapshot) -> bool:
    """Return whether the cluster retries a node although all have succeeded, so that its new pod waits for ever."""
    return not job.end and _all_nodes_succeeded(job) and not all(each.succeeded for each in job.last)


def ended(job: JobSnapshot) -> Ended | None:
    """Return how the job ended; None while it is alive."""
    last, parts = job.last, parts_of(job)
    all_over = len(last) == job.nodes and all(
        each.is_over if job.sends_output else each.is_decided for each in last
    )
    all_succeeded = all_over and all(each.succeeded for each in last)
    if condition(job.raw, "Complete") or all_succeeded or _all_nodes_succeeded(job):
        return Ended(exit_code=0, launched=True, cause=EndCause.EXITED, parts=parts, usage=_usage(last))
    failing = job.failed or condition(job.raw, "FailureTarget")
    taken = any(each.evicted_by_queue is not None for each in last)  # it had begun, and its queue evicted it
    held_back = job.suspended and job.stopped is None and not taken  # it is withdrawn, or may continue
    if not (
        job.failed
        or (all_over and (failing or not (job.may_try_again or held_back)))
        or (failing and all(each.is_over or each.is_terminating for each in last))
    ):
        return None
    return replace(_failed(job, parts, failing or {}), stopped=job.stopped)


def gone(job: JobSnapshot, *, killed: bool = False) -> Ended:
    """Return how a job ended that was deleted. killed: whether its pods had no time to end by themselves."""
    done = ended(JobSnapshot(job.raw, [each.but(gone=True) for each in job.pods]))
    if done is not None and done.exit_code == 0:
        return done
    last = deciding_part(done.parts) if done is not None else None
    code = last.exit_code if last is not None else None
    by = f" by {job.stopped}" if job.stopped else ""
    return Ended(
        exit_code=code or ((137 if killed else 143) if job.begun else CANNOT_LAUNCH),
        launched=job.begun,
        reason=f"it was cancelled{by}: the Job {job.name} was deleted",
        cause=EndCause.CANCELLED,
        parts=_cancelled(parts_of(job), job.stopped),
        stopped=job.stopped,
    )


def deleted(name: str) -> Ended:
    """Return how a job ended that is not there any more, and that nobody watched. Only its deletion is known."""
    reason = f"it was cancelled: the Job {name} was deleted"
    return Ended(
        exit_code=CUT_SHORT[EndCause.CANCELLED], launched=True, reason=reason, cause=EndCause.CANCELLED
    )


def status_of(done: Ended, idle_seconds: float = inf) -> JobStatus:
    state = RunState.ENDED if done.launched else RunState.NOT_LAUNCHED
    return JobStatus(state, done.exit_code, done, idle_seconds=idle_seconds)


def status(job: JobSnapshot) -> JobStatus:
    done = ended(job)
    if done is not None:
        over_ms = job.ended_ms or max((each.ended_ms or 0 for each in done.parts), default=0)
        return status_of(done, max(time() - over_ms / 1000, 0.0))
    if job.begun and not job.evicted_by_queue:
        return JobStatus(RunState.RUNNING)
    return JobStatus(RunState.SUBMITTED if job.suspended and job.queue is None else RunState.QUEUED)


def parts_of(job: JobSnapshot) -> tuple[RunPart, ...]:
    """Return the parts of the record. Attempts are numbered on after a queue has evicted the job, although
    the cluster begins with 1 again."""
    parts: list[RunPart] = []
    for pod in sorted(job.pods, key=lambda each: each.age):
        if (part := pod.part) is not None:
            before = max((each.attempt for each in parts if each.node == part.node), default=0)
            parts.append(replace(part, attempt=max(part.attempt, before + 1)))
    return tuple(sorted(parts, key=lambda each: (each.attempt, each.node)))


def _all_nodes_succeeded(job: JobSnapshot) -> bool:
    """Return whether the command has succeeded on all nodes, although a pod may have failed.

    A pod may be killed after all nodes were done, or its machine lost while it sends output. The other pods
    have ended, so a new pod of that node would wait for ever. The cluster still counts a node as completed if
    its pod was removed, as when a machine is drained.
    """
    done = [each for each in job.last if each.is_terminated and each.succeeded]
    if not job.is_gang or not (done or job.completed):
        return False
    attempt = max((each.attempt for each in done), default=None)
    running = [
        each for each in job.last
        if not each.is_over and (each.begun if attempt is None else each.attempt <= attempt)
    ]  # fmt: skip
    known = {each.number for each in job.last} | job.completed
    return job.failed is not None or (len(known) == job.nodes and not running)


def _failed(job: JobSnapshot, parts: tuple[RunPart, ...], failed: Mapping[str, Any]) -> Ended:
    if not parts and not job.pods and job.status.get("failed"):
        lost = f"the cluster has no pod of the Job {job.name} any more: {failed.get('message')}"
        return Ended(exit_code=137, launched=True, reason=lost, cause=EndCause.LOST_SIGHT)
    if not parts:
        return _never_began(job, failed)
    part = deciding_part(parts) or parts[-1]
    if part.end is EndCause.CANCELLED:  # the other nodes were ended because this pod was deleted
        of_last = [each for each in parts if each.attempt == part.attempt]
        part = next((each for each in of_last if each.error == DELETED), part)
    cause = part.end or EndCause.LOST_SIGHT
    code = part.exit_code or CUT_SHORT.get(cause, 137)
    by_itself = cause in (EndCause.EXITED, EndCause.LOST_SIGHT)
    reason = part.error
    if job.stopped is not None and (by_itself or part.error == DELETED):
        reason = f"it was cancelled by {job.stopped}"
        cause, parts = EndCause.CANCELLED, _cancelled(parts, job.stopped)
    elif cause is EndCause.CANCELLED and part.error not in (None, DELETED):
        # No node reports a failure: the others were ended because one became silent.
        cause, code = EndCause.NODE_LOST, CUT_SHORT[EndCause.NODE_LOST]
    elif reason is None and cause is EndCause.EXITED and job.nodes > 1:
        reason = f"node {part.node} ({part.host}) failed first, with exit code {part.exit_code}"
    elif reason is None and cause is not EndCause.EXITED:
        reason = failed.get("message")
    launched = cause is not EndCause.NOT_STARTED
    return Ended(
        exit_code=code, launched=launched, reason=reason, cause=cause, parts=parts, usage=_usage(job.last)
    )


def _cancelled(parts: tuple[RunPart, ...], by: str | None) -> tuple[RunPart, ...]:
    """Mark failed parts of the last attempt as cancelled by this user: they only look like failures."""
    last = max((each.attempt for each in parts), default=0)
    causes = (None, EndCause.EXITED, EndCause.LOST_SIGHT, EndCause.CANCELLED)
    return tuple(
        replace(each, end=EndCause.CANCELLED, cancelled_by=by, error=None)
        if each.attempt == last and not each.succeeded and each.end in causes
        else each
        for each in parts
    )


def _never_began(job: JobSnapshot, failed: Mapping[str, Any]) -> Ended:
    staged = next((each for each in job.last if each.stage_code), None)
    disrupted = next((cause_of_loss for pod in job.last if (cause_of_loss := pod.cause())[0]), None)
    obstacle = next((each for pod in job.last if (each := pod.obstacle(False))), None)
    cause, reason, hint = EndCause.NOT_STARTED, failed.get("message"), None
    if job.stopped is not None:
        cause, reason = EndCause.CANCELLED, f"it was cancelled by {job.stopped}"
    elif staged is not None:
        reason, hint = stage_error(staged.stage_message)
        reason = reason or f"dsv ended with {staged.stage_code}"
    elif disrupted is not None:
        cause, reason = disrupted[0] or cause, disrupted[1]
    elif obstacle is not None:
        cause, reason, hint = obstacle.cause, obstacle.reason, obstacle.hint
    code = TIMED_OUT if cause is EndCause.TIME_LIMIT else CANNOT_LAUNCH
    return Ended(exit_code=code, reason=reason, hint=hint, cause=cause)


def _usage(pods: Sequence[Pod]) -> JobUsage | None:
    return joint_usage(each.usage for each in pods if each.usage is not None)


_ID: Final = re.compile(r"([a-z0-9][a-z0-9.-]*)/([a-z0-9][a-z0-9.-]*)/([0-9a-f-]{8,64})", re.ASCII)
_DEAD: Final = GRACE_SECONDS + 15.0
"""Seconds after which a terminating pod on an unreachable machine is marked as failed."""
_SILENT: Final = 12.0
"""Seconds for which a machine may report nothing about a pod that it is to start."""
_SIGNALS: Final = 8
"""Signals that the annotation of a pod holds at most."""
_INFORMING: Final = ("USR1", "USR2")


class KubernetesJob:
    """One Job. It remembers pods that are gone. Looking raises `Refusal`."""

    def __init__(
        self, api: KubernetesApi, namespace: str, name: str, uid: str, pods: Mapping[str, Pod] | None = None
    ) -> None:
        self.api, self.namespace, self.name, self.uid = api, namespace, name, uid
        self.id = f"{namespace}/{name}/{uid}"
        """In a `JobRef`."""
        self.path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.raw: Any = None
        self.pods = dict(pods or {})
        self._signals: list[tuple[str, str, frozenset[str] | None]] = []
        """The name of each signal, its line, and the pods that get it; None for all, also of later attempts."""
        self._given: dict[str, int] = {}
        """How many of the signals each pod has."""
        self._terminating: dict[str, float] = {}
        """When the deletion of each pod was first seen."""
        self._waiting: dict[str, float] = {}
        """When each pod was first seen to wait."""
        self._lock = Lock()
        self._looking = Lock()
        """Held while the cluster is asked: with an older listing, a pod of a newer one would seem to be gone."""

    @classmethod
    def of_id(cls, api: KubernetesApi, text: str) -> KubernetesJob | None:
        """Return None if the text is not the id of a Job."""
        found = _ID.fullmatch(text)
        return None if found is None else cls(api, found[1], found[2], found[3])

    @classmethod
    def of_object(cls, api: KubernetesApi, raw: Any) -> KubernetesJob:
        metadata = raw["metadata"]
        return cls(api, metadata["namespace"], metadata["name"], metadata["uid"])

    def missing(self, is_same_cluster: bool) -> str:
        """Return the sentence for a cluster that does not have the Job."""
        if is_same_cluster:
            return f"the cluster has no Job {self.name} any more"
        return f"the cluster that answers now is another one than the one with the Job {self.name}"

    def look(self) -> JobSnapshot | None:
        """Ask the cluster for the Job and its pods. Return None if there is no such Job."""
        with self._looking:
            return self._look()

    def _look(self) -> JobSnapshot | None:
        pods: list[Any] | Refusal
        try:
            pods = self.api.items(self.pods_path, labelSelector=f"{JOB_UID_LABEL}={self.uid}")
        except Refusal as refusal:
            pods = refusal
        raw = self._get()
        if raw is None:
            return None
        if isinstance(pods, Refusal):
            raise pods
        own = {item["metadata"]["uid"]: Pod(item) for item in pods}
        with self._lock:
            for uid, pod in self.pods.items():
                if uid not in own:
                    own[uid] = Pod(pod.raw, gone=True, lost=pod.lost or self._cause_of_loss(pod))
            self._mark_evicted(JobSnapshot(raw), own)
            self.raw, self.pods = raw, own
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
        """Return why the job waits, in words of its queue or cluster: the reason with the least patience."""
        if facts.suspended:
            return None if facts.queue is None else why_not_admitted(facts.queue, self._workloads())
        waiting = [each for each in facts.last if not (each.begun or each.is_over)]
        obstacles = [each for pod in waiting if (each := self._obstacle_of(pod, autoscaling)) is not None]
        if len(facts.last) < facts.nodes and (
            refused := refusal_of_pods(self._warnings(self.uid, reason="FailedCreate"))
        ):
            obstacles.append(refused)
        return min(obstacles, key=lambda each: inf if each.patience is None else each.patience, default=None)

    def _obstacle_of(self, pod: Pod, autoscaling: bool) -> Obstacle | None:
        """Return why a pod has not begun. After a while without a report, read the warnings about it."""
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
        """Return the warnings about an object, newest last; none if the caller may not read events."""
        wanted = {"involvedObject.uid": uid, "type": "Warning", **fields}
        selector = ",".join(f"{name}={value}" for name, value in wanted.items())
        try:
            events = self.api.items(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=selector)
        except Refusal:
            return []
        events.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
        return [str(each.get("message") or "") for each in events]

    def resume(self, queue: str | None) -> None:
        """Let the job begin: once its queue admits it, if it has one. Raises `Refusal`."""
        labels = {"metadata": {"labels": {QUEUE_LABEL: queue}}}
        self.raw = self.api.patch(self.path, {"spec": {"suspend": False}} if queue is None else labels)

    def signal(self, name: str, *, again: bool = False) -> bool:
        """Send a signal to the command on every node where it has begun, and by `pass_on` to those where it
        begins later; but USR1 and USR2 would end a command that has just begun. Return False if the cluster
        refuses it, or shows no such node. again: it may be among the signals, under its number, already"""
        with self._lock:
            alive = self._alive()
            informs = name in _INFORMING
            if informs and not alive:
                return True
            if not again or all(each != name for each, _, _ in self._signals):
                number = f"{len(self._signals)}.{os.getpid()}.{int(monotonic() * 1000)}"
                only = frozenset(each.uid for each in alive) if informs else None
                self._signals.append((name, f"{number} {name}\n", only))
        return self.pass_on() and bool(alive)

    def pass_on(self) -> bool:
        """Give each pod whose command runs the signals that it lacks. Return False if the cluster refuses it.
        The annotation keeps the last signals, because a pod misses a value that is replaced too soon."""
        with self._lock:
            count, lacking = len(self._signals), []
            for pod in self._alive():
                lines = [line for _, line, only in self._signals if only is None or pod.uid in only]
                if lines and self._given.get(pod.uid, 0) < count:
                    lacking.append((pod, "".join(lines[-_SIGNALS:])))
        refused = False
        for pod, text in lacking:
            try:
                self.api.patch(
                    f"{self.pods_path}/{pod.name}", {"metadata": {"annotations": {SIGNAL_KEY: text}}}
                )
                self._given[pod.uid] = count
            except Refusal as refusal:
                refused = refused or refusal.status != 404
        return not refused

    def _alive(self) -> list[Pod]:
        return [each for each in self.pods.values() if each.begun and not each.is_over]

    def record_stop(self, how: str) -> bool:
        """Record in the Job who ended it, and prevent further attempts. The first record counts. Return False
        if the cluster refuses it."""
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
        """End pods that wait for ended nodes, and keep the pods of those. A `successPolicy` would delete pods
        with their logs, while they may still send their output."""
        if waits_for_ended_nodes(facts):
            with suppress(Refusal):
                self.api.patch(self.path, {"spec": {"activeDeadlineSeconds": 1}})

    def withdraw_step(self, facts: JobSnapshot) -> bool:
        """Do a step to delete a job that seems not to have begun. Return whether it was the last one.

        The Job is first suspended: the cluster then ends its pods as usual, and shows how the command ended
        if it had begun. A Job of a queue is deleted at once, or its queue would resume it.
        """
        is_idle = facts.suspended and all(each.is_over for each in facts.pods)
        if is_idle or facts.queue is not None:
            return self.delete()
        with suppress(Refusal):
            self.api.patch(self.path, {"spec": {"suspend": True}})
        return False

    def wait(self, seconds: float, *, withdraw: bool = False) -> JobStatus | None:
        """Return how the job ended, if it ends in time. Pass signals on to
        commands that begin meanwhile. withdraw: delete it unless the command has begun; it is then `NOT_LAUNCHED`"""
        return until_over(lambda: self._state(withdraw), seconds)

    def _state(self, withdraw: bool) -> JobStatus | None:
        try:
            facts = self.look()
        except Refusal:
            return None
        if facts is None:
            known = self.known()
            return JobStatus(RunState.CUT_OFF) if known is None else status_of(gone(known))
        if withdraw and not facts.begun:
            return status_of(gone(facts)) if self.withdraw_step(facts) else None
        now = status(facts)
        if withdraw and facts.suspended and not now.lives:
            self.delete()
        if now.lives:
            self.pass_on()
        return now

    def fail_lost_pods(self) -> str | None:
        """Mark terminating pods on unreachable machines as failed, because the cluster would wait for ever
        for their end before it replaces them. Return the refusal of the cluster, if any."""
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
                self.pods[uid] = Pod(
                    self.api.patch(f"{path}/status", body), evicted_by_queue=pod.evicted_by_queue
                )
                self.api.delete(path, 0)
            except Refusal as refusal:
                problem = problem if refusal.status == 404 else refusal.message
        return problem

    def _mark_evicted(self, facts: JobSnapshot, own: dict[str, Pod]) -> None:
        """Mark the pods that the queue has evicted. They end with exit codes of their own, or silently."""
        for uid, pod in own.items():
            known = self.pods.get(uid)
            if known is not None and known.evicted_by_queue is not None:
                own[uid] = pod.but(evicted_by_queue=known.evicted_by_queue)
            elif (
                facts.evicted_by_queue
                and pod.begun
                and (pod.is_terminating if known is None else not known.is_over)
            ):
                own[uid] = pod.but(evicted_by_queue=why_evicted(self._workloads()))

    def _workloads(self) -> Sequence[Any] | Refusal:
        return workloads(self.api, self.namespace, self.uid)

    def _cause_of_loss(self, pod: Pod) -> tuple[EndCause, str] | None:
        """Return why a pod is gone, if the cluster did not report its end."""
        if pod.gone or pod.command_ended or pod.host is None or not pod.begun:
            return None
        lost = self._is_lost(pod.host)
        if lost is None:
            return EndCause.LOST_SIGHT, f"the cluster does not have the pod {pod.name} any more"
        return (EndCause.NODE_LOST, f"{pod.host} is lost") if lost else (EndCause.CANCELLED, DELETED)

    def _is_lost(self, host: str) -> bool | None:
        """Return whether the cluster has lost contact with a machine; None if that is not known. A machine
        that reports to be unready ends its pods itself."""
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
