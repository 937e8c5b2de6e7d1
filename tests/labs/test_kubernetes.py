"""The lab itself: a job on two nodes, whose pods find each other by name and get GPUs."""

from __future__ import annotations

from tests.labs.kubernetes import Kubernetes
from tests.labs.kubernetes_config import BUSYBOX, GPUS

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
