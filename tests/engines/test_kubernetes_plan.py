"""The manifest of a job, and the room in a cluster: without a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dsv.errors import UsageError
from dsv.run.engines.base import Facts, Job, Mount
from dsv.run.engines.kubernetes.api import KubernetesOptions, Refusal
from dsv.run.engines.kubernetes.capacity import ask_capacity, quantity, quota_refuses, requests_of, rooms
from dsv.run.engines.kubernetes.engine import Kubernetes
from dsv.run.engines.kubernetes.manifest import merge, object_name
from dsv.run.engines.machine import Machine
from dsv.run.engines.output import JobOutput
from dsv.run.node_order import NodeOrder, StoreAccess
from dsv.run.plan import output_of
from dsv.run.record import RunId
from dsv.run.resources import Capacity, Resources
from dsv.values.names import DatasetName

RUN = "20261122-101530-1f2e3d4c"
OPTIONS: dict[str, Any] = {
    "image": "registry/dsv:1",
    "volumes": {"/nfs": {"claim": "datasets"}, "/nfs/fast": {"nfs": "files", "path": "/fast"}},
}
FACTS = Facts(
    Machine(memory_bytes=1 << 30, uid=1000, gid=1000),
    where="cluster",
    gpu_labels=(("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB"), ("nvidia.com/gpu.product", "Tesla-T4")),
)
JOB = Job(
    run=RUN,
    name="dsv",
    command=("train", "$(HOME) costs $5"),
    image="team/resnet",
    mounts=(
        Mount(Path("/nfs/cache/xray/ab12"), "/data"),
        Mount(Path("/nfs/fast/out/1"), "/out", writable=True),
    ),
    env={"DSV_RUN": RUN, "DSV_PARAMS": '{"key": "hunter2"}', "TOKEN": "hunter2"},
    scratch=Path("/nowhere"),
    hold=("with", "--cache", "/nfs/cache", "xray@ab12", "--"),
)


def planned(job: Job = JOB, **options: Any) -> dict[str, Any]:
    """The manifests by their kind, as they are printed."""
    plan = Kubernetes({}, {**OPTIONS, **options}).plan(job, FACTS)
    return {each["kind"]: each for each in yaml.safe_load_all(plan.script or "")}


def pod_of(job: Job = JOB, **options: Any) -> dict[str, Any]:
    spec: dict[str, Any] = planned(job, **options)["Job"]["spec"]["template"]["spec"]
    return spec


def test_the_job_sees_its_folders_alone_and_dsv_the_whole_volumes() -> None:
    spec = pod_of()
    (main,) = spec["containers"]
    seen = {each["mountPath"]: (each.get("subPath"), each.get("readOnly")) for each in main["volumeMounts"]}
    assert seen["/data"] == ("cache/xray/ab12", True) and seen["/out"] == ("out/1", False)
    assert not {"/nfs", "/nfs/fast"} & set(seen)
    hold, stage = spec["initContainers"]
    assert hold["restartPolicy"] == "Always" and "restartPolicy" not in stage
    assert {"/nfs", "/nfs/fast"} <= {each["mountPath"] for each in hold["volumeMounts"]}
    sources = [{key: value for key, value in each.items() if key != "name"} for each in spec["volumes"][:2]]
    assert sources == [
        {"persistentVolumeClaim": {"claimName": "datasets"}},
        {"nfs": {"server": "files", "path": "/fast"}},
    ]


def test_folders_of_one_claim_are_one_volume_of_the_pod() -> None:
    """The kubelet waits for ever for a claim that a pod has twice."""
    claim = {"claim": "datasets"}
    job = replace(JOB, hold=("with", "--store", "/lake/store", "--cache", "/nfs/cache", "xray@ab12", "--"))
    spec = pod_of(
        job, volumes={"/nfs": claim, "/nfs/fast": {"nfs": "files", "path": "/fast"}, "/lake": claim}
    )
    claims = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
    assert [each["persistentVolumeClaim"] for each in claims] == [{"claimName": "datasets"}]
    hold = {each["mountPath"]: each["name"] for each in spec["initContainers"][0]["volumeMounts"]}
    assert hold["/nfs"] == hold["/lake"] == claims[0]["name"] != hold["/nfs/fast"]


def test_a_store_that_is_a_folder_has_its_volume_also_if_it_has_a_name() -> None:
    job = replace(JOB, access=StoreAccess(folders=("/lake/store",)))
    lake = {"nfs": "files", "path": "/lake"}
    spec = pod_of(job, volumes={**OPTIONS["volumes"], "/lake": lake})
    assert "/lake" in {each["mountPath"] for each in spec["initContainers"][0]["volumeMounts"]}
    assert "/lake" not in {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}


def test_the_restricted_pod_security_standard_is_kept() -> None:
    spec = pod_of()
    assert spec["securityContext"]["runAsNonRoot"] and "runAsUser" not in str(spec)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_no_value_that_may_be_secret_is_printed_and_the_secret_is_named() -> None:
    options = {**OPTIONS, "namespace": "training"}
    plan = Kubernetes({"AWS_SECRET_ACCESS_KEY": "hunter2"}, options).plan(replace(JOB, forward=True), FACTS)
    assert "hunter2" not in plan.text() + repr(plan)
    create = f"Secret: kubectl -n training create secret generic dsv-{RUN}"
    params = """--from-literal=DSV_PARAMS='{"NAME": VALUE}'"""
    assert f"{create} {params} --from-literal=TOKEN=VALUE\n" in plan.text()
    assert f"{create}-store --from-literal=AWS_SECRET_ACCESS_KEY=VALUE\n" in plan.text()
    assert b"hunter2" in plan.files[0].content
    main = yaml.safe_load(plan.text())["spec"]["template"]["spec"]["containers"][0]
    assert "envFrom" not in main  # the job itself has no credentials


def test_credentials_of_the_terminal_stay_there() -> None:
    plan = Kubernetes({"AWS_SECRET_ACCESS_KEY": "hunter2"}, OPTIONS).plan(JOB, FACTS)
    assert plan.files == () and "AWS_SECRET" not in plan.text()


def test_dollars_in_a_command_are_no_variables_of_kubernetes() -> None:
    assert pod_of()["containers"][0]["command"][-1] == "$$(HOME) costs $$5"


def test_several_nodes_find_the_first_node_by_its_name() -> None:
    found = planned(replace(JOB, nodes=3, retries=2))
    name, spec = f"dsv-{RUN}", found["Job"]["spec"]
    assert found["Service"]["spec"]["clusterIP"] == "None"
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    assert (spec["backoffLimit"], spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (2, 2, 0)
    env = {each["name"]: each for each in spec["template"]["spec"]["containers"][0]["env"]}
    assert env["MASTER_ADDR"]["value"] == f"{name}-0.{name}" and env["PET_NNODES"]["value"] == "3"
    assert "job-completion-index" in env["NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]


@pytest.mark.parametrize(
    ("retries", "actions"), [(0, ["FailJob", "FailJob"]), (1, ["Ignore", "FailJob", "FailJob"])]
)
def test_a_disruption_is_not_counted_if_the_job_may_begin_again(retries: int, actions: list[str]) -> None:
    rules = planned(replace(JOB, retries=retries))["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert [each["action"] for each in rules] == actions


def test_what_the_pool_and_the_job_ask_for() -> None:
    spec = pod_of(
        replace(JOB, gpus=2, gpu_type="A100", cpus=1.5, memory_bytes=1 << 30, time_seconds=60),
        node_selector={"zone": "a"},
        priority_class="high",
        service_account="trainer",
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        gpu="example.com/gpu",
    )
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": "1500m", "memory": str(1 << 30)},
        "limits": {"memory": str(1 << 30), "example.com/gpu": "2"},
    }
    assert spec["nodeSelector"] == {"zone": "a"} and spec["priorityClassName"] == "high"
    assert spec["serviceAccountName"] == "trainer" and spec["tolerations"][0]["key"] == "gpu"
    assert "NVIDIA-A100-SXM4-80GB" in str(spec["affinity"]) and "T4" not in str(spec["affinity"])
    assert spec["activeDeadlineSeconds"] > 60


def test_nodes_that_have_the_commit_in_a_cache_of_their_own_come_first() -> None:
    job = replace(JOB, env={**JOB.env, "DSV_COMMIT": "c1"}, gpus=1, gpu_type="A100")
    facts = replace(FACTS, hosts=(("c1", "node2"), ("c2", "node3")))
    local = {**OPTIONS, "volumes": {"/nfs": {"host": "/mnt"}}}

    def affinity(options: dict[str, Any]) -> dict[str, Any]:
        (found,) = yaml.safe_load_all(Kubernetes({}, options).plan(job, facts).text())
        spec: dict[str, Any] = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        return spec

    assert "node2" in str(affinity(local)["preferredDuringSchedulingIgnoredDuringExecution"])
    assert "node3" not in str(affinity(local)) and "A100" in str(affinity(local))
    assert "node2" not in str(affinity(OPTIONS))


def test_a_tpu_slice_is_selected_as_gke_names_it() -> None:
    spec = pod_of(replace(JOB, tpu="v5e-16", nodes=4))
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert spec["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}


def test_a_queue_decides_when_its_jobs_begin() -> None:
    job = planned(queue="gpu")["Job"]
    assert job["spec"]["suspend"] is True and job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
    assert planned()["Job"]["spec"]["suspend"] is False
    order = NodeOrder(run=RunId.parse(RUN), dataset=DatasetName("xray"), out="/out").encode().decode()
    for options in ({"queue": "gpu"}, {}):
        hold = pod_of(replace(JOB, close=("node", "-"), order=order), **options)["initContainers"][0]
        assert any(each["name"] == "DSV_QUEUED" for each in hold["env"]) is bool(options)


def test_an_overlay_is_merged_by_name() -> None:
    base = {"a": {"b": 1, "c": 2}, "list": [{"name": "x", "v": 1}, {"name": "y"}], "plain": [1, 2]}
    over = {"a": {"b": None}, "list": [{"name": "x", "w": 2}, {"name": "z"}], "plain": [3]}
    assert merge(base, over) == {
        "a": {"c": 2},
        "list": [{"name": "x", "v": 1, "w": 2}, {"name": "y"}, {"name": "z"}],
        "plain": [3],
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wrong": "x"}, "means nothing"),
        ({"context": "two words"}, "kubernetes.context: Expected `str` matching"),
        ({"volumes": {"relative": {"claim": "c"}}}, "kubernetes.volumes: relative is no folder"),
        ({"volumes": {"/nfs": {"claim": "c", "nfs": "s"}}}, "is a claim, or an nfs server"),
        ({"volumes": {"/": {"claim": "c"}}}, "no folder below /"),
        ({"node_selector": {"two words": "x"}}, "kubernetes.node_selector: Expected `str`"),
        ({"root": "maybe"}, "kubernetes.root: Expected `bool`"),
        ({"overlay": "x"}, "kubernetes.overlay: Expected `object`"),
        ({"image_pull_secrets": "x"}, "Expected `array`"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Kubernetes.check_options(options, "pools.a.kubernetes")
    assert words in caught.value.message and "pools.a.kubernetes" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (replace(JOB, mounts=(Mount(Path("/elsewhere/x"), "/data"),)), "no volume in which /elsewhere/x is"),
        (replace(JOB, hold=("with", "--store", "/lake", "x@ab", "--")), "no volume in which /lake is"),
        (replace(JOB, access=StoreAccess(folders=("/lake",))), "no volume in which /lake is"),
        (replace(JOB, gpus=-1), "how many GPUs"),
        (replace(JOB, gpus=1, gpu_type="H100"), "no node is labelled with a GPU of the type H100"),
        (replace(JOB, engine_args=("--x",)), "engine_args"),
        (replace(JOB, command=("train", "x" * 1_500_000)), "Kubernetes takes about 1,500,000"),
        (replace(JOB, command=("train", "\udcff")), "not UTF-8"),
        (replace(JOB, tpu="v4-8"), "the shape of the slice"),
        (replace(JOB, tpu="v5e-8", nodes=3), "can't be shared by 3 nodes"),
    ],
)
def test_jobs_that_cannot_be_are_refused(job: Job, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Kubernetes({}, OPTIONS).plan(job, FACTS)


def test_words_are_submitted_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML has line ends of its own."""
    words = ("a\x85b", "\u2028c", " \n d\t", "$(HOME)", "é\U0001f600", "\x07")
    made: list[Any] = []

    def make(api: Any, thing: Any, run: str) -> Any:
        made.append(thing)
        return {"metadata": {"namespace": "n", "name": "j", "uid": "u0000000"}}

    monkeypatch.setattr("dsv.run.engines.kubernetes.engine.make", make)
    engine = Kubernetes({}, OPTIONS)
    engine.submit(engine.plan(replace(JOB, command=words), FACTS), JobOutput(None, None), Event())
    (job,) = (each for each in made if each["kind"] == "Job")
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [each.replace("$$", "$") for each in command[-len(words) :]] == list(words)


def test_names_fit_and_differ() -> None:
    assert object_name(RUN) == f"dsv-{RUN}"
    long = {object_name(f"Run_{'x' * 60}{number}") for number in range(3)}
    assert len(long) == 3 and all(len(each) <= 52 and each.islower() for each in long)


def test_quantities() -> None:
    assert [quantity(each) for each in ("500m", "2", "1Ki", "2G", "1e3", "x")] == [0.5, 2, 1024, 2e9, 1000, 0]


def test_room_of_nodes_and_quotas() -> None:
    def node(name: str, **spec: Any) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "A100"}},
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    pod = {
        "spec": {
            "nodeName": "a",
            "initContainers": [{"resources": {"requests": {"cpu": "5"}}}],
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": "3", "cpu": "2"}}}],
        }
    }
    assert requests_of(pod) == {"cpu": 5.0, "nvidia.com/gpu": 3.0}
    tainted = node("c", taints=[{"key": "own", "effect": "NoSchedule"}])
    found = list(rooms([node("a"), node("b", unschedulable=True), tainted], [pod], KubernetesOptions()))
    assert [(each.name, each.free_cpus) for each in found] == [("a", 3.0)]
    assert [(each.kind, each.free, each.total) for each in found[0].gpus] == [("A100", 1, 4)]
    quota = {
        "metadata": {"name": "q"},
        "status": {"hard": {"requests.nvidia.com/gpu": "4"}, "used": {"requests.nvidia.com/gpu": "3"}},
    }
    told = [quota_refuses([quota], KubernetesOptions(), Resources(gpus=each)) for each in (1, 2, 5)]
    assert [tuple(each is not None for each in one) for one in told] == [
        (False, False),
        (True, False),
        (False, True),
    ]


def test_resources_that_the_caller_may_not_list_are_reported() -> None:
    class Closed:
        """Stands for the API, to someone who may only submit jobs."""

        def path(self, kind: str) -> str:
            return kind

        def items(self, path: str, seconds: float, **query: str) -> list[Any]:
            raise Refusal(f"ann may not list {path}", 403)

    found = ask_capacity(Closed(), KubernetesOptions(), Resources(gpus=2))  # type: ignore[arg-type]
    assert isinstance(found, Capacity) and found.grows and found.waiting is None
    assert found.unseen == (
        "nodes: ann may not list /api/v1/nodes",
        "pods of all namespaces: ann may not list /api/v1/pods",
        "quotas: ann may not list resourcequotas",
    )


def test_nodes_begin_again_together_and_only_one_of_them_is_counted() -> None:
    job = planned(replace(JOB, nodes=3, retries=2))["Job"]["spec"]
    assert (job["backoffLimit"], job["backoffLimitPerIndex"]) == (2, 2)
    ignored = [each for each in job["podFailurePolicy"]["rules"] if each["action"] == "Ignore"]
    codes = [each["onExitCodes"]["containerName"] for each in ignored if "onExitCodes" in each]
    assert codes == ["main", "stage"]
    pod = job["template"]["spec"]
    hold = {each["name"]: each for each in pod["initContainers"][0]["env"]}
    assert "controller-uid" in hold["DSV_GANG_TOKEN"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert "DSV_GANG_PORT" in {each["name"] for each in pod["containers"][0]["env"]}
    alone = planned(replace(JOB, retries=2))["Job"]["spec"]["template"]
    assert "DSV_GANG" not in str(alone["spec"]["containers"][0]["env"])
    without = planned(replace(JOB, nodes=3))["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert [each["action"] for each in without] == ["FailJob", "FailJob"]  # it doesn't begin again


def test_a_run_without_a_pool_is_refused() -> None:
    """Such as one that is repeated, whose record says which engine it had."""
    spec = SimpleNamespace(pool=None, out=None, keep_output=False, into=None)
    with pytest.raises(UsageError, match="kubernetes needs a pool") as caught:
        output_of(spec, None, Kubernetes({}, OPTIONS), None, Path("/nowhere"))  # type: ignore[arg-type]
    assert caught.value.hint == "dsv run --on POOL; dsv pools lists them"


def test_a_profile_needs_credentials_of_the_cluster_in_its_place() -> None:
    """A Secret, the identity of a service account, or what is forwarded; and a plan that lacks them is refused."""
    job = replace(JOB, access=StoreAccess(profile="stores.lake.profile"))
    for forward in (False, True):
        with pytest.raises(UsageError, match=r"stores\.lake\.profile names a profile of this machine"):
            Kubernetes({}, OPTIONS).plan(replace(job, forward=forward), FACTS)
    pod_of(job, secret="lake")
    pod_of(job, service_account="trainer")
    Kubernetes({"AWS_ACCESS_KEY_ID": "key"}, OPTIONS).plan(replace(job, forward=True), FACTS)


@pytest.mark.parametrize(
    ("hard", "used", "scopes", "now", "ever"),
    [
        ("count/jobs.batch", "1", (), False, True),
        ("count/pods", "1", (), False, True),
        ("services", "1", (), False, True),
        ("count/jobs.batch", "1", ("BestEffort",), True, True),
        ("pods", "0", (), True, True),
    ],
)
def test_a_quota_counts_jobs_and_pods(
    hard: str, used: str, scopes: tuple[str, ...], now: bool, ever: bool
) -> None:
    """Those of two nodes. One for pods of some kind says nothing before the cluster does."""
    quota = {
        "metadata": {"name": "few"},
        "spec": {"scopes": list(scopes)},
        "status": {"hard": {hard: "2"}, "used": {hard: "2" if used == "1" else "0"}},
    }
    not_now, never = quota_refuses([quota], KubernetesOptions(), Resources(nodes=2))
    assert (not_now is None, never is None) == (now, ever)
