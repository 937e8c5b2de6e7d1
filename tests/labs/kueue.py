"""A real Kueue in a Kubernetes lab: its controller and its webhooks, as a process beside the control plane.

`python -m tests.labs kueue` builds it from the Go module proxy, which takes about three minutes on two processors if
Kubernetes was built on the machine before. That is why its tests are collected only if DSV_KUEUE names the folder that
this prints:

    DSV_KUEUE=$(python -m tests.labs kueue) pytest tests/run/test_kubernetes_kueue.py
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.labs.images import cache_folder
from tests.labs.kubernetes import Kubernetes
from tests.labs.kubernetes_programs import PROXY, go_program
from tests.labs.machine import LabError, alive, call, start, wait_ready

VERSION = "0.15.2"
QUEUE, GPUS = "gpu", 2
"""The LocalQueue of the namespace `default`, and how many GPUs its quota has."""
URGENT = "urgent"
"""A WorkloadPriorityClass, whose jobs take the place of others."""
_PORT = 19443
_PARTS = "config/components"
_CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
_CONFIG = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
health: {{healthProbeBindAddress: "127.0.0.1:18081"}}
metrics: {{bindAddress: "0"}}
webhook: {{port: {port}, host: 127.0.0.1, certDir: {keys}}}
leaderElection: {{leaderElect: false}}
internalCertManagement: {{enable: false}}
integrations: {{frameworks: [batch/job]}}
featureGates: {{VisibilityOnDemand: false}}
"""
_QUEUES = f"""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: any}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: team}}
spec:
  namespaceSelector: {{}}
  preemption: {{withinClusterQueue: LowerPriority}}
  resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu]
    flavors:
    - name: any
      resources:
      - {{name: cpu, nominalQuota: 100}}
      - {{name: memory, nominalQuota: 100Gi}}
      - {{name: nvidia.com/gpu, nominalQuota: {GPUS}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: {QUEUE}, namespace: default}}
spec: {{clusterQueue: team}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {{name: {URGENT}}}
value: 1000
"""
_RUN = """\
# Kueue looks for the key of its metrics in this place alone. Nothing outside of this process sees the folder.
mount -t tmpfs tmpfs {folder}/etc && mkdir -p {folder}/etc/over/kueue/metrics/certs {folder}/etc/work || exit
cp {folder}/keys/* {folder}/etc/over/kueue/metrics/certs
mount -t overlay overlay -o lowerdir=/etc,upperdir={folder}/etc/over,workdir={folder}/etc/work /etc || exit
exec {program} --config {folder}/config.yaml
"""


def program_folder() -> Path:
    """The folder that has the program and its manifests, which are built now unless they are there."""
    folder = cache_folder() / f"kueue-{VERSION}"
    with (folder.parent / "kueue.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    log = folder.parent / "kueue.log"
    work = Path(tempfile.mkdtemp(prefix="kueue-", dir=folder.parent))
    env = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=mod", "GOPROXY": PROXY}
    env["GOPATH"] = os.environ.get("GOPATH", f"{os.environ['HOME']}/go")
    module = f"sigs.k8s.io/kueue@v{VERSION}"
    try:
        call([go_program("Kueue"), "mod", "download", module], log=log, env=env, timeout=600)
        sources = work / "sources"
        shutil.copytree(Path(env["GOPATH"]) / "pkg" / "mod" / module, sources)
        call(["chmod", "-R", "u+w", str(sources)], log=log)
        done = work / "done"
        shutil.copytree(sources / _PARTS, done / _PARTS)
        build = ["build", "-trimpath", "-ldflags", "-s -w", "-o", f"{done}/kueue", "./cmd/kueue"]
        call([go_program("Kueue"), "-C", str(sources), *build], log=log, env=env, timeout=4800)
        done.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(lab: Kubernetes, built: Path) -> None:
    """Start it in a cluster, with the queue `QUEUE`, unless it runs there. It ends with the cluster."""
    if alive(lab.folder, "kueue"):
        return
    folder = lab.folder / "kueue-files"
    for name in ("keys", "etc"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for end in ("crt", "key"):
        shutil.copy(lab.folder / f"api.{end}", folder / "keys" / f"tls.{end}")
    (folder / "config.yaml").write_text(_CONFIG.format(port=_PORT, keys=folder / "keys"))
    (folder / "run.sh").write_text(_RUN.format(folder=folder, program=built / "kueue"))
    definitions, webhooks = _manifests(lab, built / _PARTS)
    lab.kubectl("apply", "--server-side", "-f", "-", given=_as_list(definitions))
    lab.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    inside = ["nsenter", f"--net=/run/netns/{lab.network.namespace}", "unshare", "-m"]
    start(lab.folder, "kueue", [*inside, "sh", f"{folder}/run.sh"], env=lab.env)
    wait_ready(lab.folder, "kueue", lambda: _applies(lab, _as_list(webhooks), _QUEUES))


def _applies(lab: Kubernetes, *manifests: str) -> bool:
    try:
        for each in manifests:
            lab.kubectl("apply", "-f", "-", given=each)
    except LabError:  # its webhook does not answer yet
        return False
    return True


def _manifests(lab: Kubernetes, parts: Path) -> tuple[list[Any], list[Any]]:
    """Return its kinds, and its webhooks: those of jobs and of its own kinds, reached without a Service."""
    import yaml

    authority = base64.b64encode((lab.folder / "ca.crt").read_bytes()).decode()

    def reached(path: str) -> dict[str, str]:
        return {"url": f"https://127.0.0.1:{_PORT}{path}", "caBundle": authority}

    definitions: list[Any] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}]
    for file in sorted((parts / "crd" / "bases").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        if definition["spec"]["names"]["plural"] in _CONVERTED:
            webhook = {"clientConfig": reached("/convert"), "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        definitions.append(definition)
    webhooks = [
        each for each in yaml.safe_load_all((parts / "webhook" / "manifests.yaml").read_text()) if each
    ]
    for each in webhooks:
        each["metadata"]["name"] = f"kueue-{each['metadata']['name']}"
        paths = [(one, one["clientConfig"]["service"]["path"]) for one in each["webhooks"]]
        each["webhooks"] = [
            {**one, "clientConfig": reached(path)}
            for one, path in paths
            if "-batch-v1-job" in path or "-kueue-x-k8s-io-" in path
        ]
    return definitions, webhooks


def _as_list(items: list[Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
