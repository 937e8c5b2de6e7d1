"""Watching a job instead of asking for it again and again: on a stand-in for the cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from dsv.run.engines.kubernetes.api import Refusal
from dsv.run.engines.kubernetes.job import KubernetesJob
from dsv.run.engines.kubernetes.watch import Watch, start_watches
from tests.engines.test_kubernetes_end import a_pod
from tests.engines.test_kubernetes_run import Cluster, _run, unwatched
from tests.waiting import until


class News:
    """What the cluster tells of the objects at one path, until None."""

    def __init__(self) -> None:
        self.lines: SimpleQueue[str | None] = SimpleQueue()

    def iter_lines(self) -> Iterator[str]:
        return iter(self.lines.get, None)


class Told(Cluster):
    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__(begun=True)
        self.refuses = refuses
        self.news: list[News] = []
        self.asked: dict[str, str] = {}
        self.versions: list[str] = []

    @contextmanager
    def stream(self, path: str, *given: Any, **query: Any) -> Iterator[News]:
        if "watch" not in query or self.refuses:
            raise Refusal("forbidden", 403)
        self.versions.append(query["resourceVersion"])
        (self.asked[path],) = (value for name, value in query.items() if name.endswith("Selector"))
        self.news.append(News())
        yield self.news[-1]

    def get(self, path: str, *given: Any, **query: str) -> Any:
        if "limit" not in query:
            return super().get(path)
        if self.refuses:
            raise Refusal("forbidden", 403)
        return {"metadata": {"resourceVersion": "11"}}

    def tell(self, line: str | None) -> None:
        now, self.news = self.news, [] if line is None or "ERROR" in line else self.news
        for each in now:
            each.lines.put(line)


def test_a_job_is_looked_at_when_the_cluster_tells_of_a_change_and_else_each_five_minutes() -> None:
    """Also one that has no pod, of which nothing is told."""
    cluster = Told()
    run = _run(cluster)
    until(lambda: run._longest() == 300, "both watches")
    cluster.deleted = True
    cluster.tell('{"type":"DELETED"}')
    until(lambda: run.ended is not None, "the end")
    assert cluster.asked == {
        "/apis/batch/v1/namespaces/training/jobs": "metadata.name=job",
        "/api/v1/namespaces/training/pods": "batch.kubernetes.io/controller-uid=u0",
    }
    cluster.tell(None)


def test_a_job_that_may_not_be_watched_is_asked_for_each_ten_seconds_at_most() -> None:
    run = _run(Told(refuses=True))
    assert run._longest() == 10
    run._job.api.deleted = True  # type: ignore[attr-defined]
    run.kill()
    until(lambda: run.ended is not None, "the end")


def test_a_job_with_a_pod_that_is_being_ended_is_looked_at_often() -> None:
    """A machine that is lost says nothing, so the time has to tell."""
    job = KubernetesJob(Told(refuses=True), "training", "job", "u0")  # type: ignore[arg-type]
    run = unwatched(job)
    job.pods = {"u": a_pod(phase="Running", deleted=True)}
    assert run._longest() == 2


def test_a_watch_that_is_renewed_begins_where_it_was_and_ends_with_its_job() -> None:
    """Its renewal is no change. After an error it begins anew."""
    cluster = Told()
    moves: SimpleQueue[None] = SimpleQueue()
    job = KubernetesJob(cluster, "training", "job", "u0")  # type: ignore[arg-type]
    watches = start_watches(job, lambda: moves.put(None))
    until(lambda: moves.qsize() == 2, "both connections")
    cluster.tell('{"type":"MODIFIED","object":{"metadata":{"uid":"u","resourceVersion":"17"}}}')
    until(lambda: moves.qsize() == 4, "a change of each")
    cluster.tell(None)
    until(lambda: cluster.versions == ["11", "11", "17", "17"], "both renewals")
    cluster.tell('{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"23"}}}')
    cluster.tell(None)
    until(lambda: cluster.versions[4:] == ["23", "23"], "both again")
    assert moves.qsize() == 4 and all(watch.connected for watch in watches)
    cluster.tell('{"type":"ERROR","object":{"message":"too old resource version"}}')
    until(lambda: cluster.versions[6:] == ["11", "11"], "both anew")
    until(lambda: moves.qsize() == 8, "the loss and the connection of each")
    for watch in watches:
        watch.end()
    cluster.tell(None)
    for watch in watches:
        watch.join()
    assert len(cluster.versions) == 8


def test_the_connection_of_a_watch_ends_with_its_job() -> None:
    """Nothing else wakes who reads from it."""
    here, there = socket.socketpair()

    class Silent(Told):
        @property
        def extensions(self) -> Any:
            return {"network_stream": SimpleNamespace(get_extra_info=lambda _: here)}

        @contextmanager
        def stream(self, path: str, *given: Any, **query: Any) -> Iterator[Any]:
            yield self

        def iter_lines(self) -> Iterator[str]:
            yield from iter(lambda: here.recv(1).decode(), "")

    with here, there:
        watch = Watch(Silent(), "/pods", {}, lambda: None)  # type: ignore[arg-type]
        watch.start()
        until(lambda: watch.connected, "the connection")
        watch.end()
        watch.join()
