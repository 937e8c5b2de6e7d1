"""Lost pods, pods without room, and refused objects: on stand-ins for the cluster."""

from __future__ import annotations

from threading import Event, Lock, Thread
from typing import Any

import pytest

from dsv.errors import Denied, DsvError
from dsv.run.engines.base import NoPlaceYet
from dsv.run.engines.kubernetes import follow
from dsv.run.engines.kubernetes import job as job_module
from dsv.run.engines.kubernetes.api import Refusal
from dsv.run.engines.kubernetes.engine import make
from dsv.run.engines.kubernetes.follow import without_numbers
from dsv.run.engines.kubernetes.job import JobSnapshot, KubernetesJob, ended, status
from dsv.run.engines.kubernetes.pod import Pod
from dsv.run.part import EndCause
from dsv.run.record import RunState
from tests.engines.test_kubernetes_run import unwatched
from tests.waiting import until

GOING = {
    "metadata": {"name": "pod", "uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"nodeName": "node1"},
    "status": {"phase": "Running"},
}


_BEGUN = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
RUNNING = {
    "metadata": {"name": "pod", "uid": "u1"},
    "spec": {"nodeName": "node1"},
    "status": {"phase": "Running", "containerStatuses": [_BEGUN]},
}


class Cluster:
    """Stands for the API: it has one node, and notes what it is asked to change."""

    def __init__(self, node: Any, against: Refusal | None = None) -> None:
        self.node = node
        self.against = against
        self.changed: list[str] = []

    def get(self, path: str) -> Any:
        if isinstance(self.node, Refusal):
            raise self.node
        return self.node

    def patch(self, path: str, body: Any) -> Any:
        self.changed.append(f"{path.rpartition('/pods/')[2]} {body['status']['phase']}")
        if self.against is not None:
            raise self.against
        return {}

    def delete(self, path: str, grace: float | None = None) -> Any:
        self.changed.append(f"{path.rpartition('/pods/')[2]} deleted")
        return {}


def _node(ready: str) -> Any:
    return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


@pytest.mark.parametrize(
    ("node", "changed"),
    [
        (_node("Unknown"), ["pod/status Failed", "pod deleted"]),
        (Refusal("no such node", 404), ["pod/status Failed", "pod deleted"]),
        (_node("False"), []),  # it answers, and ends its pods itself
        (_node("True"), []),
        (Refusal("no answer"), []),
    ],
)
def test_a_pod_is_given_up_if_its_machine_does_not_report(
    node: Any, changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(job_module, "monotonic", lambda: now[0])
    cluster = Cluster(node)
    job = KubernetesJob(cluster, "training", "job", "u0", pods={"u1": Pod(GOING)})  # type: ignore[arg-type]
    job.fail_lost_pods()
    assert cluster.changed == []  # it has the time to end by itself
    now[0] = 46.0
    job.fail_lost_pods()
    assert cluster.changed == changed


@pytest.mark.parametrize(
    ("node", "cause", "words"),
    [
        (_node("Unknown"), EndCause.NODE_LOST, "node1 is lost"),
        (Refusal("no such node", 404), EndCause.NODE_LOST, "node1 is lost"),
        (_node("True"), EndCause.CANCELLED, "its pod was deleted"),
        (Refusal("forbidden", 403), EndCause.LOST_SIGHT, "does not have the pod pod any more"),
    ],
)
def test_the_reason_of_a_lost_pod_that_the_cluster_did_not_report(
    node: Any, cause: EndCause, words: str
) -> None:
    class Emptied(Cluster):
        def get(self, path: str) -> Any:
            job = {"metadata": {"name": "job", "uid": "u0"}, "spec": {"backoffLimit": 0}}
            return {**job, "status": {}} if path.endswith("/jobs/job") else super().get(path)

        def items(self, path: str, **query: str) -> list[Any]:
            return []

    job = KubernetesJob(Emptied(node), "training", "job", "u0", pods={"u1": Pod(RUNNING)})  # type: ignore[arg-type]
    facts = job.look()
    assert isinstance(facts, JobSnapshot)
    done = ended(facts)
    assert done is not None and (done.cause, done.exit_code) == (cause, 137)
    assert words in str(done.reason)


def test_an_older_listing_that_comes_late_does_not_make_a_new_pod_seem_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads look: the pod is made after the listing of the one, and before that of the other."""
    waits = Event()

    class Noted:
        """A lock that notes if a thread has to wait for it."""

        def __init__(self) -> None:
            self._lock = Lock()

        def __enter__(self) -> None:
            if not self._lock.acquire(blocking=False):
                waits.set()
                self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    class Starting(Cluster):
        pods: tuple[Any, ...] = ()

        def get(self, path: str) -> Any:
            job = {"metadata": {"name": "job", "uid": "u0"}, "spec": {}, "status": {}}
            return job if path.endswith("/jobs/job") else super().get(path)

        def items(self, path: str, **query: str) -> list[Any]:
            listed = list(self.pods)
            if not listed:
                self.pods = (RUNNING,)
                other.start()
                until(lambda: waits.is_set() or not other.is_alive())
            return listed

    monkeypatch.setattr(job_module, "Lock", Noted)
    job = KubernetesJob(Starting(_node("True")), "training", "job", "u0")  # type: ignore[arg-type]
    other = Thread(target=job.look)
    job.look()
    other.join()
    facts = job.known()
    assert facts is not None and status(facts).state is RunState.RUNNING


MACHINES = [
    {"status": {"allocatable": {"cpu": "8", "ephemeral-storage": "10Gi", "nvidia.com/gpu": "0"},
                "capacity": {"cpu": "8", "ephemeral-storage": "11Gi", "nvidia.com/gpu": "8"}}},
    {"status": {"allocatable": {"cpu": "64", "ephemeral-storage": "10Gi"}}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "never"),
    [
        ({"cpu": "8"}, False),
        ({"cpu": "64", "nvidia.com/gpu": "8"}, True),  # each is there, and not on one machine
        ({"nvidia.com/gpu": "8"}, False),  # a machine whose devices are prepared just now
        ({"ephemeral-storage": "100Gi"}, True),
        ({"example.org/none": "1"}, True),
    ],
)
def test_a_pod_that_fits_no_machine_is_distinguished_from_one_that_waits(
    asked: dict[str, str], never: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "0/2 nodes are available: 2 Insufficient something."
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod = Pod(
        {
            "metadata": {"name": "pod", "uid": "u1"},
            "spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]},
            "status": {"phase": "Pending", "conditions": [waits]},
        }
    )

    class Machines:
        def items(self, path: str, **query: str) -> list[Any]:
            return MACHINES if path.endswith("/nodes") else []

    now = [0.0]
    monkeypatch.setattr(follow, "monotonic", lambda: now[0])
    job = KubernetesJob(Machines(), "training", "job", "u0", pods={"u1": pod})  # type: ignore[arg-type]
    looking = unwatched(job)
    facts = JobSnapshot({"metadata": {"name": "job", "uid": "u0"}, "spec": {}}, (pod,))
    now[0] = 2.0
    assert looking._why_never(facts) is None
    now[0] = 61.0
    stuck = looking._why_never(facts)
    assert (stuck is not None) == never
    assert stuck is None or (stuck.cause, stuck.reason) == (EndCause.UNSCHEDULABLE, said)
    looking._autoscaling, now[0] = True, 200.0
    assert looking._why_never(facts) is None


def test_the_refusal_to_give_up_a_pod_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(job_module, "monotonic", lambda: now[0])
    against = Refusal("pods/status is forbidden", 403)
    cluster = Cluster(_node("Unknown"), against)
    job = KubernetesJob(cluster, "training", "job", "u0", pods={"u1": Pod(GOING)})  # type: ignore[arg-type]
    job.fail_lost_pods()
    now[0] = 46.0
    assert job.fail_lost_pods() == "pods/status is forbidden"
    assert cluster.changed == ["pod/status Failed"]


def test_an_image_that_cannot_be_pulled_is_reported_once() -> None:
    """Each attempt has a port of its own in its message."""
    first, second = (f"dial tcp: read udp 10.0.0.2:{port}->10.0.0.53:53: i/o timeout" for port in (5, 41050))
    assert without_numbers(first) == without_numbers(second) != without_numbers("no such host")
    first, second = (f'pods "dsv-1-0-{end}" is forbidden: exceeded quota: few' for end in ("95hhj", "p8vkk"))
    assert without_numbers(first) == without_numbers(second) != without_numbers('pods "dsv-1-0" is forbidden')


QUOTA = 'jobs.batch "j" is forbidden: exceeded quota: few, requested: {0}=1, used: {0}={1}, limited: {0}={1}'


@pytest.mark.parametrize(
    ("refused", "former", "kind"),
    [
        (Refusal(QUOTA.format("count/jobs.batch", 1), 403), None, NoPlaceYet),
        (Refusal(QUOTA.format("count/jobs.batch", 0), 403), None, Denied),
        (Refusal("jobs.batch is forbidden: User ann cannot create", 403), None, Denied),
        (Refusal("already exists", 409), {"deletionTimestamp": "2026-01-01T00:00:00Z"}, NoPlaceYet),
    ],
)
def test_a_cluster_that_is_full_is_distinguished_from_one_that_refuses(
    refused: Refusal, former: dict[str, Any] | None, kind: type[DsvError]
) -> None:
    class Refusing:
        def path(self, kind: str) -> str:
            return kind

        def create(self, path: str, body: Any) -> Any:
            raise refused

        def items(self, path: str) -> list[Any]:
            over = {"conditions": [{"type": "Failed", "status": "True"}]}
            return [
                {"metadata": {"name": name}, "status": status}
                for name, status in (("old", over), ("new", {}))
            ]

        def get(self, path: str) -> Any:
            annotations = {"dsv.run/run": "r"}
            if former is None:
                raise Refusal("none", 404)
            return {"metadata": {**former, "annotations": annotations}}

    with pytest.raises(DsvError) as error:
        make(Refusing(), {"kind": "Job", "metadata": {"name": "j"}}, "r")  # type: ignore[arg-type]
    assert type(error.value) is kind
    assert ("still kept: old" in error.value.message) == (kind is NoPlaceYet and former is None)
    assert (error.value.hint == "kubectl delete job old") == ("still kept: old" in error.value.message)
