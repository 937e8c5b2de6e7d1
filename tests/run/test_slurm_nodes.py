"""Runs on several nodes of a real Slurm that have caches of their own, and the time of a command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.clusters import DSV
from tests.run.slurm_site import Site, run_of
from tests.waiting import PATIENCE, until

SLOW = """\
#!/bin/sh
if [ "$SLURMD_NODENAME" = n2 ]; then
  touch {folder}/waits
  until [ -e {folder}/let ]; do sleep 0.1; done
fi
exec {dsv} "$@"
"""
TWO = ("--nodes", "2")


@pytest.fixture
def apart(site: Site) -> Iterator[Site]:
    """Each node has a cache of its own, and n2 gets its data only once there is a file named `let`."""
    cache = site.folder / "cache"
    cache.mkdir()
    for node in ("n1", "n2", "n3"):
        own = site.folder / f"cache-{node}"
        own.mkdir()
        subprocess.run(
            site.slurm.on_node(node, ["mount", "--bind", str(own), str(cache)]), check=True, timeout=PATIENCE
        )
    slow = site.folder / "slow"
    slow.write_text(SLOW.format(folder=site.folder, dsv=DSV))
    slow.chmod(0o755)
    site.dsv("config", "pools.a.slurm.dsv", str(slow))
    site.dsv("config", "pools.a.engine_args", "--", "--nodelist=n1,n2")
    yield site
    (site.folder / "let").touch()
    for node in ("n1", "n2", "n3"):
        if (site.slurm.folder / f"{node}.pid").exists():  # it was not powered off
            subprocess.run(site.slurm.on_node(node, ["umount", "--lazy", str(cache)]), check=False)


def has_data(site: Site, node: str) -> bool:
    return any(Path(site.folder / f"cache-{node}").glob("digits/*/part0.npy"))


def leases(site: Site, node: str) -> list[str]:
    items = json.loads(site.dsv("cached", "--json", node=node))["items"]
    return [lease["purpose"] for item in items for lease in item["leases"]]


def waits_for_the_other(site: Site) -> None:
    """Until n1 has its data and holds it, and n2 is at work."""
    until(lambda: (site.folder / "waits").exists() and has_data(site, "n1"), "the data of one node")
    until(lambda: leases(site, "n1") == ["run"], "what holds the data for as long as the job lasts")
    site.dsv("evict", "--all", node="n1", code=None)
    assert has_data(site, "n1") and not has_data(site, "n2")


def test_a_node_holds_its_data_while_another_one_gets_its_own(apart: Site) -> None:
    """No command begins before both have it, and then both do."""
    terminal = apart.start(*run_of(*TWO))
    waits_for_the_other(apart)
    assert not list(apart.out().glob("ready.*"))
    (apart.folder / "let").touch()
    apart.ready(nodes=2)
    apart.dsv("evict", "--all", node="n2", code=None)
    assert has_data(apart, "n1") and has_data(apart, "n2")
    apart.go()
    assert terminal.wait(PATIENCE) == 0
    until(lambda: leases(apart, "n1") == leases(apart, "n2") == [], "the end of the leases")


def test_a_node_that_dies_while_it_gets_its_data_ends_the_attempt(apart: Site) -> None:
    """No command begins, and on the other node nothing runs any more. Its lease expires: Slurm killed all at once."""
    terminal = apart.start(*run_of(*TWO))
    waits_for_the_other(apart)
    apart.slurm.power_off("n2")
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 125, err
    record = apart.last()
    assert (record["state"], record["end"]) == ("not-launched", "node-lost")
    assert not list(apart.out().glob("ready.*"))
    keepers = apart.slurm.on_node("n1", ["pgrep", "-f", "dsv.cache.keeping"])
    until(lambda: subprocess.run(keepers, capture_output=True).stdout == b"", "the end of what held the data")


def test_the_time_is_that_of_the_command(apart: Site) -> None:
    """It is over to the second on each node, and to get the data took longer than that."""
    script = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    terminal = apart.start(*run_of(*TWO, "--time", "5s", "--retries", "1", script=script))
    waits_for_the_other(apart)
    (apart.folder / "let").touch()
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 124, err
    record = apart.last()
    assert (record["state"], record["end"], record["time_seconds"]) == ("ended", "time-limit", 5)
    assert [(part["attempt"], part["end"]) for part in record["parts"]] == [(1, "time-limit")] * 2
