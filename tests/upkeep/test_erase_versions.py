"""Nothing of what was erased is left in a bucket, with versioning and without."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from botocore.exceptions import ClientError

from dsv import reader
from dsv.stores import bucket as buckets
from dsv.stores.open import open_store
from dsv.stores.options import StoreOptions
from tests.kit.dsv import Dsv, write_files
from tests.kit.packs import unpacked
from tests.labs.s3_server import S3Server
from tests.upkeep.gc_world import collect

SECRET = b"the name and number of a patient\n" * 50
LARGE = random.Random(7).randbytes(3_000_000)


def has_secrets(client: Any, bucket: str) -> tuple[bool, bool]:
    """Return whether an object of the bucket has something of the erased files, and whether an old version has."""
    there = old = False
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for one in page.get("Versions", []):
            body = client.get_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])["Body"].read()
            found = unpacked(one["Key"].removeprefix("dsv/"), body)
            if SECRET in found or LARGE[:1000] in found or LARGE[-1000:] in found:
                there, old = there or one["IsLatest"], old or not one["IsLatest"]
    return there, old


def download(client: Any, bucket: str, folder: Path) -> None:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for one in page.get("Contents", []):
            path = folder / one["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read())


@pytest.mark.real
@pytest.mark.parametrize("versioning", [False, True], ids=["without versions", "with versions"])
def test_no_object_and_no_version_has_it(ceph_s3: S3Server, tmp_path: Path, versioning: bool) -> None:
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    if versioning:
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    url, names = f"s3://{bucket}/dsv", tmp_path / "names"
    dsv = Dsv.of(tmp_path / "home", **ceph_s3.env)
    dsv.ok("config", "stores.lake.url", url)
    dsv.ok("config", "stores.lake.names", str(names))
    dsv.ok("config", "store", "lake")
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "secret": SECRET, "p/large": LARGE, "p/more": b"more\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync", "-q")
    assert has_secrets(client, bucket) == (True, False)
    told = dsv.ok("erase", "pets:secret", "pets:p/large", "--reason", "consent withdrawn", "--yes")
    assert ("old versions in the bucket" in told.err) is versioning
    assert dsv("erase", "--status").code == 1
    options = StoreOptions.from_environment(ceph_s3.env)
    store = open_store(url, options, names=str(names))
    assert collect(store, tmp_path / "gc").deleted
    store.close()
    assert has_secrets(client, bucket) == (False, versioning)
    left = dsv("erase", "--status", "--json")
    assert (left.code, left.json["packs"], left.json["versions"] > 0) == (int(versioning), 0, versioning)
    assert left.json["unanswered"] == []
    purged = dsv.ok("erase", "--purge", "--json").json
    assert purged["versions"] == 0 and (purged["removed_versions"] > 0) is versioning
    assert has_secrets(client, bucket) == (False, False)
    dsv.ok("erase", "--status")
    download(client, bucket, tmp_path / "copy")
    done = subprocess.run(
        [sys.executable, reader.__file__, "--names", names, tmp_path / "copy/dsv", "pets", tmp_path / "out"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert "secret was erased on " in done.stderr and "p/large was erased on " in done.stderr
    assert {one.name: one.read_bytes() for one in (tmp_path / "out").rglob("*") if one.is_file()} == {
        "a.txt": b"alpha\n", "more": b"more\n",
    }  # fmt: skip
    remove_versions(client, bucket)
    ceph_s3.remove_bucket(bucket)


class Replicated:
    """Answers as AWS does of a bucket whose objects go to another one."""

    rules: ClassVar = [
        {"Status": "Enabled", "Destination": {"Bucket": "arn:aws:s3:::far-away"}},
        {"Status": "Disabled", "Destination": {"Bucket": "arn:aws:s3:::not-used"}},
    ]

    def get_bucket_versioning(self, **_: str) -> dict[str, str]:
        return {"Status": "Suspended"}

    def get_object_lock_configuration(self, **_: str) -> dict[str, str]:
        raise ClientError(
            {"Error": {"Code": "ObjectLockConfigurationNotFoundError"}}, "GetObjectLockConfiguration"
        )

    def get_bucket_replication(self, **_: str) -> dict[str, Any]:
        return {"ReplicationConfiguration": {"Rules": self.rules}}


class NoRights(Replicated):
    def get_bucket_replication(self, **_: str) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "GetBucketReplication")


def test_other_buckets_are_named_to_which_objects_are_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "boto_client", lambda *_, **__: Replicated())
    found = buckets.BucketVersions("s3://lake/dsv", StoreOptions()).history()
    assert found == buckets.History(True, False, ("arn:aws:s3:::far-away",))
    monkeypatch.setattr(buckets, "boto_client", lambda *_, **__: NoRights())
    asked = buckets.BucketVersions("s3://lake/dsv", StoreOptions()).history()
    assert asked.unanswered == ("bucket lake does not say whether objects are replicated: AccessDenied",)


def remove_versions(client: Any, bucket: str) -> None:
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for one in (*page.get("Versions", []), *page.get("DeleteMarkers", [])):
            client.delete_object(
                Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"], BypassGovernanceRetention=True
            )


@pytest.mark.real
def test_a_version_that_is_locked_is_named(ceph_s3: S3Server, tmp_path: Path) -> None:
    client, bucket = ceph_s3.client(), f"dsv-locked-{os.getpid()}-{os.urandom(3).hex()}"
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    names = tmp_path / "names"
    dsv = Dsv.of(tmp_path / "home", **ceph_s3.env)
    dsv.ok("config", "stores.lake.url", f"s3://{bucket}/dsv")
    dsv.ok("config", "stores.lake.names", str(names))
    dsv.ok("config", "store", "lake")
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "secret": SECRET})
    dsv.ok("init", "pets")
    dsv.ok("sync", "-q")
    until = datetime.now(UTC) + timedelta(days=1)
    for key in ceph_s3.objects(bucket, "dsv/packs/"):
        client.put_object_retention(
            Bucket=bucket, Key=key, Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until}
        )
    told = dsv.ok("erase", "pets:secret", "--reason", "consent withdrawn", "--yes")
    assert "Object Lock keeps" in told.err
    store = open_store(f"s3://{bucket}/dsv", StoreOptions.from_environment(ceph_s3.env), names=str(names))
    assert collect(store, tmp_path / "gc").deleted
    store.close()
    refused = dsv("erase", "--purge", "--json")
    assert refused.code == 6 and refused.json["versions"] == 1, refused
    assert "Object Lock" in refused.json["unanswered"][0]
    assert has_secrets(client, bucket) == (False, True)
    remove_versions(client, bucket)
    ceph_s3.remove_bucket(bucket)
