"""Looking on while a job on Kubernetes runs: its output as it is written, what it waits for, and its end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

from dsv.engines.base import CANNOT_LAUNCH, Ended
from dsv.engines.kubernetes.api import Refusal
from dsv.engines.kubernetes.changes import PodChanges
from dsv.engines.kubernetes.end import JobFacts, ended, gone, refusal
from dsv.engines.kubernetes.jobs import KubernetesJob
from dsv.engines.kubernetes.logs import JobLogs, read_metrics
from dsv.engines.kubernetes.pods import Obstacle, Pod
from dsv.engines.kubernetes.queue import waiting
from dsv.engines.output import Output
from dsv.engines.signals import ENDING
from dsv.errors import DsvError
from dsv.model.run_end import EndCause

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
