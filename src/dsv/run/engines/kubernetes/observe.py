"""How a job on Kubernetes goes, and how it ended: a pure function of what the cluster says of its Job and its pods.

A pod is one node of a run in one attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from dsv.run.engines.kubernetes.scripts import (
    CAUSES,
    TOGETHER,
    last_words,
    told_usage,
    what_helps,
    with_the_others,
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
"""What a node says of a container that was not there when its pod ended, and of one that never was."""
_HINTS: Final = {
    EndCause.IMAGE_NOT_PULLED: "--image names another one; dsv config pools.NAME.kubernetes.image_pull_secrets "
    """'["SECRET"]' gives the credentials of its registry""",
    EndCause.UNSCHEDULABLE: "kubectl describe nodes shows what nodes have, their labels and their taints",
}
_NO_CLAIM: Final = re.compile(r'persistentvolumeclaim "[^"]*" (?:not found|is being deleted)')


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod doesn't begin. patience: seconds after which that is the end of it; None if it may wait for good."""

    reason: str
    cause: EndCause
    patience: float | None
    lacks_room: bool = False

    @property
    def hint(self) -> str | None:
        """What helps, if it is the end of it."""
        return _HINTS.get(self.cause)


@dataclass(frozen=True, slots=True)
class Pod:
    """gone: the cluster doesn't have it any more, and this is what was seen of it last. lost: why it is gone, if nobody
    saw its end. put_back: why its queue took its place away, if it did."""

    raw: Mapping[str, Any]
    gone: bool = False
    put_back: tuple[EndCause, str] | None = None
    lost: tuple[EndCause, str] | None = None

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def host(self) -> str | None:
        return self._spec.get("nodeName")

    @property
    def number(self) -> int:
        """Of the node, from 0."""
        return _number(self.annotations.get(INDEX_KEY))

    @property
    def attempt(self) -> int:
        return _number(self.annotations.get(FAILED_KEY)) + _number(self.annotations.get(IGNORED_KEY)) + 1

    @property
    def is_over(self) -> bool:
        return self.is_settled or self._has_succeeded

    @property
    def is_settled(self) -> bool:
        """Whether the cluster itself says so. It keeps such a pod, and its log, if it ends the others of the Job."""
        return self.gone or self._status.get("phase") in ("Succeeded", "Failed")

    @property
    def _has_succeeded(self) -> bool:
        """Whether the command has succeeded and each further container has ended. The cluster says the same of the pod
        about a second later."""
        ended = self._ended()
        if ended is None or ended.get("exitCode") != 0:
            return False
        kinds = ("initContainerStatuses", "containerStatuses")
        return all(
            "terminated" in (each.get("state") or {})
            for kind in kinds
            for each in self._status.get(kind) or ()
        )

    @property
    def part_is_over(self) -> bool:
        """Whether the command has ended, though the pod may have more to do."""
        return self._ended() is not None

    @property
    def is_going(self) -> bool:
        """Whether it was told to end, and has not."""
        return not self.is_over and self.raw["metadata"].get("deletionTimestamp") is not None

    @property
    def begun(self) -> bool:
        """Whether the command has begun, as far as anyone can tell."""
        ended = self._ended()
        if ended is None:
            return "running" in self._state(MAIN)
        return not (_never_started(ended) or (ended.get("reason") == _UNKNOWN and not self._made()))

    @property
    def is_untouched(self) -> bool:
        """Whether its machine has not started any of its containers, such as one whose volumes are not there."""
        states = [
            each.get("state") or {}
            for kind in ("initContainerStatuses", "containerStatuses")
            for each in self._status.get(kind) or ()
        ]
        return all("waiting" in each for each in states)

    @property
    def stage_message(self) -> str | None:
        """What the container that fetches the data says of its end."""
        ended = self._state(STAGING, "initContainerStatuses").get("terminated") or {}
        return ended.get("message")

    @property
    def stage_code(self) -> int | None:
        ended = self._state(STAGING, "initContainerStatuses").get("terminated")
        return None if ended is None else ended.get("exitCode")

    def cause(self) -> tuple[EndCause | None, str | None]:
        """Why it ended, and in which words, if the command was not the one to end it."""
        if self.put_back is not None:
            return self.put_back
        told = self._told().get("end")
        if told in CAUSES:
            return CAUSES[told]
        if (self._ended() or {}).get("exitCode") == 0 and self._status.get("phase") != "Failed":
            return None, None  # a pod that has succeeded is still evicted if its machine is drained
        for each in self._status.get("conditions") or ():
            if each.get("type") == "DisruptionTarget" and each.get("status") == "True":
                cause = _DISRUPTIONS.get(each.get("reason"), EndCause.EVICTED)
                return cause, each.get("message") or each.get("reason")
        reason = self._status.get("reason")
        if reason in _REASONS:
            return _REASONS[reason], self._status.get("message") or reason
        if told == TOGETHER:
            _, _, reason = self._message.partition("\n")
            return EndCause.CANCELLED, with_the_others(reason)
        ended = self._ended() or {}
        if ended.get("reason") == "OOMKilled":
            return EndCause.OUT_OF_MEMORY, "it used more memory than it was given"
        if ended.get("exitCode") in _KILLED and self.raw["metadata"].get("deletionTimestamp") is not None:
            return EndCause.CANCELLED, DELETED
        return (None, None) if ended or self.lost is None else self.lost

    def part(self) -> RunPart | None:
        """None if the command never began."""
        ended = self._ended()
        if not self.begun:
            return None
        state = ended or self._state(MAIN).get("running") or {}
        cause, said = self.cause()
        code = None if ended is None else int(self._told().get("code") or ended["exitCode"])
        if ended is None and self.is_settled:
            cause = cause or EndCause.LOST_SIGHT
            code = _CUT_SHORT.get(cause)
        if ended is None and not self.is_settled:
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
        return told_usage(self._told())

    def obstacle(self, autoscaling: bool) -> Obstacle | None:
        """Of one that has not begun."""
        waiting = [
            each["state"]["waiting"]
            for kind in ("initContainerStatuses", "containerStatuses")
            for each in self._status.get(kind) or ()
            if "waiting" in (each.get("state") or {})
        ]
        ended = self._ended()
        if ended is not None and _never_started(ended):
            waiting.append(ended)
        for each in waiting:
            reason, message = each.get("reason", ""), _one_line(each.get("message") or each.get("reason", ""))
            if reason in _NO_IMAGE:
                surely = reason == "InvalidImageName" or _SURELY_NOT.search(message) is not None
                return Obstacle(message, EndCause.IMAGE_NOT_PULLED, 3.0 if surely else 120.0)
            if reason in _NO_START:
                return Obstacle(message, EndCause.NOT_STARTED, 3.0 if ended is not None else 20.0)
        for each in self._status.get("conditions") or ():
            if each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable":
                return _unschedulable(_one_line(each.get("message", "")), autoscaling)
        return None

    @property
    def _spec(self) -> Mapping[str, Any]:
        return self.raw.get("spec") or {}

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.raw.get("status") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    def _state(self, container: str, kind: str = "containerStatuses") -> Mapping[str, Any]:
        found = [each for each in self._status.get(kind) or () if each.get("name") == container]
        return (found[0].get("state") or {}) if found else {}

    def _made(self) -> bool:
        """Whether the job's own container was there, running or not."""
        statuses = self._status.get("containerStatuses") or ()
        return any(each.get("name") == MAIN and each.get("containerID") for each in statuses)

    def _ended(self) -> Mapping[str, Any] | None:
        return self._state(MAIN).get("terminated")

    def _told(self) -> dict[str, str]:
        """What the script of the job's container left."""
        return dict(re.findall(r"(end|memory|cpu|code)=(\S*)", self._message.partition("\n")[0]))

    @property
    def _message(self) -> str:
        return (self._ended() or {}).get("message") or ""


def _unschedulable(message: str, autoscaling: bool) -> Obstacle:
    """A lack of room goes by. That no node is the right one doesn't, unless nodes come on demand."""
    if _NO_CLAIM.search(message):
        return Obstacle(message, EndCause.UNSCHEDULABLE, 3.0)
    lacks_room = "Insufficient" in message
    lasting = not lacks_room and not autoscaling
    return Obstacle(message, EndCause.UNSCHEDULABLE, 60.0 if lasting else None, lacks_room)


def _never_started(ended: Mapping[str, Any]) -> bool:
    """Kubernetes tells so of a container whose program could not be started."""
    return ended.get("reason") in ("StartError", "ContainerCannotRun")


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _one_line(text: str) -> str:
    return " ".join(text.split())


_CUT_SHORT: Final[dict[EndCause | None, int]] = {
    EndCause.TIME_LIMIT: TIMED_OUT,
    EndCause.PREEMPTED: 143,
    EndCause.EVICTED: 143,
    EndCause.NODE_LOST: 137,
    EndCause.CANCELLED: 137,
}
"""What the exit code is if no command said one."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the cluster says of a Job. pods: all that were seen of it, those that are gone as well."""

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
        """The nodes that the cluster counts as done: `0,2-4` in its words."""
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
    def queued(self) -> bool:
        """Whether something else decides when it begins."""
        return self.queue is not None

    @property
    def put_back(self) -> bool:
        """Whether its queue has it wait, maybe after it had begun."""
        return self.queued and self.suspended and self.stopped is None

    @property
    def queue(self) -> str | None:
        return (self.raw["metadata"].get("labels") or {}).get(QUEUE_LABEL)

    @property
    def stopped(self) -> str | None:
        """Who asked dsv to end it."""
        return self._annotations.get(STOPPED_KEY)

    @property
    def begun(self) -> bool:
        return any(each.begun for each in self.pods)

    @property
    def last(self) -> tuple[Pod, ...]:
        """The newest pod of each node, by their numbers."""
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
        """When the cluster saw the end of a job that is over, in milliseconds; before that, when its nodes ended, whose
        clocks may be wrong."""
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
        """Whether its nodes end together, so that one succeeds only once the command has succeeded on all of them."""
        pod = (self._spec.get("template") or {}).get("spec") or {}
        holding = [each for each in pod.get("initContainers") or () if each.get("name") == HOLDING]
        return any(each.get("name") == GANG_PORT for one in holding for each in one.get("env") or ())

    @property
    def goes_on_in_vain(self) -> bool:
        """Whether the cluster has a node begin again, or will, though the others are done and will not come back."""
        over = self.condition("Complete") or self.condition("Failed")
        return not over and _were_done(self) and not all(_succeeded(each) for each in self.last)

    @property
    def _spec(self) -> Mapping[str, Any]:
        return self.raw.get("spec") or {}

    @property
    def _annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}


def _age(pod: Pod) -> tuple[int, str]:
    return pod.attempt, str(pod.raw["metadata"].get("creationTimestamp"))


def ended(job: JobFacts) -> Ended | None:
    """None while it lives."""
    last = job.last
    failed = job.condition("Failed") or job.condition("FailureTarget")
    all_over = len(last) == job.nodes and all(each.is_over for each in last)
    parts = parts_of(job)
    if job.condition("Complete") or (all_over and all(_succeeded(each) for each in last)) or _were_done(job):
        return Ended(exit_code=0, launched=True, cause=EndCause.EXITED, parts=parts, usage=_usage(last))
    taken = any(each.put_back is not None for each in last)  # begun, and told to end by its queue
    held_back = job.suspended and job.stopped is None and not taken  # or while it is taken back: it may go on
    over = job.condition("Failed") is not None or (
        (failed is not None or not (job.may_try_again or held_back)) and all_over
    ) or (failed is not None and all(each.is_over or each.is_going for each in last))  # fmt: skip
    return replace(_failed(job, parts, failed or {}), stopped=job.stopped) if over else None


def gone(job: JobFacts, *, killed: bool = False) -> Ended:
    """Of a job that the cluster doesn't have any more. killed: whether its pods had no time to end by themselves."""
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


def status(job: JobFacts) -> JobStatus:
    done = ended(job)
    if done is not None:
        state = RunState.ENDED if done.launched else RunState.NOT_LAUNCHED
        return JobStatus(state, done.exit_code, done, quiet_for=max(time() - job.over_at / 1000, 0.0))
    if job.begun and not job.put_back:
        return JobStatus(RunState.RUNNING)
    return JobStatus(RunState.SUBMITTED if job.suspended and not job.queued else RunState.QUEUED)


def parts_of(job: JobFacts) -> tuple[RunPart, ...]:
    """Each attempt of a node has its own number. The cluster counts no attempt that a queue took back."""
    found: list[RunPart] = []
    for pod in sorted(job.pods, key=_age):
        part = pod.part()
        if part is not None:
            before = max((each.attempt for each in found if each.node == part.node), default=0)
            found.append(replace(part, attempt=max(part.attempt, before + 1)))
    return tuple(sorted(found, key=lambda each: (each.attempt, each.node)))


def _were_done(job: JobFacts) -> bool:
    """Whether the command has succeeded on all nodes though not every pod has: one may be killed once all are done, or
    its machine may be lost while it sends the output. The others are gone then, so a new pod of it waits in vain.

    The cluster still counts a node as done whose pod was taken away, as it is when its machine is drained.
    """
    done = {each.number: each.attempt for each in job.last if each.is_settled and _succeeded(each)}
    if not job.is_gang or not (done or job.completed):
        return False
    attempt = max(done.values(), default=None)
    waits = [each for each in job.last if not (each.is_over or _is_later(each, attempt))]
    known = {each.number for each in job.last} | job.completed
    return job.condition("Failed") is not None or (len(known) == job.nodes and not waits)


def _is_later(pod: Pod, done_in: int | None) -> bool:
    """Whether the pod is of an attempt after the one in which all nodes were done. In that one all had begun."""
    return pod.attempt > done_in if done_in is not None else not pod.begun


def _failed(job: JobFacts, parts: tuple[RunPart, ...], failed: Mapping[str, Any]) -> Ended:
    by_disruption = next(((cause, said) for pod in job.last for cause, said in [pod.cause()] if cause), None)
    if not parts and not job.pods and (job.raw.get("status") or {}).get("failed"):
        lost = f"the cluster has no pod of the Job {job.name} any more: {failed.get('message')}"
        return Ended(exit_code=137, launched=True, reason=lost, cause=EndCause.LOST_SIGHT)
    if not parts:
        return _never_began(job, by_disruption, failed)
    part = deciding_part(parts) or parts[-1]
    if part.end is EndCause.CANCELLED:  # the others have ended with one whose pod was deleted
        of_last = [each for each in parts if each.attempt == part.attempt]
        part = next((each for each in of_last if each.error == DELETED), part)
    cause = part.end or EndCause.LOST_SIGHT
    code = part.exit_code or _CUT_SHORT.get(cause, 137)
    by_itself = cause in (EndCause.EXITED, EndCause.LOST_SIGHT)
    if job.stopped is not None and (by_itself or part.error == DELETED):
        reason: str | None = f"it was cancelled by {job.stopped}"
        cause, parts = EndCause.CANCELLED, _cancelled(parts, job.stopped)
    elif part.end is EndCause.CANCELLED and part.error not in (None, DELETED):
        # No node has failed that still could tell it: the others have ended because one was not heard of any more.
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
    """What was ended of the last attempt was ended by whoever ended the job: nobody can tell it from a failure."""
    last = max((each.attempt for each in parts), default=0)
    return tuple(
        replace(each, end=EndCause.CANCELLED, cancelled_by=by, error=None)
        if each.attempt == last and not each.succeeded
        and (each.end in (None, EndCause.EXITED, EndCause.LOST_SIGHT) or each.error == DELETED)
        else each
        for each in parts
    )  # fmt: skip


def _never_began(
    job: JobFacts, disruption: tuple[EndCause, str | None] | None, failed: Mapping[str, Any]
) -> Ended:
    staged = [each for each in job.last if each.stage_code]
    reason, hint = failed.get("message"), None
    cause = EndCause.NOT_STARTED
    if job.stopped is not None:
        cause, reason = EndCause.CANCELLED, f"it was cancelled by {job.stopped}"
    elif staged:
        said = staged[0].stage_message or ""
        reason = last_words(said) or f"dsv ended with {staged[0].stage_code}"
        hint = what_helps(said)
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
