"""Following a job on Kubernetes while it runs: its output, the reasons for which it waits, and its end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Final

from dsv.errors import DsvError
from dsv.run.engines.attach import ENDING
from dsv.run.engines.base import CANNOT_LAUNCH, Ended
from dsv.run.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.run.engines.kubernetes.job import KubernetesJob
from dsv.run.engines.kubernetes.job_status import JobSnapshot, Obstacle, Pod, ended, gone, one_line
from dsv.run.engines.kubernetes.manifest import HOLDING, MAIN
from dsv.run.engines.kubernetes.pod_files import METRICS
from dsv.run.engines.output import NodeLines, Output, through_a_pipe
from dsv.run.record import EndCause

_ASK: Final = (0.3, 2.0)
"""Seconds between two looks at the job: after a change, and at most. The end of a pod's log counts as a change."""
_EVENTS: Final = 3.0
"""Seconds after which the cluster is asked why there are no pods, or why a pod does not start."""
_PATIENT: Final = 60.0
"""Seconds for which a pod may wait that no machine of the cluster has room for."""


class KubernetesRun:
    """A `Handle`. Several processes may follow a job, on any machine that reaches the cluster."""

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
        self.ended: Ended | None = None
        self._wake = Event()
        self._lock = Lock()
        self._kills = 0
        self._pending_signals: list[str] = []  # signals that have not reached the command yet, in their order
        self._waits: dict[str, float] = {}  # by reason, since when the job waits for it
        self._printed: set[str] = set()
        self._printed_evictions: set[str] = set()  # pods whose eviction by the queue was printed
        self._asked = 0.0  # when the queue was last asked why the job waits
        self._measured = -_PATIENT  # when its pods were last compared with the machines
        out, self._err = output.open_pipes()
        self._logs = JobLogs(job, out, self._wake.set)
        Thread(target=self._watch, name="dsv-kubernetes", daemon=True).start()

    def signal(self, number: int) -> None:
        name = signal.Signals(number).name
        with self._lock:
            if number in ENDING:
                self._job.record_stop(name)
            facts = self._job.latest()
            begun = facts is not None and facts.begun
            if not self._send(name) if begun else number in ENDING:
                self._pending_signals.append(name)
        self._wake.set()

    def kill(self) -> None:
        with self._lock:
            self._kills += 1
            self._pending_signals.clear()  # no signal may be sent after SIGKILL
            self._job.record_stop("SIGKILL")
            facts = self._job.latest()
            if self._kills > 1 or facts is None or not facts.begun or not self._send("SIGKILL"):
                self._job.delete(0)
        self._wake.set()

    def _send(self, name: str) -> bool:
        return self._job.signal(name.removeprefix("SIG"))

    def _watch(self) -> None:
        done = self._until_end()
        self._logs.finish()  # before the end is set: nobody waits for output after that
        os.close(self._err)
        self.ended = done
        self._on_end()

    def _until_end(self) -> Ended:
        pause = _ASK[0]
        while True:
            try:
                facts = self._job.look()
            except Refusal as refusal:
                self._print_once(refusal.as_error().message)
            else:
                done = self._absent() if facts is None else self._step(facts)
                if done is not None:
                    return done
                if self._send_pending_signals():
                    pause = _ASK[0]  # a command that began just now may end at once
            woken = self._wake.wait(pause)
            self._wake.clear()
            pause = _ASK[0] if woken else min(pause * 1.3, _ASK[1])

    def _absent(self) -> Ended:
        """Return the end of a job that the cluster does not have any more."""
        known, name = self._job.known(), self._job.name
        reason = None if known else f"the cluster has no Job {name} any more"
        with suppress(DsvError):
            if known and not self._is_same_cluster():
                reason = f"the cluster was replaced by another one, which has no Job {name}"
        if known and reason is None:
            return gone(known, killed=self._kills > 0)
        launched = known is not None and known.begun
        return Ended(exit_code=CANNOT_LAUNCH, launched=launched, seen=False, reason=reason)

    def _step(self, facts: JobSnapshot) -> Ended | None:
        """Do what the state of the job asks for. Return its end if it has ended, or can never begin."""
        self._logs.look(facts)
        done = ended(facts)
        if done is not None:
            if facts.evicted_by_queue or (facts.suspended and facts.stopped is not None):
                self._job.delete()  # the cluster would keep it for ever, or its queue would resume it
            self._job.end_waiting_pods(facts)
            return replace(done, metrics=read_metrics(self._job, facts)) if done.launched else done
        if (problem := self._job.fail_lost_pods()) is not None:
            self._print_once(f"the cluster does not let a pod of a lost machine be given up: {problem}")
        stuck = self._check_waiting(facts)
        if stuck is None:
            return None
        self._job.delete()
        return Ended(
            exit_code=CANNOT_LAUNCH, launched=False, reason=stuck.reason, hint=stuck.hint, cause=stuck.cause
        )

    def _check_waiting(self, facts: JobSnapshot) -> Obstacle | None:
        """Print why the job waits, and return the reason if the job can never begin."""
        if facts.suspended:
            return self._check_queue(facts)
        found: list[tuple[Pod | None, str, Obstacle | None]]
        found = [(each, each.uid, self._obstacle(each)) for each in facts.last]
        lacks_pods = len(facts.last) < facts.nodes
        if self._seconds("no pods", lacks_pods) > _EVENTS:
            found.append((None, "no pods", self._job.refusal_of_pods()))
        for pod, key, obstacle in found:
            waited = self._seconds(key, obstacle is not None or pod is None)
            if obstacle is None:
                continue
            self._print_once(f"the job waits: {obstacle.reason}")
            if obstacle.patience is not None and waited > obstacle.patience:
                return obstacle
            lacks_room = obstacle.lacks_room and not self._autoscaling and waited >= _PATIENT
            if pod is not None and lacks_room and monotonic() - self._measured >= _PATIENT:
                self._measured = monotonic()
                if self._job.fits_no_node(pod):
                    return obstacle
        return None

    def _check_queue(self, facts: JobSnapshot) -> Obstacle | None:
        """Print why the queue does not admit the job, and return the reason if it never will."""
        self._print_evictions(facts)
        waits = self._seconds("queued")
        if facts.queue is None or waits < 1.0 or monotonic() - self._asked < _EVENTS:
            return None
        self._asked = monotonic()
        found = self._job.why_not_admitted(facts.queue)
        self._print_once(f"the job waits: {found.reason}")
        # an earlier reason may be hours old
        waited = self._seconds("for good", not facts.begun and found.patience is not None)
        return None if facts.begun or found.patience is None or waited < found.patience else found

    def _print_evictions(self, facts: JobSnapshot) -> None:
        found = {
            each.uid: each.evicted_by_queue[1] for each in facts.pods if each.evicted_by_queue is not None
        }
        new = found.keys() - self._printed_evictions
        if new:
            self._printed_evictions |= new
            self._printed.clear()  # it waits again, so the reasons are printed again
            self._print_once(f"the queue {facts.queue} took the job's place away: {found[min(new)]}")

    def _obstacle(self, pod: Pod) -> Obstacle | None:
        if pod.begun or pod.is_over:
            return None
        found = pod.obstacle(self._autoscaling)
        if found is None and pod.host is not None and self._seconds(f"{pod.uid}:begin") > 4 * _EVENTS:
            if warnings := self._job.warnings(pod.uid):
                return Obstacle(one_line(warnings[-1]), EndCause.NOT_STARTED)
            if pod.has_no_container:
                silent = f"{pod.host} has not started any container of the pod {pod.name} yet"
                return Obstacle(silent, EndCause.NOT_STARTED)
        return found

    def _seconds(self, key: str, holds: bool = True) -> float:
        """Return the seconds since when this holds; 0 if it does not."""
        if not holds:
            self._waits.pop(key, None)
            return 0.0
        return monotonic() - self._waits.setdefault(key, monotonic())

    def _send_pending_signals(self) -> bool:
        """Send the signals that are pending. A job that has not begun is withdrawn instead. Return whether something
        is left to do."""
        with self._lock:
            facts = None
            if self._pending_signals:
                with suppress(Refusal):
                    facts = self._job.look()
            if facts is None:
                return False
            if not facts.begun:
                if self._job.withdraw_step(facts):
                    self._pending_signals.clear()
                return True
            while self._pending_signals and self._send(self._pending_signals[0]):
                del self._pending_signals[0]
            return bool(self._pending_signals)

    def _print_once(self, text: str) -> None:
        """Print to the job's stderr, once for texts that differ only in numbers such as ports."""
        words = without_numbers(text)
        if words not in self._printed:
            self._printed.add(words)
            with suppress(OSError):
                os.write(self._err, f"[dsv] {text}\n".encode())


def without_numbers(text: str) -> str:
    """Return the text without ports, times and the random ends of the names of pods."""
    return re.sub(r"\d+", "0", re.sub(r'-\d+-[a-z0-9]{5}"', '"', text))


_PAUSE: Final = 0.5
_TRIES: Final = 10
"""The number of requests for the log of a pod that has ended, if the cluster does not return it."""
_LOOK: Final = 1.0
_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT\S+ ")
"""The timestamp of each line of a log. A kubelet adds its own errors to the same response without a timestamp: that it
has no such log any more, or that too many files are open to follow one."""


class PodLog(Thread):
    """Follow the log of one pod, and reconnect if the connection breaks.

    `write` gets whole lines. The timestamps show which lines were already read. `moved` is called when the log or its
    connection ends.
    """

    def __init__(
        self, api: KubernetesApi, path: str, write: Callable[[bytes], None], moved: Callable[[], None]
    ) -> None:
        super().__init__(name="dsv-kubernetes-log", daemon=True)
        self._api = api
        self._path = path
        self._write = write
        self._moved = moved
        self._last = b""
        self._same = 0  # how many of the last lines that were read have that timestamp
        self.complete = Event()
        """The pod writes nothing more."""

    def run(self) -> None:
        with suppress(OSError):  # nobody reads the pipe any more
            tries = _TRIES
            while tries > 0:
                complete = self.complete.is_set()
                is_read = self._read(follow=not complete)
                self._moved()
                if complete and is_read:
                    break
                tries -= complete
                if complete:
                    sleep(_PAUSE)
                else:
                    self.complete.wait(_PAUSE)

    def _read(self, *, follow: bool) -> bool:
        """Return whether there is no more to read: all of the log without an error of the kubelet, or no such log."""
        query = {"container": MAIN, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._last:
            query["sinceTime"] = self._last.decode("ascii", "replace")
        try:
            with self._api.stream(self._path, **query) as answer:
                rest, whole = b"", True
                known = (self._last, self._same)
                for data in answer.iter_bytes():
                    *lines, rest = (rest + data).split(b"\n")
                    own = [each for each in lines if _TIME.match(each)]
                    whole = whole and len(own) == len(lines)
                    known = self._take(own, known)
                if rest and _TIME.match(rest):
                    self._take([rest], known)
                return whole and (not rest or _TIME.match(rest) is not None)
        except Refusal as refusal:
            return not refusal.is_away

    def _take(self, lines: list[bytes], known: tuple[bytes, int]) -> tuple[bytes, int]:
        """Write the lines that are new, and return what is known after them.

        known: the timestamp up to which lines were already read, and how many lines of exactly that time; an empty
        timestamp once those have passed. Several lines may have one timestamp, as the clock of a virtual machine may
        stand still for a moment.
        """
        last, same = known
        new = []
        for line in lines:
            time, _, text = line.partition(b" ")
            if last and (time < last or (time == last and same > 0)):
                same -= time == last
                continue
            last = b""
            new.append(text + b"\n")
            self._same = self._same + 1 if time == self._last else 1
            self._last = time
        if new:
            self._write(b"".join(new))
        return last, same


class JobLogs:
    """The logs of all pods of a job, written into one pipe. With several nodes each line starts with its node's number.

    sink is closed after the last line.
    """

    def __init__(
        self, job: KubernetesJob, sink: int, moved: Callable[[], None], *, follow: bool = True
    ) -> None:
        self._job = job
        self._follow = follow
        self._lines = NodeLines(sink)
        self._moved = moved
        self._logs: dict[str, PodLog] = {}

    def look(self, facts: JobSnapshot) -> None:
        """Start to follow the pods that have begun."""
        for pod in sorted(facts.pods, key=lambda each: (each.attempt, each.number)):
            if pod.uid not in self._logs and pod.begun and not pod.gone:
                path = f"{self._job.pods_path}/{pod.name}/log"
                write = partial(self._lines.write, label=pod.number if facts.nodes > 1 else None)
                log = PodLog(self._job.api, path, write, self._moved)
                self._logs[pod.uid] = log
                if pod.command_ended or not self._follow:
                    log.complete.set()
                log.start()
            elif pod.uid in self._logs and (pod.is_over or pod.command_ended):
                self._logs[pod.uid].complete.set()

    def finish(self, stop: Event | None = None) -> None:
        """Return after everything was written."""
        for log in self._logs.values():
            log.complete.set()
        for log in self._logs.values():
            while log.is_alive() and not (stop is not None and stop.is_set()):
                log.join(_PAUSE)
        os.close(self._lines.sink)


def read_logs(job: KubernetesJob, follow: bool) -> AbstractContextManager[Iterator[bytes]]:
    """Return what the job has written so far; with `follow`, until its end."""
    moved = Event()

    def collect(writer: int, stop: Event) -> None:
        logs = JobLogs(job, writer, moved.set, follow=follow)
        while not stop.is_set():
            with suppress(DsvError):
                facts = job.look()
                if facts is not None:
                    logs.look(facts)
                if facts is None or ended(facts) is not None:
                    break
            if not follow:
                break
            moved.wait(_LOOK)
            moved.clear()
        logs.finish(stop)

    return through_a_pipe(collect)


def read_metrics(job: KubernetesJob, facts: JobSnapshot) -> bytes | None:
    """Return metrics.json of the first node, which its container `hold` has printed."""
    first = next((each for each in facts.last if each.number == 0 and not each.gone), None)
    if first is None:
        return None
    try:
        with job.api.stream(f"{job.pods_path}/{first.name}/log", container=HOLDING) as answer:
            data: bytes = answer.read()
    except Refusal:
        return None
    _, marker, metrics = data.rpartition(f"{METRICS}\n".encode())
    return metrics if marker else None
