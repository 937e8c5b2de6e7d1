"""Which pods are given up although the cluster waits for their end."""

from __future__ import annotations

from typing import Any

import pytest

from dsv.engines.base import NoPlaceYet
from dsv.engines.kubernetes import jobs
from dsv.engines.kubernetes.api import Refusal
from dsv.engines.kubernetes.jobs import Address, KubernetesJob, make
from dsv.engines.kubernetes.pods import Pod
from dsv.engines.kubernetes.run import without_numbers
from dsv.errors import Denied, DsvError

GOING = {
    "metadata": {"name": "pod", "uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"nodeName": "node1"},
    "status": {"phase": "Running"},
}


class Cluster:
    """Stands for the API: it has one node, and notes what it is asked to change."""

    def __init__(self, node: Any, against: Refusal | None = None) -> None:
        self.node = node
        self.against = against
        self.changed: list[str] = []

    def get(self, path: str) -> Any:
        return self.node

    def patch(self, path: str, body: Any) -> Any:
        self.changed.append(f"{path.rpartition('/pods/')[2]} {body['status']['phase']}")
        return self.against or {}

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
def test_a_pod_is_given_up_if_nothing_is_heard_of_its_machine(
    node: Any, changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(jobs, "monotonic", lambda: now[0])
    cluster = Cluster(node)
    job = KubernetesJob(cluster, Address("training", "job", "u0"), pods={"u1": Pod(GOING)})  # type: ignore[arg-type]
    assert job.give_up_lost_pods() is None
    assert cluster.changed == []  # it has the time to end by itself
    now[0] = 46.0
    assert job.give_up_lost_pods() is None
    assert cluster.changed == changed


def test_what_the_cluster_has_against_giving_up_a_pod_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(jobs, "monotonic", lambda: now[0])
    against = Refusal("pods/status is forbidden", 403)
    cluster = Cluster(_node("Unknown"), against)
    job = KubernetesJob(cluster, Address("training", "job", "u0"), pods={"u1": Pod(GOING)})  # type: ignore[arg-type]
    job.give_up_lost_pods()
    now[0] = 46.0
    assert job.give_up_lost_pods() == against
    assert cluster.changed == ["pod/status Failed"]


def test_an_image_that_cannot_be_pulled_is_told_of_once() -> None:
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
def test_a_cluster_that_has_no_place_yet_is_told_from_one_that_refuses(
    refused: Refusal, former: dict[str, Any] | None, kind: type[DsvError]
) -> None:
    class Refusing:
        def path(self, kind: str) -> str:
            return kind

        def create(self, path: str, body: Any) -> Any:
            return refused

        def get(self, path: str) -> Any:
            annotations = {"dsv.run/run": "r"}
            return {"metadata": {**former, "annotations": annotations}} if former else Refusal("none", 404)

    with pytest.raises(DsvError) as error:
        make(Refusing(), {"kind": "Job", "metadata": {"name": "j"}}, "r")  # type: ignore[arg-type]
    assert type(error.value) is kind


@pytest.mark.parametrize(
    ("labels", "suspend", "status", "deleted"),
    [
        ({}, True, {}, True),
        ({}, True, {"startTime": "2026-01-01T00:00:00Z"}, False),
        ({}, False, {}, False),
        ({"kueue.x-k8s.io/queue-name": "gpus"}, True, {}, False),
    ],
)
def test_whoever_may_not_see_pods_leaves_no_job_behind_that_never_began(
    labels: dict[str, str], suspend: bool, status: dict[str, Any], deleted: bool
) -> None:
    class Blind:
        deleted = False

        def get(self, path: str) -> Any:
            return {
                "metadata": {"uid": "u0", "labels": labels},
                "spec": {"suspend": suspend},
                "status": status,
            }

        def delete(self, path: str, grace: float | None = None) -> Any:
            self.deleted = True
            return {}

    cluster = Blind()
    job = KubernetesJob(cluster, Address("training", "job", "u0"))  # type: ignore[arg-type]
    assert job.deleted_unbegun() == cluster.deleted == deleted
