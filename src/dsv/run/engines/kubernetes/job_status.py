"""How a job on Kubernetes is and how it ended: computed from its Job and its pods, without requests.

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
from dsv.run.engines.kubernetes.options import (
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
    error_hint,
    error_message,
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


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod does not start.

    patience is the number of seconds after which the job ends because of it; None if it may wait for ever.
    """

    reason: str
    cause: EndCause
    patience: float | None
    lacks_room: bool = False

    @property
    def hint(self) -> str | None:
        """What the user can do about it."""
        return _HINTS.get(self.cause)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the cluster describes it.

    gone: it was deleted, and this is how it was last seen. lost: why it is gone, if nobody saw its end.
    evicted_by_queue: why its queue evicted it, if it did.
    """

    raw: Mapping[str, Any]
    gone: bool = False
    evicted_by_queue: tuple[EndCause, str] | None = None
    lost: tuple[EndCause, str] | None = None

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
    def number(self) -> int:
        """The number of the node, from 0."""
        return _number(self.annotations.get(INDEX_KEY))

    @property
    def attempt(self) -> int:
        return _number(self.annotations.get(FAILED_KEY)) + _number(self.annotations.get(IGNORED_KEY)) + 1

    @property
    def is_over(self) -> bool:
        return self.is_terminated or self._has_succeeded

    @property
    def is_terminated(self) -> bool:
        """Whether the cluster says that the pod has ended. Such a pod and its log stay when the Job is ended."""
        return self.gone or self._status.get("phase") in ("Succeeded", "Failed")

    @property
    def _has_succeeded(self) -> bool:
        """Whether the command has succeeded and all other containers have ended. The cluster says so of the pod a
        second later."""
        ended = self._ended()
        if ended is None or ended.get("exitCode") != 0:
            return False
        return all("terminated" in each for each in self._states)

    @property
    def command_ended(self) -> bool:
        """Whether the command has ended, though other containers of the pod may still run."""
        return self._ended() is not None

    @property
    def is_terminating(self) -> bool:
        """Whether the pod is being deleted and has not ended yet."""
        return not self.is_over and self.raw["metadata"].get("deletionTimestamp") is not None

    @property
    def begun(self) -> bool:
        """Whether the command has begun, as far as the cluster knows."""
        ended = self._ended()
        if ended is None:
            return "running" in self._state(MAIN)
        return not (_never_started(ended) or (ended.get("reason") == _UNKNOWN and not self._made()))

    @property
    def has_no_container(self) -> bool:
        """Whether no container of the pod was started yet, for instance because a volume is missing."""
        return all("waiting" in each for each in self._states)

    @property
    def stage_message(self) -> str | None:
        """The termination message of the container that waits for the data."""
        ended = self._state(STAGING, "initContainerStatuses").get("terminated") or {}
        return ended.get("message")

    @property
    def stage_code(self) -> int | None:
        ended = self._state(STAGING, "initContainerStatuses").get("terminated")
        return None if ended is None else ended.get("exitCode")

    def cause(self) -> tuple[EndCause | None, str | None]:
        """Return why the command ended, and a description, unless it ended by itself."""
        if self.evicted_by_queue is not None:
            return self.evicted_by_queue
        told = self._told().get("end")
        if told in CAUSES:
            return CAUSES[told]
        if (self._ended() or {}).get("exitCode") == 0 and self._status.get("phase") != "Failed":
            return None, None  # a drained machine evicts pods that have succeeded, too
        for each in self._status.get("conditions") or ():
            if each.get("type") == "DisruptionTarget" and each.get("status") == "True":
                cause = _DISRUPTIONS.get(each.get("reason"), EndCause.EVICTED)
                return cause, each.get("message") or each.get("reason")
        reason = self._status.get("reason")
        if reason in _REASONS:
            return _REASONS[reason], self._status.get("message") or reason
        if told == TOGETHER:
            _, _, reason = self._message.partition("\n")
            return EndCause.CANCELLED, ended_with_others(reason)
        ended = self._ended() or {}
        if ended.get("reason") == "OOMKilled":
            return EndCause.OUT_OF_MEMORY, "it used more memory than it was given"
        if ended.get("exitCode") in _KILLED and self.raw["metadata"].get("deletionTimestamp") is not None:
            return EndCause.CANCELLED, DELETED
        return (None, None) if ended or self.lost is None else self.lost

    def part(self) -> RunPart | None:
        """Return None if the command never began."""
        ended = self._ended()
        if not self.begun:
            return None
        state = ended or self._state(MAIN).get("running") or {}
        cause, said = self.cause()
        code = None if ended is None else int(self._told().get("code") or ended["exitCode"])
        if ended is None and self.is_terminated:
            cause = cause or EndCause.LOST_SIGHT
            code = _CUT_SHORT.get(cause)
        if ended is None and not self.is_terminated:
            cause, said = None, None
        elif cause is None:
            cause = EndCause.EXITED
        return RunPart(
            node=self.number,
            attempt=self.attempt,
            host=self.host,
            started_ms=milliseconds(state.get("startedAt")),
            ended_ms=None if ended is None else milliseconds(ended.get("finishedAt")),
            end=cause,
            exit_code=code,
            exit_signal=exit_signal(code),
            error=said,
            **stage_facts(self.stage_message or ""),
        )

    def usage(self) -> Usage | None:
        return usage_of(self._told())

    def obstacle(self, autoscaling: bool) -> Obstacle | None:
        """Return why the pod has not begun, if the cluster says so."""
        waiting = [each["waiting"] for each in self._states if "waiting" in each]
        ended = self._ended()
        if ended is not None and _never_started(ended):
            waiting.append(ended)
        for each in waiting:
            reason, message = each.get("reason", ""), one_line(each.get("message") or each.get("reason", ""))
            if reason in _NO_IMAGE:
                surely = reason == "InvalidImageName" or _SURELY_NOT.search(message) is not None
                return Obstacle(message, EndCause.IMAGE_NOT_PULLED, 3.0 if surely else 120.0)
            if reason in _NO_START:
                return Obstacle(message, EndCause.NOT_STARTED, 3.0 if ended is not None else 20.0)
        for each in self._status.get("conditions") or ():
            if each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable":
                return _unschedulable(one_line(each.get("message", "")), autoscaling)
        return None

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.raw.get("status") or {}

    @property
    def _states(self) -> list[Mapping[str, Any]]:
        """The states of all containers."""
        kinds = ("initContainerStatuses", "containerStatuses")
        return [each.get("state") or {} for kind in kinds for each in self._status.get(kind) or ()]

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    def _state(self, container: str, kind: str = "containerStatuses") -> Mapping[str, Any]:
        found = [each for each in self._status.get(kind) or () if each.get("name") == container]
        return (found[0].get("state") or {}) if found else {}

    def _made(self) -> bool:
        """Return whether the job's container was ever created."""
        statuses = self._status.get("containerStatuses") or ()
        return any(each.get("name") == MAIN and each.get("containerID") for each in statuses)

    def _ended(self) -> Mapping[str, Any] | None:
        return self._state(MAIN).get("terminated")

    def _told(self) -> dict[str, str]:
        """What the script of the job's container wrote into the termination message."""
        return dict(re.findall(r"(end|memory|cpu|code)=(\S*)", self._message.partition("\n")[0]))

    @property
    def _message(self) -> str:
        return (self._ended() or {}).get("message") or ""


def _unschedulable(message: str, autoscaling: bool) -> Obstacle:
    """A lack of room may pass. That no node matches does not, unless nodes are created on demand."""
    if _NO_CLAIM.search(message):
        return Obstacle(message, EndCause.UNSCHEDULABLE, 3.0)
    lacks_room = "Insufficient" in message
    lasting = not lacks_room and not autoscaling
    return Obstacle(message, EndCause.UNSCHEDULABLE, 60.0 if lasting else None, lacks_room)


def _never_started(ended: Mapping[str, Any]) -> bool:
    """Return whether the program of the container could not be started."""
    return ended.get("reason") in ("StartError", "ContainerCannotRun")


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def milliseconds(text: str | None) -> int | None:
    with suppress(ValueError):
        return int(datetime.fromisoformat(text or "").timestamp() * 1000)
    return None


def one_line(text: str) -> str:
    return " ".join(text.split())


_CUT_SHORT: Final[dict[EndCause | None, int]] = {
    EndCause.TIME_LIMIT: TIMED_OUT,
    EndCause.PREEMPTED: 143,
    EndCause.EVICTED: 143,
    EndCause.NODE_LOST: 137,
    EndCause.CANCELLED: 137,
}
"""The exit code of a command that was killed before it could report one."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A Job as the cluster describes it, with all its pods that were seen, also those that are gone."""

    raw: Mapping[str, Any]
    pods: tuple[Pod, ...] = ()

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

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
        """Whether its queue has suspended the job, maybe after it had begun."""
        return self.queue is not None and self.suspended and self.stopped is None

    @property
    def queue(self) -> str | None:
        return (self.raw["metadata"].get("labels") or {}).get(QUEUE_LABEL)

    @property
    def stopped(self) -> str | None:
        """Who asked dsv to end the job."""
        return self._annotations.get(STOPPED_KEY)

    @property
    def begun(self) -> bool:
        return any(each.begun for each in self.pods)

    @property
    def last(self) -> tuple[Pod, ...]:
        """The newest pod of each node, in the order of the nodes."""
        newest: dict[int, Pod] = {}
        for each in sorted(self.pods, key=_age):
            newest[each.number] = each
        return tuple(newest[number] for number in sorted(newest))

    def condition(self, kind: str) -> Mapping[str, Any] | None:
        for each in (self.raw.get("status") or {}).get("conditions") or ():
            if each.get("type") == kind and each.get("status") == "True":
                return dict(each)
        return None

    @property
    def over_at(self) -> int:
        """When the job ended, in milliseconds: by the clock of the cluster, else by the clocks of its nodes."""
        seen = [part.ended_ms for each in self.pods if (part := each.part()) and part.ended_ms]
        return self.condition_ms or max(seen, default=0)

    @property
    def condition_ms(self) -> int | None:
        """When the cluster saw the end of the job, in milliseconds."""
        found = self.condition("Complete") or self.condition("Failed") or {}
        return milliseconds(found.get("lastTransitionTime"))

    @property
    def may_try_again(self) -> bool:
        return int(self._spec.get("backoffLimit") or 0) > 0

    @property
    def is_gang(self) -> bool:
        """Whether the nodes end together, so that a node succeeds only if all nodes do."""
        pod = (self._spec.get("template") or {}).get("spec") or {}
        holding = [each for each in pod.get("initContainers") or () if each.get("name") == HOLDING]
        return any(each.get("name") == GANG_PORT for one in holding for each in one.get("env") or ())

    @property
    def waits_for_ended_nodes(self) -> bool:
        """Whether the cluster retries a node although all nodes have succeeded, so that its new pod waits for ever."""
        over = self.condition("Complete") or self.condition("Failed")
        return not over and _all_nodes_succeeded(self) and not all(_succeeded(each) for each in self.last)

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
    last = job.last
    failed = job.condition("Failed") or job.condition("FailureTarget")
    all_over = len(last) == job.nodes and all(each.is_over for each in last)
    parts = parts_of(job)
    if (
        job.condition("Complete")
        or (all_over and all(_succeeded(each) for each in last))
        or _all_nodes_succeeded(job)
    ):
        return Ended(exit_code=0, launched=True, cause=EndCause.EXITED, parts=parts, usage=_usage(last))
    taken = any(each.evicted_by_queue is not None for each in last)  # it had begun, and its queue evicted it
    held_back = (
        job.suspended and job.stopped is None and not taken
    )  # it is being withdrawn, or it may continue
    over = job.condition("Failed") is not None or (
        (failed is not None or not (job.may_try_again or held_back)) and all_over
    ) or (failed is not None and all(each.is_over or each.is_terminating for each in last))  # fmt: skip
    return replace(_failed(job, parts, failed or {}), stopped=job.stopped) if over else None


def gone(job: JobSnapshot, *, killed: bool = False) -> Ended:
    """Return how a job ended that was deleted. killed: whether its pods had no time to end by themselves."""
    done = ended(replace(job, pods=tuple(replace(each, gone=True) for each in job.pods)))
    if done is not None and done.exit_code == 0:
        return done
    by = f" by {job.stopped}" if job.stopped else ""
    reason = f"it was cancelled{by}: the Job {job.name} was deleted"
    code = next((each.exit_code for each in (done.parts if done else ()) if each.exit_code), None)
    parts = _cancelled(parts_of(job), job.stopped)
    return Ended(
        exit_code=code or ((137 if killed else 143) if job.begun else CANNOT_LAUNCH),
        launched=job.begun, reason=reason,
        cause=EndCause.CANCELLED, parts=parts, stopped=job.stopped,
    )  # fmt: skip


def status(job: JobSnapshot) -> JobStatus:
    done = ended(job)
    if done is not None:
        state = RunState.ENDED if done.launched else RunState.NOT_LAUNCHED
        return JobStatus(state, done.exit_code, done, quiet_for=max(time() - job.over_at / 1000, 0.0))
    if job.begun and not job.evicted_by_queue:
        return JobStatus(RunState.RUNNING)
    return JobStatus(RunState.SUBMITTED if job.suspended and job.queue is None else RunState.QUEUED)


def parts_of(job: JobSnapshot) -> tuple[RunPart, ...]:
    """Return the parts of the record. The cluster numbers attempts anew after a queue has evicted the job; the parts
    don't."""
    found: list[RunPart] = []
    for pod in sorted(job.pods, key=_age):
        part = pod.part()
        if part is not None:
            before = max((each.attempt for each in found if each.node == part.node), default=0)
            found.append(replace(part, attempt=max(part.attempt, before + 1)))
    return tuple(sorted(found, key=lambda each: (each.attempt, each.node)))


def _all_nodes_succeeded(job: JobSnapshot) -> bool:
    """Return whether the command has succeeded on all nodes, although a pod may have failed.

    A pod may be killed after all nodes were done, or its machine may be lost while it sends output. The others have
    ended by then, so a new pod of that node would wait for ever. The cluster still counts a node as completed whose pod
    was removed, as draining a machine does.
    """
    done = {each.number: each.attempt for each in job.last if each.is_terminated and _succeeded(each)}
    if not job.is_gang or not (done or job.completed):
        return False
    attempt = max(done.values(), default=None)
    waits = [each for each in job.last if not (each.is_over or _is_later(each, attempt))]
    known = {each.number for each in job.last} | job.completed
    return job.condition("Failed") is not None or (len(known) == job.nodes and not waits)


def _is_later(pod: Pod, done_in: int | None) -> bool:
    """Return whether the pod belongs to an attempt after the one in which all nodes were done."""
    return pod.attempt > done_in if done_in is not None else not pod.begun


def _failed(job: JobSnapshot, parts: tuple[RunPart, ...], failed: Mapping[str, Any]) -> Ended:
    by_disruption = next(((cause, said) for pod in job.last for cause, said in [pod.cause()] if cause), None)
    if not parts and not job.pods and (job.raw.get("status") or {}).get("failed"):
        lost = f"the cluster has no pod of the Job {job.name} any more: {failed.get('message')}"
        return Ended(exit_code=137, launched=True, reason=lost, cause=EndCause.LOST_SIGHT)
    if not parts:
        return _never_began(job, by_disruption, failed)
    part = deciding_part(parts) or parts[-1]
    if part.end is EndCause.CANCELLED:  # the other nodes were ended because this pod was deleted
        of_last = [each for each in parts if each.attempt == part.attempt]
        part = next((each for each in of_last if each.error == DELETED), part)
    cause = part.end or EndCause.LOST_SIGHT
    code = part.exit_code or _CUT_SHORT.get(cause, 137)
    by_itself = cause in (EndCause.EXITED, EndCause.LOST_SIGHT)
    if job.stopped is not None and (by_itself or part.error == DELETED):
        reason: str | None = f"it was cancelled by {job.stopped}"
        cause, parts = EndCause.CANCELLED, _cancelled(parts, job.stopped)
    elif part.end is EndCause.CANCELLED and part.error not in (None, DELETED):
        # No node reports a failure: the others were ended because one became silent.
        cause, code = EndCause.NODE_LOST, _CUT_SHORT[EndCause.NODE_LOST]
        reason = part.error
    elif part.error is not None:
        reason = part.error
    elif cause is EndCause.EXITED and job.nodes > 1:
        reason = f"node {part.node} ({part.host}) failed first, with exit code {part.exit_code}"
    else:
        reason = None if cause is EndCause.EXITED else failed.get("message")
    return Ended(
        exit_code=code, launched=True, reason=reason, cause=cause, parts=parts, usage=_usage(job.last)
    )


def _cancelled(parts: tuple[RunPart, ...], by: str | None) -> tuple[RunPart, ...]:
    """Attribute what ended in the last attempt to whoever ended the job: it can't be told from a failure."""
    last = max((each.attempt for each in parts), default=0)
    return tuple(
        replace(each, end=EndCause.CANCELLED, cancelled_by=by, error=None)
        if each.attempt == last and not each.succeeded
        and (each.end in (None, EndCause.EXITED, EndCause.LOST_SIGHT) or each.error == DELETED)
        else each
        for each in parts
    )  # fmt: skip


def _never_began(
    job: JobSnapshot, disruption: tuple[EndCause, str | None] | None, failed: Mapping[str, Any]
) -> Ended:
    staged = [each for each in job.last if each.stage_code]
    reason, hint = failed.get("message"), None
    cause = EndCause.NOT_STARTED
    if job.stopped is not None:
        cause, reason = EndCause.CANCELLED, f"it was cancelled by {job.stopped}"
    elif staged:
        said = staged[0].stage_message or ""
        reason = error_message(said) or f"dsv ended with {staged[0].stage_code}"
        hint = error_hint(said)
    elif disruption is not None:
        cause, reason = disruption
    else:
        obstacle = next((found for each in job.last if (found := each.obstacle(False))), None)
        if obstacle is not None:
            cause, reason, hint = obstacle.cause, obstacle.reason, obstacle.hint
    code = TIMED_OUT if cause is EndCause.TIME_LIMIT else CANNOT_LAUNCH
    return Ended(exit_code=code, launched=False, reason=reason, hint=hint, cause=cause)


def _succeeded(pod: Pod) -> bool:
    part = pod.part()
    return part is not None and part.succeeded


def _usage(pods: Sequence[Pod]) -> Usage | None:
    return joint_usage(found for pod in pods if (found := pod.usage()) is not None)
