"""Looking on while a job on Kubernetes runs: its output as it is written, what it waits for, and its end."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from dsv.errors import DsvError
from dsv.run.engines.attach import ENDING
from dsv.run.engines.base import CANNOT_LAUNCH, Ended
from dsv.run.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.run.engines.kubernetes.capacity import refusal, waiting
from dsv.run.engines.kubernetes.jobs import KubernetesJob
from dsv.run.engines.kubernetes.observe import JobFacts, Obstacle, Pod, ended, gone
from dsv.run.engines.kubernetes.options import HOLDING, LABEL, MAIN
from dsv.run.engines.kubernetes.scripts import METRICS
from dsv.run.engines.log import through_a_pipe
from dsv.run.engines.output import Output
from dsv.run.record import EndCause

if TYPE_CHECKING:
    from httpx2 import Response


_ASK: Final = (0.3, 3.0)
"""Seconds between two looks at the job, at first and at most, if the cluster does not say that something changed."""
_EVENTS: Final = 3.0
"""Seconds after which the cluster is asked why there are no pods, or why one doesn't begin."""

_PATIENT: Final = 60.0
"""Seconds for which a pod waits that no machine of the cluster has room for."""


class KubernetesRun:
    """A `Handle`. Several may look on at one job, from any machine that reaches the cluster."""

    def __init__(
        self,
        job: KubernetesJob,
        output: Output,
        on_end: Callable[[], None],
        *,
        autoscaling: bool,
        is_same_cluster: Callable[[], bool] = lambda: True,
    ) -> None:
        self._job = job
        self._is_same_cluster = is_same_cluster
        self._autoscaling = autoscaling
        self._on_end = on_end
        self._ended: Ended | None = None
        self._wake = Event()
        self._lock = Lock()
        self._kills = 0
        self._untold: list[str] = []  # signals that have not reached the command, in their order
        self._waits: dict[str, float] = {}  # since when a reason is there for which the job doesn't begin
        self._said: set[str] = set()
        self._put_back: set[str] = set()  # pods of which it was told that the queue took their place away
        self._asked = 0.0  # when its queue was asked why it waits
        self._measured = -_PATIENT  # when its pods were last compared with the machines
        streams = (os.pipe(), os.pipe())
        output.attach(*(os.fdopen(reader, "rb", buffering=0) for reader, _ in streams))
        out, self._err = (writer for _, writer in streams)
        self._logs = JobLogs(job, out, self._wake.set)
        Thread(target=self._watch, name="dsv-kubernetes", daemon=True).start()

    @property
    def ended(self) -> Ended | None:
        return self._ended

    def signal(self, number: int) -> None:
        name = signal.Signals(number).name
        with self._lock:
            if number in ENDING:
                self._job.tell_stopped(name)
            facts = self._job.latest()
            if facts is not None and facts.begun:
                if self._job.signal(name.removeprefix("SIG")) is not None:
                    self._untold.append(name)
            elif number in ENDING:
                self._untold.append(name)
        self._wake.set()

    def kill(self) -> None:
        with self._lock:
            self._kills += 1
            self._untold.clear()  # nothing that comes after it may take its place
            self._job.tell_stopped("SIGKILL")
            facts = self._job.latest()
            if self._kills > 1 or facts is None or not facts.begun or self._job.signal("KILL") is not None:
                self._job.delete(0)
        self._wake.set()

    def _watch(self) -> None:
        changes = PodChanges(self._job, self._wake.set)
        done = self._until_end()
        changes.close()
        self._logs.finish()  # before the end: what comes after it is not waited for
        os.close(self._err)
        self._ended = done
        self._on_end()

    def _until_end(self) -> Ended:
        pause = _ASK[0]
        while True:
            facts = self._job.look()
            if facts is None:
                known = self._job.known()
                if known is None:
                    reason = f"the cluster has no Job {self._job.at.name} any more"
                    return Ended(exit_code=CANNOT_LAUNCH, launched=False, seen=False, reason=reason)
                with suppress(DsvError):
                    if not self._is_same_cluster():
                        reason = (
                            f"the cluster was replaced by another one, which has no Job {self._job.at.name}"
                        )
                        return Ended(exit_code=CANNOT_LAUNCH, launched=known.begun, seen=False, reason=reason)
                return gone(known, killed=self._kills > 0)
            if isinstance(facts, Refusal):
                self._say(facts.no_answer.message)
            else:
                self._logs.look(facts)
                if (done := ended(facts)) is not None:
                    if facts.put_back or (facts.suspended and facts.stopped is not None):
                        self._job.delete()  # the cluster keeps it for ever, or its queue lets it begin again
                    self._job.end_what_waits(facts)
                    return self._with_metrics(done, facts)
                if (problem := self._job.give_up_lost_pods()) is not None:
                    self._say(
                        f"the cluster does not let a pod of a lost machine be given up: {problem.message}"
                    )
                if (stuck := self._stuck(facts)) is not None:
                    self._job.delete()
                    return stuck
                if self._tell_again():
                    pause = _ASK[0]  # how a command ended that began just now is not seen for long
            woken = self._wake.wait(pause)
            self._wake.clear()
            pause = _ASK[0] if woken else min(pause * 1.3, _ASK[1])

    def _with_metrics(self, done: Ended, facts: JobFacts) -> Ended:
        return replace(done, metrics=read_metrics(self._job, facts)) if done.launched else done

    def _stuck(self, facts: JobFacts) -> Ended | None:
        """How it ends if it can't begin; that it waits is told."""
        if facts.suspended:
            return self._queued(facts)
        found = {
            each.uid: obstacle for each in facts.last if (obstacle := self._obstacle(facts, each)) is not None
        }
        if len(facts.last) < facts.nodes and self._since("no pods") > _EVENTS:
            refused = refusal(self._job.messages())
            if refused is not None:
                found["no pods"] = Obstacle(refused[0], EndCause.UNSCHEDULABLE, 5.0 if refused[1] else None)
        elif len(facts.last) == facts.nodes:
            self._waits.pop("no pods", None)
        for key in [each for each in self._waits if each not in found and each != "no pods"]:
            if not key.endswith(":begin"):
                del self._waits[key]
        for key, obstacle in found.items():
            self._say(f"the job waits: {obstacle.reason}")
            if obstacle.patience is not None and self._since(key) > obstacle.patience:
                return _never(obstacle)
            if obstacle.lacks_room and not self._autoscaling and self._fits_nowhere(facts, key):
                return _never(obstacle)
        return None

    def _fits_nowhere(self, facts: JobFacts, uid: str) -> bool:
        """Whether a pod that has waited for room for a minute can never have it."""
        if self._since(uid) < _PATIENT or monotonic() - self._measured < _PATIENT:
            return False
        self._measured = monotonic()
        return any(each.uid == uid and self._job.fits_no_node(each) for each in facts.last)

    def _queued(self, facts: JobFacts) -> Ended | None:
        """The same of one that its queue has not admitted, or not again."""
        self._tell_put_back(facts)
        waits = self._since("queued")
        if facts.queue is None or waits < 1.0 or monotonic() - self._asked < _EVENTS:
            return None
        self._asked = monotonic()
        found = waiting(facts.queue, self._job.queue_says())
        self._say(f"the job waits: {found.reason}")
        if facts.begun or found.patience is None:
            self._waits.pop("for good", None)  # what it waited for before may have taken hours
            return None
        if self._since("for good") < found.patience:
            return None
        return _never(found)

    def _tell_put_back(self, facts: JobFacts) -> None:
        found = {each.uid: each.put_back[1] for each in facts.pods if each.put_back is not None}
        new = found.keys() - self._put_back
        if new:
            self._put_back |= new
            self._said.clear()  # it waits anew
            self._say(f"the queue {facts.queue} took the job's place away: {found[min(new)]}")

    def _obstacle(self, facts: JobFacts, pod: Pod) -> Obstacle | None:
        if pod.begun or pod.is_over:
            return None
        found = pod.obstacle(self._autoscaling)
        if found is None and pod.host is not None and self._since(f"{pod.uid}:begin") > 4 * _EVENTS:
            troubles = self._job.troubles(pod)
            if troubles:
                return Obstacle(" ".join(troubles[-1].split()), EndCause.NOT_STARTED, None)
            if pod.is_untouched:
                silent = f"{pod.host} has not started any container of the pod {pod.name} yet"
                return Obstacle(silent, EndCause.NOT_STARTED, None)
        return found

    def _since(self, key: str) -> float:
        return monotonic() - self._waits.setdefault(key, monotonic())

    def _tell_again(self) -> bool:
        """Takes a job back whose command has not begun; one that has begun since then gets the signals. Returns
        whether something is left to tell."""
        with self._lock:
            facts = self._job.look() if self._untold else None
            if not isinstance(facts, JobFacts):
                return False
            if not facts.begun:
                if self._job.take_back(facts):
                    self._untold.clear()
                return True
            while self._untold and self._job.signal(self._untold[0].removeprefix("SIG")) is None:
                del self._untold[0]
            return bool(self._untold)

    def _say(self, text: str) -> None:
        """Among what the job writes to stderr, once; numbers in it, such as a port, may differ each time."""
        words = without_numbers(text)
        if words not in self._said:
            self._said.add(words)
            with suppress(OSError):
                os.write(self._err, f"[dsv] {text}\n".encode())


def _never(found: Obstacle) -> Ended:
    """How a job ends that can't begin."""
    return Ended(
        exit_code=CANNOT_LAUNCH, launched=False, reason=found.reason, hint=found.hint, cause=found.cause
    )


def without_numbers(text: str) -> str:
    """What messages have in common that differ in a port, in a time, or in the letters that end the name of a pod."""
    return re.sub(r"\d+", "0", re.sub(r'-\d+-[a-z0-9]{5}"', '"', text))


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


_RECONNECTED_AFTER: Final = 2.0
"""Seconds before a connection that broke is made again."""


class PodChanges:
    """Calls `changed` whenever a pod of the job has changed, from a thread of its own, until it is closed.

    It says when to look and nothing else, so whoever looks now and then besides misses nothing: it may come late, and
    who may not watch pods gets no call at all.
    """

    def __init__(self, job: KubernetesJob, changed: Callable[[], None]) -> None:
        self._job = job
        self._changed = changed
        self._closed = Event()
        self._lock = Lock()
        self._response: Response | None = None
        Thread(target=self._watch, name="dsv-kubernetes-changes", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            if self._response is not None:
                _hang_up(self._response)

    def _watch(self) -> None:
        import httpx2

        label = f"{LABEL}={self._job.at.name}"
        while not self._closed.is_set():
            with self._job.api.stream(self._job.at.pods, labelSelector=label, watch="true") as answer:
                if isinstance(answer, Refusal):
                    if not answer.is_away:
                        return
                elif self._take(answer):
                    with suppress(httpx2.HTTPError, OSError, ValueError):
                        for _ in answer.iter_raw():
                            self._changed()
                    self._take(None)
            self._closed.wait(_RECONNECTED_AFTER)

    def _take(self, response: Response | None) -> bool:
        """False if nobody listens any more."""
        with self._lock:
            self._response = response
            return not self._closed.is_set()


def _hang_up(response: Response) -> None:
    """Ends a read that waits in another thread."""
    connection = response.extensions.get("network_stream")
    its_socket = None if connection is None else connection.get_extra_info("socket")
    if its_socket is not None:
        with suppress(OSError):
            its_socket.shutdown(socket.SHUT_RDWR)
