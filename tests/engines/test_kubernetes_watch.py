"""Watching a job instead of asking for it again and again: on a stand-in for the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event
from typing import Any

from dsv.run.engines.kubernetes.api import Refusal
from dsv.run.engines.kubernetes.job import KubernetesJob
from dsv.run.engines.kubernetes.watch import start_watches
from tests.engines.test_kubernetes_end import a_pod
from tests.engines.test_kubernetes_run import Cluster, _run, unwatched
from tests.waiting import until

BOOKMARK = '{"type":"BOOKMARK"}'


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

    @contextmanager
    def stream(self, path: str, *given: Any, **query: Any) -> Iterator[News]:
        if "watch" not in query or self.refuses:
            raise Refusal("forbidden", 403)
        assert (given, query["allowWatchBookmarks"]) == ((90.0,), "true")
        (self.asked[path],) = (value for name, value in query.items() if name.endswith("Selector"))
        self.news.append(News())
        yield self.news[-1]

    def tell(self, line: str | None) -> None:
        for each in self.news:
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


def test_a_watch_looks_at_changes_and_not_at_bookmarks_and_ends_with_the_next_of_them() -> None:
    cluster, over = Told(), Event()
    moves: SimpleQueue[None] = SimpleQueue()
    job = KubernetesJob(cluster, "training", "job", "u0")  # type: ignore[arg-type]
    watches = start_watches(job, lambda: moves.put(None), over)
    until(lambda: moves.qsize() == 2, "both connections")
    cluster.tell(BOOKMARK)
    cluster.tell('{"type":"MODIFIED"}')
    until(lambda: moves.qsize() == 4, "a change of each")
    over.set()
    cluster.tell(BOOKMARK)
    for watch in watches:
        watch.join()
    assert moves.qsize() == 6 and not any(watch.connected for watch in watches)
