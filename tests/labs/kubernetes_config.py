"""The configuration of the parts of the Kubernetes lab: addresses, and the files that they read."""

from __future__ import annotations

from pathlib import Path

CNI = Path("/usr/lib/cni")  # Debian's containernetworking-plugins
NODES = ("node1", "node2")
GPUS = 2  # pretended, on each node

API, ETCD, ETCD_PEER = 16443, 12379, 12380
SERVICES = "10.96.0.0/16"
CONTROL_PLANE = ("scheduler", "manager", "dns", "api", "etcd")

CNI_CONFIG = """\
{{"cniVersion": "0.4.0", "name": "lab{number}", "plugins": [{{"type": "bridge", "bridge": "{bridge}", "isGateway": true,
  "ipam": {{"type": "host-local", "dataDir": "{folder}/addresses", "ranges": [[{{"subnet": "{network}{number}.0/24"}}]],
            "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}
"""

CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/run"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  enable_tls_streaming = false
  stream_server_port = "0"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"""

KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /
containerLogMaxSize: 500Mi
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
failCgroupV1: false
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {shared}/ca.crt}}}}
authorization: {{mode: Webhook}}
address: 0.0.0.0
port: {port}
readOnlyPort: 0
healthzPort: {health}
clusterDomain: cluster.local
clusterDNS: [{dns}]
resolvConf: {shared}/resolv.conf
evictionHard: {{nodefs.available: "1%", imagefs.available: "1%", memory.available: "50Mi"}}
imageGCHighThresholdPercent: 100
podLogsDir: {folder}/logs
localStorageCapacityIsolation: false
nodeStatusUpdateFrequency: 2s
"""

AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - {level: Metadata, userGroups: ["system:serviceaccounts:training"]}
  - {level: None}
"""

COREFILE = """\
cluster.local:53 {{
  bind {address}
  errors
  kubernetes cluster.local {{
    kubeconfig {folder}/admin.conf
    ttl 1
  }}
}}
"""

PAUSE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int n) { _exit(0); }
static void reap(int n) { while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGTERM, leave); signal(SIGINT, leave); signal(SIGCHLD, reap); for (;;) pause(); }
"""
PAUSE_IMAGE = "dsv-labs/pause:1"
BUSYBOX = "dsv-labs/busybox:1"
