"""Workspaces on real NFS, used from several real hosts whose clocks are a day apart."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import dsv
from tests.labs.nfs_hosts import Host, NfsHosts
from tests.waiting import PATIENCE, until

PROJECT = Path(__file__).parents[2]
SEARCHED = {"PYTHONPATH": f"{Path(dsv.__file__).parents[1]}:{PROJECT}", "PYTHONDONTWRITEBYTECODE": "1"}
DAY = 24 * 3600


@pytest.fixture
def folder(nfs_hosts: NfsHosts, request: pytest.FixtureRequest) -> Path:
    """A folder on the server's side; hosts see it under /mnt/nfs."""
    path = nfs_hosts.export / f"worktree-{request.node.name}-{os.urandom(2).hex()}"
    path.mkdir()
    return path


def start(lab: NfsHosts, number: int, role: str, folder: Path, *rest: str, clock_offset: int = 0) -> Host:
    argv = [sys.executable, "-m", "tests.workspace.nfs_host", role, f"/mnt/nfs/{folder.name}", *rest]
    return lab.boot(number, argv, env=SEARCHED, hostname="same", clock_offset=clock_offset)


def result(host: Host) -> dict[str, object]:
    ended = host.wait(2 * PATIENCE)
    assert ended.status == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


def mark(folder: Path, name: str) -> str:
    """The name of a file by which a host shows its progress."""
    return f"{folder.name}-{name}"


def until_there(path: Path) -> None:
    until(path.exists, str(path))


def test_hosts_of_one_name_hold_the_lock_one_at_a_time(nfs_hosts: NfsHosts, folder: Path) -> None:
    hosts = [
        start(nfs_hosts, number, "race", folder, "15", clock_offset=offset)
        for number, offset in ((1, 0), (2, DAY), (3, -DAY))
    ]
    results = [result(host) for host in hosts]
    assert [found["crowds"] for found in results] == [0, 0, 0]
    assert [found["held"] for found in results] == [15, 15, 15]


def test_a_host_without_power_loses_the_lock_and_a_living_one_keeps_it(
    nfs_hosts: NfsHosts, folder: Path
) -> None:
    dead = start(nfs_hosts, 1, "hold", folder, "6", mark(folder, "held-by-dead"), mark(folder, "never"))
    until_there(nfs_hosts.out / mark(folder, "held-by-dead"))
    dead.power_off()
    result(start(nfs_hosts, 2, "wait", folder, "6", mark(folder, "first-wait"), clock_offset=-DAY))
    for seconds in ("6", "12", "24", "48", "96"):
        held, waited, release = (mark(folder, f"{name}-{seconds}") for name in ("held", "waited", "release"))
        alive = start(nfs_hosts, 3, "hold", folder, seconds, held, release)
        until_there(nfs_hosts.out / held)
        patient = start(nfs_hosts, 2, "wait", folder, seconds, waited, clock_offset=DAY)
        until_there(nfs_hosts.out / waited)
        (nfs_hosts.out / release).touch()
        result(patient)
        found = result(alive)
        if found["in_time"]:  # else this machine stood still for as long, and nothing is shown
            break
    assert found == {"kept": True, "in_time": True}


def test_a_state_saved_on_one_host_serves_another(nfs_hosts: NfsHosts, folder: Path) -> None:
    resolved = result(start(nfs_hosts, 1, "settle", folder, clock_offset=DAY))
    assert resolved["unchanged"] is True
    seen = result(start(nfs_hosts, 2, "look", folder, clock_offset=-DAY))
    assert seen["pending"] == 0 and seen["exact"] is True
