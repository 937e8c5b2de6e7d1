"""What a queue of Kueue says of a job, and what becomes of one that it takes back: without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from dsv.engines.kubernetes.api import Refusal
from dsv.engines.kubernetes.end import JobFacts, ended, status
from dsv.engines.kubernetes.jobs import Address, KubernetesJob
from dsv.engines.kubernetes.names import LABEL, QUEUE_LABEL
from dsv.engines.kubernetes.queue import put_back, waiting
from dsv.model.run import RunState
from dsv.model.run_end import EndCause
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
        (pending("request > maximum capacity (4)"), "maximum capacity", 5.0),
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
    found = waiting("gpu", answer)
    assert words in found.reason
    assert (found.cause, found.patience) == (EndCause.UNSCHEDULABLE, patience)


@pytest.mark.parametrize(
    ("reason", "cause"), [("Preempted", EndCause.PREEMPTED), ("ClusterQueueStopped", EndCause.EVICTED)]
)
def test_why_a_job_was_put_back(reason: str, cause: EndCause) -> None:
    said = [a_workload(conditions=[a_condition("Evicted", "True", reason, PREEMPTED)])]
    assert put_back(said) == (cause, PREEMPTED)
    assert put_back(Refusal("forbidden", 403))[0] is EndCause.PREEMPTED


class Cluster:
    """Stands for the API: one Job with its pods, and the Workload of a queue that preempts it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.pods: list[Any] = []

    def get(self, path: str) -> Any:
        if path == "/apis/kueue.x-k8s.io":
            return {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta1"}}
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
        "ownerReferences": [{"uid": "u"}],
    }
    return pod


@pytest.mark.parametrize("left", [[raw("1", code=143)], [raw("1", phase="Succeeded", code=0)], []])
def test_a_job_whose_queue_took_its_place_away_was_preempted_however_its_command_ended(
    left: list[Any],
) -> None:
    """By a signal, by itself once it was told to, or unseen."""
    cluster = Cluster(a_queued_job(backoffLimit=0))
    cluster.pods = [raw("1", phase="Running")]
    job = KubernetesJob(cluster, Address("training", "j", "u"))  # type: ignore[arg-type]
    facts = job.look()
    assert isinstance(facts, JobFacts) and status(facts).state is RunState.RUNNING
    cluster.job, cluster.pods = a_queued_job(backoffLimit=0, suspend=True), left
    facts = job.look()
    assert isinstance(facts, JobFacts)
    done = ended(facts)
    assert done is not None and (done.cause, done.reason) == (EndCause.PREEMPTED, PREEMPTED)
    assert done.exit_code in (143, 0) and done.launched


def test_a_job_with_retries_is_queued_again_and_its_next_attempt_has_the_next_number() -> None:
    """The cluster itself counts no attempt that a queue took back."""
    cluster = Cluster(a_queued_job(backoffLimit=1))
    cluster.pods = [raw("1", phase="Running")]
    job = KubernetesJob(cluster, Address("training", "j", "u"))  # type: ignore[arg-type]
    job.look()
    cluster.job, cluster.pods = a_queued_job(backoffLimit=1, suspend=True), []
    facts = job.look()
    assert isinstance(facts, JobFacts) and ended(facts) is None
    assert status(facts).state is RunState.QUEUED
    cluster.job, cluster.pods = a_queued_job(backoffLimit=1), [raw("2", phase="Succeeded", code=0)]
    facts = job.look()
    assert isinstance(facts, JobFacts)
    done = ended(facts)
    assert done is not None and done.exit_code == 0
    ends = [(each.attempt, each.end) for each in done.parts]
    assert ends == [(1, EndCause.PREEMPTED), (2, EndCause.EXITED)]
