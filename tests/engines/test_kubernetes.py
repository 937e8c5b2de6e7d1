"""Real Kubernetes."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dsv.errors import Denied, LaunchError, Unreachable
from dsv.run.engines.base import JobStatus, Mount
from dsv.run.engines.kubernetes.engine import Kubernetes
from dsv.run.engines.kubernetes.manifest import object_name
from dsv.run.engines.output import JobOutput
from dsv.run.part import EndCause
from dsv.run.record import RunState
from tests.engines.cluster_conformance import ClusterConformance
from tests.engines.durable import in_another_process
from tests.engines.harness import Bench
from tests.labs import kubernetes as lab
from tests.labs.kubernetes_config import BUSYBOX
from tests.waiting import until

IMAGE = f"docker.io/{BUSYBOX}"


@pytest.fixture
def bench(tmp_path: Path, kubernetes: lab.Kubernetes) -> Bench:
    """The nodes are this machine, so they see its folders; the image has no user but root."""
    options = {"root": True, "volumes": {str(tmp_path): {"host": str(tmp_path)}}}
    return Bench.of(Kubernetes({**os.environ, **kubernetes.env}, options), tmp_path, IMAGE)


class TestKubernetes(ClusterConformance):
    name = "kubernetes"
    bench: Bench

    def out(self, bench: Bench) -> tuple[Mount, dict[str, str]]:
        self.bench = bench
        return super().out(bench)

    def ready(self, mount: Mount) -> None:
        """The cluster reports the start a moment later than the command itself does."""
        super().ready(mount)
        engine = self.bench.engine
        until(
            lambda: all(engine.status(each) == JobStatus(RunState.RUNNING) for each in engine.list()),
            "word of the job's start",
        )

    def arrives(self, written: bytes) -> bytes:
        """The cluster keeps whole lines."""
        return written if written.endswith(b"\n") else written + b"\n"

    def test_streams_stay_apart_and_the_log_has_both(self, bench: Bench) -> None:
        """They don't: the cluster keeps one log of a container."""
        done = bench.run(bench.shell("echo one; echo two >&2"))
        assert (sorted(done.stdout.split()), done.stderr) == ([b"one", b"two"], b"")
        assert sorted(done.log.split()) == [b"one", b"two"]


STOPS_AFTER = """
import os, threading
from dsv.run.engines.kubernetes.api import KubernetesApi
made, create = [], KubernetesApi.create
def create_and_stop(self, path, body):
    answer = create(self, path, body)
    made.append(path)
    if len(made) == int(os.environ["STOP_AFTER"]):
        print("here", flush=True)
        threading.Event().wait()
    return answer
KubernetesApi.create = create_and_stop
"""


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_submitter_that_is_killed_between_the_objects_of_its_job(
    bench: Bench, kubernetes: lab.Kubernetes, step: int
) -> None:
    """The Job comes first and owns the others, so all go with it. It doesn't begin, and can be submitted again."""
    job = bench.shell("exit 3", nodes=2, env={"TOKEN": "hunter2"})
    environ = {**bench.engine.environ, "STOP_AFTER": str(step)}  # type: ignore[attr-defined]
    with in_another_process(
        bench, bench.plan(job), "created", before=STOPS_AFTER, environ=environ
    ) as submitter:
        assert submitter.stdout is not None and submitter.stdout.readline() == b"here\n"
        submitter.kill()
        submitter.wait()

    def there() -> set[str]:
        found = kubernetes.get("job,service,secret,pod", "-l", f"dsv.run/run={object_name(job.run)}")["items"]
        return {each["kind"] for each in found}

    kinds = ["Job", "Service", "Secret"]
    assert there() == set(kinds[:step])
    (ref,) = bench.engine.list(job.run)
    assert bench.engine.status(ref) == JobStatus(RunState.SUBMITTED)
    if step == 1:
        assert bench.start(job).wait().exit_code == 3
        assert there() == {*kinds, "Pod"}
        kubernetes.kubectl("delete", f"job/{object_name(job.run)}")
    else:
        status = bench.engine.cancel(ref, 0)
        assert status is not None and status.state is RunState.NOT_LAUNCHED
    until(lambda: there() == set(), "the end of what belongs to the Job")


def test_a_job_is_taken_back_while_it_waits_and_not_once_it_has_its_place(
    bench: Bench, kubernetes: lab.Kubernetes
) -> None:
    """Whatever it does at that moment, it either never begins or runs to its end."""
    waiting = bench.start(bench.shell("true", cpus=10_000.0))
    until(lambda: bench.engine.status(waiting.ref) == JobStatus(RunState.QUEUED), "the job in its queue")
    assert bench.engine.withdraw(waiting.ref) == JobStatus(RunState.NOT_LAUNCHED, 125)
    assert not waiting.wait().launched and bench.engine.list(waiting.ref.run) == ()
    for _ in range(3):
        starting = bench.start(bench.shell("exit 4"))
        answer = bench.engine.withdraw(starting.ref)
        ended = starting.wait()
        assert answer is not None
        taken = answer.state in (RunState.NOT_LAUNCHED, RunState.CUT_OFF)
        assert (ended.launched, ended.exit_code) == ((False, 125) if taken else (True, 4)), answer


NAMESPACES = """\
apiVersion: v1
kind: Namespace
metadata: {name: dsv-tight}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: none, namespace: dsv-tight}
spec: {hard: {pods: "0"}}
---
apiVersion: v1
kind: Namespace
metadata: {name: dsv-strict, labels: {pod-security.kubernetes.io/enforce: restricted}}
"""


def test_what_cannot_begin_says_why_in_the_words_of_the_cluster(
    bench: Bench, kubernetes: lab.Kubernetes
) -> None:
    """A quota, an admission refusal, a claim that isn't there, no such image, a user that the pool doesn't permit."""
    kubernetes.kubectl("apply", "-f", "-", given=NAMESPACES)

    def of(name: str, **options: Any) -> Bench:
        folder = bench.folder / name
        folder.mkdir()
        return Bench.of(Kubernetes({**os.environ, **kubernetes.env}, options), folder, IMAGE)

    tight, strict = of("a", root=True, namespace="dsv-tight"), of("b", root=True, namespace="dsv-strict")
    plain, claim = of("c", namespace="dsv-strict"), of("d", root=True, volumes={"/claim": {"claim": "none"}})
    mount = Mount(Path("/claim/x"), "/data")
    begun = [
        (tight.start(tight.shell("true")), EndCause.UNSCHEDULABLE, "exceeded quota: none"),
        (strict.start(strict.shell("true")), EndCause.UNSCHEDULABLE, "violates PodSecurity"),
        (plain.start(plain.shell("true")), EndCause.NOT_STARTED, "runAsNonRoot and image will run as root"),
        (claim.start(claim.shell("true", mounts=(mount,))), EndCause.UNSCHEDULABLE, '"none" not found'),
        (bench.start(bench.job("true", image="Not/AnImage:1")), EndCause.IMAGE_NOT_PULLED, "Not/AnImage:1"),
    ]
    for running, cause, words in begun:
        done = running.wait()
        assert (done.launched, done.exit_code, done.cause) == (False, 125, cause), done
        assert words in (done.reason or "")
        assert bench.engine.list(running.ref.run) == ()


def test_a_cluster_that_does_not_answer_or_refuses_is_reported(
    bench: Bench, kubernetes: lab.Kubernetes, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    kubernetes.kubectl("config", "view", "--raw", "--flatten")
    text = Path(kubernetes.env["KUBECONFIG"]).read_text()
    for old, new, words in (
        (":16443", ":1", "Kubernetes does not answer"),
        ("client-certificate-data", "token: revoked\n    x-data", "Kubernetes refuses: Unauthorized"),
    ):
        config.write_text(text.replace(old, new))
        engine = Kubernetes({"KUBECONFIG": str(config)})
        for ask in (engine.probe, engine.list):
            with pytest.raises((Unreachable, Denied), match=words) as caught:
                ask()
            assert caught.value.exit_code == (6 if "answer" in words else 8)


def test_a_name_that_is_taken_is_said_and_one_of_the_same_run_is_taken_for_it(
    bench: Bench, kubernetes: lab.Kubernetes
) -> None:
    job = bench.shell("true")
    plan = bench.plan(job)
    first = bench.engine.submit(plan, JobOutput(None, None), Event()).ref
    assert bench.engine.submit(plan, JobOutput(None, None), Event()).ref == first
    name = object_name(job.run)
    kubernetes.kubectl("annotate", "--overwrite", f"job/{name}", "dsv.run/run=another")
    with pytest.raises(LaunchError, match=f"has a Job {name} already"):
        bench.engine.submit(plan, JobOutput(None, None), Event())
    kubernetes.kubectl("delete", f"job/{name}")
    assert bench.engine.status(first) == JobStatus(RunState.CUT_OFF, 137)


def test_a_job_that_ended_while_nobody_looked_is_found_and_removed(
    bench: Bench, kubernetes: lab.Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `dsv runs` does on any machine, once the record of the run is whole."""
    monkeypatch.setattr("dsv.run.engines.kubernetes.engine._LEFT_TO_OTHERS", -1.0)
    plain = Bench.of(Kubernetes({**os.environ, **kubernetes.env}, {"root": True}), bench.folder, IMAGE)
    ended, living = plain.start(plain.shell("exit 3")), plain.start(plain.shell("sleep 1000"))
    assert ended.wait().exit_code == 3
    until(lambda: ended.ref in plain.engine.ended_jobs(), "the cluster's word that it has failed")
    assert living.ref not in plain.engine.ended_jobs()
    for ref in (ended.ref, living.ref):
        plain.engine.forget(ref)
    assert ended.ref not in plain.engine.ended_jobs() and living.ref in plain.engine.list()
    plain.engine.cancel(living.ref, 0)
