"""The lab itself: a job on two nodes, whose pods find each other by name and get GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.labs import kubernetes as kubernetes_lab
from tests.labs.kubernetes import Kubernetes
from tests.labs.kubernetes_config import BUSYBOX, GPUS, NODES
from tests.labs.machine import environment, find

JOB = f"""\
apiVersion: v1
kind: Service
metadata: {{name: pair}}
spec: {{clusterIP: None, selector: {{job-name: pair}}, publishNotReadyAddresses: true}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: pair}}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    spec:
      subdomain: pair
      restartPolicy: Never
      containers:
      - name: main
        image: {BUSYBOX}
        command: [sh, -c, "until nslookup pair-0.pair.default.svc.cluster.local; do sleep 1; done"]
        resources: {{limits: {{nvidia.com/gpu: {GPUS}}}}}
"""


def test_a_job_of_two_pods_takes_all_gpus_and_its_pods_find_each_other(kubernetes: Kubernetes) -> None:
    kubernetes.kubectl("apply", "-f", "-", given=JOB)
    kubernetes.kubectl("wait", "--for=condition=complete", "job/pair", "--timeout=100s")
    pods = kubernetes.get("pods", "-l", "job-name=pair")["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["node1", "node2"]
    assert kubernetes.network.pods in kubernetes.kubectl("logs", "-l", "job-name=pair")
    kubernetes.kubectl("delete", "job/pair", "service/pair")


def test_a_stopped_kubelet_makes_its_node_unready_until_it_is_started(kubernetes: Kubernetes) -> None:
    kubernetes.stop_kubelet("node2")
    kubernetes.kubectl("wait", "--for=condition=Ready=Unknown", "node/node2", "--timeout=100s")
    kubernetes.make_ready()
    kubernetes.kubectl("wait", "--for=condition=Ready=True", "node/node2", "--timeout=100s")


def test_down_takes_the_networks_of_pods_away_and_no_others(tmp_path: Path) -> None:
    """As after a kill of all processes: the pods' namespaces are left, and what containerd wrote of them."""
    if os.geteuid() != 0 or find("ip") is None:
        pytest.skip("needs root and iproute2")
    ours, other = (f"cni-{uuid.uuid4()}" for _ in range(2))
    bundle = tmp_path / "lab" / NODES[0] / "run/io.containerd.runtime.v2.task/k8s.io/pause"
    bundle.mkdir(parents=True)
    namespaces = [{"type": "pid"}, {"type": "network", "path": f"/run/netns/{ours}"}]
    (bundle / "config.json").write_text(json.dumps({"linux": {"namespaces": namespaces}}))
    try:
        for name in (ours, other):
            subprocess.run(["ip", "netns", "add", name], env=environment(), check=True)
        kubernetes_lab.down(tmp_path / "lab")
        assert not Path("/run/netns", ours).exists() and Path("/run/netns", other).exists()
    finally:
        for name in (ours, other):
            subprocess.run(["ip", "netns", "del", name], env=environment(), check=False, capture_output=True)
