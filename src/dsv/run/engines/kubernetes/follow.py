"""Following a job on Kubernetes while it runs: its output, the reasons why it waits, and its end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from threading import Event, Thread
from time import monotonic, sleep
from typing import ClassVar, Final

from dsv.errors import DsvError, as_launch_error
from dsv.run.engines.attach import ENDING, INFORMING, FollowedJob
from dsv.run.engines.base import Ended
from dsv.run.engines.kubernetes.api import IDLE_SECONDS, KubernetesApi, Refusal
from dsv.run.engines.kubernetes.job import JobSnapshot, KubernetesJob, ended, gone
from dsv.run.engines.kubernetes.manifest import GRACE_SECONDS, HOLDING, MAIN
from dsv.run.engines.kubernetes.pod import METRICS, METRICS_END, NOTES, SERIES, Obstacle
from dsv.run.engines.kubernetes.watch import start_watches
from dsv.run.engines.output import JobOutput, NodeLines, through_a_pipe
from dsv.run.record import JobRef

_ASK: Final = 0.3
"""Seconds to the first look at the job after a change; each further one takes twice as long. The end of a pod's log
counts as a change."""
_SELDOM, _OFTEN, _UNWATCHED = 300.0, 2.0, 10.0
"""Seconds between two looks at most: while the cluster tells of changes; while the job waits for what may never come,
or for a pod that ends; and if the cluster tells nothing."""
_GAP: Final = 0.1
"""Seconds from a change to a look: many pods may change in one moment."""
_ELSEWHERE: Final = "the cluster does not answer, and the end was recorded where the job ran"
_PATIENT: Final = 60.0
"""Seconds for which a pod may wait for which no machine of the cluster has room."""


class KubernetesRun(FollowedJob):
    """A Job, followed by its pods and their logs."""

    sent_again: ClassVar[frozenset[int]] = frozenset((*ENDING, *INFORMING))
    may_outlive: ClassVar[bool] = True

    def __init__(
        self,
        ref: JobRef,
        job: KubernetesJob,
        *,
        queue: str | None,
        autoscaling: bool,
        is_same_cluster: Callable[[], bool],
        has_record: Callable[[], bool],
    ) -> None:
        super().__init__(ref, "dsv-kubernetes")
        self._job = job
        self._queue = queue
        self._is_same_cluster = is_same_cluster
        self._has_record = has_record
        self._autoscaling = autoscaling
        self._printed: set[str] = set()
        self._hopeless: float | None = None  # since when the job waits for what may never come

    def _begin(self, output: JobOutput) -> None:
        with as_launch_error():
            try:
                self._job.resume(self._queue)
            except Refusal as refusal:
                raise refusal.as_error("the cluster does not let the job begin", self.ref.run) from refusal
        self._had_room = monotonic()
        out, self._err = output.open_pipes()
        self._logs = JobLogs(self._job, out, self._wake.set)
        self._watches = start_watches(self._job, self._wake.set)

    def _send(self, number: int) -> bool:
        """An ending signal withdraws a job that has not begun."""
        name = signal.Signals(number).name
        again = number in self._unsent
        if number in ENDING and not again:
            self._job.record_stop(name)
        facts = self._job.latest()
        if facts is None or not facts.begun:
            return number not in ENDING or (facts is not None and self._job.withdraw_step(facts))
        return self._job.signal(name.removeprefix("SIG"), again=again)

    def _kill(self) -> bool:
        self._job.record_stop("SIGKILL")
        facts = self._job.latest()
        if self._kills > 1 or facts is None or not facts.begun or not self._job.signal("KILL"):
            self._job.delete(0)
        return True

    def _close(self) -> None:
        for watch in self._watches:
            watch.end()
        self._logs.finish()  # before the end is set: no thread waits for output after that
        os.close(self._err)

    def _until_end(self) -> Ended:
        pause = _ASK
        while True:
            try:
                facts = self._job.look()
            except Refusal as refusal:
                if refusal.is_away and self._has_record():
                    self._logs.let_go.set()
                    return Ended(launched=True, seen=False, reason=_ELSEWHERE)
                self._print_once(refusal.as_error().message)
            else:
                done = self._absent() if facts is None else self._step(facts)
                if done is not None:
                    return done
                with self._lock:  # a signal at this moment must not be replaced by fewer
                    self._job.pass_on()
                if self._unsent:
                    self.send_again()
                    pause = _ASK  # a command that began just now may end at once
            woken = self._wake.wait(pause)
            if woken:
                sleep(_GAP)
            self._wake.clear()
            pause = _ASK if woken else min(pause * 2, self._longest())

    def _longest(self) -> float:
        """Return the longest pause between two looks."""
        if self._hopeless is not None or any(each.is_terminating for each in self._job.pods.values()):
            return _OFTEN
        return _SELDOM if all(each.connected for each in self._watches) else _UNWATCHED

    def _absent(self) -> Ended:
        """Return the end of a job that the cluster does not have any more."""
        known, is_same = self._job.known(), True
        with suppress(DsvError):
            is_same = self._is_same_cluster()
        if known and is_same:
            return gone(known, killed=self._kills > 0)
        reason = self._job.missing(is_same)
        return Ended(launched=known is not None and known.begun, seen=False, reason=reason)

    def _step(self, facts: JobSnapshot) -> Ended | None:
        """Act on the state of the job. Return its end if it has ended, or can never begin."""
        self._logs.look(facts)
        done = ended(facts)
        if done is not None:
            if facts.evicted_by_queue or (facts.suspended and facts.stopped is not None):
                self._job.delete()  # the cluster would keep it for ever, or its queue would resume it
            self._job.end_waiting_pods(facts)
            return with_left(self._job, facts, done) if done.launched else done
        if (problem := self._job.fail_lost_pods()) is not None:
            self._print_once(f"the cluster does not let a pod of a lost machine be given up: {problem}")
        never = self._why_never(facts)
        if never is None:
            return None
        self._job.delete()
        return Ended(reason=never.reason, hint=never.hint, cause=never.cause)

    def _why_never(self, facts: JobSnapshot) -> Obstacle | None:
        """Print why the job waits, and return the reason if it is known that it can never begin."""
        now = monotonic()
        found = self._job.obstacle(facts, self._autoscaling)
        if found is not None:
            self._print_once(f"the job waits{' again' if facts.begun else ''}: {found.reason}")
        if found is None or not found.lacks_room:
            self._had_room = now
        elif now - self._had_room >= _PATIENT:
            self._had_room = now
            if not self._autoscaling and self._job.fits_no_node(facts.last[0]):
                return found
        if found is None or found.patience is None or (facts.suspended and facts.begun):
            self._hopeless = None
            return None
        self._hopeless = now if self._hopeless is None else self._hopeless
        return None if now - self._hopeless < found.patience else found

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
"""The timestamp of each line of a log. A kubelet adds its own errors without a timestamp: that the log is
gone, or that too many files are open to follow it."""


class PodLog(Thread):
    """Follows the log of one pod, and reconnects if the connection breaks; timestamps show which lines were
    read. `write` gets whole lines. `moved` is called when the log ends."""

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
        self._before, self._skip = b"", 0  # both when the log was requested: the part up to there was read
        self.complete = Event()
        """The pod writes nothing more."""

    def run(self) -> None:
        with suppress(OSError):  # the pipe has no reader any more
            tries = _TRIES
            while tries > 0:
                complete = self.complete.is_set()
                is_read = self._read(follow=not complete)
                if is_read:
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
        self._before, self._skip = self._last, self._same
        try:
            with self._api.stream(self._path, IDLE_SECONDS, **query) as answer:
                rest, whole = b"", True
                for data in answer.iter_bytes():
                    *lines, rest = (rest + data).split(b"\n")
                    whole = self._take(lines) and whole
                return self._take([rest] if rest else []) and whole
        except Refusal as refusal:
            return not refusal.is_away

    def _take(self, lines: list[bytes]) -> bool:
        """Write the lines that were not read before, and return False if some are the kubelet's. Several may
        have one timestamp, because the clock of a virtual machine may stand still for a moment."""
        new, own = [], [each for each in lines if _TIME.match(each)]
        for line in own:
            time, _, text = line.partition(b" ")
            if self._before and (time < self._before or (time == self._before and self._skip > 0)):
                self._skip -= time == self._before
                continue
            self._before = b""  # from here on all is new, also if the clock was set back
            new.append(text + b"\n")
            self._same = self._same + 1 if time == self._last else 1
            self._last = time
        if new:
            self._write(b"".join(new))
        return len(own) == len(lines)


class JobLogs:
    """The logs of all pods of a job, in one pipe. With several nodes, lines start with the node's number."""

    def __init__(
        self, job: KubernetesJob, sink: int, moved: Callable[[], None], *, follow: bool = True
    ) -> None:
        self._job = job
        self._follow = follow
        self._lines = NodeLines(sink)
        self._moved = moved
        self._logs: dict[str, PodLog] = {}
        self.let_go = Event()
        """What was not read is not waited for."""

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

    def finish(self) -> None:
        """Wait until everything was written, and close the pipe."""
        for log in self._logs.values():
            log.complete.set()
        for log in self._logs.values():
            while log.is_alive() and not self.let_go.is_set():
                log.join(_PAUSE)
        os.close(self._lines.sink)


def read_logs(
    job: KubernetesJob, follow: bool, has_record: Callable[[], bool]
) -> AbstractContextManager[Iterator[bytes]]:
    """Read the job's output so far; with `follow`, until its end. has_record: as of the engine"""
    moved = Event()

    def collect(writer: int, stop: Event) -> None:
        logs, pause = JobLogs(job, writer, moved.set, follow=follow), _LOOK
        watches = start_watches(job, moved.set) if follow else ()
        while not stop.is_set():
            try:
                facts = job.look()
                if facts is not None:
                    logs.look(facts)
                if facts is None or ended(facts) is not None:
                    break
            except DsvError:
                if has_record():
                    stop.set()  # the cluster shows no more of the log now
            if not follow:
                break
            pause = _LOOK if moved.wait(pause) else min(2 * pause, _UNWATCHED)
            moved.clear()
        for watch in watches:
            watch.end()
        logs.let_go = stop
        logs.finish()

    return through_a_pipe(collect)


def with_left(job: KubernetesJob, facts: JobSnapshot, ended: Ended) -> Ended:
    """Return the end of a job with the notes and metrics of its first node, which the container `hold` prints."""
    first = next((each for each in facts.last if each.number == 0 and not each.gone), None)
    if first is None:
        return ended
    try:
        path, seconds = f"{job.pods_path}/{first.name}/log", GRACE_SECONDS + 5.0
        with job.api.stream(path, seconds, container=HOLDING, follow="true") as answer:
            data = b""
            for piece in answer.iter_bytes():
                data += piece
                if data.endswith(METRICS_END):  # the container may run on
                    break
    except Refusal:
        return ended
    before, marker, metrics = data.removesuffix(METRICS_END).rpartition(METRICS)
    before, noted, notes = (before if marker else metrics).rpartition(NOTES)
    series = (before if noted else notes).partition(SERIES)[2]
    return replace(ended, metrics=metrics if marker else None, notes=notes if noted else None, series=series)
