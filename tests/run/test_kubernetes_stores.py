"""Runs on Kubernetes whose data is in a real S3, which pods reach by another way than this machine's settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.labs.front import Front, tls_front
from tests.labs.kubernetes import Kubernetes
from tests.labs.kubernetes_config import BUSYBOX
from tests.labs.s3_server import S3Server
from tests.run.kubernetes_site import Site, document, made

SIZE = 3_000_000
SCRIPT = 'cat "$DSV_DATA/part" | sha256sum; env | grep -c AWS_ || exit 0'


@dataclass
class Lake:
    """A bucket with the dataset `scans`, which this user reaches by a profile, and through TLS of the site's own."""

    site: Site
    front: Front
    server: S3Server
    bucket: str

    def run(self, *options: str, code: int | None = 0) -> str:
        image = ("--image", f"docker.io/{BUSYBOX}")
        words = ("--store", "lake", "run", "scans", *image, *options, "--", "sh", "-c", SCRIPT)
        return self.site.dsv(*words, code=code)

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.site.dsv("--store", "lake", "runs", "--json", "-n", "1"))["items"][0]  # fmt: skip
        return found

    def pool(self, name: str, **said: Any) -> None:
        """As k8s, with an empty cache of its own."""
        cache = self.site.export / name
        cache.mkdir()
        cache.chmod(0o2775)
        everything = {
            "engine": "kubernetes",
            "cache": str(cache),
            "out": str(self.site.export / "runs"),
            **{
                f"kubernetes.{key}": self.site.dsv("config", f"pools.k8s.kubernetes.{key}").strip()
                for key in ("namespace", "image", "volumes", "overlay")
            },
            **{f"kubernetes.{key}": value for key, value in said.items()},
        }
        for key, value in everything.items():
            self.site.dsv("config", f"pools.{name}.{key}", value)

    def stored(self) -> int:
        return sum(self.server.objects(self.bucket).values())


@pytest.fixture(scope="module")
def lake(
    kubernetes_cluster: Kubernetes,
    dsv_image: str,
    ceph_s3: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lake]:
    kubernetes_cluster.make_ready()
    folder = tmp_path_factory.mktemp("lake")
    keys = tmp_path_factory.mktemp("keys")
    with (
        made(kubernetes_cluster, folder, dsv_image) as site,
        tls_front(kubernetes_cluster, ceph_s3, keys) as front,
    ):
        bucket = ceph_s3.bucket()
        profile = f"[lab]\naws_access_key_id = {ceph_s3.access_key}\n"
        profile += f"aws_secret_access_key = {ceph_s3.secret_key}\n"
        (folder / "home" / ".aws").mkdir()
        (folder / "home" / ".aws" / "credentials").write_text(profile)
        (folder / "home" / ".aws" / "config").write_text(f"[profile lab]\nendpoint_url = {front.address}\n")
        for key, value in (
            ("url", f"s3://{bucket}/dsv"), ("profile", "lab"), ("ca_bundle", str(front.authority)),
        ):  # fmt: skip
            site.dsv("config", f"stores.lake.{key}", value)
        (folder / "scans").mkdir()
        (folder / "scans" / "part").write_bytes(os.urandom(SIZE))
        for words in (("init", "scans"), ("sync",)):
            site.dsv("--store", "lake", "-C", "scans", *words)
        yield Lake(site, front, ceph_s3, bucket)
        ceph_s3.remove_bucket(bucket)


def jobs(site: Site) -> str:
    return site.cluster.kubectl("-n", "training", "get", "jobs", "-o", "json")


def test_a_profile_is_replaced_by_a_secret_and_each_byte_comes_once(
    lake: Lake, kubernetes: Kubernetes
) -> None:
    """Two nodes on one cache, with the authority and the address of this machine's settings."""
    lake.pool("plain")
    before = json.loads(jobs(lake.site))["items"]
    said = lake.run("--on", "plain", code=2)
    assert "stores.lake.profile names a profile of this machine" in said and "kubernetes.secret" in said
    assert len(json.loads(jobs(lake.site))["items"]) == len(before)

    text = document("store-secret")
    for old, new in (
        ("AKIAEXAMPLE", lake.server.access_key),
        ("KEY: example", f"KEY: {lake.server.secret_key}"),
    ):
        assert old in text
        text = text.replace(old, new)
    kubernetes.kubectl("apply", "-f", "-", given=text)
    lake.pool("secret", secret="lake")
    assert lake.server.secret_key not in lake.run("--on", "secret", "--dry-run")
    sent = lake.front.sent
    out = lake.run("--on", "secret", "--nodes", "2", "--cpus", "0.1")
    record = lake.record()
    assert sorted(line[:4] for line in out.splitlines()) == ["[0] ", "[0] ", "[1] ", "[1] "]
    assert sorted(line.split()[1] for line in out.splitlines() if len(line.split()) == 2) == ["0", "0"]
    assert SIZE <= sum(part["stage_bytes"] for part in record["parts"]) <= lake.stored()
    assert SIZE <= lake.front.sent - sent < 1.5 * SIZE
    sent = lake.front.sent
    lake.run("--on", "secret")
    assert lake.front.sent - sent < SIZE / 2
    shown = (
        jobs(lake.site) + json.dumps(record) + out + lake.site.dsv("--store", "lake", "logs", record["run"])
    )
    assert lake.server.secret_key not in shown and lake.server.access_key not in shown
