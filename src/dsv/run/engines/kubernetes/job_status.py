"""The state and the end of a job on Kubernetes: computed from its Job and its pods, without requests.

A pod is one node of a run in one attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import time
from typing import Any, Final

from dsv.run.engines.base import CANNOT_LAUNCH, Ended, JobStatus, stage_facts
from dsv.run.engines.kubernetes.manifest import (
    FAILED_KEY,
    GANG_PORT,
    HOLDING,
    IGNORED_KEY,
    INDEX_KEY,
    MAIN,
    QUEUE_LABEL,
    RUN_KEY,
    STAGING,
    STOPPED_KEY,
)
from dsv.run.engines.kubernetes.pod_files import (
    CAUSES,
    TOGETHER,
    ended_with_others,
    stage_error,
    usage_of,
)
from dsv.run.record import (
    TIMED_OUT,
    EndCause,
    RunPart,
    RunState,
    Usage,
    deciding_part,
    exit_signal,
    joint_usage,
)

_DISRUPTIONS: Final = {
    "PreemptionByScheduler": EndCause.PREEMPTED,
    "PreemptionByKubeScheduler": EndCause.PREEMPTED,
    "DeletionByTaintManager": EndCause.NODE_LOST,
    "DeletionByPodGC": EndCause.NODE_LOST,
    "EvictionByEvictionAPI": EndCause.EVICTED,
    "TerminationByKubelet": EndCause.EVICTED,
}
"""Reasons of the condition DisruptionTarget."""
NODE_LOST: Final = "NodeLost"
DELETED: Final = "its pod was deleted"
_KILLED: Final = (137, 143)
_REASONS: Final = {
    "Evicted": EndCause.EVICTED,
    "NodeShutdown": EndCause.EVICTED,
    "Terminated": EndCause.EVICTED,
    "Preempting": EndCause.PREEMPTED,
    NODE_LOST: EndCause.NODE_LOST,
    "DeadlineExceeded": EndCause.TIME_LIMIT,
}
"""Reasons of the pod itself."""
_NO_IMAGE: Final = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_SURELY_NOT: Final = re.compile(
    r"not found|no such host|unauthorized|denied|forbidden|manifest unknown|couldn't parse|invalid reference",
    re.IGNORECASE,
)
_NO_START: Final = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
_UNKNOWN: Final = "ContainerStatusUnknown"
"""The kubelet's word for a container that was missing when its pod ended, and for one that never existed."""
_HINTS: Final = {
    EndCause.IMAGE_NOT_PULLED: "--image names another one; dsv config pools.NAME.kubernetes.image_pull_secrets "
    """'["SECRET"]' gives the credentials of its registry""",
    EndCause.UNSCHEDULABLE: "kubectl describe nodes shows what nodes have, their labels and their taints",
}
_NO_CLAIM: Final = re.compile(r'persistentvolumeclaim "[^"]*" (?:not found|is being deleted)')
_CUT_SHORT: Final[dict[EndCause | None, int]] = {
    EndCause.TIME_LIMIT: TIMED_OUT,
    EndCause.PREEMPTED: 143,
    EndCause.EVICTED: 143,
    EndCause.NODE_LOST: 137,
    EndCause.CANCELLED: 137,
}
"""The exit code of a command that was killed before it could report one."""


def condition(thing: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """Return the condition of this kind of an object, if it has this status."""
    for each in (thing.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind and each.get("status") == status:
            return dict(each)
    return None


def one_line(text: str) -> str:
    return " ".join(text.split())


def milliseconds(text: str | None) -> int | None:
    with suppress(ValueError):
        return int(datetime.fromisoformat(text or "").timestamp() * 1000)
    return None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason for which a pod does not start."""

    reason: str
    cause: EndCause = EndCause.UNSCHEDULABLE
    patience: float | None = None
    """Seconds after which the job ends because of it; None if it may wait for ever."""
    lacks_room: bool = False

    @property
    def hint(self) -> str | None:
        return _HINTS.get(self.cause)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the cluster describes it."""

    raw: Mapping[str, Any]
    evicted_by_queue: tuple[EndCause, str] | None = None
    """The reason for which its queue evicted it, if it did."""
    gone: bool = False
    """It was deleted, and the rest is from the last look at it."""
    lost: tuple[EndCause, str] | None = None
    """The reason for which it is gone, if nobody saw its end."""

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def host(self) -> str | None:
        name: str | None = (self.raw.get("spec") or {}).get("nodeName")
        return name

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    @property
    def number(self) -> int:
        """The number of the node, from 0."""
        return int(self.annotations.get(INDEX_KEY) or 0)

    @property
    def attempt(self) -> int:
        return sum(int(self.annotations.get(each) or 0) for each in (FAILED_KEY, IGNORED_KEY)) + 1

    @property
    def is_over(self) -> bool:
        """True if the pod has ended, or its command has succeeded and all its other containers have ended: the cluster
        says so of the pod a second later."""
        if self.is_terminated:
            return True
        succeeded = self.command_ended and self._ended.get("exitCode") == 0
        return succeeded and all("terminated" in each for each in self._states)

    @property
    def is_terminated(self) -> bool:
        """True if the cluster says that the pod has ended. Such a pod and its log stay when the Job is ended."""
        return self.gone or self._status.get("phase") in ("Succeeded", "Failed")

    @property
    def command_ended(self) -> bool:
        """True if the command has ended, though other containers of the pod may still run."""
        return "terminated" in self._state(MAIN)

    @property
    def is_terminating(self) -> bool:
        """True if the pod is being deleted and has not ended yet."""
        return not self.is_over and self._is_deleted

    @property
    def begun(self) -> bool:
        """True if the command has begun, as far as the cluster knows."""
        if not self.command_ended:
            return "running" in self._state(MAIN)
        made = any(each.get("name") == MAIN and each.get("containerID") for each in self._containers)
        return not self._never_started and (self._ended.get("reason") != _UNKNOWN or made)

    @property
    def has_no_container(self) -> bool:
        """True if no container of the pod was started yet, for instance because a volume is missing."""
        return all("waiting" in each for each in self._states)

    @property
    def stage_message(self) -> str:
        """The termination message of the container that waits for the data."""
        return (self._state(STAGING).get("terminated") or {}).get("message") or ""

    @property
    def stage_code(self) -> int | None:
        code: int | None = (self._state(STAGING).get("terminated") or {}).get("exitCode")
        return code

    def cause(self) -> tuple[EndCause | None, str | None]:
        """Return why the command ended, and a description, unless it ended by itself."""
        if self.evicted_by_queue is not None:
            return self.evicted_by_queue
        ended, word = self._ended, self._facts.get("end")
        if word in CAUSES:
            return CAUSES[word]
        if ended.get("exitCode") == 0 and self._status.get("phase") != "Failed":
            return None, None  # a drained machine evicts pods that have succeeded, too
        if (disrupted := condition(self.raw, "DisruptionTarget")) is not None:
            reason = disrupted.get("reason")
            return _DISRUPTIONS.get(str(reason), EndCause.EVICTED), disrupted.get("message") or reason
        reason = self._status.get("reason")
        if reason in _REASONS:
            return _REASONS[reason], self._status.get("message") or reason
        if word == TOGETHER:
            return EndCause.CANCELLED, ended_with_others(self._message.partition("\n")[2])
        if ended.get("reason") == "OOMKilled":
            return EndCause.OUT_OF_MEMORY, "it used more memory than it was given"
        if ended.get("exitCode") in _KILLED and self._is_deleted:
            return EndCause.CANCELLED, DELETED
        return (None, None) if ended or self.lost is None else self.lost

    def part(self) -> RunPart | None:
        """Return None if the command never began."""
        if not self.begun:
            return None
        ended = self._ended
        started = ended or self._state(MAIN).get("running") or {}
        cause, said = self.cause()
        code = None
        if self.command_ended:
            cause = cause or EndCause.EXITED
            code = int(self._facts.get("code") or ended["exitCode"])
        elif self.is_terminated:
            cause = cause or EndCause.LOST_SIGHT
            code = _CUT_SHORT.get(cause)
        else:
            cause, said = None, None
        return RunPart(
            node=self.number,
            attempt=self.attempt,
            host=self.host,
            started_ms=milliseconds(started.get("startedAt")),
            ended_ms=milliseconds(ended.get("finishedAt")),
            end=cause,
            exit_code=code,
            exit_signal=exit_signal(code),
            error=said,
            **stage_facts(self.stage_message),
        )

    def usage(self) -> Usage | None:
        return usage_of(self._facts)

    def obstacle(self, autoscaling: bool) -> Obstacle | None:
        """Return why the pod has not begun, if the cluster says so."""
        waiting = [each["waiting"] for each in self._states if "waiting" in each]
        for each in (*waiting, *([self._ended] if self._never_started else ())):
            reason = each.get("reason", "")
            message = one_line(each.get("message") or reason)
            if reason in _NO_IMAGE:
                surely = reason == "InvalidImageName" or _SURELY_NOT.search(message) is not None
                return Obstacle(message, EndCause.IMAGE_NOT_PULLED, 3.0 if surely else 120.0)
            if reason in _NO_START:
                return Obstacle(message, EndCause.NOT_STARTED, 3.0 if self.command_ended else 20.0)
        scheduled = condition(self.raw, "PodScheduled", "False") or {}
        if scheduled.get("reason") != "Unschedulable":
            return None
        message = one_line(scheduled.get("message", ""))
        if _NO_CLAIM.search(message):
            return Obstacle(message, patience=3.0)
        # A lack of room may pass. That no node matches does not, unless nodes are created on demand.
        lacks_room = "Insufficient" in message
        patience = None if lacks_room or autoscaling else 60.0
        return Obstacle(message, patience=patience, lacks_room=lacks_room)

    @property
    def _is_deleted(self) -> bool:
        return self.raw["metadata"].get("deletionTimestamp") is not None

    @property
    def _never_started(self) -> bool:
        """True if the program of the container could not be started."""
        return self._ended.get("reason") in ("StartError", "ContainerCannotRun")

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.raw.get("status") or {}

    @property
    def _containers(self) -> list[Mapping[str, Any]]:
        kinds = ("initContainerStatuses", "containerStatuses")
        return [each for kind in kinds for each in self._status.get(kind) or ()]

    @property
    def _states(self) -> list[Mapping[str, Any]]:
        return [each.get("state") or {} for each in self._containers]

    def _state(self, container: str) -> Mapping[str, Any]:
        found = (each.get("state") for each in self._containers if each.get("name") == container)
        return next(found, None) or {}

    @property
    def _ended(self) -> Mapping[str, Any]:
        """The end of the command; empty before that."""
        return self._state(MAIN).get("terminated") or {}

    @property
    def _message(self) -> str:
        return self._ended.get("message") or ""

    @property
    def _facts(self) -> dict[str, str]:
        """The facts that the script of the job's container wrote into the termination message."""
        return dict(re.findall(r"(end|memory|cpu|code)=(\S*)", self._message.partition("\n")[0]))


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A Job as the cluster describes it, with all its pods that were seen, also those that are gone."""

    raw: Mapping[str, Any]
    pods: tuple[Pod, ...] = ()

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def run(self) -> str | None:
        return self._annotations.get(RUN_KEY)

    @property
    def nodes(self) -> int:
        return int(self._spec.get("completions") or 1)

    @property
    def completed(self) -> frozenset[int]:
        """The nodes that have succeeded; `0,2-4` in the words of the cluster."""
        found: set[int] = set()
        for piece in str((self.raw.get("status") or {}).get("completedIndexes") or "").split(","):
            first, _, last = piece.partition("-")
            if first.isdecimal():
                found.update(range(int(first), int(last or first) + 1))
        return frozenset(found)

    @property
    def suspended(self) -> bool:
        return bool(self._spec.get("suspend"))

    @property
    def evicted_by_queue(self) -> bool:
        """True if its queue has suspended the job, maybe after it had begun."""
        return self.queue is not None and self.suspended and self.stopped is None

    @property
    def queue(self) -> str | None:
        return (self.raw["metadata"].get("labels") or {}).get(QUEUE_LABEL)

    @property
    def stopped(self) -> str | None:
        """The user who asked dsv to end the job."""
        return self._annotations.get(STOPPED_KEY)

    @property
    def begun(self) -> bool:
        return any(each.begun for each in self.pods)

    @property
    def last(self) -> tuple[Pod, ...]:
        """The newest pod of each node, in the order of the nodes."""
        newest = {each.number: each for each in sorted(self.pods, key=_age)}
        return tuple(newest[number] for number in sorted(newest))

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The condition with which the cluster ended the Job."""
        return condition(self.raw, "Complete") or condition(self.raw, "Failed")

    @property
    def ended_ms(self) -> int | None:
        """The time of the end of the job by the clock of the cluster, in milliseconds."""
        return milliseconds((self.end or {}).get("lastTransitionTime"))

    @property
    def may_try_again(self) -> bool:
        return int(self._spec.get("backoffLimit") or 0) > 0

    @property
    def is_gang(self) -> bool:
        """True if the nodes end together, so that a node succeeds only if all nodes do."""
        pod = (self._spec.get("template") or {}).get("spec") or {}
        holding = [each for each in pod.get("initContainers") or () if each.get("name") == HOLDING]
        return any(each.get("name") == GANG_PORT for one in holding for each in one.get("env") or ())

    @property
    def waits_for_ended_nodes(self) -> bool:
        """True if the cluster retries a node although all nodes have succeeded, so that its new pod waits for ever."""
        return not self.end and _all_nodes_succeeded(self) and not all(_succeeded(each) for each in self.last)

    @property
    def _spec(self) -> Mapping[str, Any]:
        return self.raw.get("spec") or {}

    @property
    def _annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}


def _age(pod: Pod) -> tuple[int, str]:
    return pod.attempt, str(pod.raw["metadata"].get("creationTimestamp"))


def ended(job: JobSnapshot) -> Ended | None:
    """Return how the job ended; None while it is alive."""
    last, parts = job.last, parts_of(job)
    all_over = len(last) == job.nodes and all(each.is_over for each in last)
    all_succeeded = all_over and all(_succeeded(each) for each in last)
    if condition(job.raw, "Complete") or all_succeeded or _all_nodes_succeeded(job):
        return Ended(exit_code=0, launched=True, cause=EndCause.EXITED, parts=parts, usage=_usage(last))
    failed = condition(job.raw, "Failed")
    failing = failed or condition(job.raw, "FailureTarget")
    taken = any(each.evicted_by_queue is not None for each in last)  # it had begun, and its queue evicted it
    held_back = job.suspended and job.stopped is None and not taken  # it is withdrawn, or may continue
    if not (
        failed
        or (all_over and (failing or not (job.may_try_again or held_back)))
        or (failing and all(each.is_over or each.is_terminating for each in last))
    ):
        return None
    return replace(_failed(job, parts, failing or {}), stopped=job.stopped)


def gone(job: JobSnapshot, *, killed: bool = False) -> Ended:
    """Return how a job ended that was deleted. killed: whether its pods had no time to end by themselves."""
    done = ended(replace(job, pods=tuple(replace(each, gone=True) for each in job.pods)))
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


def status(job: JobSnapshot) -> JobStatus:
    done = ended(job)
    if done is not None:
        state = RunState.ENDED if done.launched else RunState.NOT_LAUNCHED
        over_ms = job.ended_ms or max((each.ended_ms or 0 for each in done.parts), default=0)
        return JobStatus(state, done.exit_code, done, quiet_for=max(time() - over_ms / 1000, 0.0))
    if job.begun and not job.evicted_by_queue:
        return JobStatus(RunState.RUNNING)
    return JobStatus(RunState.SUBMITTED if job.suspended and job.queue is None else RunState.QUEUED)


def parts_of(job: JobSnapshot) -> tuple[RunPart, ...]:
    """Return the parts of the record. The cluster numbers attempts anew after a queue has evicted the job; the parts
    don't."""
    found: list[RunPart] = []
    for pod in sorted(job.pods, key=_age):
        if (part := pod.part()) is not None:
            before = max((each.attempt for each in found if each.node == part.node), default=0)
            found.append(replace(part, attempt=max(part.attempt, before + 1)))
    return tuple(sorted(found, key=lambda each: (each.attempt, each.node)))


def _all_nodes_succeeded(job: JobSnapshot) -> bool:
    """Return whether the command has succeeded on all nodes, although a pod may have failed.

    A pod may be killed after all nodes were done, or its machine may be lost while it sends output. The others have
    ended by then, so a new pod of that node would wait for ever. The cluster still counts a node as completed whose pod
    was removed, as draining a machine does.
    """
    done = [each for each in job.last if each.is_terminated and _succeeded(each)]
    if not job.is_gang or not (done or job.completed):
        return False
    attempt = max((each.attempt for each in done), default=None)
    running = [
        each for each in job.last
        if not each.is_over and (each.begun if attempt is None else each.attempt <= attempt)
    ]  # fmt: skip
    known = {each.number for each in job.last} | job.completed
    return condition(job.raw, "Failed") is not None or (len(known) == job.nodes and not running)


def _failed(job: JobSnapshot, parts: tuple[RunPart, ...], failed: Mapping[str, Any]) -> Ended:
    if not parts and not job.pods and (job.raw.get("status") or {}).get("failed"):
        lost = f"the cluster has no pod of the Job {job.name} any more: {failed.get('message')}"
        return Ended(exit_code=137, launched=True, reason=lost, cause=EndCause.LOST_SIGHT)
    if not parts:
        return _never_began(job, failed)
    part = deciding_part(parts) or parts[-1]
    if part.end is EndCause.CANCELLED:  # the other nodes were ended because this pod was deleted
        of_last = [each for each in parts if each.attempt == part.attempt]
        part = next((each for each in of_last if each.error == DELETED), part)
    cause = part.end or EndCause.LOST_SIGHT
    code = part.exit_code or _CUT_SHORT.get(cause, 137)
    by_itself = cause in (EndCause.EXITED, EndCause.LOST_SIGHT)
    reason = part.error
    if job.stopped is not None and (by_itself or part.error == DELETED):
        reason = f"it was cancelled by {job.stopped}"
        cause, parts = EndCause.CANCELLED, _cancelled(parts, job.stopped)
    elif cause is EndCause.CANCELLED and part.error not in (None, DELETED):
        # No node reports a failure: the others were ended because one became silent.
        cause, code = EndCause.NODE_LOST, _CUT_SHORT[EndCause.NODE_LOST]
    elif reason is None and cause is EndCause.EXITED and job.nodes > 1:
        reason = f"node {part.node} ({part.host}) failed first, with exit code {part.exit_code}"
    elif reason is None and cause is not EndCause.EXITED:
        reason = failed.get("message")
    return Ended(
        exit_code=code, launched=True, reason=reason, cause=cause, parts=parts, usage=_usage(job.last)
    )


def _cancelled(parts: tuple[RunPart, ...], by: str | None) -> tuple[RunPart, ...]:
    """Attribute what ended in the last attempt to whoever ended the job: it looks like a failure."""
    last = max((each.attempt for each in parts), default=0)
    causes = (None, EndCause.EXITED, EndCause.LOST_SIGHT)
    return tuple(
        replace(each, end=EndCause.CANCELLED, cancelled_by=by, error=None)
        if each.attempt == last and not each.succeeded and (each.end in causes or each.error == DELETED)
        else each
        for each in parts
    )


def _never_began(job: JobSnapshot, failed: Mapping[str, Any]) -> Ended:
    staged = next((each for each in job.last if each.stage_code), None)
    disrupted = next((found for pod in job.last if (found := pod.cause())[0]), None)
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
    return Ended(exit_code=code, launched=False, reason=reason, hint=hint, cause=cause)


def _succeeded(pod: Pod) -> bool:
    part = pod.part()
    return part is not None and part.succeeded


def _usage(pods: Sequence[Pod]) -> Usage | None:
    return joint_usage(found for pod in pods if (found := pod.usage()) is not None)
