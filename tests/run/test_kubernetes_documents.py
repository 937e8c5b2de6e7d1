"""The examples of the documentation for Kubernetes: a real cluster takes its manifests, and dsv needs its rights."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from dsv.run.engines.kubernetes.engine import Kubernetes as Engine
from tests.labs.kubernetes import Kubernetes
from tests.labs.machine import LabError
from tests.labs.openshift import give_range, restricted_v2
from tests.run.kubernetes_site import DOCUMENTS, WAIT, Site, document, made, run_of
from tests.waiting import until

ROOT_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: root, namespace: training}
spec: {containers: [{name: root, image: busybox}]}
"""
POD_OF_A_FOLDER = """\
apiVersion: v1
kind: Pod
metadata: {name: folder, namespace: training}
spec:
  containers: [{name: folder, image: busybox}]
  volumes: [{name: folder, hostPath: {path: /mnt}}]
"""
ACCOUNT = "system:serviceaccount:training:dsv"
USERS = (1000650000, 1000700000)
USE = """\
id -u; id -g; cp "$DSV_DATA/part" "$DSV_OUT/made"
for each in part more; do if touch "$DSV_DATA/$each"; then exit 9; fi; done
"""


@pytest.fixture(scope="module")
def training(
    kubernetes_cluster: Kubernetes, dsv_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    kubernetes_cluster.make_ready()
    with made(kubernetes_cluster, tmp_path_factory.mktemp("training"), dsv_image) as site:
        yield site


@pytest.fixture
def site(training: Site, kubernetes: Kubernetes) -> Site:
    return training


def test_every_table_of_a_pool_means_something_to_the_engine() -> None:
    text = (DOCUMENTS.parent / "clusters.md").read_text()
    blocks = [
        tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    pools = [(name, pool) for block in blocks for name, pool in block["pools"].items()]
    assert len(pools) >= 4
    for name, pool in pools:
        Engine.check_options(pool["kubernetes"], f"pools.{name}.kubernetes")


def test_the_cluster_takes_every_manifest(kubernetes: Kubernetes) -> None:
    """Stands before the tests with a site, which has some of them already."""
    kubernetes.kubectl("apply", "-f", str(DOCUMENTS / "namespace.yaml"))
    names = sorted(path.name for path in DOCUMENTS.iterdir())
    assert names and all(name.endswith(".yaml") for name in names)
    for name in names:
        said = kubernetes.kubectl("apply", "--dry-run=server", "-f", str(DOCUMENTS / name))
        assert "server dry run" in said


def test_the_namespace_takes_no_pod_that_may_be_root(kubernetes: Kubernetes) -> None:
    kubernetes.kubectl("apply", "-f", str(DOCUMENTS / "namespace.yaml"))
    with pytest.raises(LabError, match="violates PodSecurity"):
        kubernetes.kubectl("apply", "--dry-run=server", "-f", "-", given=ROOT_POD)


def test_the_folders_are_made_for_any_user_of_group_0(site: Site) -> None:
    for name in ("dsv", "runs"):
        status = (site.export / name).stat()
        assert (oct(status.st_mode), status.st_gid) == ("0o42775", 0)


@pytest.fixture
def openshift(site: Site, dsv_image: str) -> Iterator[Site]:
    """The namespace under OpenShift's rules alone, with a pool `openshift` in a folder that is prepared under them."""
    labelled = ("label", "namespace", "training")
    site.cluster.kubectl(*labelled, "pod-security.kubernetes.io/enforce-")
    try:
        with restricted_v2(site.cluster, "training", USERS[0]):
            text = document("prepare", image=dsv_image).replace("dsv-prepare", "openshift-prepare")
            site.cluster.kubectl("apply", "-f", "-", given=text.replace("/nfs/", "/nfs/openshift/"))
            job = ("wait", "--for=condition=complete", "job/openshift-prepare", "--timeout=100s")
            site.cluster.kubectl("-n", "training", *job)
            volumes = {each: {"claim": "training"} for each in ("/nfs", str(site.export))}
            pool = {
                "engine": "kubernetes",
                "cache": "/nfs/openshift/dsv",
                "out": "/nfs/openshift/runs",
                "kubernetes.namespace": "training",
                "kubernetes.image": dsv_image,
                "kubernetes.volumes": json.dumps(volumes),
            }
            for key, value in pool.items():
                site.dsv("config", f"pools.openshift.{key}", value)
            yield site
    finally:
        site.cluster.kubectl("apply", "-f", str(DOCUMENTS / "namespace.yaml"))


@pytest.mark.exhaustive
def test_openshift_lets_any_of_its_users_share_a_cache_and_refuses_others(openshift: Site) -> None:
    """As two projects with one volume: the second uses what the first has left in the cache, and adds to it."""
    folder, part = openshift.export / "openshift", openshift.folder / "data" / "part"
    for user, is_new, root in (
        (USERS[0], True, False),
        (USERS[1], False, True),  # an image may be root's: OpenShift gives it a user all the same
        (USERS[1], True, False),
    ):
        give_range(openshift.cluster, "training", user)
        openshift.dsv("config", "pools.openshift.kubernetes.root", json.dumps(root))
        if is_new:
            part.write_bytes(os.urandom(300_000))
            openshift.dsv("-C", "data", "sync")
        said = openshift.dsv(*run_of("--on", "openshift", script=USE))
        assert said.split()[:2] == [str(user), "0"] and said.count("Read-only file system") == 2
        record = openshift.last()
        assert [each["cache_hit"] for each in record["parts"]] == [not is_new]
        made = folder / "runs" / "digits" / record["run"] / "made"
        assert (made.stat().st_uid, made.stat().st_gid) == (user, 0)
        assert made.read_bytes() == part.read_bytes()
    owners = {(each.stat().st_uid, each.stat().st_gid) for each in (folder / "dsv").rglob("*")}
    assert owners == {(user, 0) for user in USERS}
    as_root = {"spec": {"template": {"spec": {"securityContext": {"runAsUser": 0}}}}}
    openshift.dsv("config", "pools.openshift.kubernetes.overlay", json.dumps(as_root))
    code, end, error = openshift.end(openshift.start(*run_of("--on", "openshift", script=USE)))
    assert (code, end) == (125, "unschedulable")
    refused = "unable to validate against any security context constraint: "
    assert refused + "runAsUser: must be in the ranges of the namespace" in error
    with pytest.raises(LabError, match=f"{refused}volumes other than"):
        openshift.cluster.kubectl("apply", "--dry-run=server", "-f", "-", given=POD_OF_A_FOLDER)


def test_dsv_needs_every_right_of_the_documentation_and_no_other(site: Site) -> None:
    """Runs that are looked at, that continue elsewhere after their node's kubelet is gone, and that are stopped."""
    before = len(site.cluster.requests())
    site.dsv("pools")
    script = "test $TOKEN = hunter2"
    assert site.end(site.start(*run_of("--nodes", "2", "-e", "TOKEN=hunter2", script=script)))[0] == 0
    site.cluster.kubectl(
        "-n", "training", "create", "quota", "none", "--hard=pods=0", "--scopes=NotTerminating"
    )
    until(lambda: "hard" in site.cluster.get("quota", "none", "-n", "training")["status"], "the quota")
    code, end, error = site.end(site.start(*run_of(script="true")))
    assert (code, end) == (125, "unschedulable") and "exceeded quota: none" in error
    site.cluster.kubectl("-n", "training", "delete", "quota", "none")
    terminal = site.start(*run_of("--retries", "1", script=f"trap 'exit 9' TERM; {WAIT}"))
    site.ready(terminal)
    lost = site.pod()["spec"]["nodeName"]
    site.cluster.stop_kubelet(lost)
    site.ready(terminal, attempt=2)
    assert site.held()
    assert site.dsv("logs", site.out().name) == ""
    site.dsv("stop", "--grace", "10m", site.out().name)
    assert site.end(terminal)[:2] == (9, "cancelled")
    parts = site.last()["parts"]
    assert [(part["attempt"], part["end"]) for part in parts] == [(1, "node-lost"), (2, "cancelled")]
    assert parts[0]["host"] == lost != parts[1]["host"]
    used, refused = set(), []
    for each in site.cluster.requests()[before:]:
        if each["user"]["username"] == ACCOUNT and (what := _asked(each)) is not None:
            used.add(what)
            refused += [what] if each["responseStatus"]["code"] == 403 else []
    assert refused == []
    assert used == _granted()


def _asked(request: Any) -> tuple[str, str] | None:
    about = request.get("objectRef")
    if about is None:
        return None  # the version of the cluster, which everybody may read
    below = about.get("subresource")
    return request["verb"], about["resource"] + (f"/{below}" if below else "")


def _granted() -> set[tuple[str, str]]:
    import yaml

    rules = [
        rule
        for document in yaml.safe_load_all((DOCUMENTS / "rights.yaml").read_text())
        for rule in document.get("rules", ())
    ]
    return {(verb, thing) for rule in rules for thing in rule["resources"] for verb in rule["verbs"]}
