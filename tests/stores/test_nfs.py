"""The directory store on real NFS, used from several real hosts."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

import dsv
from tests.labs.nfs_hosts import Host, NfsHosts
from tests.waiting import PATIENCE

PROJECT = Path(__file__).parents[2]
SEARCHED = {"PYTHONPATH": f"{Path(dsv.__file__).parents[1]}:{PROJECT}", "PYTHONDONTWRITEBYTECODE": "1"}


def start(lab: NfsHosts, number: int, *argv: str) -> Host:
    return lab.boot(number, [sys.executable, "-m", "tests.stores.nfs_host", *argv], env=SEARCHED)


def result(host: Host) -> dict[str, object]:
    ended = host.wait(2 * PATIENCE)
    assert ended.status == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def folder(nfs_hosts: NfsHosts, request: pytest.FixtureRequest) -> Path:
    """A store's folder on the server's side; hosts see it under /mnt/nfs."""
    path = nfs_hosts.export / f"store-{request.node.name}".replace("[", "-").replace("]", "")
    path.mkdir()
    return path


@pytest.mark.parametrize(("mode", "below"), [(0o700, ""), (0o2770, "/deep/key")], ids=["own", "group"])
def test_one_of_several_hosts_wins_each_key(nfs_hosts: NfsHosts, folder: Path, mode: int, below: str) -> None:
    """In a group's store they make the folders at the same time too, and replace each other's empty ones."""
    folder.chmod(mode)
    root, count = f"/mnt/nfs/{folder.name}", 100
    hosts = [
        start(nfs_hosts, number, "race", root, str(number), "3", str(count), below) for number in (1, 2, 3)
    ]
    results = [result(host) for host in hosts]
    winners = {key: str(number) for number, found in enumerate(results, 1) for key in found["won"]}  # type: ignore[attr-defined]
    assert sum(len(found["won"]) for found in results) == len(winners) == count  # type: ignore[arg-type]
    race = folder / "race"
    there = {str(path.relative_to(race)): path.read_text() for path in race.rglob("*") if path.is_file()}
    assert there == winners
    assert all(found["seen"] == winners for found in results)
    assert list((folder / ".tmp").iterdir()) == []
    below_it = [path for path in folder.rglob("*") if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in below_it} == {mode}


def test_another_hosts_objects_are_seen_at_once(nfs_hosts: NfsHosts, folder: Path) -> None:
    """A client may remember an absent name for half a minute; the store asks the server again."""
    root, (got, listed) = f"/mnt/nfs/{folder.name}", ("refs/a/b/0001", "new/folder/k")
    (folder / "refs/a/b").mkdir(parents=True)
    (folder / "new").mkdir()
    reader = start(nfs_hosts, 1, "read", root, got, listed)
    writer = start(nfs_hosts, 2, "write", root, got, listed)
    assert result(reader) == {"late": []}
    result(writer)
