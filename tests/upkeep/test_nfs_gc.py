"""Rounds of `tests.upkeep.gc_rounds` on NFS, and renamings."""

from __future__ import annotations

import os
import sys

import pytest

from tests.labs.nfs_hosts import NfsHosts
from tests.nfs.crew import SEARCHED
from tests.upkeep.test_gc_rounds import DAY, ROUNDS, SEED

pytestmark = pytest.mark.timeout(DAY if ROUNDS else 900)


def test_commits_that_are_not_expired_restore_from_nfs(nfs_hosts: NfsHosts) -> None:
    """One host does all of it, another one collects and fills the same cache, and their clocks are a day apart."""
    name = f"gc-{os.urandom(4).hex()}"
    (nfs_hosts.export / name).mkdir()
    (nfs_hosts.out / name).mkdir()
    words = [sys.executable, "-m", "tests.upkeep.gc_rounds", f"/mnt/nfs/{name}/store", f"/mnt/out/{name}"]
    rounds = [*words, str(SEED), str(ROUNDS or 1)]
    one = nfs_hosts.boot(1, rounds, env=SEARCHED)
    other = nfs_hosts.boot(2, [*words, str(SEED + 1)], env=SEARCHED, clock_offset=86400)
    ended, collected = one.wait(DAY), other.wait(DAY)
    print(ended.stdout, ended.stderr, collected.stdout)
    assert ended.status == 0 and f"{rounds[-1]} rounds" in ended.stdout, ended
    assert collected.status == 0, collected


@pytest.mark.parametrize("every", [100, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_renaming_is_killed_and_overtaken_on_nfs(every: int, nfs_hosts: NfsHosts) -> None:
    name = f"rename-{os.urandom(4).hex()}"
    (nfs_hosts.export / name).mkdir()
    words = [sys.executable, "-m", "tests.upkeep.test_rename_dataset", f"/mnt/nfs/{name}", str(every)]
    ended = nfs_hosts.boot(3, words, env=SEARCHED).wait(DAY)
    assert ended.status == 0 and ended.stdout.endswith(" stores\n"), ended
