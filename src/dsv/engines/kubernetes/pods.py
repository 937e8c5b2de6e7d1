"""What the cluster says of one pod, which is one node of a run in one attempt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dsv.engines.kubernetes.left import CAUSES, with_the_others
from dsv.engines.kubernetes.names import FAILED_KEY, IGNORED_KEY, INDEX_KEY, MAIN, STAGING
from dsv.engines.kubernetes.quotas import quantity
from dsv.engines.kubernetes.scripts import TOGETHER
from dsv.engines.stage_facts import stage_facts
from dsv.model.run import Usage
from dsv.model.run_end import EndCause, RunPart, exit_signal

_LOST: Final = {
    EndCause.PREEMPTED: 143,
    EndCause.EVICTED: 143,
    EndCause.NODE_LOST: 137,
    EndCause.CANCELLED: 137,
}
"""The exit code of a command that could not say one any more."""
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
        return _number(self._annotations.get(INDEX_KEY))

    @property
    def attempt(self) -> int:
        return _number(self._annotations.get(FAILED_KEY)) + _number(self._annotations.get(IGNORED_KEY)) + 1

    @property
    def annotations(self) -> Mapping[str, str]:
        return self._annotations

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
            code = _LOST.get(cause)
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
        told = self._told()
        memory, cpu = told.get("memory", ""), told.get("cpu", "")
        if not (memory.isdecimal() or cpu.isdecimal()):
            return None
        return Usage(
            peak_memory_bytes=int(memory) if memory.isdecimal() else None,
            cpu_seconds=int(cpu) / 1e9 if cpu.isdecimal() else None,
        )

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
    def _annotations(self) -> Mapping[str, str]:
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


def requests_of(pod: Mapping[str, Any]) -> dict[str, float]:
    """What a pod has taken of its node: its containers together, or one that runs before them if that asks for more."""
    spec = pod.get("spec") or {}
    total: dict[str, float] = {}
    most: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            total = _sum(total, asked)
        else:
            most = {name: max(most.get(name, 0.0), asked.get(name, 0.0)) for name in {*most, *asked}}
    for container in spec.get("containers") or ():
        total = _sum(total, _asked(container))
    return {name: max(total.get(name, 0.0), most.get(name, 0.0)) for name in {*total, *most}}


def _asked(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(str(amount)) for name, amount in both.items()}


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {*one, *other}}
