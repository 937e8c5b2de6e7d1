"""The labs of one folder, each started once and then shared by every process that asks for it.

A test run has a folder of its own that goes when the run ends; $DSV_LABS names one that stays, so that a
developer's labs need not start anew each time.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.labs import ceph_rgw, docker_engine, kubernetes, nfs_hosts, podman_here, slurm
from tests.labs.machine import alive


@dataclass(frozen=True, slots=True)
class Lab:
    """How to start one (returns what tests use), how to stop it, and which process shows that it lives."""

    up: Callable[[Path], Any]
    down: Callable[[Path], None]
    daemon: str | None


LABS = {
    "ceph-rgw": Lab(ceph_rgw.up, ceph_rgw.down, "rgw"),
    "docker-engine": Lab(docker_engine.up, docker_engine.down, "dockerd"),
    "podman": Lab(podman_here.up, podman_here.down, None),
    "kubernetes": Lab(kubernetes.up, kubernetes.down, "api"),
    "nfs-hosts": Lab(nfs_hosts.up, nfs_hosts.down, "ganesha"),
    "slurm": Lab(slurm.up, slurm.down, "slurmctld"),
}
OWNER = "owner.pid"  # whose end is this folder's end; absent where the folder is to stay


def attach(shelf: Path, name: str) -> Any:
    """The named lab of this folder, started now unless it runs; raises `MissingError` or `LabError`."""
    lab, folder, facts = LABS[name], shelf / name, shelf / f"{name}.facts"
    shelf.mkdir(parents=True, exist_ok=True)
    with (shelf / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if facts.exists() and (lab.daemon is None or alive(folder, lab.daemon)):
            return pickle.loads(facts.read_bytes())
        _clear(shelf, name)
        _watch_owner(shelf)
        folder.mkdir()
        try:
            reached = lab.up(folder)
        except BaseException:
            lab.down(folder)
            raise
        facts.write_bytes(pickle.dumps(reached))
        return reached


def take_down(shelf: Path) -> None:
    """Stop every lab of this folder and remove the folder."""
    for name in LABS:
        _clear(shelf, name)
    shutil.rmtree(shelf, ignore_errors=True)


def keep(shelf: Path, owner: int) -> None:
    """Wait for the owner's end, however it comes, then take everything down."""
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        pass
    else:
        select.select([handle], [], [])
    if shelf.exists():
        take_down(shelf)


def _watch_owner(shelf: Path) -> None:
    """Let a process of its own wait for the end of a test run: one that is killed cannot clean up."""
    owner = shelf / OWNER
    if not owner.exists():
        return
    argv = [sys.executable, "-m", "tests.labs", "keep", str(shelf), owner.read_text()]
    owner.unlink()
    root = Path(__file__).parents[2]
    nowhere = subprocess.DEVNULL
    subprocess.Popen(argv, cwd=root, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def _clear(shelf: Path, name: str) -> None:
    (shelf / f"{name}.facts").unlink(missing_ok=True)
    if (shelf / name).exists():
        LABS[name].down(shelf / name)
        shutil.rmtree(shelf / name, ignore_errors=True)
