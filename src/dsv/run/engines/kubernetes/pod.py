"""A pod of a job (one node in one attempt): its state in the cluster, and the files of its scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dsv.files.small_files import open_plain
from dsv.run.engines.base import Ended, error_in
from dsv.run.engines.kubernetes.manifest import FAILED_KEY, IGNORED_KEY, INDEX_KEY, MAIN, NOT_AGAIN, STAGING
from dsv.run.engines.output import LogKeeper
from dsv.run.part import TIMED_OUT, EndCause, NodeReport, RunPart, deciding_part, exit_signal, may_try_again
from dsv.run.record import JobUsage

TOGETHER: Final = "together"
"""The reason of a script that ended the command because the attempt was over on another node."""
CAUSES: Final = {
    "time-limit": (EndCause.TIME_LIMIT, "it reached its time limit"),
    "lease-lost": (EndCause.LEASE_LOST, "the data was not held any more"),
    "missing": (EndCause.NOT_STARTED, "the image has no such command, or it can't be run"),
}
"""Its other reasons, with their descriptions."""
SERIES: Final = b"--- metrics.jsonl\n"
NOTES: Final = b"--- notes\n"
METRICS: Final = b"--- metrics.json\n"
METRICS_END: Final = b"--- end\n"
"""The lines that the container `hold` prints before metrics.json, and after it or in its place."""
_MOST: Final = 64 << 20
"""Bytes of a file that are read at most; the script keeps files much smaller."""
_NO_PROGRAM: Final = "the pool's image of dsv has no program"
"""In the message of hold.sh."""
_NO_MODULE: Final = re.compile(r"No module named '?dsv")
_TOO_OLD: Final = re.compile(r"No module named '?dsv|[Nn]o such (?:option|command)", re.ASCII)
_OTHER_IMAGE: Final = (
    "dsv config pools.NAME.kubernetes.image REGISTRY/dsv:VERSION names an image of this version of dsv, and "
    "pools.NAME.kubernetes.dsv the program in it"
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
"""The kubelet's reason for a container that was missing when its pod ended, or never existed."""
_NO_CLAIM: Final = re.compile(r'persistentvolumeclaim "[^"]*" (?:not found|is being deleted)')
CUT_SHORT: Final[dict[EndCause | None, int]] = {
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
    """A reason why a pod does not start."""

    reason: str
    cause: EndCause = EndCause.UNSCHEDULABLE
    patience: float | None = None
    """Seconds after which the job ends because of it; None if it may wait for ever."""
    lacks_room: bool = False

    @property
    def hint(self) -> str:
        if self.cause is EndCause.IMAGE_NOT_PULLED:
            return "--image names another one; kubernetes.image_pull_secrets of the pool, the credentials of a registry"
        return "kubectl describe pods says what they wait for, and kubectl describe nodes what nodes have"


class Pod:
    """A pod as the cluster describes it."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        *,
        gone: bool = False,
        evicted_by_queue: tuple[EndCause, str] | None = None,
        lost: tuple[EndCause, str] | None = None,
    ) -> None:
        """gone: it was deleted, and raw is from the last look at it
        evicted_by_queue: the reason why its queue evicted it, if it did
        lost: the reason why it is gone, if its end was not seen
        """
        self.raw, self.gone, self.evicted_by_queue, self.lost = raw, gone, evicted_by_queue, lost
        metadata, spec, self._status = (raw.get(each) or {} for each in ("metadata", "spec", "status"))
        self.name, self.uid = str(metadata.get("name")), str(metadata.get("uid"))
        self.host: str | None = spec.get("nodeName")
        self.annotations: Mapping[str, str] = metadata.get("annotations") or {}
        self.number = int(self.annotations.get(INDEX_KEY) or 0)
        """The number of the node, from 0."""
        self.attempt = sum(int(self.annotations.get(each) or 0) for each in (FAILED_KEY, IGNORED_KEY)) + 1
        self.age = self.attempt, str(metadata.get("creationTimestamp"))
        kinds = ("initContainerStatuses", "containerStatuses")
        containers = {each.get("name"): each for kind in kinds for each in self._status.get(kind) or ()}
        states = {name: each.get("state") or {} for name, each in containers.items()}
        self._states = list(states.values())
        self.has_no_container = all("waiting" in each for each in self._states)
        """No container of the pod was started yet, for instance because a volume is missing."""
        staged = states.get(STAGING, {}).get("terminated") or {}
        self.stage_message: str = staged.get("message") or ""
        """The termination message of the container that waits for the data."""
        self.stage_code: int | None = staged.get("exitCode")
        main = states.get(MAIN, {})
        self.command_ended = "terminated" in main
        """Other containers of the pod may still run."""
        self._ended = main.get("terminated") or {}
        self._started = self._ended or main.get("running") or {}
        message: str = self._ended.get("message") or ""
        facts, _, self._rest = message.partition("\n")
        self._facts = dict(re.findall(r"(end|memory|cpu|code|stopped)=(\S*)", facts))
        """Written by the script of the job's container into the termination message."""
        self.usage = usage_of(self._facts)
        self.is_terminated = gone or self._status.get("phase") in ("Succeeded", "Failed")
        """The cluster reports that the pod has ended. Such a pod and its log remain when the Job is ended."""
        succeeded = self.command_ended and self._ended.get("exitCode") == 0
        all_ended = all("terminated" in each for each in self._states)
        self.is_over = self.is_terminated or (succeeded and all_ended)
        """Also once the command has succeeded and all else ended: the cluster reports it a second later."""
        by_itself = self._facts.get("stopped") == "no" and self._ended.get("exitCode") not in _KILLED
        self.is_decided = self.is_over or (self.command_ended and by_itself)
        """How the command ended can't change any more. The cluster says why it stopped a command only in the end."""
        self._is_deleted = metadata.get("deletionTimestamp") is not None
        self.is_terminating = self._is_deleted and not self.is_over
        self._never_started = self._ended.get("reason") in ("StartError", "ContainerCannotRun")
        made = self._ended.get("reason") != _UNKNOWN or containers[MAIN].get("containerID")
        self.begun = bool(made) and not self._never_started if self.command_ended else "running" in main
        """The command has begun, as far as the cluster knows."""
        self.part = self._part()
        """None if the command never began."""
        self.succeeded = self.part is not None and self.part.succeeded

    def but(self, **changes: Any) -> Pod:
        """Return the pod with these arguments changed."""
        known = {"gone": self.gone, "evicted_by_queue": self.evicted_by_queue, "lost": self.lost}
        return Pod(self.raw, **{**known, **changes})

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
            return EndCause.CANCELLED, ended_with_others(self._rest)
        if ended.get("reason") == "OOMKilled":
            return EndCause.OUT_OF_MEMORY, "it used more memory than it was given"
        if ended.get("exitCode") in _KILLED and self._is_deleted:
            return EndCause.CANCELLED, DELETED
        return (None, None) if ended or self.lost is None else self.lost

    def _part(self) -> RunPart | None:
        if not self.begun:
            return None
        cause, said = self.cause()
        code, over = None, milliseconds(self._ended.get("finishedAt"))
        if self.command_ended:
            cause = cause or EndCause.EXITED
            code = int(self._facts.get("code") or self._ended["exitCode"])
        elif self.is_terminated:
            cause = cause or EndCause.LOST_SIGHT
            code = CUT_SHORT.get(cause)
            over = self._by_its_clock((condition(self.raw, "Ready", "False") or {}).get("lastTransitionTime"))
        else:
            cause, said = None, None
        return RunPart(
            node=self.number,
            attempt=self.attempt,
            host=self.host,
            started_ms=milliseconds(self._started.get("startedAt")),
            ended_ms=over,
            end=cause,
            exit_code=code,
            exit_signal=exit_signal(code),
            error=said,
            **NodeReport.decode(self.stage_message).fields,
        )

    def _by_its_clock(self, seen: str | None) -> int | None:
        """Return a time of the cluster's clock by the machine's, which gets a pod right after it is scheduled."""
        scheduled = milliseconds((condition(self.raw, "PodScheduled") or {}).get("lastTransitionTime"))
        taken, over = milliseconds(self._status.get("startTime")), milliseconds(seen)
        if over is None or scheduled is None or taken is None:
            return over
        return over + taken - scheduled

    def obstacle(self, autoscaling: bool) -> Obstacle | None:
        """Return why the pod has not begun, if the cluster reports it."""
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


def is_over(parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
    """Return whether no attempt follows those of these parts, by the rules of the Job. None if only the
    cluster knows: a node has not reported every attempt, or no node failed by itself."""
    known = list(parts)
    last = max((part.attempt for part in known), default=0)
    decided = deciding_part(known)
    if decided is None or len({(part.attempt, part.node) for part in known}) < nodes * last:
        return None
    if decided.succeeded:
        return True
    if decided.end is EndCause.CANCELLED or any(part.end is EndCause.EVICTED for part in known):
        return None
    failed = [part for part in known if not part.succeeded and part.end is not EndCause.CANCELLED]
    if any(part.attempt == last and part.exit_code in NOT_AGAIN for part in failed):
        return True
    return len({part.attempt for part in failed}) > retries or not may_try_again(decided)


def read_left(
    folder: Path, *, node: int, attempt: int, host: str | None, queued: bool = False
) -> Ended | None:
    """Return the end of one node, as `Engine.left_on_node`. None if the command never began, or did not end
    by itself. queued: a queue may begin a job again that the cluster has stopped"""
    said = dict(re.findall(r"([a-z]+)=(\S*)", _text(folder / "ended")))
    if said.get("whole") != "yes" or not said.get("code", "").isdecimal():
        return None
    code, why = int(said["code"]), said.get("why", "")
    cause, error = CAUSES.get(why, (EndCause.EXITED, None))
    if why == TOGETHER:
        cause, error = EndCause.CANCELLED, ended_with_others(_text(folder / "verdict").partition(" ")[2])
    begun, over = (int(said[each]) * 1000 if said.get(each) else None for each in ("begun", "over"))
    part = RunPart(
        node=node,
        attempt=attempt,
        host=host,
        started_ms=begun,
        ended_ms=over,
        end=cause,
        exit_code=code,
        exit_signal=exit_signal(code),
        error=error,
        **NodeReport.decode(_text(folder / "staged.json")).fields,
    )
    signalled, stopped = (_changed_at(folder / each) for each in ("signalled", "stopped"))
    may_be_killed = stopped is not None or code == 137
    if why == TOGETHER:  # the cluster ends what is left of the Job after the end of the attempt
        end = _changed_at(folder / "end")
        may_be_killed = stopped is not None and (end is None or stopped < end)
    is_clear = why in CAUSES or not (signalled is not None or may_be_killed)
    if queued and not is_clear and stopped is not None and signalled is None:
        part = replace(part, end=EndCause.EVICTED, error="the cluster took its place away")
    return Ended(exit_code=code, launched=True, seen=is_clear, usage=usage_of(said), parts=(part,))


def read_log(folder: Path) -> LogKeeper | None:
    """Return the beginning and the end of the command's output; None if no copy was made."""
    numbers = sorted(int(each.suffix[1:]) for each in folder.glob("log.*") if each.suffix[1:].isdecimal())
    if not numbers or not (folder / "log.0").is_file():
        return None
    keeper, before = LogKeeper(), -1
    for number in numbers:
        if number != before + 1:
            lost = _text(folder / "log.lost").strip()
            keeper.leave_out(int(lost) if lost.isdecimal() else 1)
        keeper.add(_begin(folder / f"log.{number}"))
        before = number
    return keeper


def ended_with_others(reason: str) -> str:
    return f"it was ended with the other nodes: {reason.strip()}"


def usage_of(said: Mapping[str, str]) -> JobUsage | None:
    memory, cpu = said.get("memory", ""), said.get("cpu", "")
    if not (memory.isdecimal() or cpu.isdecimal()):
        return None
    return JobUsage(
        peak_memory_bytes=int(memory) if memory.isdecimal() else None,
        cpu_seconds=int(cpu) / 1e9 if cpu.isdecimal() else None,
    )


def _changed_at(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None


def _begin(path: Path) -> bytes:
    """Return the file's first `_MOST` bytes, up to where it can be read."""
    pieces: list[bytes] = []
    left = _MOST
    with suppress(OSError), open_plain(path) as file:
        while left > 0 and (data := file.read(min(1 << 20, left))):
            pieces.append(data)
            left -= len(data)
    return b"".join(pieces)


def _text(path: Path) -> str:
    return _begin(path).decode("utf-8", "replace")


def stage_error(log: str) -> tuple[str | None, str | None]:
    """Return the error of dsv and its hint. If the image has no dsv or an old one, the hint names another image."""
    message, hint = error_in(log)
    if _NO_MODULE.search(log):
        message = "the pool's image has a dsv that is too old for this one"
    return message, _OTHER_IMAGE if _NO_PROGRAM in log or _TOO_OLD.search(log) else hint
