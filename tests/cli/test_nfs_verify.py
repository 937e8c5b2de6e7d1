"""`dsv verify`, `--repair` and `dsv export --skip-damaged` of a store on NFS, from another host."""

from __future__ import annotations

import json
import sys
from typing import Any

from dsv.format.locator import ObjectKind
from tests.api.test_damage_marks import flip
from tests.cli.test_verify_ceph import FILES, sync_all
from tests.kit.dsv import Dsv, write_files
from tests.kit.people import Person
from tests.labs.nfs_hosts import NfsHosts
from tests.stores.test_nfs import SEARCHED


def test_on_nfs(dsv: Dsv, nfs_hosts: NfsHosts) -> None:
    folder = nfs_hosts.export / "verify"
    folder.mkdir()
    ann = sync_all(dsv, str(folder / "store"))
    flipped = flip(Person(dsv.home, str(folder / "store")), ObjectKind.CHUNK)
    flipped[0][0].unlink()
    (folder / "files").mkdir()
    write_files(folder / "files", {name: content for name, content in FILES.items() if name != "d/5"})
    program = f"{sys.executable} -m dsv.cli.main"
    host = nfs_hosts.run(
        1,
        ["sh", "-c", f"cd verify; {program} verify --full --json; {program} export scans out --skip-damaged --json; "
         f"{program} verify --repair --from files --json"],
        env={**SEARCHED, "DSV_STORE": "/mnt/nfs/verify/store", "HOME": "/run/home"},
    )  # fmt: skip
    found, at = list[dict[str, Any]](), 0
    while at < len(host.stdout.rstrip()):
        one, at = json.JSONDecoder().raw_decode(host.stdout, at)
        found, at = [*found, one], at + 1  # behind the newline
    verified, exported, repaired = found
    assert {item["path"] for item in verified["items"]} == {*FILES}, host
    assert {item["path"] for item in exported["damaged"]} == {*FILES}
    assert {item["path"] for item in repaired["items"]} == {"d/5"} and repaired["repaired"] == 5
    assert host.status == 5
    assert ann.ok("sync", "--json").json["reuploaded"] == 1
    assert ann.ok("verify", "--full", "--json").json["whole"]
