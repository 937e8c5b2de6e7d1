"""Several users, and hosts that have the same name: each works, or gets the right error."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs.nfs_hosts import NfsHosts
from tests.nfs.crew import (
    DSV,
    Answer,
    Crew,
    Member,
    Times,
    assert_same,
    crew_of_its_own,
    hurried,
    listed,
)
from tests.waiting import until

GROUP = 3000


def as_user(host: Member, uid: int, *arguments: str, group: int = GROUP, umask: str = "022") -> Answer:
    home = f"/run/home-{uid}"
    program = f'umask {umask}; mkdir -p {home}; HOME={home}; cd /; exec "$@"'
    # Python may lie in a home that is closed to others. The capability opens it, and nothing on the export, where
    # the server decides by the user.
    opens = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    user = ["setpriv", f"--reuid={uid}", f"--regid={group}", f"--groups={group}", *opens]
    host.run("sh", "-c", f"mkdir -p {home} && chown {uid} {home} && chmod 1777 /run")
    return host.run(*user, "sh", "-c", program, "sh", *DSV, *arguments)


def make_root(crew: Crew, host: Member, owner: str, mode: str) -> None:
    made = host.run(
        "sh", "-c", f"mkdir {crew.cache} && chown {owner} {crew.cache} && chmod {mode} {crew.cache}"
    )
    assert made.status == 0, made


def test_equal_host_names_and_pids(crew: Crew, lake: Path) -> None:
    """Each dsv is pid 1 of a host called `gpu`: neither takes the other for itself, or for dead."""
    one, other = crew.up(0, 1)
    named = ("unshare", "--uts", "sh", "-c", 'hostname gpu; exec "$@"', "sh")
    alone = (*named, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    tasks = [
        host.start(*alone, *hurried(Times(part_files=100)), "cache", "small@v1", "--json")
        for host in (one, other)
    ]
    items = [task.answer().item for task in tasks]
    size = sum(size for _, size, _ in listed(lake / "small").values())
    # A host that stalls for seconds loses the part that it was at; one that is taken for dead loses all of them.
    assert sum(item["fetched_bytes"] for item in items) <= 1.5 * size
    assert_same(crew.seen / crew.visible()[0], lake / "small")
    mark = f"/mnt/out/{crew.name}"
    waits = f"touch {mark}/began; while [ ! -e {mark}/go ]; do sleep 0.2; done"
    job = one.start(*alone, *DSV, "run", "--engine", "process", "small@v1", "--", "sh", "-c", waits)
    until((crew.marks / "began").exists, "the job's start")
    kept = other.run(*alone, *DSV, "evict", "--all", "--json").json
    assert kept["evicted"] == [] and "gpu" in kept["kept"][0]["reason"], kept
    (crew.marks / "go").touch()
    assert job.answer().status == 0
    assert len(other.run(*alone, *DSV, "evict", "--all", "--json").json["evicted"]) == 1


def test_hosts_that_the_server_takes_for_one(crew: Crew, lake: Path) -> None:
    """As two of one name are, with nothing else set: each makes the server forget the other's files."""
    hosts = crew.up(0, 1, hostname="gpu", identity="gpu")
    tasks = [host.dsv("cache", "small@v1", "--json") for host in hosts]
    answers = [task.answer(240) for task in tasks]
    crew.down()
    assert {answer.status for answer in answers} <= {0, 6}, answers
    print(f"two hosts of one name to NFS: {[(answer.status, round(answer.seconds)) for answer in answers]}")
    for name in crew.visible():
        assert_same(crew.seen / name, lake / "small")


def test_two_users_of_a_group_with_different_umasks(crew: Crew, lake: Path) -> None:
    """Both fill, take over, and evict what the other has made; nothing is left that one of them can't use."""
    one, other = crew.up(0, 1)
    make_root(crew, one, f"2001:{GROUP}", "2775")
    first = as_user(one, 2001, "cache", "tiny@v1", "--json", umask="077")
    assert first.item["hit"] is False
    again = as_user(other, 2002, "cache", "tiny@v1", "--json", umask="000")
    assert again.item["hit"] is True
    assert as_user(other, 2002, "cache", "small@v1", "--json", umask="027").item["files"] == 800
    for path in crew.seen.rglob("*"):
        found = path.lstat()
        mode = stat.S_IMODE(found.st_mode)
        assert found.st_gid == GROUP, path
        if stat.S_ISDIR(found.st_mode):
            assert mode & 0o2770 == 0o2770, (path, oct(mode))
        elif path.is_file():
            assert mode & 0o440 == 0o440, (path, oct(mode))
    small = next(name for name in crew.visible() if name.startswith("small/"))
    assert_same(crew.seen / small, lake / "small")
    assert len(as_user(one, 2001, "evict", "small@v1", "--json", umask="077").json["evicted"]) == 1
    assert len(as_user(other, 2002, "evict", "tiny@v1", "--json", umask="022").json["evicted"]) == 1
    assert crew.visible() == []


@pytest.mark.parametrize("protected", ["0", "1"])
def test_files_that_the_kernel_lets_only_their_owner_link(crew: Crew, lake: Path, protected: str) -> None:
    """With fs.protected_hardlinks, what another user has cached is copied; without, it is linked."""
    (host,) = crew.up(0)
    make_root(crew, host, f"2001:{GROUP}", "2775")
    sysctl = "/proc/sys/fs/protected_hardlinks"
    before = host.run("cat", sysctl).out.strip()
    assert host.run("sh", "-c", f"echo {protected} > {sysctl}").status == 0
    try:
        assert as_user(host, 2001, "cache", "small@v1", "--json").item["hit"] is False
        part = as_user(host, 2002, "cache", "small@v1:d3", "--json").item
    finally:
        host.run("sh", "-c", f"echo {before} > {sysctl}")
    assert part["fetched_bytes"] == 0, part
    found = crew.seen / Path(part["path"]).relative_to(crew.cache)
    assert_same(found / "d3", lake / "small/d3")
    shared = {(found / "d3" / name).stat().st_nlink > 1 for name in os.listdir(found / "d3")}
    assert shared == {protected == "0"}


def test_a_user_without_the_right_to_write_uses_what_is_cached(crew: Crew) -> None:
    host, _ = crew.up(0, 1)
    make_root(crew, host, f"2001:{GROUP}", "2775")
    path = as_user(host, 2001, "cache", "tiny@v1", "--json").item["path"]
    there = as_user(host, 2005, "cache", "tiny@v1", "--json", group=4000)
    assert there.item["path"] == path and there.item["hit"] is True
    assert as_user(host, 2005, "cached", group=4000).status == 0
    denied = {
        command: as_user(host, 2005, *command.split(), "--json", group=4000).status
        for command in ("cache small@v1", "cache tiny@v1 --hold 1h", "evict tiny@v1", "hold tiny@v1")
    }
    assert set(denied.values()) == {8}, denied
    assert crew.visible() == [path.removeprefix(f"{crew.cache}/")]


@pytest.fixture
def squashing(tmp_path: Path, lake: Path, nfs_hosts: NfsHosts) -> Iterator[Crew]:
    """Another server, for which root is nobody; `nfs_hosts` for the reason where there can't be one."""
    with crew_of_its_own(tmp_path / "squashing", lake, "squashed", squash="Root_Squash") as crew:
        yield crew


def test_an_export_that_squashes_root(squashing: Crew, lake: Path) -> None:
    """Root has the rights of nobody: a cache that is everybody's works, and one of a group refuses it."""
    crew = squashing
    (host,) = crew.up(0)
    assert host.dsv("cache", "tiny@v1", "--json").answer().item["files"] == 150
    assert_same(crew.seen / crew.visible()[0], lake / "tiny")
    owners = {path.lstat().st_uid for path in crew.seen.rglob("*")}
    assert len(owners) == 1 and 0 not in owners
    assert len(host.dsv("evict", "--all", "--json").answer().json["evicted"]) == 1
    (crew.seen.parent / "group").mkdir(mode=0o2775)
    (crew.seen.parent / "group").chmod(0o2775)
    group = f"{crew.cache.removesuffix('cache')}group"
    refused = host.run(*DSV, "--cache", group, "cache", "tiny@v1", "--json")
    assert refused.status == 8 and refused.json["error"]["hint"], refused
    assert list((crew.seen.parent / "group").iterdir()) == []


def test_a_file_that_is_read_without_a_lease_keeps_nothing_else(crew: Crew, lake: Path) -> None:
    """NFS can't remove a file that this host has open: it gets another name there until it is closed."""
    (host,) = crew.up(0)
    cached = host.dsv("cache", "large@v1", "--json").answer().item
    read, ready, done = sorted(listed(lake / "large"))[0], crew.marks / "reading", crew.marks / "done"
    mark = f"/mnt/out/{crew.name}"
    script = f"exec 9<'{cached['path']}/{read}'; touch {mark}/reading; while [ ! -e {mark}/done ]; do sleep 0.1; done"
    reader = host.start("sh", "-c", script)
    until(ready.exists, "the reader")
    evicted = host.dsv("evict", "--all", "--json").answer()
    assert evicted.status == 0, evicted
    assert len(evicted.json["evicted"]) == 1
    assert crew.visible() == []
    (left,) = [one for one in (crew.seen / ".dsv/trash").rglob("*") if one.is_file()]
    assert left.name.startswith(".nfs")
    assert host.dsv("cache", "large@v1", "--json").answer().item["files"] == cached["files"]
    assert host.dsv("evict", "--all", "--json").answer().status == 0
    assert crew.visible() == []
    done.touch()
    assert reader.answer().status == 0
    assert [one for one in (crew.seen / ".dsv/trash").rglob("*") if one.is_file()] == []
