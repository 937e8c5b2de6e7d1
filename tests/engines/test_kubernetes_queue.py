"""Jobs in a queue of Kueue: waiting, refused and evicted, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from dsv.run.engines.kubernetes.api import KubernetesOptions, Refusal
from dsv.run.engines.kubernetes.capacity import ask_capacity, why_evicted, why_not_admitted
from dsv.run.engines.kubernetes.job import JobSnapshot, KubernetesJob, ended, status
from dsv.run.engines.kubernetes.manifest import LABEL, QUEUE_LABEL
from dsv.run.part import EndCause
from dsv.run.record import RunState
from dsv.run.resources import Capacity, Resources
from tests.engines.test_kubernetes_end import a_job, a_pod

PREEMPTED = "Preempted to accommodate a workload (UID: 7) due to prioritization"


def a_workload(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "status": status}


def a_condition(kind: str, value: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": value, "reason": reason, "message": message}


def pending(message: str) -> list[dict[str, Any]]:
    return [a_workload(conditions=[a_condition("QuotaReserved", "False", "Pending", message)])]


RESERVED = a_condition("QuotaReserved", "True", "QuotaReserved", "")


@pytest.mark.parametrize(
    ("answer", "words", "patience"),
    [
        (pending("insufficient unused quota for nvidia.com/gpu, 1 more needed"), "1 more needed", None),
        (
            pending(
                "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor any, "
                "previously considered podsets requests (0) + current podset request (4) > maximum capacity (2)"
            ),
            "maximum capacity (2)",
            5.0,
        ),
        (pending("ClusterQueue team is inactive"), "ClusterQueue team is inactive", None),
        (
            pending(
                "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor old, request "
                "> maximum capacity (8 > 4), insufficient unused quota for nvidia.com/gpu in flavor new, 2 more needed"
            ),
            "2 more needed",
            None,
        ),
        (pending("LocalQueue gpu doesn't exist"), "LocalQueue gpu doesn't exist", 60.0),
        (
            [a_workload(conditions=[RESERVED], admissionChecks=[{"name": "budget", "state": "Pending"}])],
            "it: budget: Pending",
            None,
        ),
        ([a_workload(conditions=[RESERVED])], "has not admitted it", None),
        ([], "the queue gpu has not admitted it", None),
        (Refusal("workloads is forbidden", 403), "the queue gpu has not admitted it", None),
        (Refusal("not found", 404), "the cluster has no Kueue", 60.0),
    ],
)
def test_why_a_job_waits(answer: Any, words: str, patience: float | None) -> None:
    found = why_not_admitted("gpu", answer)
    assert words in found.reason
    assert (found.cause, found.patience) == (EndCause.UNSCHEDULABLE, patience)


class Queues:
    """Stands for the API: what it says of one queue, to somebody who may see everything else."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def path(self, kind: str, name: str | None = None) -> str:
        return f"{kind}/{name}"

    def items(self, path: str, *_: Any, **__: Any) -> list[Any]:
        waits = {"metadata": {"name": "p"}, "status": {"phase": "Pending"}, "spec": {}}
        return [waits] if path == "/api/v1/pods" else []

    def get(self, path: str, *_: Any) -> Any:
        if path == "/apis/kueue.x-k8s.io":
            there = {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}
            return self.given() if self.answer is NO_KUEUE else there
        assert path == "kueue.x-k8s.io/v1beta2/localqueues/gpu"
        return self.given()

    def given(self) -> Any:
        if isinstance(self.answer, Refusal):
            raise self.answer
        return self.answer


NO_KUEUE = Refusal("the server could not find the requested resource", 404)
ACTIVE = a_condition("Active", "True", "Ready", "Can submit new workloads to localQueue")
STOPPED = a_condition(
    "Active", "False", "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue"
)


@pytest.mark.parametrize(
    ("answer", "waiting", "closed"),
    [
        (a_workload(pendingWorkloads=2, conditions=[ACTIVE]), 3, None),
        (
            a_workload(pendingWorkloads=2, conditions=[STOPPED]),
            3,
            "gpu is closed: Can't submit new workloads",
        ),
        (Refusal("localqueues gpu not found", 404), 1, "has no queue gpu"),
        (Refusal("localqueues is forbidden", 403), None, None),
        (NO_KUEUE, 1, "the cluster has no Kueue"),
    ],
)
def test_a_pool_counts_the_jobs_that_wait_in_its_queue(
    answer: Any, waiting: int | None, closed: str | None
) -> None:
    """They have no pods, so nothing else shows them."""
    found = ask_capacity(Queues(answer), KubernetesOptions(queue="gpu"), Resources())  # type: ignore[arg-type]
    assert isinstance(found, Capacity) and found.waiting == waiting
    assert (found.not_now is None) if closed is None else (closed in (found.not_now or ""))


@pytest.mark.parametrize(
    ("reason", "cause"), [("Preempted", EndCause.PREEMPTED), ("ClusterQueueStopped", EndCause.EVICTED)]
)
def test_why_a_job_was_evicted_by_queue(reason: str, cause: EndCause) -> None:
    said = [a_workload(conditions=[a_condition("Evicted", "True", reason, PREEMPTED)])]
    assert why_evicted(said) == (cause, PREEMPTED)
    assert why_evicted(Refusal("forbidden", 403))[0] is EndCause.PREEMPTED


class Cluster:
    """Stands for the API: one Job with its pods, and the Workload of a queue that preempts it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.pods: list[Any] = []

    def get(self, path: str, *_: Any) -> Any:
        if path == "/apis/kueue.x-k8s.io":
            return {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}
        return self.job

    def items(self, path: str, **_: Any) -> list[Any]:
        if path.endswith("/workloads"):
            return [a_workload(conditions=[a_condition("Evicted", "True", "Preempted", PREEMPTED)])]
        return self.pods


def a_queued_job(**more: Any) -> dict[str, Any]:
    job = a_job(**more)
    job["metadata"]["labels"] = {QUEUE_LABEL: "gpu", LABEL: "j"}
    return job


def raw(created: str, **more: Any) -> dict[str, Any]:
    pod = dict(a_pod(**more).raw)
    pod["metadata"] = {
        **pod["metadata"],
        "uid": created,
        "creationTimestamp": created,
    }
    return pod


@pytest.mark.parametrize("left", [[raw("1", code=143)], [raw("1", phase="Succeeded", code=0)], []])
def test_a_job_whose_queue_took_its_place_away_was_preempted_however_its_command_ended(
    left: list[Any],
) -> None:
    """By a signal, by itself after a signal, or unseen."""
    cluster = Cluster(a_queued_job(backoffLimit=0))
    cluster.pods = [raw("1", phase="Running")]
    job = KubernetesJob(cluster, "training", "j", "u")  # type: ignore[arg-type]
    facts = job.look()
    assert isinstance(facts, JobSnapshot) and status(facts).state is RunState.RUNNING
    cluster.job, cluster.pods = a_queued_job(backoffLimit=0, suspend=True), left
    facts = job.look()
    assert isinstance(facts, JobSnapshot)
    done = ended(facts)
    assert done is not None and (done.cause, done.reason) == (EndCause.PREEMPTED, PREEMPTED)
    assert done.exit_code in (143, 0) and done.launched


def test_a_job_with_retries_is_queued_again_and_its_next_attempt_has_the_next_number() -> None:
    """The cluster itself counts no attempt that a queue took back."""
    cluster = Cluster(a_queued_job(backoffLimit=1))
    cluster.pods = [raw("1", phase="Running")]
    job = KubernetesJob(cluster, "training", "j", "u")  # type: ignore[arg-type]
    job.look()
    cluster.job, cluster.pods = a_queued_job(backoffLimit=1, suspend=True), []
    facts = job.look()
    assert isinstance(facts, JobSnapshot) and ended(facts) is None
    assert status(facts).state is RunState.QUEUED
    cluster.job, cluster.pods = a_queued_job(backoffLimit=1), [raw("2", phase="Succeeded", code=0)]
    facts = job.look()
    assert isinstance(facts, JobSnapshot)
    done = ended(facts)
    assert done is not None and done.exit_code == 0
    ends = [(each.attempt, each.end) for each in done.parts]
    assert ends == [(1, EndCause.PREEMPTED), (2, EndCause.EXITED)]
