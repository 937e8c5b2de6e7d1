"""Tests of stores that run on hosts, with the names on NFS: the conformance suite, and syncs that die at every call."""

from __future__ import annotations

import json
import sys

from tests.labs.nfs_hosts import NfsHosts
from tests.labs.s3_server import S3Server
from tests.nfs.crew import PROJECT, SEARCHED, Crew
from tests.stores.proxy import proxy

PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-n0",
    "-p",
    "no:cacheprovider",
    "-c",
    f"{PROJECT}/pyproject.toml",
)


def test_a_host_has_its_names_on_nfs(crew: Crew, nfs_hosts: NfsHosts, ceph_s3: S3Server) -> None:
    one, other = crew.up(0, 1)
    here, bucket = f"/mnt/nfs/{crew.name}", ceph_s3.bucket()
    with proxy(ceph_s3, nfs_hosts.listen()) as (server, does):
        does.ignores_condition = True
        dying = one.start(
            *(
                sys.executable,
                "-m",
                "tests.stores.crashing",
                "/run/dying",
                f"{here}/names",
                f"s3://{bucket}/dsv",
            ),
            **SEARCHED,
            **server.env,
        )
        suite = other.start(
            *PYTEST,
            f"--basetemp={here}/suite",
            f"{PROJECT}/tests/stores/test_liars.py::TestNames",
            **SEARCHED,
        )
        died, passed = dying.answer(600), suite.answer(600)
    ceph_s3.remove_bucket(bucket)
    assert died.status == 0, died
    assert json.loads(died.out) > 8
    assert passed.status == 0, passed
    assert " passed" in passed.out and "skipped" not in passed.out
