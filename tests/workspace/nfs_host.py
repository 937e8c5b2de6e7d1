"""What a host of the NFS tests does: `python -m tests.workspace.nfs_host ROLE FOLDER …`, its findings as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from dsv.errors import Conflict
from dsv.files import lock as lock_module
from dsv.files.attributes import server_time
from dsv.files.lock import Lock
from dsv.files.small_files import replace_file
from dsv.workspace.scan.state import WorkspaceState
from tests.waiting import PATIENCE
from tests.workspace.worlds import World

HEARTBEAT_EVERY = 0.5
"""Seconds, in place of dsv's 10. How long a host waits for the lock of a dead one, each test says."""


def race(folder: Path, rounds: str) -> dict[str, object]:
    """Take the lock again and again, and count how often another host was inside as well.

    No holder dies here, so none may be given up, even on a machine that stands still for a while.
    """
    lock_module.STALE_AFTER = PATIENCE
    held, crowds = 0, 0
    busy = folder / "busy"
    deadline = time.monotonic() + PATIENCE
    while held < int(rounds) and time.monotonic() < deadline:
        taken = Lock.take(folder / "lock", "race")
        if not isinstance(taken, Lock):
            time.sleep(0.02)
            continue
        try:
            os.close(os.open(busy, os.O_CREAT | os.O_EXCL))
            time.sleep(0.02)
            taken.check()
            busy.unlink()
        except FileExistsError:
            crowds += 1
        taken.release()
        held += 1
    return {"held": held, "crowds": crowds}


def hold(folder: Path, stale_after: str, name: str, release: str) -> dict[str, object]:
    """Hold the lock until somebody makes the mark `release`.

    Reports whether the lock was kept, and whether each heartbeat followed the last one in time. On a machine that
    stands still for too long none does, and another host is right to take over.
    """
    lock_module.HEARTBEAT_EVERY, lock_module.STALE_AFTER = HEARTBEAT_EVERY, float(stale_after)
    asked, shown, in_time = [0.0], [time.monotonic()], [True]

    def ask(folder: Path) -> float:
        asked[0] = time.monotonic()
        return server_time(folder)

    def beat(path: Path, data: bytes) -> None:
        replace_file(path, data)
        in_time.append(time.monotonic() - shown[0] < lock_module.STALE_AFTER)
        shown[0] = asked[0]

    lock_module.server_time, lock_module.replace_file = ask, beat
    taken = Lock.take(folder / "lock", "hold")
    assert isinstance(taken, Lock)
    (Path("/mnt/out") / name).write_text("held")
    while not (Path("/mnt/out") / release).exists():
        time.sleep(0.05)
    try:
        taken.check()
        kept = True
    except Conflict:
        kept = False
    taken.release()
    in_time.append(time.monotonic() - shown[0] < lock_module.STALE_AFTER)
    return {"kept": kept, "in_time": all(in_time)}


def wait(folder: Path, stale_after: str, name: str) -> dict[str, object]:
    """Try until it gets the lock, and make the mark when it has tried for longer than a dead holder keeps it."""
    lock_module.HEARTBEAT_EVERY, lock_module.STALE_AFTER = HEARTBEAT_EVERY, float(stale_after)
    tried = Path("/mnt/out") / name
    began = time.monotonic()
    while not isinstance(taken := Lock.take(folder / "lock", "wait"), Lock):
        if time.monotonic() - began > lock_module.STALE_AFTER + 2:
            tried.touch()
        time.sleep(0.2)
    tried.touch()
    taken.release()
    return {}


def settle(folder: Path) -> dict[str, object]:
    """Fills a workspace and syncs it until nothing in it is too young to be trusted."""
    world = World(folder / "w")
    for number in range(300):
        path = world.root / f"d{number % 7}" / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(str(number).encode())
    rounds = 0
    while not world.scan().unchanged and rounds < 10:
        time.sleep(0.1)
        world.sync()
        rounds += 1
    return {"reads": world.reads, "unchanged": world.scan().unchanged}


def look(folder: Path) -> dict[str, object]:
    """Sees the other host's workspace with its state."""
    from dsv.values.ids import CommitId
    from dsv.workspace.scan.scanner import scan_workspace

    root = folder / "w"
    state = WorkspaceState.load(root / ".dsv/state")
    assert state.exact is not None
    began = time.monotonic()
    asked: list[bool] = []
    scan = scan_workspace(root, state, CommitId(state.exact), lambda: asked.append(True) or [])
    return {
        "pending": len(list(scan.pending())),
        "exact": not asked,
        "seconds": time.monotonic() - began,
    }


if __name__ == "__main__":
    role = {"race": race, "hold": hold, "wait": wait, "settle": settle, "look": look}[sys.argv[1]]
    print(json.dumps(role(Path(sys.argv[2]), *sys.argv[3:])))
