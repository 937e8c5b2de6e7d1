"""How fast small files appear in a cache on NFS, beside `cp -r` from the same host. The figures are printed (-s)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.nfs_hosts import NfsHosts
from tests.nfs.crew import SEARCHED, Answer, Crew, Member

FILES = int(os.environ.get("DSV_NFS_SPEED_FILES", "2000"))
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
    one, other = crew.up(0, 1)
    for member in (one, other):
        member.environ["DSV_STORE"] = str(many / "store")
        timed(member, "sh", "-c", f"find {many} -type f | xargs cat >/dev/null")
    copied = timed(one, "cp", "-r", f"{many}/tree", f"/mnt/nfs/{crew.name}/copy").seconds
    alone = one.dsv("cache", "many@v1", "--json").answer(300)
    assert alone.item["files"] == FILES
    assert one.dsv("evict", "--all").answer(300).status == 0
    tasks = [member.dsv("cache", "many@v1", "--json") for member in (one, other)]
    both = [task.answer(300) for task in tasks]
    shares = [answer.item["fetched_bytes"] for answer in both]
    together = max(answer.seconds for answer in both)
    for what, seconds in (("cp -r", copied), ("one host", alone.seconds), ("two hosts", together)):
        print(f"{what}: {FILES} files of 8 KB in {seconds:.1f} s, {FILES / seconds:.0f} files a second")
    print(f"the two hosts fetched {shares} bytes; copying and filling include the program's start")
    assert alone.seconds < 5 * copied
