"""Runs on a real Kubernetes, from the command line, as from a laptop that sees no folder of the cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import dsv
from tests.kit import clusters
from tests.kit.clusters import CURVES, DSV, TWO_NODES, USES_DSV, save_digits
from tests.labs import kubernetes as lab
from tests.labs.kubernetes_config import BUSYBOX
from tests.waiting import PATIENCE, until

IMAGE = f"docker.io/{BUSYBOX}"
TRAIN = f"""{TWO_NODES}
weights = numpy.zeros((64, 10))
for step in range(json.loads(os.environ["DSV_PARAMS"])["steps"]):
    weights = improved(weights)
    if step == 40:
        open(out + f"/half.{{rank}}", "w").close()
        while not os.path.exists(out + "/go"):
            time.sleep(0.1)
report(weights)
"""
WAIT = 'touch "$DSV_OUT/ready"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done'


def of_this_machine() -> dict[str, Any]:
    """Return the overlay that gives the containers the Python of this machine with dsv and NumPy."""
    wanted = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(Path(dsv.__file__).parents[1])}
    wanted |= {path for path in sys.path if path.startswith("/") and Path(path).is_dir()}
    roots = [each for each in sorted(wanted) if not any(each.startswith(f"{one}/") for one in wanted)]
    names = {f"host-{number}": path for number, path in enumerate(roots)}
    mounts = [{"name": name, "mountPath": path, "readOnly": True} for name, path in names.items()]
    spec = {
        "initContainers": [{"name": name, "volumeMounts": mounts} for name in ("stage", "hold")],
        "containers": [{"name": "main", "volumeMounts": mounts}],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in names.items()],
    }
    return {"spec": {"template": {"spec": spec}}}


@dataclass
class Site(clusters.Site):
    """A store, and a user with a pool on Kubernetes, whose nodes have a file server at /nfs."""

    cluster: lab.Kubernetes

    @property
    def env(self) -> dict[str, str]:
        return self.cluster.env

    @property
    def outs(self) -> Path:
        return self.nfs / "out"

    def held(self) -> bool:
        """Return whether somebody on the file server is kept from evicting the data."""
        self.dsv("--cache", str(self.nfs / "cache"), "evict", "--all", code=None)
        return any((self.nfs / "cache" / "digits").glob("*/part0.npy"))

    @property
    def nfs(self) -> Path:
        return self.folder / "nfs"


def prepare(site: Site) -> Site:
    """Make its folders and its dataset, and configure its pool."""
    store = str(site.folder / "store")
    for name in ("nfs/cache", "nfs/out", "store"):
        (site.folder / name).mkdir(parents=True)
    save_digits(site.folder / "data")
    pool = {
        "engine": "kubernetes",
        "cache": "/nfs/cache",
        "out": "/nfs/out",
        "kubernetes": {
            "image": IMAGE,
            "dsv": DSV,
            "root": True,
            "volumes": {
                "/nfs": {"host": str(site.nfs)},
                store: {"host": store},
            },
            "overlay": of_this_machine(),
        },
    }
    settings = {"store": store, "pool": "k8s", "pools": {"k8s": pool}}
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "dsv" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(tomli_w.dumps(settings))
    site.dsv("-C", "data", "init", "digits")
    site.dsv("-C", "data", "sync")
    return site


@pytest.fixture
def site(tmp_path: Path, kubernetes: lab.Kubernetes) -> Site:
    return prepare(Site(tmp_path, kubernetes))


def run_of(*options: str, script: str = WAIT) -> tuple[str, ...]:
    return ("run", "digits", "--image", IMAGE, *options, "--", "sh", "-c", script)


def test_a_training_on_two_nodes_fetches_its_data_once_and_holds_it(site: Site) -> None:
    """From one command; nobody can evict the data meanwhile, and the record has it all."""
    (site.folder / "code").mkdir()
    (site.folder / "code" / "train.py").write_text(TRAIN)
    terminal = site.start("run", "digits", "--image", IMAGE, "--nodes", "2", "--gpus", "1", "--code", "code",
                          "-p", "steps=120", "--", sys.executable, "train.py")  # fmt: skip
    until(lambda: site.has("half.0", "half.1"), "the middle of the training")
    assert site.held()
    (site.out() / "go").touch()
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    assert sorted(line[:10] for line in out.splitlines() if "has 0.9" in line) == ["[0] node 0", "[1] node 1"]
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"], record["nodes"]) == ("ended", "exited", 0, 2)
    assert record["metrics"]["accuracy"] > 0.9
    parts = record["parts"]
    assert [(part["attempt"], part["node"], part["exit_code"]) for part in parts] == [(1, 0, 0), (1, 1, 0)]
    assert {part["host"] for part in parts} == {"node1", "node2"}
    stored = sum(path.stat().st_size for path in (site.folder / "store").rglob("*") if path.is_file())
    assert stored / 2 < sum(part["stage_bytes"] for part in parts) <= stored
    assert record["stage_seconds"] == max(part["stage_seconds"] for part in parts) > 0
    assert json.loads((site.out() / "params.json").read_text()) == {"steps": 120}
    assert "node 1 has" in site.dsv("logs", record["run"])
    until(lambda: not site.held(), "the end of the lease")


@pytest.mark.exhaustive
def test_a_training_continues_elsewhere_after_one_of_its_machines_is_lost(site: Site) -> None:
    """The other node ends too, and its next attempt finds the one that takes the lost one's place."""
    (site.folder / "code").mkdir()
    (site.folder / "code" / "train.py").write_text(TRAIN)
    terminal = site.start("run", "digits", "--image", IMAGE, "--nodes", "2", "--gpus", "1", "--retries", "1", "--code",
                          "code", "-p", "steps=120", "--", sys.executable, "train.py")  # fmt: skip
    until(lambda: site.has("half.0", "half.1"), "the middle of the training")

    def running() -> list[str]:
        pods = site.cluster.get("pods", "--field-selector=status.phase=Running")["items"]
        named = [pod for pod in pods if pod["metadata"]["name"].startswith(f"dsv-{site.out().name}")]
        return [pod["spec"]["nodeName"] for pod in named]

    until(lambda: len(running()) == 2, "the cluster's word that both run")
    machines = set(running())  # one, if the other was busy
    lost, left = ("node2", "node1") if "node2" in machines else ("node1", "node2")
    site.cluster.lose(lost)
    (site.out() / "go").touch()
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 0)
    assert record["metrics"]["accuracy"] > 0.9
    first, again = ([part for part in record["parts"] if part["attempt"] == attempt] for attempt in (1, 2))
    ends = {left: ("exited", "cancelled"), lost: ("node-lost",)}  # the first if it noticed that by itself
    assert {part["host"] for part in first} == machines
    assert all(part["end"] in ends[part["host"]] for part in first)
    assert [(part["node"], part["host"], part["exit_code"]) for part in again] == [(0, left, 0), (1, left, 0)]
    assert sum(part["stage_bytes"] for part in again) == 0
    assert "node 1 has" in site.dsv("logs", record["run"])


def _pods_of(site: Site, run: str) -> dict[str, Any]:
    """The pods of a run that the cluster has, by the numbers of their nodes."""
    pods = site.cluster.get("pods", f"--selector=dsv.run/run=dsv-{run}")["items"]
    number = "batch.kubernetes.io/job-completion-index"
    return {each["metadata"]["annotations"][number]: each for each in pods}


@pytest.mark.exhaustive
def test_nodes_that_were_done_stay_done_though_one_is_lost_and_the_other_is_drained(site: Site) -> None:
    """The pod of the lost one is replaced, and would wait for ever for the other, whose pod is evicted."""
    script = 'touch "$DSV_OUT/ready.$NODE_RANK"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done'
    terminal = site.start(*run_of("--nodes", "2", "--gpus", "2", "--retries", "1", script=script))
    until(lambda: site.has("ready.0", "ready.1"), "both nodes")
    run = site.out().name

    def phases() -> dict[str, str]:
        return {number: each["status"]["phase"] for number, each in _pods_of(site, run).items()}

    until(lambda: phases() == {"0": "Running", "1": "Running"}, "the cluster's word that both run")
    pods = _pods_of(site, run)
    done, lost = (pods[number]["spec"]["nodeName"] for number in ("0", "1"))
    assert done != lost
    site.cluster.stop_kubelet(lost)
    (site.out() / "go").touch()
    until(lambda: phases()["0"] == "Succeeded", "the end of node 0")
    name = pods["0"]["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
    }
    path = f"/api/v1/namespaces/default/pods/{name}/eviction"
    site.cluster.kubectl(
        "create", "--raw", path, "-f", "-", given=json.dumps(eviction)
    )  # as `kubectl drain` does
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 0)
    assert (record["parts"][0]["end"], record["parts"][0]["exit_code"]) == ("exited", 0)


@pytest.mark.exhaustive
def test_a_machine_that_is_gone_for_good_is_lost_and_a_pod_that_is_deleted_is_cancelled(site: Site) -> None:
    terminal = site.start(*run_of("--name", "lost"))
    until(lambda: site.has("ready"), "the start")
    run = site.out().name
    until(lambda: _pods_of(site, run)["0"]["status"]["phase"] == "Running", "the cluster's word")
    host = _pods_of(site, run)["0"]["spec"]["nodeName"]
    site.cluster.lose(host)
    out, err = terminal.communicate(timeout=PATIENCE)
    record = site.last()
    assert (record["end"], terminal.returncode) == ("node-lost", 137), out + err
    assert record["error"]
    for grace in ("--grace-period=1", "--force"):
        deleted = site.start(*run_of("--name", f"deleted{grace}", script=WAIT))
        until(lambda: site.has("ready") and site.out().name != run, "the start")  # noqa: B023
        run = site.out().name
        until(lambda: _pods_of(site, run)["0"]["status"]["phase"] == "Running", "the cluster's word")  # noqa: B023
        pod = _pods_of(site, run)["0"]["metadata"]["name"]
        site.cluster.kubectl("delete", "pod", pod, grace, "--wait=false")
        out, err = deleted.communicate(timeout=PATIENCE)
        record = site.last()
        assert (record["end"], record["error"]) == ("cancelled", "its pod was deleted"), out + err


def test_what_dry_run_prints_is_submitted_without_dsv(site: Site) -> None:
    """Two nodes, of which one fails in the first attempt, with code, a variable and a parameter."""
    script = """\
cp "$DSV_DATA/part$NODE_RANK.npy" /code/train.py "$DSV_OUT"
[ "$DSV_ATTEMPT" = 2 ] || [ "$NODE_RANK" = 0 ] || exit 3
echo "$TOKEN $DSV_PARAMS" >"$DSV_OUT/told"
until [ -e "$DSV_OUT/part0.npy" ] && [ -e "$DSV_OUT/part1.npy" ]; do sleep 0.1; done
"""
    (site.folder / "code").mkdir()
    (site.folder / "code" / "train.py").write_text("print()\n")
    options = ("--nodes", "2", "--retries", "1", "--code", "code", "-e", "TOKEN=hunter2", "-p", "lr=0.1")
    text = site.dsv(*run_of("--dry-run", *options, script=script))
    name = re.search(r"^  name: (\S+)", text, re.MULTILINE)
    secret = re.search(r"create secret generic .*", text)
    assert name is not None and secret is not None and "hunter2" not in text
    values = secret[0].replace("TOKEN=VALUE", "TOKEN=hunter2").replace('"NAME": VALUE', '"lr": 0.1')
    site.cluster.kubectl(*shlex.split(values))
    site.cluster.kubectl("apply", "-f", "-", given=text)
    site.cluster.kubectl("wait", "--for=condition=complete", f"job/{name[1]}", "--timeout=300s", timeout=320)
    assert site.has("part0.npy", "part1.npy", "train.py")
    assert (site.out() / "told").read_text() == 'hunter2 {"lr": 0.1}\n'


def test_a_run_of_a_killed_terminal_is_finished_by_another_dsv(site: Site) -> None:
    terminal = site.start(
        *run_of(script=f"echo first; {WAIT}; echo '{{\"acc\": 1}}' >/out/metrics.json; exit 5")
    )
    until(lambda: site.has("ready"), "the start of the job")
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    assert site.held()
    (site.out() / "go").touch()
    until(lambda: site.last().get("state") == "ended", "the end of the run")
    record = site.last()
    assert (record["end"], record["exit_code"], record["metrics"]) == ("exited", 5, {"acc": 1})
    assert "first" in site.dsv("logs", record["run"])


def test_a_run_that_nobody_looks_at_completes_its_own_record(site: Site) -> None:
    """dsv was killed, and the pool has no folder for output: the pod sends log, metrics and output to the store.

    Further data has a folder of its own."""
    site.dsv("config", "--unset", "pools.k8s.out")
    script = """echo "by $KEY"; ls "$DSV_DATA_MORE"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done
    echo '{"acc": 0.9}' >"$DSV_OUT/metrics.json"; exit 4"""
    terminal = site.start(*run_of("-e", "KEY=hunter2hunter2", "--data", "more=digits", script=script))
    folder = site.folder / "store" / "runs" / "digits"
    until(lambda: terminal.poll() is not None or any(folder.glob("*/start")), "the start of the record")
    assert terminal.poll() is None, terminal.communicate()
    run = next(folder.glob("*/start")).parent
    pods: list[Any] = []

    def begun() -> bool:
        label = f"--selector=dsv.run/run=dsv-{run.name}"
        pods[:] = site.cluster.get("pods", label, "--field-selector=status.phase=Running")["items"]
        return bool(pods) and all(each["ready"] for each in pods[0]["status"]["containerStatuses"])

    until(begun, "the pod")
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    site.cluster.kubectl("exec", pods[0]["metadata"]["name"], "-c", "main", "--", "touch", "/out/go")
    until((run / "record").exists, "the record")
    record = json.loads((run / "record").read_text())
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 4)
    assert record["metrics"] == {"acc": 0.9} and record["output"]["error"] is None
    assert (run / "log").read_bytes() == b"by ***\npart0.npy\npart1.npy\n"
    (part,) = record["parts"]
    assert part["host"] in ("node1", "node2") and part["exit_code"] == 4 and part["stage_bytes"]
    site.dsv("runs", run.name, "--out", "here")
    assert json.loads((site.folder / "here" / "metrics.json").read_text()) == {"acc": 0.9}
    assert site.last()["output"] == record["output"], "what this machine still had of it changes nothing"


def test_a_job_without_room_in_its_cache_says_so(site: Site) -> None:
    (site.nfs / "cache" / "digits").write_text("no folder")
    said = site.dsv(*run_of(), code=125)
    assert "kubernetes could not start the command: cannot write /nfs/cache/digits/" in said
    assert site.last()["end"] == "not-started"


@pytest.fixture
def kinds(kubernetes: lab.Kubernetes) -> Iterator[None]:
    """node1 has a slice of TPUs, as GKE labels one, and an A100; node2 has a T4, as NVIDIA's operator labels it."""
    labels = {
        "node1": {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
            "cloud.google.com/gke-tpu-topology": "2x4",
            "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        },
        "node2": {"nvidia.com/gpu.product": "Tesla-T4"},
    }
    chips = "/status/capacity/google.com~1tpu"

    def patch(**operation: str) -> None:
        where = ("patch", "node", "node1", "--subresource=status", "--type=json")
        kubernetes.kubectl(*where, "-p", json.dumps([{**operation, "path": chips}]))

    for node, own in labels.items():
        kubernetes.kubectl("label", "--overwrite", "node", node, *(f"{key}={own[key]}" for key in own))
    patch(op="add", value="8")
    until(lambda: "google.com/tpu" in kubernetes.get("node", "node1")["status"]["allocatable"], "the TPUs")
    yield
    patch(op="remove")
    for node, own in labels.items():
        kubernetes.kubectl("label", "node", node, *(f"{key}-" for key in own))


@pytest.mark.exhaustive
def test_tpus_and_types_of_gpus_are_found_by_the_labels_of_nodes(site: Site, kinds: None) -> None:
    """One that no node has is reported in the cluster's words; nodes whose own cache has the commit come first."""
    site.dsv("config", "pools.k8s.tpu", "v5e-16")
    never = site.start(*run_of("--nodes", "2", "--name", "never", script="true"))
    until(lambda: site.last().get("name") == "never", "the record of the one that never begins")
    site.dsv("config", "pools.k8s.tpu", "v5e-8")
    site.dsv("config", "pools.k8s.tpu_topology", "2x4")
    site.dsv(*run_of(script="true"))
    assert [part["host"] for part in site.last()["parts"]] == ["node1"]
    for key in ("tpu", "tpu_topology"):
        site.dsv("config", "--unset", f"pools.k8s.{key}")
    for kind, host in (("T4", "node2"), ("A100", "node1")):
        site.dsv("config", "pools.k8s.gpu_type", kind)
        site.dsv(*run_of("--gpus", "1", script="true"))
        assert [part["host"] for part in site.last()["parts"]] == [host]
    for job in site.cluster.get("jobs")["items"]:
        if job["metadata"]["name"] != f"dsv-{site.last()['run']}" and job["status"].get("succeeded"):
            site.cluster.kubectl("delete", "job", job["metadata"]["name"])  # what is left has run on node1
    assert "- node1" in site.dsv(*run_of("--dry-run", script="true"))
    assert "- node2" not in site.dsv(*run_of("--dry-run", script="true"))
    site.dsv(*run_of(script="true"))
    assert [part["host"] for part in site.last()["parts"]] == ["node1"]
    out, err = never.communicate(timeout=PATIENCE)
    assert never.returncode == 125 and "didn't match Pod's node affinity/selector" in err, out + err
    record = json.loads(site.dsv("runs", "never", "--json"))["items"][0]
    assert record["end"] == "unschedulable" and "node affinity/selector" in record["error"]


@pytest.mark.exhaustive
def test_a_sweep_whose_terminal_is_killed_is_continued(site: Site) -> None:
    """Two Jobs at once; one of the runs fails, and the best is shown first."""
    script = f'{WAIT}; n=$(tr -dc 123 < "$DSV_OUT/params.json"); [ $n != 2 ] || exit 3; '
    script += 'echo "{\\"acc\\": 0.$n}" > "$DSV_OUT/metrics.json"'
    options = ("-p", "n=1,2,3", "--sweep", "--parallel", "2", "--name", "grid")

    def ready() -> list[Path]:
        return sorted((site.nfs / "out").glob("digits/*/ready"))

    terminal = site.start(*run_of(*options, script=script))
    until(lambda: len(ready()) == 2 or terminal.poll() is not None, "two runs at once")
    assert len(ready()) == 2, terminal.communicate()
    terminal.send_signal(signal.SIGKILL)
    terminal.communicate()
    items = json.loads(site.dsv("runs", "grid", "--json"))["items"]
    assert len({each["job"]["id"] for each in items}) == len(items) == 2
    name = items[0]["sweep"]["id"]
    again = site.start("run", "--again", name, "--on", "k8s", "--parallel", "2")
    (ready()[0].parent / "go").touch()
    until(lambda: len(ready()) == 3 or again.poll() is not None, "the third run")
    for path in ready():
        (path.parent / "go").touch()
    _, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 3, err
    items = json.loads(site.dsv("runs", "grid", "--sort", "metrics.acc", "--json"))["items"]
    assert [(each["params"]["n"], each["exit_code"]) for each in items] == [(3, 0), (1, 0), (2, 3)]


def test_the_last_of_several_nodes_completes_the_record_though_nobody_looks(site: Site) -> None:
    """Of both attempts: in the first one node fails, and the other is ended with it. The output is in the store."""
    script = """echo "$NODE_RANK in $DSV_ATTEMPT"; touch "$DSV_OUT/began.$DSV_ATTEMPT.$NODE_RANK"
    [ "$DSV_ATTEMPT" = 1 ] || exit 0
    until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done
    [ "$NODE_RANK" = 0 ] || exit 3
    while :; do sleep 0.1; done"""
    terminal = site.start(*run_of("--nodes", "2", "--retries", "1", "--keep-output", script=script))
    until(lambda: site.has("began.1.0", "began.1.1"), "both nodes")
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    run = site.folder / "store" / "runs" / "digits" / site.out().name
    (site.out() / "go").touch()
    until((run / "record").exists, "the record")
    record = json.loads((run / "record").read_text())
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 0)
    ends = [(part["attempt"], part["node"], part["end"], part["exit_code"]) for part in record["parts"]]
    assert ends == [
        (1, 0, "cancelled", 143),
        (1, 1, "exited", 3),
        (2, 0, "exited", 0),
        (2, 1, "exited", 0),
    ]
    assert record["parts"][0]["error"].endswith("node 1 failed first, with exit code 3")
    assert record["usage"] is not None and all(part["host"] for part in record["parts"])
    told = [(node, attempt) for attempt in (1, 2) for node in (0, 1)]
    log = "".join(f"[dsv: node {node}, attempt {attempt}]\n{node} in {attempt}\n" for node, attempt in told)
    assert (run / "log").read_text() == log
    site.dsv("runs", run.name, "--out", "here")
    assert (site.folder / "here" / "began.2.1").exists()


def test_a_run_ends_with_its_record_while_the_cluster_is_away(site: Site) -> None:
    """The pod has completed it in the store, which the terminal still reaches."""
    terminal = site.start(*run_of(script=f"{WAIT}; echo done; exit 3"))
    until(lambda: site.has("ready"), "the command")
    run = site.out().name
    until(lambda: site.last()["state"] == "running", "that the cluster says so")
    site.cluster.stop_api()
    try:
        site.go()
        out, err = terminal.communicate(timeout=PATIENCE)
    finally:
        site.cluster.make_ready()
    assert terminal.returncode == 3, out + err
    record = site.last()
    assert (record["run"], record["state"], record["end"], record["exit_code"]) == (run, "ended", "exited", 3)
    assert site.dsv("logs", run) == "done\n"


def test_a_command_that_ends_by_itself_when_its_pod_is_evicted_was_evicted(site: Site) -> None:
    """The cluster says so of the pod, after the end of the command."""
    terminal = site.start(*run_of(script=f"trap 'exit 9' TERM; {WAIT}"))
    until(lambda: site.has("ready"), "the command")
    name = f"dsv-{site.out().name}"

    def running() -> list[str]:
        pods = site.cluster.get("pods", "--field-selector=status.phase=Running")["items"]
        return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"].startswith(name)]

    until(lambda: bool(running()), "the pod")
    (pod,) = running()
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": "default"},
    }
    path = f"/api/v1/namespaces/default/pods/{pod}/eviction"
    site.cluster.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    out, err = terminal.communicate(timeout=PATIENCE)
    record = site.last()
    assert (terminal.returncode, record["end"], record["exit_code"]) == (9, "evicted", 9), out + err


def test_what_a_job_reads_and_makes_is_in_its_record(site: Site) -> None:
    """Its container has neither the store nor a right to write there."""
    terminal = site.start(*run_of(script=USES_DSV))
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    site.check_notes(out)


def test_curves_of_a_pod_without_the_store_are_kept(site: Site) -> None:
    site.check_curves(*run_of(script=CURVES), live=False)
