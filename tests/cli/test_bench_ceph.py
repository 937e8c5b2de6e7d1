"""`dsv bench feed` over a store on Ceph."""

from __future__ import annotations

import os

from tests.cli.test_bench import ONE, feed
from tests.kit.dsv import Dsv, write_files
from tests.labs.s3_server import S3Server


def test_on_ceph(dsv: Dsv, ceph_s3: S3Server) -> None:
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    try:
        variables = {name: value for name, value in ceph_s3.env.items() if name != "AWS_ENDPOINT_URL"}
        dsv = dsv.at(dsv.cwd, **variables)
        dsv.ok("config", "stores.lake.url", f"s3://{bucket}/store")
        dsv.ok("config", "stores.lake.endpoint", ceph_s3.env["AWS_ENDPOINT_URL"])
        dsv = dsv.at(dsv.cwd, DSV_STORE="lake")
        write_files(dsv.cwd, {f"d/{number}": os.urandom(50_000) for number in range(12)})
        dsv.ok("init", "scans")
        dsv.ok("sync")
        before = {item["Key"] for item in client.list_objects_v2(Bucket=bucket)["Contents"]}
        found = feed(dsv, "scans", "--batch", "bytes", *ONE)
        [item] = found["items"]
        assert found["bytes"] == 600_000 and item["bytes"] == 2 * 2_828_486
        made = feed(dsv, "--make", "7M", *ONE)
        assert made["made"] and 7e6 <= made["bytes"] < 10e6
        assert f"s3://{bucket}/store-bench-feed-" in made["place"]
        after = {item["Key"] for item in client.list_objects_v2(Bucket=bucket)["Contents"]}
        assert after == before
    finally:
        ceph_s3.remove_bucket(bucket)
