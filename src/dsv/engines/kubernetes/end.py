"""How a job on Kubernetes goes, and how it ended: a pure function of what the cluster says of its Job and its pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import time
from typing import Any, Final

from dsv.engines.base import CANNOT_LAUNCH, Ended, JobStatus
from dsv.engines.kubernetes.api import passes
from dsv.engines.kubernetes.names import GANG_PORT, HOLDING, QUEUE_LABEL, RUN_KEY, STOPPED_KEY
from dsv.engines.kubernetes.pods import DELETED, Pod, milliseconds
from dsv.engines.kubernetes.quotas import is_beyond_quota
from dsv.engines.kubernetes.scripts import NO_PROGRAM
from dsv.model.run import RunState, Usage, joint_usage
from dsv.model.run_end import TIMED_OUT, EndCause, RunPart, deciding_part

_CUT_SHORT: Final[dict[EndCause | None, int]] = {
    EndCause.TIME_LIMIT: TIMED_OUT,
    EndCause.PREEMPTED: 143,
    EndCause.EVICTED: 143,
    EndCause.NODE_LOST: 137,
}
"""What the exit code is if no command said one."""
_NO_MODULE: Final = re.compile(r"No module named '?dsv")
_TOO_OLD: Final = re.compile(r"No module named '?dsv|[Nn]o such (?:option|command)", re.ASCII)
_OTHER_IMAGE: Final = (
    "dsv config pools.NAME.kubernetes.image REGISTRY/dsv:VERSION names an image of this version of dsv, and "
    "pools.NAME.kubernetes.dsv the program in it"
)


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
        for kind in ("Complete", "Failed"):
            if (found := self.condition(kind)) and (at := milliseconds(found.get("lastTransitionTime"))):
                return at
        return max(
            (part.ended_ms for each in self.pods if (part := each.part()) and part.ended_ms), default=0
        )

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
    return _failed(job, parts, failed or {}) if over else None


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
        cause=EndCause.CANCELLED, parts=parts,
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
        hint = _hint(said)
    elif disruption is not None:
        cause, reason = disruption
    else:
        obstacle = next((found for each in job.last if (found := each.obstacle(False))), None)
        if obstacle is not None:
            cause, reason, hint = obstacle.cause, obstacle.reason, obstacle.hint
    code = TIMED_OUT if cause is EndCause.TIME_LIMIT else CANNOT_LAUNCH
    return Ended(exit_code=code, launched=False, reason=reason, hint=hint, cause=cause)


def refusal(messages: Iterable[str]) -> tuple[str, bool] | None:
    """Why the cluster makes no pods, from its events, and whether that is for good: a quota may have room later."""
    found = None
    for message in messages:
        text = " ".join(message.split()).removeprefix("Error creating: ")
        for_good = is_beyond_quota(text)
        found = (text, not passes(text) if for_good is None else for_good)
    return found


def last_words(log: str) -> str | None:
    """What dsv said of why it failed: in a document, or else as a person sees it."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(log)["error"]["message"])
    lines = [line.strip() for line in log.splitlines()]
    said = [line for line in lines if line and not line.startswith(("hint:", "{"))]
    if any(_NO_MODULE.search(line) for line in said):
        return "the pool's image has a dsv that is too old for this one"
    errors = [line for line in said if line.startswith("error:")]
    found = errors or said
    return found[-1].removeprefix("error: ") if found else None


def _hint(log: str) -> str | None:
    """What helps, as dsv said beside the error; or another image, if this one has no dsv, or an old one."""
    if NO_PROGRAM in log or _TOO_OLD.search(log):
        return _OTHER_IMAGE
    with suppress(ValueError, KeyError, TypeError):
        return json.loads(log)["error"]["hint"] or None
    found = re.findall(r"^\s*hint: (.+)$", log, re.MULTILINE)
    return found[-1].strip() if found else None


def _succeeded(pod: Pod) -> bool:
    part = pod.part()
    return part is not None and part.succeeded


def _usage(pods: Sequence[Pod]) -> Usage | None:
    return joint_usage(found for pod in pods if (found := pod.usage()) is not None)
