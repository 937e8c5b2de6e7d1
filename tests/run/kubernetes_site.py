"""A site as docs/operations/clusters.md sets one up on Kubernetes, with the manifests that it shows.

A namespace of the strictest Pod Security standard, a claim that all pods can write to, the image of dsv, and a user who
has the rights of docs/operations/kubernetes/rights.yaml and no others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit import clusters
from tests.labs.kubernetes import Kubernetes
from tests.labs.kubernetes_config import BUSYBOX
from tests.waiting import PATIENCE, until

DOCUMENTS = Path(__file__).parents[2] / "docs/operations/kubernetes"
OF_A_SITE = {
    "export": "nfs: {server: files.example.org, path: /export/training}",
    "options": "mountOptions: [nfsvers=4.2, hard]",
    "image": "registry.example.org/team/dsv:0.1.0",
}
WAIT = 'touch "$DSV_OUT/ready.$DSV_ATTEMPT"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done'


def document(name: str, **replaced: str) -> str:
    """One of the manifests, with what is of a site replaced by what the lab has."""
    text = (DOCUMENTS / f"{name}.yaml").read_text()
    for old, new in replaced.items():
        assert OF_A_SITE[old] in text
        text = text.replace(OF_A_SITE[old], new)
    return text


@dataclass
class Site(clusters.Site):
    """`export` is what the claim stands for. Pods see it under its own name, as this machine does."""

    cluster: Kubernetes

    @property
    def export(self) -> Path:
        return self.folder / "export"

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in super().environ.items() if not name.startswith("XDG_")}
        return {**kept, "HOME": str(self.folder / "home"), "KUBECONFIG": str(self.folder / "user.conf")}

    @property
    def outs(self) -> Path:
        return self.export / "runs"

    def end(self, terminal: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Return the exit code of a run, and its end and its error in the record."""
        out, err = terminal.communicate(timeout=PATIENCE)
        record = self.last()
        assert record["exit_code"] == terminal.returncode, f"{record}\n{out}{err}"
        return terminal.returncode, record["end"], record["error"] or ""

    def ready(self, terminal: subprocess.Popen[str], attempt: int = 1) -> None:
        def begun() -> bool:
            found = list((self.export / "runs" / "digits").glob("*"))
            return bool(found) and (max(found) / f"ready.{attempt}").exists()

        until(lambda: begun() or terminal.poll() is not None, "the start of the job")
        assert begun(), terminal.communicate()

    def pod(self) -> dict[str, Any]:
        """The pod of the newest run, which the cluster knows to run."""
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            running = ("pods", "-n", "training", "--field-selector=status.phase=Running")
            items = self.cluster.get(*running)["items"]
            own = f"dsv-{self.out().name}"
            found[:] = [
                each
                for each in items
                if each["metadata"]["name"].startswith(own) and "deletionTimestamp" not in each["metadata"]
            ]
            return bool(found)

        until(seen, "the pod")
        return found[0]

    def forget(self) -> None:
        """Take the output folders of earlier runs away."""
        shutil.rmtree(self.export / "runs" / "digits", ignore_errors=True)

    def held(self) -> bool:
        """Return whether somebody on another machine is kept from evicting the data."""
        self.dsv("--cache", str(self.export / "dsv"), "evict", "--all", code=None)
        return any((self.export / "dsv" / "digits").glob("*/part"))


@contextmanager
def made(cluster: Kubernetes, folder: Path, image: str) -> Iterator[Site]:
    """A site with the dataset `digits`, which has one file, `part`; folder: an empty one."""
    site = Site(folder, cluster)
    for name in ("export", "home", "data"):
        (folder / name).mkdir(parents=True)
    site.export.chmod(0o777)  # as a provisioner of volumes makes it
    for each in (folder, *folder.parents[:2]):
        each.chmod(each.stat().st_mode | 0o755)
    (folder / "data" / "part").write_bytes(os.urandom(300_000))
    volume = f"hostPath: {{path: {site.export}}}"
    storage = document("storage-nfs", export=volume, options="mountOptions: []")
    for text in (document("namespace"), document("rights"), storage, document("prepare", image=image)):
        cluster.kubectl("apply", "-f", "-", given=text)
    try:
        wait = ("wait", "--for=condition=complete", "job/dsv-prepare", "--timeout=300s")
        cluster.kubectl("-n", "training", *wait, timeout=320)
        _configure(site, image)
        yield site
    finally:
        cluster.make_ready()
        cluster.kubectl("delete", "namespace", "training", "--timeout=200s", timeout=220)
        cluster.kubectl("delete", "-f", "-", "--ignore-not-found", given=storage)
        cluster.kubectl("delete", "-f", "-", "--ignore-not-found", given=document("rights"))


def _configure(site: Site, image: str) -> None:
    token = site.cluster.kubectl("-n", "training", "create", "token", "dsv", "--duration=3h").strip()
    user = json.loads(site.cluster.kubectl("config", "view", "--raw", "-o", "json"))
    user["users"][0]["user"] = {"token": token}
    (site.folder / "user.conf").write_text(json.dumps(user))
    not_root = {"spec": {"template": {"spec": {"securityContext": {"runAsUser": 1000}}}}}
    for key, value in (
        ("store", str(site.export / "store")),
        ("pool", "k8s"),
        ("pools.k8s.engine", "kubernetes"),
        ("pools.k8s.cache", str(site.export / "dsv")),
        ("pools.k8s.out", str(site.export / "runs")),
        ("pools.k8s.kubernetes.namespace", "training"),
        ("pools.k8s.kubernetes.image", image),
        ("pools.k8s.kubernetes.volumes", json.dumps({str(site.export): {"claim": "training"}})),
        ("pools.k8s.kubernetes.overlay", json.dumps(not_root)),
    ):
        site.dsv("config", key, value)
    site.dsv("-C", "data", "init", "digits")
    site.dsv("-C", "data", "sync")


def run_of(*options: str, script: str = WAIT) -> tuple[str, ...]:
    return ("run", "digits", "--image", f"docker.io/{BUSYBOX}", *options, "--", "sh", "-c", script)
