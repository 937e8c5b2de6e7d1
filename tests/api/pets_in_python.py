"""A dataset for tests of `import dsv`: small files beside each other, a large one, symlinks, an empty folder."""

from __future__ import annotations

import random
from pathlib import Path

import dsv
from dsv.api.branches import tag
from dsv.api.clone import init
from dsv.api.open_commits import _processes
from dsv.api.sync import SyncRequest, sync
from dsv.values.names import DatasetName, TagName, Target

SOME = random.Random(7).randbytes
BIG = SOME(9_000_000)
SMALL = {f"images/{number % 7}/{number:04}.png": SOME(500 + number) for number in range(1000)}
LINKS = {
    "big-link": "big.bin",
    "images/up": "../labels.csv",
    "last": "images/0",
    "out": "../../etc/passwd",
    "me": "me",
}


def make_home(home: Path) -> Path:
    """Somebody with the dataset `pets` in a store in their home: `main` and `v1` are one commit."""
    work = home / "pets"
    work.mkdir()
    made = of(home, cwd=work)
    init(made.context, work, DatasetName.parse("pets"))
    files = {**SMALL, "big.bin": BIG, "labels.csv": b"a,b\n1,2\n", "empty": b"", "run.sh": b"#!/bin/sh\n"}
    for name, content in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    for name, target in LINKS.items():
        (work / name).symlink_to(target)
    (work / "run.sh").chmod(0o755)
    (work / "nothing/here").mkdir(parents=True)
    (work / "out").unlink()  # no commit may have it
    sync(made.context, SyncRequest(message="first"))
    tag(made.context, TagName.parse("v1"), Target())
    return home


def make_store(home: Path, **environ: str) -> None:
    """Somebody with a store in their home, or elsewhere as the environment says."""
    (home / "first").mkdir()
    made = of(home, cwd=home / "first", environ=environ_of(home) | environ)
    init(made.context, home / "first", DatasetName.parse("first"))


def environ_of(home: Path) -> dict[str, str]:
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "DSV_AUTHOR": "ann"}
    return environ | {"DSV_STORE": str(home / "store"), "DSV_CACHE": str(home / "cache")}


def of(home: Path, **more: object) -> dsv.Store:
    return dsv.store(**{"environ": environ_of(home), "cwd": home, **more})  # type: ignore[arg-type]


def close_all() -> None:
    """Close what this process has open for programs, as its end would: other tests look at threads and descriptors."""
    opened = _processes[-1].opened
    while opened:
        opened.popitem()[1].repository.store.close()
