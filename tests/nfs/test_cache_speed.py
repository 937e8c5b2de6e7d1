"""What it takes for small files to appear in a cache on NFS, beside `cp -r` from the same host.

The times are printed (-s). They depend on what else the machine does, and what a host asks of the server does not.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.labs.nfs_hosts import NfsHosts
from tests.nfs.crew import DSV, SEARCHED, Answer, Crew, Member
from tests.nfs.test_cache_of_many import requests

FILES = int(os.environ.get("DSV_NFS_SPEED_FILES", "1500"))
TURNS = 3
FOR_FIGURES = FILES >= 2000  # else the first turn in which both hosts have a share is the last
SIZE = 8192


@pytest.fixture(scope="module")
def many(nfs_hosts: NfsHosts) -> Path:
    """A folder with `tree` (FILES files of 8 KB, 100 in a folder) and the `store` that it was synced to."""
    folder = nfs_hosts.out / f"many-{FILES}"
    if (folder / "bound").exists():  # of an earlier run, in a lab that is kept
        return Path("/mnt/out") / folder.name
    chance = random.Random(0)
    for number in range(FILES):
        path = folder / "tree" / f"{number // 100:03d}" / f"{number:06d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(SIZE))
    environ = {**os.environ, **SEARCHED, "DSV_STORE": str(folder / "store"), "DSV_CONFIG": "/nonexistent"}
    for command in (("init", "many"), ("sync", "-q"), ("tag", "v1")):
        argv = [sys.executable, "-m", "dsv.cli.main", "-C", str(folder / "tree"), *command]
        subprocess.run(argv, env=environ, check=True, stdout=subprocess.DEVNULL)
    (folder / "tree/.dsv").rename(folder / "bound")
    return Path("/mnt/out") / folder.name


def timed(member: Member, *argv: str) -> Answer:
    answer = member.run(*argv, timeout=300)
    assert answer.status == 0, answer
    return answer


def test_small_files_against_cp(crew: Crew, many: Path) -> None:
    """Each in turn, so that other load of the machine affects all three alike. The program's start is included."""
    one, other = crew.up(0, 1)
    for member in (one, other):
        member.environ["DSV_STORE"] = str(many / "store")
        timed(member, "sh", "-c", f"find {many} -type f | xargs cat >/dev/null")
    cache = (*DSV, "cache", "many@v1", "--json")
    took: dict[str, list[float]] = {"cp -r": [], "one host": [], "two hosts": []}
    asked: dict[str, list[int]] = {"cp -r": [], "one host": []}
    shares: list[list[int]] = []
    for number in range(TURNS):
        before = requests(one)
        copy = timed(one, "cp", "-r", f"{many}/tree", f"/mnt/nfs/{crew.name}/copy{number}")
        took["cp -r"].append(copy.seconds)
        between = requests(one)
        alone = timed(one, *cache)
        asked["cp -r"].append(between - before)
        asked["one host"].append(requests(one) - between)
        assert alone.item["fetched_bytes"] == FILES * SIZE
        took["one host"].append(alone.seconds)
        assert len(one.dsv("evict", "--all", "--json").answer().json["evicted"]) == 1
        tasks = [member.start(*cache) for member in (one, other)]
        both = [task.answer() for task in tasks]
        shares.append([answer.item["fetched_bytes"] // SIZE for answer in both])
        assert sum(shares[-1]) >= FILES
        took["two hosts"].append(max(answer.seconds for answer in both))
        assert len(one.dsv("evict", "--all", "--json").answer().json["evicted"]) == 1
        if min(shares[-1]) > 0 and not FOR_FIGURES:
            break
    for what, seconds in took.items():
        rates = ", ".join(f"{FILES / each:.0f}" for each in seconds)
        print(f"{what}: {FILES} files of 8 KB, {FILES / median(seconds):.0f} files a second ({rates})")
    each = {what: min(counts) / FILES for what, counts in asked.items()}
    print(f"requests to the file server for each file: {each}")
    assert each["one host"] < 1.5 * each["cp -r"], each
    assert any(min(turn) > 0 for turn in shares), shares
