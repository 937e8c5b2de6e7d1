"""Leases and evictions between real hosts on a real NFS: power cuts, pulled plugs, clocks that are a day
off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cache.places import place
from tests.labs.nfs_hosts import Host, NfsHosts
from tests.waiting import PATIENCE, until

import dsv
from dsv.cache.claims import LeaseRecord, read_claims
from dsv.cache.root import CacheRoot

SOURCES = f"{Path(dsv.__file__).parents[1]}:{Path(__file__).parents[2]}"
DAY = 86400


@dataclass
class Crew:
    """Hosts of one test, each known by its name."""

    lab: NfsHosts
    cache: str
    hosts: dict[str, Host] = field(default_factory=dict)
    gone_on: dict[str, int] = field(default_factory=dict)

    def boot(self, name: str, *role: str, clock_offset: int = 0) -> Host:
        number = len(self.hosts) + 1
        self.hosts[name] = self.lab.boot(
            number, [sys.executable, "-m", "tests.cache.nfs_actor", self.cache, name, *role],
            env={"PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"}, clock_offset=clock_offset,
        )  # fmt: skip
        return self.hosts[name]

    def said(self, name: str) -> list[str]:
        path = self.lab.out / f"{name}.said"
        return path.read_text().splitlines() if path.exists() else []

    def hear(self, name: str, count: int) -> str:
        """The line of that number, from 1, when it is said."""
        end = time.monotonic() + PATIENCE
        while len(self.said(name)) < count:
            assert time.monotonic() < end, (name, self.said(name), self.errors(name))
            time.sleep(0.05)
        return self.said(name)[count - 1]

    def go_on(self, name: str) -> None:
        self.gone_on[name] = self.gone_on.get(name, 0) + 1
        (self.lab.out / f"{name}.go").write_bytes(b"x" * self.gone_on[name])

    def errors(self, name: str) -> str:
        path = self.hosts[name].box / "stderr"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def crew(nfs_hosts: NfsHosts) -> Iterator[Crew]:
    found = Crew(nfs_hosts, f"cache-{time.time_ns()}")  # the server remembers what was there before
    try:
        yield found
    finally:
        for host in found.hosts.values():
            host.power_off()
        for path in (*nfs_hosts.out.glob("*.said"), *nfs_hosts.out.glob("*.go")):
            path.unlink()


def lease(crew: Crew) -> LeaseRecord:
    """The one lease, as the file server has it, whose clock is this machine's."""
    (found,) = read_claims(CacheRoot(crew.lab.export / crew.cache), place()).leases
    return found


def await_its_end(crew: Crew) -> None:
    ends = lease(crew).until
    until(lambda: time.time() > ends, "the end of the lease")


def visible(crew: Crew) -> bool:
    return (crew.lab.export / crew.cache / place().dataset / place().name / "a").exists()


def test_a_lease_protects_on_every_host_until_it_expires(crew: Crew) -> None:
    """The evicting host's clock is a day ahead, and it bears the same name."""
    holder = crew.boot("holder", "holder", "30")
    assert crew.hear("holder", 1) == "confirmed True"
    crew.boot("evictor", "evictor", clock_offset=DAY)
    for number in (1, 2):
        crew.go_on("evictor")
        assert crew.hear("evictor", number).startswith("evicted 0 kept in use by run")
    first = lease(crew).renewed
    until(lambda: lease(crew).renewed > first, "a renewal")
    crew.go_on("evictor")
    assert crew.hear("evictor", 3).startswith("evicted 0"), "it is renewed all the time"
    holder.power_off()
    ends = lease(crew).until
    count = 3
    while visible(crew):
        crew.go_on("evictor")
        count += 1
        crew.hear("evictor", count)
    assert time.time() >= ends, "the lease of a dead host holds until it expires"
    assert crew.said("holder") == ["confirmed True"]


def test_a_host_that_is_cut_off_keeps_its_lease_or_knows_that_it_lost_it(crew: Crew) -> None:
    holder = crew.boot("holder", "holder", "20", clock_offset=-DAY)
    assert crew.hear("holder", 1) == "confirmed True"
    crew.boot("evictor", "evictor")
    holder.unplug()
    crew.go_on("evictor")
    assert crew.hear("evictor", 1).startswith("evicted 0 kept in use")
    cut = lease(crew).renewed
    holder.plug_in()
    until(lambda: lease(crew).renewed > cut, "a renewal")
    until(lambda: crew.said("holder")[-1] in ("confirmed True", "secure True lost False"), "its word of that")
    before = len(crew.said("holder"))
    holder.unplug()
    crew.hear("holder", before + 1)
    await_its_end(crew)
    crew.go_on("evictor")
    assert crew.hear("evictor", 2).startswith("evicted 1") and not visible(crew)
    assert crew.said("holder")[before:] == ["secure False lost False"], "it knew before anybody evicted"
    holder.plug_in()
    assert crew.hear("holder", before + 2) == "secure False lost True"


def test_an_eviction_that_was_on_its_way_for_minutes_never_hits_a_taker(crew: Crew) -> None:
    crew.boot("holder", "holder", "4")
    crew.hear("holder", 1)
    crew.boot("taker", "taker")
    crew.hear("taker", 1)
    crew.hosts["holder"].power_off()
    await_its_end(crew)
    slow = crew.boot("slow", "slow_evictor")
    assert crew.hear("slow", 1) == "protected None"
    slow.unplug()
    crew.go_on("slow")
    crew.hear("slow", 2)
    time.sleep(2)
    crew.go_on("taker")
    assert crew.hear("taker", 2) == "confirmed True"
    slow.plug_in()
    assert crew.hear("slow", 3) == "too late"
    assert visible(crew)
    crew.go_on("taker")
    assert crew.hear("taker", 3) == "there True lost False"


def test_a_taker_whose_client_remembers_the_commit_is_not_misled(crew: Crew) -> None:
    crew.boot("holder", "holder", "4")
    crew.hear("holder", 1)
    crew.boot("taker", "taker")
    crew.boot("evictor", "evictor")
    crew.hear("taker", 1)
    crew.hosts["holder"].power_off()
    await_its_end(crew)
    crew.go_on("evictor")
    assert crew.hear("evictor", 1).startswith("evicted 1")
    crew.go_on("taker")
    assert crew.hear("taker", 2) == "confirmed False"


def test_takers_and_evictors_on_three_hosts(crew: Crew) -> None:
    names = {"one": "take", "two": "take", "three": "evict"}
    for name, what in names.items():
        crew.boot(name, "crowd", what, "15", clock_offset={"one": 0, "two": DAY, "three": -DAY}[name])
        crew.hear(name, 1)
    for name in names:
        crew.go_on(name)
    for name in names:
        assert crew.hear(name, 2) == "begun"
    for name in names:
        crew.go_on(name)
    for name in names:
        assert crew.hear(name, 3).endswith(" torn 0")


def test_evict_in_the_crontab_of_two_hosts_at_once(crew: Crew) -> None:
    crew.boot("first", "old_commits", "12")
    crew.hear("first", 1)
    for name in ("one", "two"):
        crew.boot(name, "cron", clock_offset=DAY if name == "two" else 0)
    for name in ("one", "two"):
        crew.hear(name, 1)
    for name in ("one", "two"):
        crew.go_on(name)
    ended = [crew.hosts[name].wait() for name in ("one", "two")]
    assert [(one.status, one.stderr) for one in ended] == [(0, ""), (0, "")]
    lines = [line for one in ended for line in one.stdout.splitlines()]
    assert len(lines) == 12 and len({line.split()[1] for line in lines}) == 12
    assert not (crew.lab.export / crew.cache / place().dataset).exists()
