"""`dsv bench feed` over a folder and a cache on NFS, from another host."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.cli.test_bench import ONE
from tests.kit.dsv import Dsv, write_files
from tests.labs.nfs_hosts import NfsHosts
from tests.stores.test_nfs import SEARCHED


def test_on_nfs(dsv: Dsv, nfs_hosts: NfsHosts) -> None:
    folder = nfs_hosts.export / "bench"
    folder.mkdir()
    write_files(dsv.cwd, {f"d/{number}": os.urandom(50_000) for number in range(12)})
    there = dsv.at(dsv.cwd, DSV_STORE=str(folder / "store"))
    there.ok("init", "scans")
    there.ok("sync")
    program = f"{sys.executable} -m dsv.cli.main bench feed"
    words = " ".join((*ONE, "--json"))
    host = nfs_hosts.run(
        1,
        [
            "sh",
            "-c",
            f"cd bench && {program} --make 6M --folder . {words} && {program} scans --from cache {words}",
        ],
        env={
            **SEARCHED,
            "DSV_STORE": "/mnt/nfs/bench/store",
            "DSV_CACHE": "/mnt/nfs/bench/cache",
            "HOME": "/run/home",
        },
    )
    assert host.status == 0, host
    made, at = json.JSONDecoder().raw_decode(host.stdout)
    cached: dict[str, Any] = json.loads(host.stdout[at:])
    assert made["place"].startswith("/mnt/nfs/bench/dsv-bench-feed-") and made["files"] == 3
    assert cached["place"].startswith("/mnt/nfs/bench/cache/") and cached["bytes"] == 600_000
    assert all(found["page_cache_dropped"] for found in (made, cached))
    assert cached["items"][0]["bytes"] == 2 * 50_000
    assert not list(folder.glob("dsv-bench-feed-*"))
