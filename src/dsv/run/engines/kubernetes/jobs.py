"""Jobs of dsv in a cluster: looked at, signalled and deleted."""

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
    ask_queue,
    is_beyond_quota,
    put_back,
    quantity,
    refusal,
    requests_of,
    waiting,
)
from dsv.run.engines.kubernetes.observe import DELETED, NODE_LOST, JobFacts, Pod, status
from dsv.run.engines.kubernetes.options import (
    GRACE_SECONDS,
    LABEL,
    RUN_KEY,
    SIGNAL_KEY,
    STOPPED_KEY,
    Manifest,
)
from dsv.run.record import EndCause, JobRef, RunState

_ID: Final = re.compile(r"([a-z0-9][a-z0-9.-]*)/([a-z0-9][a-z0-9.-]*)/([0-9a-f-]{8,64})", re.ASCII)
_DEAD: Final = GRACE_SECONDS + 15.0
"""Seconds after which a pod that was told to end, on a machine that doesn't answer, is given up."""


_KINDS: Final = {"Service": "services", "Secret": "secrets", "Job": "batch/v1/jobs"}
_PAUSE: Final = 0.3
_TRIES, _BETWEEN = 10, 1.0
"""How often something is asked for again that was refused for a moment, and the seconds between."""
_SIGNALS: Final = 8
"""How many signals a pod shows at once."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where in the cluster a Job is, and which of that name."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, ref: JobRef) -> Address | None:
        found = _ID.fullmatch(ref.id)
        return None if found is None else cls(*found.groups())

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"

    @property
    def path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.name}"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def events(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/events"


@dataclass(slots=True)
class KubernetesJob:
    """One Job, asked about again and again: what was seen of pods that are gone is remembered."""

    api: KubernetesApi
    at: Address
    raw: Any = None
    pods: dict[str, Pod] = field(default_factory=dict)
    _told: list[str] = field(default_factory=list)
    _dying: dict[str, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def look(self) -> JobFacts | Refusal | None:
        """None if there is no such Job, or none any more; `known` has what was seen of it."""
        pods = self.api.items(self.at.pods, labelSelector=f"{LABEL}={self.at.name}")
        found = self.api.get(self.at.path)
        if isinstance(found, Refusal):
            return None if found.status == 404 else found
        if isinstance(pods, Refusal):
            return pods
        if found["metadata"]["uid"] != self.at.uid:
            return None
        own = {each["metadata"]["uid"]: Pod(each) for each in pods if self._owns(each)}
        with self._lock:
            for uid, pod in self.pods.items():
                if uid not in own:
                    own[uid] = Pod(pod.raw, gone=True, lost=pod.lost or self._why_lost(pod))
            self._put_back(JobFacts(found), own)
            self.raw, self.pods = found, own
        return self.known()

    def queue_says(self) -> Sequence[Mapping[str, Any]] | Refusal:
        """The Workload that Kueue has made of the Job."""
        return ask_queue(self.api, self.at.namespace, self.at.uid)

    def why_queued(self, facts: JobFacts) -> str | None:
        """What it waits for, in the words of its queue or of the cluster."""
        if facts.queue is not None and facts.suspended:
            return waiting(facts.queue, self.queue_says()).reason
        found = next((each for pod in facts.last if (each := pod.obstacle(True)) is not None), None)
        if found is not None or facts.last:
            return None if found is None else found.reason
        refused = refusal(self.messages())
        return None if refused is None else refused[0]

    def _put_back(self, facts: JobFacts, own: dict[str, Pod]) -> None:
        """Pods end with exit codes of their own, or without a word, if a queue takes their place away."""
        for uid, pod in own.items():
            known = self.pods.get(uid)
            if known is not None and known.put_back is not None:
                own[uid] = replace(pod, put_back=known.put_back)
            elif facts.put_back and pod.begun and (pod.is_going if known is None else not known.is_over):
                own[uid] = replace(pod, put_back=put_back(self.queue_says()))

    def latest(self) -> JobFacts | None:
        """As it is now, or as it was seen last if the cluster doesn't say."""
        facts = self.look()
        return facts if isinstance(facts, JobFacts) else self.known()

    def known(self) -> JobFacts | None:
        """As it was seen last."""
        return None if self.raw is None else JobFacts(self.raw, tuple(self.pods.values()))

    def messages(self) -> list[str]:
        """Why the cluster makes no pods of the Job, in its own words; nothing if the caller may not read that."""
        return self._warnings(self.at.uid, "FailedCreate")

    def troubles(self, pod: Pod) -> list[str]:
        """What keeps a pod that has its place from beginning, such as a volume that can't be mounted."""
        return self._warnings(pod.uid, None)

    def signal(self, name: str) -> Refusal | None:
        """Sends it to the command on every node that has begun. Returns what kept it from one.

        The last ones stay there, as a node sees none of what was replaced before it has looked.
        """
        with self._lock:
            number = f"{len(self._told)}.{os.getpid()}.{int(monotonic() * 1000)}"
            self._told.append(f"{number} {name}\n")
            told = "".join(self._told[-_SIGNALS:])
            alive = [each for each in self.pods.values() if each.begun and not each.is_over]
        problem = None
        for pod in alive:
            body = {"metadata": {"annotations": {SIGNAL_KEY: told}}}
            answer = self.api.patch(f"{self.at.pods}/{pod.name}", body)
            if isinstance(answer, Refusal) and answer.status != 404:
                problem = answer
        return problem

    def tell_stopped(self, how: str) -> Refusal | None:
        """Leaves word of who ended the job, and no further attempt of it is made. The first one counts."""
        said = self.raw["metadata"].get("annotations") or {} if self.raw is not None else {}
        by = said.get(STOPPED_KEY) or f"{user_name(os.geteuid())} on {host_name()} ({how})"
        body = {"metadata": {"annotations": {STOPPED_KEY: by}}, "spec": {"backoffLimit": 0}}
        answer = self.api.patch(self.at.path, body)
        if isinstance(answer, Refusal):
            return answer
        self.raw = answer
        return None

    def delete(self, grace: float | None = None) -> Refusal | None:
        """With its pods. One that is gone already is deleted."""
        if grace is not None:
            for pod in self.pods.values():
                if not pod.is_over:
                    self.api.delete(f"{self.at.pods}/{pod.name}", grace)
        answer = self.api.delete(self.at.path)
        return answer if isinstance(answer, Refusal) and answer.status != 404 else None

    def end_what_waits(self, facts: JobFacts) -> None:
        """Gives back the place of a node that waits in vain: the cluster ends it, and keeps the pods of the others."""
        if facts.goes_on_in_vain:
            self.api.patch(self.at.path, {"spec": {"activeDeadlineSeconds": 1}})

    def deleted_unbegun(self) -> bool:
        """Deletes a Job that was made and never let begin, for a caller who may not see whether it has pods."""
        found = self.api.get(self.at.path)
        if isinstance(found, Refusal) or found["metadata"]["uid"] != self.at.uid:
            return False
        facts, status = JobFacts(found), found.get("status") or {}
        began = status.get("startTime") or status.get("active")
        return facts.suspended and not facts.queued and not began and self.delete() is None

    def take_back(self, facts: JobFacts) -> bool:
        """A step towards the end of a job that doesn't seem to have begun. Whether it was the last one.

        The Job is suspended first: the cluster then ends its pods as they would be ended anywhere, and tells how the
        command ended if that had begun after all. Not one of a queue, which would let it begin again. facts: what was
        just seen.
        """
        quiet = facts.suspended and all(each.is_over for each in facts.pods)
        if not quiet and not facts.queued:
            self.api.patch(self.at.path, {"spec": {"suspend": True}})
            return False
        return self.delete() is None

    def taken_back_within(self, seconds: float) -> JobStatus | None:
        """How it ended if its command had begun; `NOT_LAUNCHED` if it is certain that it hadn't, and never will."""
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            facts = self.look()
            if facts is None:
                return JobStatus(RunState.CUT_OFF)
            if isinstance(facts, JobFacts):
                if facts.begun:
                    over = self.over_within(max(deadline - monotonic(), 0.0))
                    if over is not None and facts.suspended:
                        self.delete()
                    return over
                if self.take_back(facts):
                    return JobStatus(RunState.NOT_LAUNCHED)
            sleep(_PAUSE)
        return None

    def over_within(self, seconds: float) -> JobStatus | None:
        """How it ended, if it does within so many seconds; `CUT_OFF` if it is gone."""
        deadline = monotonic() + seconds
        while True:
            facts = self.look()
            if facts is None:
                return JobStatus(RunState.CUT_OFF)
            if isinstance(facts, JobFacts) and not (now := status(facts)).lives:
                return now
            if monotonic() >= deadline:
                return None
            sleep(_PAUSE)

    def give_up_lost_pods(self) -> Refusal | None:
        """The cluster itself waits for ever for the end of a pod on a machine that is gone, and so for its successor.

        Marks such pods as failed, as the cluster does if the machine is taken out of it. Returns what it has against
        that.
        """
        problem = None
        for uid, pod in list(self.pods.items()):
            if not pod.is_going or pod.host is None:
                self._dying.pop(uid, None)
                continue
            if monotonic() - self._dying.setdefault(uid, monotonic()) < _DEAD:
                continue
            if self._is_lost(pod.host):
                body = {"status": {"phase": "Failed", "reason": NODE_LOST, "message": f"{pod.host} is lost"}}
                answer = self.api.patch(f"{self.at.pods}/{pod.name}/status", body)
                if isinstance(answer, Refusal):
                    problem = answer if answer.status != 404 else problem
                else:
                    self.pods[uid] = Pod(answer, put_back=pod.put_back)
                    self.api.delete(f"{self.at.pods}/{pod.name}", 0)
        return problem

    def _why_lost(self, pod: Pod) -> tuple[EndCause, str] | None:
        """Why the cluster does not have a pod any more of whose end it has said nothing."""
        if pod.gone or pod.part_is_over or pod.host is None or not pod.begun:
            return None
        lost = self._is_lost(pod.host)
        if lost is None:
            return EndCause.LOST_SIGHT, f"the cluster does not have the pod {pod.name} any more"
        return (EndCause.NODE_LOST, f"{pod.host} is lost") if lost else (EndCause.CANCELLED, DELETED)

    def _is_lost(self, host: str) -> bool | None:
        """Whether the cluster does not hear of a machine any more; None if it does not tell."""
        node = self.api.get(f"/api/v1/nodes/{host}")
        if isinstance(node, Refusal):
            return True if node.status == 404 else None
        return _is_unheard_of(node)

    def fits_no_node(self, pod: Pod) -> bool:
        """Whether the pod asks for more than any machine of the cluster has; False if that is not known."""
        nodes = self.api.items("/api/v1/nodes")
        if isinstance(nodes, Refusal) or not nodes:
            return False
        asked = requests_of(pod.raw)
        return not any(all(_has(node, name) >= asked[name] for name in asked) for node in nodes)

    def _warnings(self, uid: str, reason: str | None) -> list[str]:
        which = f"involvedObject.uid={uid},type=Warning" + (f",reason={reason}" if reason else "")
        events = self.api.items(self.at.events, fieldSelector=which)
        if isinstance(events, Refusal):
            return []
        events.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
        return [str(each.get("message") or "") for each in events]

    def _owns(self, pod: Any) -> bool:
        return any(each.get("uid") == self.at.uid for each in pod["metadata"].get("ownerReferences") or ())


def make(api: KubernetesApi, thing: Manifest, run: str) -> Any:
    """One that is there already is ours if it is of this run. Raises what the cluster has against it."""
    kind, name = thing["kind"], thing["metadata"]["name"]
    path = api.path(_KINDS[kind])
    answer = api.create(path, thing)
    for _ in range(_TRIES):
        if not (isinstance(answer, Refusal) and answer.passes):
            break
        sleep(_BETWEEN)
        answer = api.create(path, thing)
    if isinstance(answer, Refusal) and (answer.is_away or answer.status == 409):
        # It may have been made although the answer got lost.
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
    """The names of Jobs of the namespace that are over, and that a quota still counts."""
    found = api.items(api.path("batch/v1/jobs"))
    jobs = [] if isinstance(found, Refusal) else [JobFacts(each) for each in found]
    return [each.name for each in jobs if each.condition("Complete") or each.condition("Failed")]


def _has(node: Any, resource: str) -> float:
    """What a machine has for pods. One that prepares its devices says for a moment that it has none for them."""
    status = node.get("status") or {}
    amount = (status.get("allocatable") or {}).get(resource, "0")
    capacity = (status.get("capacity") or {}).get(resource, "0") if "/" in resource else "0"
    return max(quantity(str(amount)), quantity(str(capacity)))


def _is_unheard_of(node: Any) -> bool:
    """One that reports to be unready ends its pods by itself."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "Unknown" for each in conditions)
