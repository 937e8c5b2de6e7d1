"""A real Kubernetes cluster of two nodes on this machine, ready after about 30 s.

etcd, the API server, the scheduler, the controller manager, CoreDNS, and for each node a containerd and a kubelet of
its own run in one network namespace, which this host reaches over a pair of virtual interfaces. The nodes have
pretended GPUs (`nvidia.com/gpu`), which the scheduler hands out. There is no kube-proxy: names of headless Services
resolve, and virtual addresses of Services lead nowhere. Several such labs can run side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.labs import images, kubernetes_programs
from tests.labs.kubernetes_config import (
    API,
    AUDIT,
    BUSYBOX,
    CNI,
    CNI_CONFIG,
    CONTAINERD,
    CONTROL_PLANE,
    COREFILE,
    ETCD,
    ETCD_PEER,
    GPUS,
    KUBELET,
    NODES,
    PAUSE,
    PAUSE_IMAGE,
    SERVICES,
)
from tests.labs.kubernetes_keys import make_keys
from tests.labs.kubernetes_network import Network, make_network, remove_network
from tests.labs.machine import (
    LabError,
    alive,
    call,
    environment,
    require,
    start,
    stop,
    wait_ready,
    wait_until,
)
from tests.waiting import PATIENCE

PROGRAMS = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "openssl": "openssl",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "gcc": "gcc",
    "busybox": "busybox-static",
}


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """A cluster to test with; `env` reaches it as its administrator.

    Its nodes have the image `BUSYBOX`.
    """

    folder: Path
    programs: Path
    network: Network

    @property
    def host(self) -> str:
        """The address by which pods reach this machine."""
        return self.network.host

    @property
    def env(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.folder / "admin.conf")}

    def kubectl(self, *arguments: str, given: str | None = None, timeout: float = PATIENCE) -> str:
        """Return the output of kubectl; raises `LabError`."""
        argv = [str(self.programs / "kubectl"), *arguments]
        done = subprocess.run(
            argv, env=environment(self.env), input=given, capture_output=True, text=True, timeout=timeout
        )
        if done.returncode != 0:
            raise LabError(
                f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def has(self, image: str) -> bool:
        return all(f"docker.io/{image}" in self._ctr(node, "images", "list", "-q").split() for node in NODES)

    def load(self, archive: Path) -> None:
        """Give an image to every node: a file as `docker save` or `podman save` writes it."""
        for node in NODES:
            self._ctr(node, "images", "import", str(archive))

    def pull(self, image: str) -> None:
        """Have every node fetch an image of a registry on this machine's loopback, which the nodes do not see."""
        for node in NODES:
            self._ctr(node, "images", "pull", "--plain-http", image)

    def make_ready(self) -> None:
        """Start again what a test stopped, and wait for both nodes."""
        if not alive(self.folder, "api"):
            _start_api(self)
        for node in NODES:
            if not alive(self.folder, f"kubelet-{node}"):
                _start_kubelet(self, node)
            _await(self, f"kubelet-{node}", lambda node=node: _is_ready(self, node))
            self.kubectl("uncordon", node)
            _await(self, f"kubelet-{node}", lambda node=node: _takes_pods(self, node))

    def requests(self) -> list[Any]:
        """Return the requests of the service accounts of the namespace `training`, from the cluster's audit log."""
        log = self.folder / "audit.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def stop_kubelet(self, node: str) -> None:
        """The node is lost after the time that the cluster gives it; its containers keep running."""
        stop(self.folder, f"kubelet-{node}")

    def lose(self, node: str) -> None:
        """As if it were switched off: its kubelet and its containers end, and the cluster gets no report."""
        self.stop_kubelet(node)
        _end_containers(self.folder, node)

    def start_kubelet(self, node: str) -> None:
        _start_kubelet(self, node)

    def stop_api(self) -> None:
        stop(self.folder, "api")

    def start_api(self) -> None:
        _start_api(self)

    def _ctr(self, node: str, *arguments: str) -> str:
        argv = ["ctr", "-a", str(self.folder / node / "containerd.sock"), "-n", "k8s.io", *arguments]
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


def up(folder: Path) -> Kubernetes:
    """Start the cluster in an empty folder."""
    require("a Kubernetes cluster", PROGRAMS)
    programs = kubernetes_programs.programs_folder()
    lab = Kubernetes(folder, programs, make_network(folder))
    make_keys(folder, programs, lab.network.cluster)
    (folder / "resolv.conf").write_text("")
    etcd = f"http://127.0.0.1:{ETCD}"
    peer = f"http://127.0.0.1:{ETCD_PEER}"
    addresses = ["--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer]
    _start(lab, "etcd", ["etcd", "--data-dir", f"{folder}/etcd", *addresses, "--unsafe-no-fsync"])
    _start_api(lab)
    _start_managers(lab)
    archives = [_pause_archive(folder), images.archive(images.busybox_tar(), BUSYBOX, folder / "busybox.tar")]
    for node in NODES:
        _start_containerd(lab, node)
        for archive in archives:
            lab._ctr(node, "images", "import", str(archive))
        _start_kubelet(lab, node)
    for node in NODES:
        _await(lab, f"kubelet-{node}", lambda node=node: _is_ready(lab, node))
        _pretend_gpus(lab, node)
    _await(lab, "manager", lambda: bool(lab.get("serviceaccounts", "-n", "default")["items"]))
    return lab


def down(folder: Path) -> None:
    """Stop the cluster and every container of it, and take its mounts and its network away."""
    for node in NODES:
        stop(folder, f"kubelet-{node}")
    for name in (*CONTROL_PLANE, "kueue"):
        stop(folder, name)
    networks = [name for node in NODES for name in _networks(folder, node)]
    for node in NODES:
        _end_containers(folder, node)
        stop(folder, f"containerd-{node}")
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False)
    remove_network(folder, networks)


def _networks(folder: Path, node: str) -> list[str]:
    """The network namespaces of a node's pods, which outlive it and its containerd."""
    found = []
    for made in _containers(folder, node, "config.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            namespaces = json.loads(made.read_text())["linux"]["namespaces"]
            paths = (Path(each.get("path", "")) for each in namespaces if each["type"] == "network")
            found += [path.name for path in paths if path.parent.name == "netns"]
    return sorted(set(found))


def _containers(folder: Path, node: str, file: str) -> list[Path]:
    return list((folder / node / "run/io.containerd.runtime.v2.task/k8s.io").glob(f"*/{file}"))


def _end_containers(folder: Path, node: str) -> None:
    for pidfile in _containers(folder, node, "init.pid"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(pidfile.read_text()), signal.SIGKILL)


def _start(lab: Kubernetes, name: str, argv: Sequence[str]) -> None:
    # `ip netns exec` would hide the control groups, which the kubelet needs.
    program = [f"--net=/run/netns/{lab.network.namespace}", *argv]
    path = os.pathsep.join([str(lab.programs), environment()["PATH"]])
    start(lab.folder, name, ["nsenter", *program], env={"PATH": path})


def _await(lab: Kubernetes, name: str, ready: Any) -> None:
    def answers() -> bool:
        try:
            return bool(ready())
        except (LabError, subprocess.TimeoutExpired):
            return False

    wait_ready(lab.folder, name, answers)


def _start_api(lab: Kubernetes) -> None:
    folder = lab.folder
    (folder / "audit.yaml").write_text(AUDIT)
    argv = [
        *("kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{ETCD}"),
        *("--secure-port", str(API), "--bind-address", "0.0.0.0", "--advertise-address", lab.network.cluster),
        *("--tls-cert-file", f"{folder}/api.crt", "--tls-private-key-file", f"{folder}/api.key"),
        *("--client-ca-file", f"{folder}/ca.crt", "--service-cluster-ip-range", SERVICES),
        *("--service-account-key-file", f"{folder}/accounts.key"),
        *("--service-account-signing-key-file", f"{folder}/accounts.key"),
        *("--service-account-issuer", "https://kubernetes.default.svc"),
        *("--authorization-mode", "Node,RBAC", "--allow-privileged"),
        *("--feature-gates", "MutatingAdmissionPolicy=true"),
        *("--runtime-config", "admissionregistration.k8s.io/v1beta1=true"),
        *("--audit-policy-file", f"{folder}/audit.yaml", "--audit-log-path", f"{folder}/audit.log"),
        *("--kubelet-preferred-address-types", "InternalIP"),
        *(
            "--kubelet-client-certificate",
            f"{folder}/admin.crt",
            "--kubelet-client-key",
            f"{folder}/admin.key",
        ),
        *("--default-not-ready-toleration-seconds", "5", "--default-unreachable-toleration-seconds", "5"),
    ]
    _start(lab, "api", argv)
    _await(lab, "api", lambda: lab.kubectl("get", "--raw", "/readyz", timeout=10))


def _start_managers(lab: Kubernetes) -> None:
    folder = lab.folder
    own = ["--leader-elect=false", "--bind-address", "127.0.0.1"]
    accounts = [
        "--service-account-private-key-file",
        f"{folder}/accounts.key",
        "--root-ca-file",
        f"{folder}/ca.crt",
    ]
    graces = ["--node-monitor-period", "2s", "--node-monitor-grace-period", "12s"]
    manager = ["kube-controller-manager", "--kubeconfig", f"{folder}/manager.conf", "--secure-port", "16257"]
    _start(lab, "manager", [*manager, *own, *accounts, "--use-service-account-credentials", *graces])
    scheduler = ["kube-scheduler", "--kubeconfig", f"{folder}/scheduler.conf", "--secure-port", "16259"]
    _start(lab, "scheduler", [*scheduler, *own])
    (folder / "Corefile").write_text(COREFILE.format(address=lab.network.cluster, folder=folder))
    _start(lab, "dns", ["coredns", "-conf", f"{folder}/Corefile"])


def _start_containerd(lab: Kubernetes, node: str) -> None:
    own, number = lab.folder / node, NODES.index(node) + 1
    (own / "cni").mkdir(parents=True)
    config = CNI_CONFIG.format(network=lab.network.pods, number=number, bridge=f"lab{number}", folder=own)
    (own / "cni" / "10-lab.conflist").write_text(config)
    (own / "containerd.toml").write_text(CONTAINERD.format(folder=own, pause=PAUSE_IMAGE, cni=CNI))
    _start(lab, f"containerd-{node}", ["containerd", "-c", f"{own}/containerd.toml"])
    _await(lab, f"containerd-{node}", lambda: lab._ctr(node, "version"))


def _start_kubelet(lab: Kubernetes, node: str) -> None:
    own, port = lab.folder / node, 10250 + 10 * (NODES.index(node) + 1)
    text = KUBELET.format(shared=lab.folder, folder=own, port=port, health=port + 1, dns=lab.network.cluster)
    (own / "kubelet.yaml").write_text(text)
    config = ["--config", f"{own}/kubelet.yaml", "--kubeconfig", f"{lab.folder}/{node}.conf"]
    place = ["--root-dir", f"{own}/kubelet", "--cert-dir", f"{own}/keys"]
    name = ["--hostname-override", node, "--node-ip", lab.network.cluster]
    runtime = ["--container-runtime-endpoint", f"unix://{own}/containerd.sock"]
    _start(lab, f"kubelet-{node}", ["kubelet", *config, *place, *name, *runtime])


def _takes_pods(cluster: Kubernetes, node: str) -> bool:
    """A node that was away is ready a while before the cluster gives it pods again."""
    return not cluster.get("node", node)["spec"].get("taints")


def _is_ready(lab: Kubernetes, node: str) -> bool:
    conditions = lab.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _pretend_gpus(lab: Kubernetes, node: str) -> None:
    patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
    lab.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(patch))
    seen = wait_until(
        lambda: lab.get("node", node)["status"]["allocatable"].get("nvidia.com/gpu") == str(GPUS), 60
    )
    if not seen:
        raise LabError(f"{node} does not show its GPUs")


def _pause_archive(folder: Path) -> Path:
    """The image of the process that holds a pod's namespaces: a static program that waits and reaps."""
    root = folder / "pause"
    root.mkdir()
    (root / "pause.c").write_text(PAUSE)
    call(["gcc", "-static", "-Os", "-o", f"{root}/pause", f"{root}/pause.c"], log=folder / "pause.log")
    call(["tar", "-C", str(root), "-cf", f"{folder}/pause-root.tar", "pause"], log=folder / "pause.log")
    return images.archive(
        folder / "pause-root.tar", PAUSE_IMAGE, folder / "pause.tar", entrypoint=("/pause",)
    )
