"""Reading the log of a job: on a stand-in for the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dsv.run.engines.base import Ended
from dsv.run.engines.kubernetes.api import Refusal
from dsv.run.engines.kubernetes.follow import PodLog, read_logs, with_left
from dsv.run.engines.kubernetes.job import JobSnapshot, KubernetesJob
from tests.engines.test_kubernetes_end import a_job, a_pod
from tests.engines.test_kubernetes_run import Cluster
from tests.waiting import until


def test_lines_of_one_time_are_read_once_each() -> None:
    written: list[bytes] = []
    lines = [
        b"2026-01-01T00:00:0%d %s\n" % each
        for each in ((1, b"a"), (2, b"b"), (2, b"c"), (2, b"d"), (3, b"e"))
    ]
    # the connection breaks, and it is read again from that time on
    bodies = [b"".join(lines[:2]), b"".join(lines[1:3]), *[b"".join(lines[1:4])] * 2, b"".join(lines[1:])]
    log = PodLog(Answers(*bodies), "/log", written.append, lambda: None)  # type: ignore[arg-type]
    for _ in bodies:
        assert log._read(follow=True)
    assert b"".join(written) == b"a\nb\nc\nd\ne\n"


class Answers:
    """Stands for the API: what it answers to each reading of a log, the last one again and again."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = list(bodies)
        self.asked: list[dict[str, str]] = []

    @contextmanager
    def stream(self, path: str, seconds: float, **query: str) -> Iterator[Answers]:
        self.asked.append(query)
        yield self

    def iter_bytes(self) -> Iterator[bytes]:
        yield self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]


A, B = (b"2026-11-22T10:00:0%d.5Z %s" % (second, text) for second, text in ((1, b"a"), (2, b"b")))
CANT_FOLLOW = b"failed to create fsnotify watcher: too many open files"
NO_LOG = b"unable to retrieve container logs for containerd://9b3baed208d8"


def _read_log(monkeypatch: pytest.MonkeyPatch, api: Any, *, follow: bool) -> bytes:
    monkeypatch.setattr("dsv.run.engines.kubernetes.follow._PAUSE", 0.0)
    written: list[bytes] = []
    log = PodLog(api, "/log", written.append, lambda: None)
    if not follow:
        log.complete.set()
    log.start()
    if follow:
        until(lambda: len(api.asked) > 1, "another reading")
        log.complete.set()
    until(lambda: not log.is_alive(), "the end of the log")
    return b"".join(written)


def test_what_a_node_says_of_itself_is_no_line_of_a_log_and_not_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = Answers(A + b"\n" + CANT_FOLLOW, A + b"\n" + CANT_FOLLOW, A + b"\n" + B + b"\n")
    assert _read_log(monkeypatch, followed, follow=True) == b"a\nb\n"
    read = Answers(NO_LOG, NO_LOG + b"\n", A + b"\n" + B)
    assert _read_log(monkeypatch, read, follow=False) == b"a\nb\n"
    assert len(read.asked) == 3


def test_a_log_that_a_node_has_no_more_is_asked_for_some_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Answers(A, NO_LOG)
    assert _read_log(monkeypatch, gone, follow=True) == b"a\n"


def test_a_log_that_is_followed_ends_with_the_record_if_the_cluster_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = KubernetesJob(Cluster(begun=True), "training", "job", "u0")  # type: ignore[arg-type]
    job.look()

    def refuse() -> Any:
        raise Refusal("no answer")

    monkeypatch.setattr(job, "look", refuse)
    monkeypatch.setattr("dsv.run.engines.kubernetes.follow._LOOK", 0.01)
    asked = iter((False, True))
    with read_logs(job, True, lambda: next(asked)) as pieces:
        assert b"".join(pieces) == b""


@pytest.mark.parametrize(
    ("pieces", "metrics", "notes", "series"),
    [
        ((b'Fetched\n--- metrics.json\n{"loss": ', b"1}\n--- e", b"nd\n"), b'{"loss": 1}\n', None, b""),
        ((b"Fetched\n--- end\n",), None, None, b""),
        ((b"--- metrics.json\n\n--- end\n",), b"\n", None, b""),
        ((b"--- notes\na\n", b"\n--- metrics.json\n{}\n--- end\n"), b"{}\n", b"a\n\n", b""),
        ((b"x\n--- notes\na\n\n--- end\n",), None, b"a\n\n", b""),
        ((b"x\n--- metrics.jsonl\n{}\n\n--- notes\na\n\n--- end\n",), None, b"a\n\n", b"{}\n\n"),
        ((b"--- metrics.jsonl\n{}\n\n--- metrics.json\n1\n--- end\n",), b"1\n", None, b"{}\n\n"),
        ((b"x\n--- metrics.jsonl\n{}\n\n--- end\n",), None, None, b"{}\n\n"),
    ],
)
def test_metrics_are_read_from_a_container_that_still_runs(
    pieces: tuple[bytes, ...], metrics: bytes | None, notes: bytes | None, series: bytes
) -> None:
    class Runs(Answers):
        def iter_bytes(self) -> Iterator[bytes]:
            yield from pieces
            pytest.fail("it would wait for the end of the container")

    job = KubernetesJob(Runs(), "training", "job", "u0")  # type: ignore[arg-type]
    found = with_left(job, JobSnapshot(a_job(), (a_pod(code=0),)), Ended(exit_code=0))
    assert (found.metrics, found.notes, found.series) == (metrics, notes, series)
