"""What a host of the NFS tests does: `python -m tests.stores.nfs_host ROLE ROOT …`, its findings as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dsv.errors import NotFound
from dsv.stores.base import PutResult
from dsv.stores.directory import DirectoryStore
from dsv.stores.retry import Retrying
from tests.waiting import until


def race(root: str, me: str, hosts: str, keys: str, below: str) -> dict[str, object]:
    """Wait for the other hosts, where none has an old view of the folder, then put every key, in a folder of its own
    where `below` has one; return which were won.
    """
    os.umask(0o077)
    store = Retrying(DirectoryStore(root))  # the server refuses a folder that is being replaced, now and then
    names = [f"{key}{below}" for key in range(int(keys))]
    meeting = Path("/mnt/out") / Path(root).name
    meeting.mkdir(exist_ok=True)
    (meeting / me).touch()
    until(lambda: len(list(meeting.iterdir())) == int(hosts))
    won = [name for name in names if store.put_if_absent(f"race/{name}", me.encode()) is PutResult.WON]
    return {"won": won, "seen": {name: store.get(f"race/{name}").decode() for name in names}}


def write_late(root: str, *keys: str) -> dict[str, object]:
    """Waits until the reader has seen that the keys are absent, and for its client to settle on that."""
    store = DirectoryStore(root)
    until(lambda: any(store.list("reading/")))
    time.sleep(3)
    for key in keys:
        store.put_if_absent(key, b"x")
    written(root).touch()
    # Stays: a host that leaves gives back what the server lent it, which would notify the others.
    until(lambda: any(store.list("done/")))
    return {}


def read_early(root: str, got: str, listed: str) -> dict[str, object]:
    """Get one key and list the other's folder until both are there; return those that were not seen at once."""
    store = DirectoryStore(root)
    naive = Path(root) / got
    assert not naive.exists() and not list(store.list("")) and not has(store, got)
    store.put_if_absent("reading/now", b"")
    seen: set[str] = set()
    late: set[str] = set()
    checks: dict[str, Callable[[], bool]] = {
        "got": lambda: has(store, got),
        "listed": lambda: any(item.key == listed for item in store.list("new/")),
    }

    def all_seen() -> bool:
        there = written(root).exists()  # before it looks
        for name, check in checks.items():
            if name not in seen and check():
                seen.add(name)
            elif name not in seen and there:
                late.add(name)
        return len(seen) == len(checks)

    until(all_seen)
    store.put_if_absent("done/now", b"")
    return {"late": sorted(late)}


def written(root: str) -> Path:
    """A mark on no NFS: the writer has written."""
    return Path("/mnt/out") / f"{Path(root).name}-written"


def has(store: DirectoryStore, key: str) -> bool:
    try:
        return bool(store.get(key))
    except NotFound:
        return False


if __name__ == "__main__":
    role = {"race": race, "write": write_late, "read": read_early}[sys.argv[1]]
    print(json.dumps(role(*sys.argv[2:])))
