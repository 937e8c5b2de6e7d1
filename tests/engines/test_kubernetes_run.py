"""Following a job and its signals: on a stand-in for the cluster."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dsv.errors import Denied
from dsv.run.engines.kubernetes.api import Refusal
from dsv.run.engines.kubernetes.engine import Kubernetes
from dsv.run.engines.kubernetes.follow import KubernetesRun
from dsv.run.engines.kubernetes.job import JobSnapshot, KubernetesJob
from dsv.run.engines.kubernetes.pod import Obstacle, Pod
from dsv.run.engines.output import JobOutput
from dsv.run.part import EndCause
from dsv.run.record import JobRef, RunState
from tests.engines.test_kubernetes_end import a_pod
from tests.waiting import until

JOB = "/apis/batch/v1/namespaces/training/jobs/job"
REF = JobRef("kubernetes", "20260101-000000-9a9bf432", "k0", "training/job/u0000000")


class Cluster:
    """Stands for the API: one Job and its pod. begun: whether the pod's command has begun; stays: whether the pod is
    still there while the Job is suspended."""

    def __init__(self, *, begun: bool) -> None:
        self.begun = begun
        self.suspended = False
        self.stays = False
        self.deleted = False
        self.labels: dict[str, str] = {}
        self.annotations: dict[str, str] = {}
        self.told: list[str] = []
        self.is_busy = False

    def items(self, path: str, **query: str) -> list[Any]:
        if not path.endswith("/pods") or (self.suspended and not self.stays):
            return []
        pod = dict(a_pod(phase="Running" if self.begun else "Pending").raw)
        return [pod]

    def get(self, path: str, *given: Any, **query: str) -> Any:
        if path != JOB or self.deleted:
            raise Refusal("no such thing", 404)
        metadata = {"name": "job", "uid": "u0", "labels": self.labels, "annotations": self.annotations}
        return {"metadata": metadata, "spec": {"suspend": self.suspended}}

    def patch(self, path: str, body: Any) -> Any:
        if path == JOB:
            self.suspended = body.get("spec", {}).get("suspend", self.suspended)
            return self.get(path)
        if self.is_busy:
            raise Refusal("the server is busy", 503)
        (told,) = body["metadata"]["annotations"].values()
        self.told += [line.split()[1] for line in told.splitlines()]
        return {}

    def delete(self, path: str, grace: float | None = None) -> Any:
        self.deleted = self.deleted or path == JOB
        return {}

    def stream(self, *given: Any, **query: Any) -> Any:
        raise Refusal("no log", 404)


def _begun(job: KubernetesJob, *, same: bool = True) -> KubernetesRun:
    """Return a run whose queue lets it begin."""
    run = KubernetesRun(
        REF, job, queue="gpus", autoscaling=False, is_same_cluster=lambda: same, has_record=lambda: False
    )
    run.begin(JobOutput(None, None), lambda: None)
    return run


def unwatched(job: KubernetesJob) -> KubernetesRun:
    """Return a run that no thread follows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("threading.Thread.start", lambda _: None)
        patched.setattr(KubernetesJob, "resume", lambda *_: None)
        return _begun(job)


def _run(cluster: Cluster) -> KubernetesRun:
    return _begun(KubernetesJob(cluster, "training", "job", "u0"))  # type: ignore[arg-type]


def test_a_signal_reaches_a_command_whose_start_was_not_yet_seen() -> None:
    cluster = Cluster(begun=False)
    run = _run(cluster)
    cluster.begun = True
    run.signal(signal.SIGUSR1)
    assert cluster.told == ["USR1"]
    run.signal(signal.SIGTERM)
    assert cluster.told == ["USR1", "USR1", "TERM"]  # a node that has not looked meanwhile sees both
    assert not cluster.suspended and not cluster.deleted
    cluster.deleted = True
    run.kill()
    until(lambda: run.ended is not None)


def test_signals_that_a_busy_cluster_refuses_come_later_in_their_order() -> None:
    cluster = Cluster(begun=True)
    run = _run(cluster)
    cluster.is_busy = True
    run.signal(signal.SIGUSR1)
    run.signal(signal.SIGTERM)
    assert cluster.told == []
    cluster.is_busy = False
    until(lambda: run._unsent == [], "the signals")
    assert cluster.told == ["USR1", "TERM"]
    cluster.deleted = True
    run.kill()
    until(lambda: run.ended is not None)


class TwoAttempts(Cluster):
    """The first attempt of a job has failed; the second begins later."""

    ended = False

    def items(self, path: str, **query: str) -> list[Any]:
        if not path.endswith("/pods"):
            return []
        second = (
            {"code": 0, "phase": "Succeeded"}
            if self.ended
            else {"phase": "Running" if self.begun else "Pending"}
        )
        return [a_pod(0, 0, code=1).raw, a_pod(0, 1, **second).raw]

    def get(self, path: str, **query: str) -> Any:
        over = {"type": "Complete", "status": "True"}
        return {**super().get(path), "status": {"conditions": [over] if self.ended else []}}

    def patch(self, path: str, body: Any) -> Any:
        found = super().patch(path, body)
        self.ended = self.ended or "TERM" in self.told
        return found


def test_a_job_that_is_cancelled_between_two_attempts_is_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second attempt ends itself, and is neither killed nor deleted."""
    site = TwoAttempts(begun=False)
    looks = iter(range(100))
    known = site.items

    def items(path: str, **query: str) -> list[Any]:
        site.begun = site.begun or next(looks) > 2
        return known(path, **query)

    monkeypatch.setattr(site, "items", items)
    engine = Kubernetes({}, {"volumes": {"/nfs": {"claim": "c"}}})
    monkeypatch.setattr(engine, "_find", lambda _: KubernetesJob(site, "training", "job", "u0"))  # type: ignore[arg-type]
    over = engine.cancel(REF, 60)
    assert over is not None and not over.lives
    assert site.told == ["TERM"] and not site.deleted


class Nodes(Cluster):
    """Any pods. `got` has what the command of each pod was sent: a node takes each number once."""

    def __init__(self, *pods: Any) -> None:
        super().__init__(begun=True)
        self.pods = list(pods)
        self.lines: dict[str, dict[str, str]] = {}

    @property
    def got(self) -> dict[str, list[str]]:
        return {pod: list(each.values()) for pod, each in self.lines.items()}

    def items(self, path: str, **query: str) -> list[Any]:
        return [each.raw for each in self.pods] if path.endswith("/pods") else []

    def get(self, path: str, **query: str) -> Any:
        if path.startswith("/api/v1/nodes"):
            raise Refusal("forbidden", 403)
        found = super().get(path)
        nodes = len({each.number for each in self.pods})
        return {**found, "spec": {**found["spec"], "backoffLimit": 1, "completions": nodes}}

    def patch(self, path: str, body: Any) -> Any:
        if path.endswith("/jobs/job"):
            return self.get(path)
        if self.is_busy:
            raise Refusal("the server is busy", 503)
        (told,) = body["metadata"]["annotations"].values()
        self.lines.setdefault(path.rpartition("/")[2], {}).update(line.split() for line in told.splitlines())
        return {}


def step(job: KubernetesJob, run: Any) -> None:
    """As `KubernetesRun._until_end` does in each turn."""
    job.look()
    job.pass_on()
    if run._unsent:
        run.send_again()


def begun(*pods: Any) -> tuple[Nodes, KubernetesJob, Any]:
    cluster = Nodes(*pods)
    job = KubernetesJob(cluster, "training", "job", "u0")  # type: ignore[arg-type]
    run = unwatched(job)
    job.look()
    return cluster, job, run


OVER, NEXT, NEXT_RUNS = a_pod(0, 0, code=1), a_pod(0, 1, phase="Pending"), a_pod(0, 1, phase="Running")


def test_a_warning_between_two_attempts_does_not_end_the_second_one() -> None:
    """Before the first attempt begins it has no effect either: a command that has just begun does not catch it yet."""
    cluster, job, run = begun(OVER, NEXT)
    run.signal(signal.SIGUSR1)
    step(job, run)
    cluster.pods = [OVER, NEXT_RUNS]
    step(job, run)
    assert cluster.got == {} and run._unsent == []
    run.signal(signal.SIGTERM)
    assert cluster.got == {"p01": ["TERM"]}


def test_a_warning_of_the_first_attempt_is_not_repeated_for_the_second() -> None:
    cluster, job, run = begun(a_pod(0, 0, phase="Running"))
    run.signal(signal.SIGUSR1)
    cluster.pods = [OVER, NEXT_RUNS]
    step(job, run)
    run.signal(signal.SIGTERM)
    assert cluster.got == {"p00": ["USR1"], "p01": ["TERM"]}


@pytest.mark.parametrize("pods", [[a_pod(0, 0, phase="Running")], [OVER, NEXT_RUNS]])
def test_each_of_two_signals_that_wait_comes_once(pods: list[Any]) -> None:
    cluster, job, run = begun(*pods)
    cluster.is_busy = True
    run.signal(signal.SIGUSR1)
    run.signal(signal.SIGTERM)
    step(job, run)
    cluster.is_busy = False
    step(job, run)
    step(job, run)
    assert list(cluster.got.values()) == [["USR1", "TERM"]] and run._unsent == []


def test_two_ending_signals_between_two_attempts_come_once_each() -> None:
    cluster, job, run = begun(OVER, NEXT)
    run.signal(signal.SIGINT)
    run.signal(signal.SIGTERM)  # the lease was lost
    step(job, run)
    cluster.pods = [OVER, NEXT_RUNS]
    step(job, run)
    step(job, run)
    assert cluster.got == {"p01": ["INT", "TERM"]} and run._unsent == []


def test_a_node_that_begins_a_moment_later_than_another_gets_the_signal_too() -> None:
    cluster, job, run = begun(a_pod(0, 0, phase="Running"), a_pod(1, 0, phase="Pending"))
    run.signal(signal.SIGTERM)
    cluster.pods = [a_pod(0, 0, phase="Running"), a_pod(1, 0, phase="Running")]
    step(job, run)
    step(job, run)
    assert cluster.got == {"p00": ["TERM"], "p10": ["TERM"]}


def test_following_a_job_signals_a_node_that_begins_later() -> None:
    """The loop itself sends it: no signal is waiting to be sent, as the first node has it."""
    cluster, _, run = begun(a_pod(0, 0, phase="Running"), a_pod(1, 0, phase="Pending"))
    run.signal(signal.SIGTERM)
    assert cluster.got == {"p00": ["TERM"]} and run._unsent == []

    class Wake:
        """Nothing wakes it. In its second turn the other node has begun; after that the Job is gone."""

        turns = 0

        def wait(self, seconds: float) -> bool:
            self.turns += 1
            cluster.pods = [a_pod(0, 0, phase="Running"), a_pod(1, 0, phase="Running")]
            cluster.deleted = self.turns > 1
            return False

        def clear(self) -> None:
            pass

    run._wake = Wake()
    run._until_end()
    assert cluster.got == {"p00": ["TERM"], "p10": ["TERM"]}


def test_a_signal_that_only_a_lost_machine_was_given_reaches_the_next_attempt() -> None:
    """The API takes the annotation of a pod whose kubelet is gone; nobody there reads it."""
    cluster, job, run = begun(a_pod(0, 0, phase="Running", deleted=True))
    run.signal(signal.SIGTERM)
    cluster.pods = [NEXT_RUNS]
    step(job, run)
    assert cluster.got.get("p01") == ["TERM"]


def test_dsv_stop_elsewhere_reaches_the_attempt_after_a_lost_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Nodes(a_pod(0, 0, phase="Running", deleted=True))
    looks = iter(range(100))
    known = cluster.items

    def items(path: str, **query: str) -> list[Any]:
        if next(looks) > 2:
            over = "TERM" in cluster.got.get("p01", [])
            cluster.pods = [a_pod(0, 1, code=0, phase="Succeeded") if over else NEXT_RUNS]
        return known(path, **query)

    monkeypatch.setattr(cluster, "items", items)
    engine = Kubernetes({}, {"volumes": {"/nfs": {"claim": "c"}}})
    monkeypatch.setattr(engine, "_find", lambda _: KubernetesJob(cluster, "training", "job", "u0"))  # type: ignore[arg-type]
    over = engine.cancel(REF, 3)
    assert over is not None and not over.lives and cluster.got["p01"] == ["TERM"] and not cluster.deleted


def test_a_job_that_seems_not_to_have_begun_is_suspended_before_it_is_deleted() -> None:
    """Its pods end meanwhile as all pods do, so it is seen if the command had begun after all."""
    cluster = Cluster(begun=False)
    run = _run(cluster)
    run.signal(signal.SIGTERM)
    until(lambda: run.ended is not None)
    assert cluster.suspended and cluster.deleted and cluster.told == []
    assert run.ended is not None and not run.ended.launched


def test_a_job_is_lost_if_another_cluster_answers_and_cancelled_if_it_was_deleted() -> None:
    for same, cause, seen in ((True, EndCause.CANCELLED, True), (False, None, False)):
        cluster = Cluster(begun=True)
        job = KubernetesJob(cluster, "training", "job", "u0")  # type: ignore[arg-type]
        run = _begun(job, same=same)
        until(lambda: run._job.pods)  # noqa: B023
        cluster.deleted = True
        until(lambda: run.ended is not None)  # noqa: B023
        assert run.ended is not None and (run.ended.cause, run.ended.seen) == (cause, seen)


class Site(Cluster):
    """Stands for the API of one cluster, with its identity."""

    identity = "k0"

    def path(self, kind: str) -> str:
        return f"/namespaces/training/{kind}"

    def get(self, path: str, *given: Any, **query: str) -> Any:
        if path.endswith("/kube-system"):
            return {"metadata": {"uid": self.identity}}
        return super().get(path)

    def items(self, path: str, **query: str) -> list[Any]:
        pods = super().items(path, **query)
        for pod in pods:
            pod["status"] = a_pod(code=0, phase="Succeeded").raw["status"]
        return pods


def _engine(site: Site, monkeypatch: pytest.MonkeyPatch, volume: Any) -> Kubernetes:
    monkeypatch.setattr(
        KubernetesJob, "of_id", classmethod(lambda cls, api, _: cls(api, "training", "job", "u0"))
    )
    monkeypatch.setattr("dsv.run.engines.kubernetes.engine.KubernetesApi", lambda *_: site)
    return Kubernetes({}, {"volumes": {"/nfs": volume}})


@pytest.mark.parametrize(("volume", "forgotten"), [({"claim": "c"}, True), ({"host": "/mnt"}, False)])
def test_a_job_with_a_complete_record_is_deleted_unless_it_locates_its_data(
    monkeypatch: pytest.MonkeyPatch, volume: Any, forgotten: bool
) -> None:
    site = Site(begun=True)
    _engine(site, monkeypatch, volume).forget(REF)
    assert site.deleted is forgotten


def test_jobs_that_ended_a_while_ago_are_the_ones_that_are_left_to_remove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one that ended just now another dsv may still read the log."""

    def job(name: str, seconds: float | None) -> Any:
        at = datetime.now(UTC) - timedelta(seconds=seconds or 0)
        over = {"type": "Failed", "status": "True", "lastTransitionTime": at.isoformat()}
        metadata = {"namespace": "n", "name": name, "uid": "u0000000", "annotations": {"dsv.run/run": name}}
        return {"metadata": metadata, "status": {"conditions": [] if seconds is None else [over]}}

    site = Site(begun=True)
    engine = _engine(site, monkeypatch, {"claim": "c"})
    answer: Any = [job("old", 120), job("new", 5), job("running", None)]
    monkeypatch.setattr(site, "items", lambda *_, **__: answer)
    assert engine.ended_jobs() == (JobRef("kubernetes", "old", "k0", "n/old/u0000000"),)

    def refuse(*_: Any, **__: Any) -> Any:
        raise Refusal("no answer")

    monkeypatch.setattr(site, "items", refuse)
    assert engine.ended_jobs() == ()


@pytest.mark.parametrize("kind", ["jobs.batch", "pods"])
def test_a_cluster_that_refuses_its_jobs_or_pods_is_not_used(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers what its version is to anybody."""
    site = Site(begun=True)
    engine = _engine(site, monkeypatch, {"claim": "c"})
    version = {"gitVersion": "v1.34.4", "major": "1", "minor": "34"}
    known = site.get

    def get(path: str, *given: Any, **query: str) -> Any:
        if path.endswith(kind.removesuffix(".batch")):
            raise Refusal(f"{kind} is forbidden", 403)
        if query:
            return {"items": []}
        return version if path == "/version" else known(path)

    monkeypatch.setattr(site, "get", get)
    with pytest.raises(Denied, match=f"Kubernetes refuses: {kind} is forbidden"):
        engine.probe()


@pytest.mark.parametrize("volume", ["claim", "host"])
def test_pods_are_listed_before_a_run_if_each_node_has_a_cache_of_its_own(
    volume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then it matters which nodes have the commit; a namespace keeps the pods of a week."""
    site, listed = Site(begun=True), list[str]()
    engine = _engine(site, monkeypatch, {volume: "/mnt"})
    version = {"gitVersion": "v1.34.4", "major": "1", "minor": "34"}
    known = site.get
    monkeypatch.setattr(
        site, "get", lambda path, *_, **query: version if path == "/version" else query or known(path)
    )
    monkeypatch.setattr(site, "items", lambda path, *_, **query: listed.append(path) or [])
    engine.probe()
    pods = ["/namespaces/training/pods"] if volume == "host" else []
    assert listed == ["/api/v1/nodes", *pods]


@pytest.mark.parametrize(("identity", "words"), [("k0", "has no Job job any more"), ("k1", "is another one")])
def test_a_job_that_a_cluster_does_not_have_is_lost(
    monkeypatch: pytest.MonkeyPatch, identity: str, words: str
) -> None:
    """Also if the cluster that had it was replaced."""
    site = Site(begun=True)
    site.deleted, site.identity = True, identity
    found = _engine(site, monkeypatch, {"claim": "c"}).status(REF)
    assert found is not None and found.state is RunState.CUT_OFF and words in str(found.reason)


def test_a_job_that_the_cluster_would_still_keep_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watched it. After a week the cluster may have removed it by itself."""
    site = Site(begun=True)
    site.deleted = True
    engine = _engine(site, monkeypatch, {"claim": "c"})
    for age, cause in ((timedelta(days=6), EndCause.CANCELLED), (timedelta(days=8), None)):
        run = f"{datetime.now(UTC) - age:%Y%m%d-%H%M%S}-9a9bf432"
        found = engine.status(JobRef("kubernetes", run, "k0", REF.id))
        assert found is not None and not found.lives
        assert (None if found.ended is None else found.ended.cause) == cause


def test_a_job_that_is_stopped_before_it_begins_is_cancelled_by_who_stopped_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if its dsv is gone, so that the end is all that anybody learns of it."""
    site = Site(begun=False)
    monkeypatch.setattr(site, "items", lambda path, **query: [])
    site.annotations = {"dsv.run/stopped": "ann@h"}
    found = _engine(site, monkeypatch, {"claim": "c"}).cancel(REF, 0)
    assert found is not None and found.state is RunState.NOT_LAUNCHED and found.ended is not None
    assert (found.ended.cause, found.ended.stopped, found.exit_code) == (EndCause.CANCELLED, "ann@h", 125)


def test_a_job_that_is_taken_back_is_asked_about_with_a_pause() -> None:
    """For as long as its cluster doesn't let go of it, as of a pod on a machine that is lost."""
    pauses: list[float] = []

    class Wake:
        """Nothing wakes it; after a while the cluster has let the job go."""

        def wait(self, seconds: float) -> bool:
            pauses.append(0.0 if self.woken else seconds)
            cluster.deleted = len(pauses) > 5
            return self.woken

        def set(self) -> None:
            self.woken = True

        def clear(self) -> None:
            self.woken = False

        woken = False

    cluster = Cluster(begun=False)
    cluster.stays = True
    run = unwatched(KubernetesJob(cluster, "training", "job", "u0"))  # type: ignore[arg-type]
    run._wake = Wake()  # type: ignore[assignment]
    run.signal(signal.SIGTERM)
    run._wake.clear()
    run._until_end()
    assert pauses == [0.3] * 6


def test_a_job_of_a_queue_is_not_suspended_as_the_queue_would_let_it_begin_again() -> None:
    cluster = Cluster(begun=False)
    cluster.labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    run = _run(cluster)
    run.signal(signal.SIGTERM)
    until(lambda: run.ended is not None)
    assert cluster.deleted and not cluster.suspended


def test_a_job_that_has_waited_for_long_is_not_ended_by_the_first_word_of_a_missing_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as while somebody makes the queue anew: it has as much patience as for a job that was just submitted."""
    now = [0.0]
    monkeypatch.setattr("dsv.run.engines.kubernetes.follow.monotonic", lambda: now[0])
    cluster = Cluster(begun=False)
    cluster.suspended, cluster.labels = True, {"kueue.x-k8s.io/queue-name": "gpus"}
    job = KubernetesJob(cluster, "training", "job", "u0")  # type: ignore[arg-type]
    run = unwatched(job)
    facts = job.look()
    assert isinstance(facts, JobSnapshot)

    def asked_at(second: float, said: Sequence[Any] | Refusal) -> Obstacle | None:
        now[0] = second
        monkeypatch.setattr(KubernetesJob, "_workloads", lambda _: said)
        return run._why_never(facts)

    gone = Refusal("not found", 404)
    assert asked_at(10, gone) is None and asked_at(20, []) is None
    assert asked_at(7200, gone) is None and asked_at(7230, gone) is None
    assert asked_at(7270, gone) is not None


def test_a_job_waits_for_room_from_when_it_may_begin_and_not_from_its_submission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In between its reference is written into a store, which may take long."""
    now, full = [0.0], Obstacle("it fits no machine", lacks_room=True)
    monkeypatch.setattr("dsv.run.engines.kubernetes.follow.monotonic", lambda: now[0])
    monkeypatch.setattr(KubernetesJob, "resume", lambda *_: now.insert(0, 100.0))
    monkeypatch.setattr(KubernetesJob, "obstacle", lambda *_: full)
    monkeypatch.setattr(KubernetesJob, "fits_no_node", lambda *_: True)
    job = KubernetesJob(Cluster(begun=False), "training", "job", "u0")  # type: ignore[arg-type]
    run = KubernetesRun(
        REF, job, queue=None, autoscaling=False, is_same_cluster=lambda: True, has_record=lambda: False
    )
    run._begin(JobOutput(None, None))
    facts = job.look()
    assert isinstance(facts, JobSnapshot)
    now[0] = 103
    assert run._why_never(facts) is None
    now[0] = 161
    assert run._why_never(facts) is full


def test_the_reason_of_a_wait_is_reported_once_and_again_after_a_preemption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, full = [0.0], "insufficient unused quota, 1 more needed"
    monkeypatch.setattr("dsv.run.engines.kubernetes.follow.monotonic", lambda: now[0])
    monkeypatch.setattr(KubernetesJob, "_workloads", lambda _: _pending(full))
    run = unwatched(KubernetesJob(Cluster(begun=False), "training", "job", "u0"))  # type: ignore[arg-type]
    said: list[str] = []
    monkeypatch.setattr("os.write", lambda _, data: said.append(data.decode()))
    raw = {
        "metadata": {"name": "job", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}},
        "spec": {"suspend": True},
    }
    taken = Pod(a_pod(phase="Running").raw, gone=True, evicted_by_queue=(EndCause.PREEMPTED, "Preempted"))
    for pods in ((), (taken,)):
        for _ in range(3):
            now[0] += 10
            assert run._why_never(JobSnapshot(raw, pods)) is None
    waits = f": the queue gpus has not admitted it: {full}\n"
    assert said == [f"[dsv] the job waits{waits}", f"[dsv] the job waits again{waits}"]


def _pending(message: str) -> list[Any]:
    return [{"status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": message}]}}]


def test_no_signal_comes_after_the_one_that_kills() -> None:
    cluster = Cluster(begun=False)
    run = _run(cluster)
    with run._lock:
        run._unsent = [signal.SIGINT]
        cluster.begun = True
    run.kill()
    assert cluster.told[-1] == "KILL" and run._unsent == []
    cluster.deleted = True
    until(lambda: run.ended is not None)
