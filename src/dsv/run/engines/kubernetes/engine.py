"""Kubernetes: a run is an indexed Job, and its nodes are the pods of the Job.

dsv needs nothing installed in the cluster, and keeps nothing about the job on the machine that submitted it: any
machine that reaches the cluster can follow the job and end it.

    manifest.py          the objects that are submitted
    pod, rendezvous.py   the programs in the pods
    pod.py, job.py       the state and the end of pods and of their Job, and requests about it
    follow.py            what `dsv run` does while the job runs
"""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from time import time
from typing import Any, ClassVar, Final

from msgspec.json import Decoder

from dsv.errors import DsvError, LaunchError, Unreachable, UsageError, as_launch_error
from dsv.run.engines.base import (
    COMMON,
    NO_OPTIONS,
    Ended,
    Engine,
    Facts,
    Job,
    JobPlan,
    JobStatus,
    NoPlaceYet,
    PrivateFile,
    SubmittedJob,
    check_command,
    check_given,
    check_image,
    read_options,
)
from dsv.run.engines.kubernetes.api import (
    DECODER,
    NAME,
    PROBE_SECONDS,
    SECONDS,
    KubernetesApi,
    KubernetesOptions,
    Refusal,
    is_installed,
    too_old,
)
from dsv.run.engines.kubernetes.capacity import ask_capacity, gpu_labels, hosts_of, is_beyond_quota
from dsv.run.engines.kubernetes.follow import KubernetesRun, read_logs, with_left
from dsv.run.engines.kubernetes.job import JobSnapshot, KubernetesJob, deleted, status
from dsv.run.engines.kubernetes.manifest import (
    GRACE_SECONDS,
    KEPT_SECONDS,
    LABEL,
    MANAGED,
    QUEUE_LABEL,
    RUN_KEY,
    Manifest,
    as_yaml,
    credentials_name,
    manifests,
    object_name,
)
from dsv.run.engines.kubernetes.pod import is_over, read_left, read_log
from dsv.run.engines.machine import Machine
from dsv.run.engines.output import JobOutput, LogKeeper
from dsv.run.part import RunPart
from dsv.run.record import JobRef, RunState
from dsv.run.resources import Capacity, Resources
from dsv.values.json import Json

_OURS: Final = f"{MANAGED[0]}={MANAGED[1]}"
"""Selects everything that dsv has created."""
_LEFT_TO_OTHERS: Final = 60.0
"""Seconds after its end for which a Job is left to the dsv that waits for it."""
_WITHDRAWN: Final = 20.0
"""Seconds for the cluster to remove the pods of a job that has not begun."""
_DYING: Final = 60.0
"""Seconds for the cluster to end a job that is being deleted."""


class Kubernetes(Engine):
    """Jobs on Kubernetes. Pods see the volumes of the pool, and no folder of this machine."""

    name: ClassVar[str] = NAME
    decoder: ClassVar[Decoder[KubernetesOptions]] = DECODER
    needs_image: ClassVar[bool] = True
    queues: ClassVar[bool] = True
    shares_folders: ClassVar[bool] = False
    gpu_hint: ClassVar[str] = "kubectl describe nodes shows the GPUs of the nodes, under Allocatable"
    gives: ClassVar[frozenset[str]] = COMMON | {
        *("image", "time_seconds", "nodes", "retries", "shm_bytes", "tpu", "tpu_topology", "forward")
    }

    def __init__(self, environ: Mapping[str, str], options: Mapping[str, Json] = NO_OPTIONS) -> None:
        super().__init__(environ, options)
        self._options = read_options(self.decoder, options, NAME)
        self._api = KubernetesApi(environ, self._options)
        self._where: str | None = None
        self._nodes_have_caches = any("host" in each for each in self._options.volumes.values())
        """Each node has a cache of its own: its pods show which nodes have a commit."""

    def capacity(self, wanted: Resources) -> Capacity:
        with _as_errors():
            return ask_capacity(self._api, self._options, wanted)

    def probe(self) -> Facts:
        with _as_errors():
            version = self._api.get("/version", PROBE_SECONDS)
            if (reason := too_old(version)) is not None:
                raise Unreachable(reason)
            where = self._identity()
            for kind in ("batch/v1/jobs", "pods"):  # anybody may ask for /version
                self._api.get(self._api.path(kind), PROBE_SECONDS, limit="1")
            nodes, pods = [], []
            with suppress(Refusal):
                nodes = self._api.items("/api/v1/nodes", PROBE_SECONDS)
            if self._nodes_have_caches:
                with suppress(Refusal):
                    pods = self._api.items(self._api.path("pods"), PROBE_SECONDS, labelSelector=_OURS)
        return Facts(
            Machine.read(self.environ),
            where,
            str(version.get("gitVersion", "")).removeprefix("v") or None,
            gpu_labels=gpu_labels(nodes),
            hosts=hosts_of(pods),
        )

    def plan(self, job: Job, facts: Facts) -> JobPlan:
        image = check_image(job.image)
        check_command(job.command)
        check_given(self, job)
        credentials = {}
        if job.forward:
            credentials = {each: self.environ[each] for each in _CREDENTIALS if each in self.environ}
        check_credentials(job, self._options, credentials)
        text = as_yaml(manifests(job, self._options, facts, forwarded=bool(credentials)))
        files, notes = [], []
        if credentials:
            files.append(PrivateFile(Path("credentials"), json.dumps(credentials).encode()))
        elif job.forward:
            notes.append("forward_credentials found no credentials in the environment")
        return JobPlan(
            engine=self.name,
            run=job.run,
            where=facts.where,
            argv=("kubectl", "create", "-f", str(job.scratch / "job.yaml")),
            env=job.hidden,
            files=tuple(files),
            image=image,
            shm_bytes=job.shm_bytes,
            script=header_comments(job, credentials, self._options.namespace) + text,
            notes=tuple(notes),
        )

    def submit(self, plan: JobPlan, output: JobOutput, cancelled: Event) -> SubmittedJob:
        import yaml

        name = object_name(plan.run)
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        objects: list[Manifest] = list(yaml.load_all(plan.script or "", loader))
        (job,) = [each for each in objects if each["kind"] == "Job"]
        job["spec"]["suspend"] = True
        job["metadata"]["labels"].pop(QUEUE_LABEL, None)  # with this label Kueue would start the job
        with as_launch_error():
            made = KubernetesJob.of_object(self._api, make(self._api, job, plan.run))
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made.uid}
            try:
                for each in [*(each for each in objects if each is not job), *secrets_of(plan, name)]:
                    each["metadata"]["ownerReferences"] = [owner]
                    make(self._api, each, plan.run)
            except DsvError:
                made.delete()
                raise
        return KubernetesRun(
            JobRef(self.name, plan.run, plan.where, made.id),
            made,
            queue=self._options.queue,
            autoscaling=self._options.autoscaling,
            is_same_cluster=lambda: self._cluster() == plan.where,
            has_record=lambda: self.has_record(),
        )

    def status(self, ref: JobRef) -> JobStatus | None:
        job = self._find(ref)
        if job is None:
            return None
        try:
            facts = job.look()
            if facts is None:
                is_same = self._cluster() == ref.where
                kept_since = datetime.fromtimestamp(time() - KEPT_SECONDS, UTC)
                was_deleted = is_same and ref.run > f"{kept_since:%Y%m%d-%H%M%S}"  # its id has its beginning
                done = deleted(job.name) if was_deleted else None
                code = None if done is None else done.exit_code
                return JobStatus(RunState.CUT_OFF, code, done, reason=job.missing(is_same))
        except DsvError:
            return None
        now = status(facts)
        job.end_waiting_pods(facts)
        if now.state is RunState.QUEUED:
            found = job.obstacle(facts)
            return now if found is None else replace(now, reason=found.reason)
        if now.ended is None or not now.ended.launched:
            return now
        return replace(now, ended=with_left(job, facts, now.ended))

    def withdraw(self, ref: JobRef) -> JobStatus | None:
        """Suspend the Job: the cluster then removes its pods, unless the command has begun."""
        job, facts = self._find(ref), None
        if job is not None:
            with suppress(Refusal):
                facts = job.look()
        if job is None or facts is None:
            return self.status(ref)
        now = status(facts)
        if not now.lives or now.state is RunState.RUNNING:
            return now
        if any(each.host is not None and not each.is_over for each in facts.pods):
            return now  # a pod is on a node, so the command may begin at any moment
        left = job.wait(_WITHDRAWN, withdraw=True)
        if left is None:
            with suppress(Refusal):
                self._api.patch(job.path, {"spec": {"suspend": False}})
        return left or self.status(ref)

    def logs(self, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]] | None:
        job = self._find(ref)
        return None if job is None else read_logs(job, follow, self.has_record)

    def cancel(self, ref: JobRef, grace: float) -> JobStatus | None:
        job = self._find(ref)
        if job is None:
            return None
        try:
            facts = job.look()
        except DsvError:
            return None
        if facts is None:
            return self.status(ref)
        now = status(facts)
        if not now.lives:
            return now
        if not job.record_stop("dsv stop"):
            return None
        if not facts.begun:
            if (left := job.wait(GRACE_SECONDS + grace, withdraw=True)) is not None:
                return left
        elif grace > 0:
            job.signal("TERM")
            if (over := job.wait(grace)) is not None:
                return over
        job.signal("KILL")
        over = job.wait(_DYING / 4)
        if over is None:
            job.delete(0)
            over = job.wait(_DYING)
        return over or self.status(ref)

    def forget(self, ref: JobRef) -> None:
        """Delete the Job, unless `_nodes_have_caches`."""
        job = self._find(ref)
        if job is None or self._nodes_have_caches:
            return
        with suppress(DsvError):
            facts = job.look()
            if facts is not None and not status(facts).lives:
                job.delete()

    def ended_jobs(self) -> tuple[JobRef, ...]:
        """Return the Jobs that ended a minute ago or earlier. A dsv that follows a job needs it a moment longer."""
        before_ms = (time() - _LEFT_TO_OTHERS) * 1000
        with suppress(DsvError):
            return tuple(
                self._ref(job, facts)
                for job, facts in self._jobs(PROBE_SECONDS)
                if facts.ended_ms and facts.ended_ms < before_ms
            )
        return ()

    def list(self, run: str | None = None) -> tuple[JobRef, ...]:
        with _as_errors():
            jobs = self._jobs(SECONDS, "" if run is None else f",{LABEL}={object_name(run)}")
        refs = []
        for job, known in jobs:
            if known.run is not None and run in (None, known.run):
                with suppress(Refusal):
                    facts = job.look()
                    if facts is not None and status(facts).lives:
                        refs.append(self._ref(job, facts))
        return tuple(refs)

    def _jobs(self, seconds: float, selector: str = "") -> Iterable[tuple[KubernetesJob, JobSnapshot]]:
        """Return the Jobs of dsv, without their pods."""
        self._identity()
        jobs = self._api.items(self._api.path("batch/v1/jobs"), seconds, labelSelector=_OURS + selector)
        return [(KubernetesJob.of_object(self._api, each), JobSnapshot(each)) for each in jobs]

    def _ref(self, job: KubernetesJob, facts: JobSnapshot) -> JobRef:
        return JobRef(self.name, facts.run or "", self._identity(), job.id)

    def left_on_node(self, folder: Path, node: int, attempt: int) -> Ended | None:
        host, queued = self.environ.get("DSV_HOST"), bool(self.environ.get("DSV_QUEUED"))
        return read_left(folder, node=node, attempt=attempt, host=host, queued=queued)

    def log_on_node(self, folder: Path) -> LogKeeper | None:
        return read_log(folder)

    def is_over(self, parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
        return is_over(parts, nodes, retries)

    def _find(self, ref: JobRef) -> KubernetesJob | None:
        if ref.engine != self.name or not is_installed():
            return None
        return KubernetesJob.of_id(self._api, ref.id)

    def _identity(self) -> str:
        """Return the identity of the cluster, the same from everywhere."""
        if self._where is None:
            self._where = self._cluster()
        return self._where

    def _cluster(self) -> str:
        """Ask for the identity of the cluster. Raises `Refusal` without an answer."""
        try:
            found = self._api.get("/api/v1/namespaces/kube-system", PROBE_SECONDS)
        except Refusal as refusal:
            if not refusal.is_denied:
                raise
            return str(self._api.connect().base_url)
        return str(found["metadata"]["uid"])


@contextmanager
def _as_errors() -> Generator[None, None, None]:
    """Raises a refusal as the error of a command."""
    try:
        yield
    except Refusal as refusal:
        raise refusal.as_error() from refusal


_KINDS: Final = {"Service": "services", "Secret": "secrets", "Job": "batch/v1/jobs"}


def make(api: KubernetesApi, thing: Manifest, run: str) -> Any:
    """Create an object, or find the one of this run, and return it. Raises the error of the cluster."""
    kind, name = thing["kind"], thing["metadata"]["name"]
    path = api.path(_KINDS[kind])
    try:
        return api.create(path, thing)
    except Refusal as refused:
        refusal = refused
    if refusal.is_away or refusal.status == 409:  # it may exist although the answer was lost
        with suppress(Refusal):
            present = api.get(f"{path}/{name}")
            metadata = present["metadata"]
            if metadata.get("deletionTimestamp") is not None:
                raise NoPlaceYet(f"the cluster has not deleted its former {kind} {name} yet", subject=name)
            if (metadata.get("annotations") or {}).get(RUN_KEY) != run:
                taken = f"the cluster has a {kind} {name} already, which is not of this run"
                raise LaunchError(taken, subject=name)
            return present
    if is_beyond_quota(refusal.message) is not False:
        raise refusal.as_error(f"the cluster does not take the {kind} {name}", name) from refusal
    ended: list[str] = []
    if "count/jobs.batch" in refusal.message:
        with suppress(Refusal):
            jobs = map(JobSnapshot, api.items(path))
            ended = [job.name for job in jobs if job.end]
    if not ended:
        raise NoPlaceYet(refusal.message, subject=name, hint="kubectl describe resourcequota")
    kept = f"{refusal.message}; these Jobs have ended and are still kept: {', '.join(ended)}"
    raise NoPlaceYet(kept, subject=name, hint=f"kubectl delete job {' '.join(ended)}")


_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
)
"""Variables that `forward_credentials` of a pool passes on, only to the containers of dsv."""


def check_credentials(job: Job, options: KubernetesOptions, forwarded: Mapping[str, str]) -> None:
    """Raises `UsageError` if the credentials are in a local profile, and the pool names none."""
    setting = job.access.profile
    if setting is None or options.secret is not None or options.service_account is not None or forwarded:
        return
    raise UsageError(
        f"{setting} names a profile of this machine, and the cluster has no credentials in its place",
        subject=setting,
        hint="dsv config pools.NAME.kubernetes.secret SECRET, or service_account; or "
        "aws configure export-credentials --format env, and forward_credentials of the pool",
    )


def secrets_of(plan: JobPlan, name: str) -> list[Manifest]:
    wanted = {name: {key: value.encode("utf-8", "surrogateescape") for key, value in plan.env.items()}}
    for file in plan.files:
        wanted[credentials_name(name)] = {
            key: value.encode("utf-8", "surrogateescape") for key, value in json.loads(file.content).items()
        }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": each,
                "labels": {LABEL: name, MANAGED[0]: MANAGED[1]},
                "annotations": {RUN_KEY: plan.run},
            },
            "data": {key: base64.b64encode(value).decode("ascii") for key, value in values.items()},
        }
        for each, values in wanted.items()
        if values
    ]


def header_comments(job: Job, credentials: Mapping[str, str], namespace: str | None) -> str:
    """Return comments about the Secrets that the manifest needs and does not contain."""
    name = object_name(job.run)
    kubectl = "kubectl" if namespace is None else f"kubectl -n {namespace}"
    lines = [f"# Run {job.run}. To submit it: kubectl create -f THIS-FILE"]
    for each, keys in ((name, job.hidden), (credentials_name(name), credentials)):
        if keys:
            values = {"DSV_PARAMS": """'{"NAME": VALUE}'"""}
            given = " ".join(f"--from-literal={key}={values.get(key, 'VALUE')}" for key in sorted(keys))
            lines.append(f"# It needs a Secret: {kubectl} create secret generic {each} {given}")
    return "\n".join(lines) + "\n"
