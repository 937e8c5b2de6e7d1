"""What a job's pods write, followed as it comes, and read afterwards for as long as the pods are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from threading import Event, Lock, Thread
from time import sleep
from typing import Final

from dsv.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.engines.kubernetes.end import JobFacts
from dsv.engines.kubernetes.jobs import KubernetesJob
from dsv.engines.kubernetes.names import HOLDING, MAIN
from dsv.engines.kubernetes.pods import Pod
from dsv.engines.kubernetes.scripts import METRICS
from dsv.engines.log_pipe import through_a_pipe

_PAUSE: Final = 0.5
_TRIES: Final = 10
"""How often the log of a pod that is over is asked for, if the cluster does not give it."""
_LOOK: Final = 1.0
_PIECE: Final = 1 << 16
_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT\S+ ")
"""What each line of a log begins with. A node writes its own errors into the same answer, without a time: that it has
no such log any more, or that too many files are open on it to follow one."""


class PodLog:
    """Follows one pod in a thread of its own, and begins again where it was if the connection breaks.

    write: is given whole lines. The cluster puts the time in front of each, by which it is known what was read.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        write: Callable[[bytes], None],
        ended: Callable[[], None],
        *,
        follow: bool,
    ) -> None:
        self._api = api
        self._path = path
        self._write = write
        self._ended = ended
        self._last = b""
        self._same = 0  # so many of the lines that were read last have that time
        self._over = Event()
        if not follow:
            self._over.set()
        self.done = Event()
        Thread(target=self._follow, name="dsv-kubernetes-log", daemon=True).start()

    def pod_is_over(self) -> None:
        """There will be no more than what is there now."""
        self._over.set()

    def _follow(self) -> None:
        with suppress(OSError):  # nobody reads the pipe any more
            tries = _TRIES
            while tries > 0:
                over = self._over.is_set()
                complete = self._read(follow=not over)
                self._ended()
                if over and complete is not False:
                    break
                tries -= over
                if over:
                    sleep(_PAUSE)
                else:
                    self._over.wait(_PAUSE)
        self.done.set()

    def _read(self, *, follow: bool) -> bool | None:
        """Whether it was read to its end, and the node met no error; None if there is no such log."""
        import httpx2

        query = {"container": MAIN, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._last:
            query["sinceTime"] = self._last.decode("ascii", "replace")
        with self._api.stream(self._path, **query) as answer:
            if isinstance(answer, Refusal):
                return None if answer.status in (400, 404) else not answer.is_away
            rest, whole = b"", True
            known = (self._last, self._same)
            try:
                for data in answer.iter_bytes():
                    *lines, rest = (rest + data).split(b"\n")
                    own = [each for each in lines if _TIME.match(each)]
                    whole = whole and len(own) == len(lines)
                    known = self._take(own, known)
            except httpx2.HTTPError:
                return False
            if rest and _TIME.match(rest):
                self._take([rest], known)
            return whole and (not rest or _TIME.match(rest) is not None)

    def _take(self, lines: list[bytes], known: tuple[bytes, int]) -> tuple[bytes, int]:
        """known: lines before this time, and so many of this time, were read before; no time once they have gone by.

        Several lines may have one time, as a clock of a virtual machine stands still for a moment.
        """
        last, same = known
        times = [each.partition(b" ")[0] for each in lines]
        first = 0
        while last and first < len(lines):
            if times[first] > last or (times[first] == last and same == 0):
                last = b""
                break
            same -= times[first] == last
            first += 1
        if first == len(lines):
            return last, same
        self._write(b"".join([each.partition(b" ")[2] + b"\n" for each in lines[first:]]))
        count = len(lines) - first
        run = next((number for number in range(count) if times[-1 - number] != times[-1]), count)
        self._same = run + (self._same if run == count and times[-1] == self._last else 0)
        self._last = times[-1]
        return b"", 0


class JobLogs:
    """Of all pods of a job, into one pipe. With several nodes each line has the number of its node in front.

    sink: closed once all of it is there. moved: called when a log has come to its end, or its connection has.
    """

    def __init__(
        self, job: KubernetesJob, sink: int, moved: Callable[[], None], *, follow: bool = True
    ) -> None:
        self._job = job
        self._follow = follow
        self._sink = sink
        self._moved = moved
        self._logs: dict[str, PodLog] = {}
        self._lock = Lock()

    def look(self, facts: JobFacts) -> None:
        """Begins to follow the pods that have begun."""
        for pod in sorted(facts.pods, key=lambda each: (each.attempt, each.number)):
            if pod.uid not in self._logs and pod.begun and not pod.gone:
                path = f"{self._job.at.pods}/{pod.name}/log"
                over = pod.part_is_over or not self._follow
                writer = self._writer(pod, facts.nodes)
                self._logs[pod.uid] = PodLog(self._job.api, path, writer, self._moved, follow=not over)
            elif pod.uid in self._logs and (pod.is_over or pod.part_is_over):
                self._logs[pod.uid].pod_is_over()

    def finish(self, stop: Event | None = None) -> None:
        """Returns once all of it has been written."""
        for log in self._logs.values():
            log.pod_is_over()
        for log in self._logs.values():
            while not log.done.wait(_PAUSE) and not (stop is not None and stop.is_set()):
                pass
        os.close(self._sink)

    def _writer(self, pod: Pod, nodes: int) -> Callable[[bytes], None]:
        label = f"[{pod.number}] ".encode() if nodes > 1 else b""

        def write(data: bytes) -> None:
            if label:
                data = b"".join(label + line for line in data.splitlines(keepends=True))
            view = memoryview(data)
            with self._lock:
                while view:
                    view = view[os.write(self._sink, view) :]

        return write


def read_logs(
    job: KubernetesJob, follow: bool, over: Callable[[JobFacts], bool]
) -> AbstractContextManager[Iterator[bytes]]:
    """What the job has written so far; with `follow` until its end."""
    moved = Event()

    def collect(writer: int, stop: Event) -> None:
        logs = JobLogs(job, writer, moved.set, follow=follow)
        while not stop.is_set():
            facts = job.look()
            if isinstance(facts, JobFacts):
                logs.look(facts)
            if not follow or facts is None or (isinstance(facts, JobFacts) and over(facts)):
                break
            moved.wait(_LOOK)
            moved.clear()
        logs.finish(stop)

    return through_a_pipe(collect)


def read_metrics(job: KubernetesJob, facts: JobFacts) -> bytes | None:
    """What the first node left, as the container that held its data has printed it."""
    first = next((each for each in facts.last if each.number == 0 and not each.gone), None)
    if first is None:
        return None
    with job.api.stream(f"{job.at.pods}/{first.name}/log", container=HOLDING) as answer:
        if isinstance(answer, Refusal):
            return None
        data: bytes = answer.read()
    _, marker, metrics = data.rpartition(f"{METRICS}\n".encode())
    return metrics if marker else None
