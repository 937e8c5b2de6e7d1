"""Leases over real hosts: who works with a commit on one host keeps it from eviction by another."""

from __future__ import annotations

import time
from pathlib import Path

from dsv.cache.claims import read_claims
from dsv.cache.root import CachePlace, CacheRoot
from tests.nfs.crew import Crew, Member, Task, Times, assert_same
from tests.waiting import until

DAY = 86_400
LEASE = 8.0


def start_job(crew: Crew, host: Member, *, lease: float = 0, target: str = "tiny@v1") -> Task:
    """Start a run that waits until the test makes the mark `go`, and then checks that its data is all there."""
    waits = f"touch {marks(crew)}/began; while [ ! -e {marks(crew)}/go ]; do sleep 0.2; done"
    job = f'{waits}; find "$DSV_DATA" -type f | wc -l'
    task = host.dsv("run", "--engine", "process", target, "--", "sh", "-c", job, times=Times(lease=lease))
    until((crew.marks / "began").exists, "the job's start")
    return task


def marks(crew: Crew) -> str:
    return f"/mnt/out/{crew.name}"


def test_a_run_and_a_hold_protect_from_other_hosts(crew: Crew) -> None:
    working, evicting = crew.up(0, 1)
    assert working.dsv("cache", "small@v1", "--hold", "1h", "--json").answer().status == 0
    job = start_job(crew, working)
    refused = evicting.dsv("evict", "--all", "--json").answer()
    assert refused.json["evicted"] == []
    reasons = {item["dataset"]: item["reason"] for item in refused.json["kept"]}
    assert "host4" in reasons["tiny"] and reasons["small"].startswith("held by root"), reasons
    assert evicting.dsv("evict", "tiny@v1").answer().status == 4
    (crew.marks / "go").touch()
    ended = job.answer()
    assert (ended.status, ended.out.split()) == (0, ["150"]), ended
    assert [
        item["dataset"] for item in evicting.dsv("evict", "--all", "--json").answer().json["evicted"]
    ] == ["tiny"]
    assert working.dsv("release", "small@v1").answer().status == 0
    assert len(evicting.dsv("evict", "--all", "--json").answer().json["evicted"]) == 1
    assert crew.visible() == []


def test_what_another_host_did_a_moment_ago_is_known(crew: Crew) -> None:
    """An NFS client remembers for a minute what was not there when it looked."""
    one, other = crew.up(0, 1)
    assert one.dsv("cache", "small@v1", "--json").answer().item["files"] == 800
    assert len(other.dsv("cached", "--json").answer().json["items"]) == 1
    assert other.dsv("hold", "tiny@v1").answer().status == 3
    assert one.dsv("cache", "tiny@v1", "--hold", "1h").answer().status == 0
    listed = other.dsv("cached", "--json").answer().json["items"]
    assert [(item["dataset"], len(item["leases"])) for item in listed] == [("small", 0), ("tiny", 1)]
    assert other.dsv("release", "tiny@v1").answer().status == 0
    assert other.dsv("evict", "tiny@v1").answer().status == 0
    assert one.dsv("hold", "tiny@v1").answer().status == 3


def test_the_lease_of_a_dead_host_expires(crew: Crew) -> None:
    dead, evicting = crew.up(0, 1)
    start_job(crew, dead, lease=LEASE)
    dead.power_off()
    ends = lease_end(crew)
    until(
        lambda: evicting.dsv("evict", "--all", "--json").answer().json["evicted"],
        "the end of the dead host's lease",
    )
    assert time.time() >= ends  # by the file server's clock, which is this machine's
    assert crew.visible() == []


def test_a_host_that_is_cut_off_keeps_its_lease_or_learns_that_it_is_lost(crew: Crew) -> None:
    cut, evicting = crew.up(0, 1)
    for lease in (12, 60):  # until the machine is fast enough for an evict before it expires
        job = start_job(crew, cut, lease=lease)
        cut.unplug()
        ends = lease_end(crew)
        if not evicting.dsv("evict", "--all", "--json").answer().json["evicted"]:
            break
        assert time.time() >= ends
        cut.plug_in()
        assert job.answer().status == 125
        (crew.marks / "began").unlink()
    before = leases(crew)
    cut.plug_in()
    until(lambda: leases(crew).isdisjoint(before), "two renewals")
    cut.unplug()
    until(lambda: evicting.dsv("evict", "--all", "--json").answer().json["evicted"], "the lease's end")
    cut.plug_in()
    ended = job.answer()
    assert ended.status == 125 and "was evicted" in ended.err, ended
    assert crew.visible() == []


def leases(crew: Crew) -> set[str]:
    """Names of leases, as the file server has them."""
    return {path.name for path in (crew.seen / ".dsv/claims").rglob("lease-*")}


def lease_end(crew: Crew) -> float:
    """When the last lease on the one commit ends, by the file server's clock."""
    (name,) = crew.visible()
    return max(one.until for one in read_claims(CacheRoot(crew.seen), CachePlace(*name.split("/"))).leases)


def test_clocks_may_be_a_day_off(crew: Crew, lake: Path) -> None:
    """Their own leases last, others' they respect, and what was just used they do not take for old."""
    early, right, late = crew.up(0, 1, 2)
    try:
        for host, off in ((early, -DAY), (late, DAY)):
            changed = host.run("sh", "-c", f"date -s @$(( $(date +%s) + {off} ))")
            assert changed.status == 0, changed
        held = [host.dsv("cache", "small@v1", "--hold", "1h") for host in (right, late)]
        assert [task.answer().status for task in held] == [0, 0]
        job = start_job(crew, early, lease=30)
        before = leases(crew)
        sweeps = [host.dsv("evict", "--json") for host in (early, right, late)]  # by default: a day unused
        assert [sweep.answer().json["evicted"] for sweep in sweeps] == [[], [], []]
        until(lambda: len(before & leases(crew)) == 2, "the renewal of all but the two holds")
        sweeps = [host.dsv("evict", "--all", "--json") for host in (right, late)]
        for sweep in sweeps:
            report = sweep.answer().json
            assert report["evicted"] == [] and len(report["kept"]) == 2, report
        assert late.dsv("cache", "tiny@v1", "--json").answer().item["hit"] is True
        (crew.marks / "go").touch()
        assert job.answer().out.split() == ["150"]
        small = next(name for name in crew.visible() if name.startswith("small/"))
        assert_same(crew.seen / small, lake / "small")
    finally:
        for host in (early, late):
            host.run("sh", "-c", f"date -s @{int(time.time())}")
