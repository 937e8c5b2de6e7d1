"""Makes `cache-COMMIT.tar.xz`: a store and a cache as that commit wrote them, left in the middle of its work.

    git worktree add /tmp/39b5163 39b5163
    PYTHONPATH=/tmp/39b5163/src python tests/golden/make_old_cache.py 39b5163 tests/golden/cache-39b5163.tar.xz

They were made once and stay as they are: `test_old_cache.py` reads, fills and evicts them with today's code. In the
cache are `letters@v1` (pinned), `letters@v2` (held for 100 years, its files linked from v1), a selection of v1, half a
fill of v3 whose process was killed, and what an evictor that was killed took out of sight of v0.
"""

from __future__ import annotations

import importlib
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

VERSIONS = ("v0", "v1", "v2", "v3")
# By commit: the module and class whose `finish` ends a part of a fill, the module with the size of parts, and the
# module that removes what was evicted.
NAMES = {
    "4fac948": ("filling.parts", "Board", "filling.plan", "eviction.removal"),
    "39b5163": ("fill_state.claim_table", "ClaimTable", "fill_state.plan", "removal"),
}


def content(version: str) -> dict[str, bytes]:
    """The files of a version by path: 40 in all of them, 5 of its own, and one that changes."""
    every = {f"all/{number:02d}.txt": f"letter {number}\n".encode() * 20 for number in range(40)}
    own = {f"own/{version}-{number}.bin": f"{version} {number}\n".encode() * 50 for number in range(5)}
    return {**every, **own, "changes.txt": version.encode() * 100}


def write(folder: Path, version: str) -> None:
    for path, data in content(version).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def dsv(*arguments: str) -> None:
    from dsv.cli.main import main

    sys.argv = ["dsv", *arguments]
    status = main()
    assert status == 0, (arguments, status)


def in_a_process(act: Callable[[], object]) -> None:
    if not (child := os.fork()):
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def killed_while_filling(commit: str) -> None:
    """Ends when two parts are done and a third is claimed."""
    parts, name, plan, _ = NAMES[commit]
    importlib.import_module(f"dsv.cache.{plan}").PART_ENTRIES = 8
    table = getattr(importlib.import_module(f"dsv.cache.{parts}"), name)
    finish = table.finish
    done: list[object] = []

    def finish_two(table: object, claim: object) -> None:
        if len(done) == 2:
            os._exit(0)
        done.append(claim)
        finish(table, claim)

    table.finish = finish_two
    dsv("cache", "letters@v3", "--jobs", "1")


def killed_while_evicting(commit: str) -> None:
    removal = importlib.import_module(f"dsv.cache.{NAMES[commit][3]}")
    removal.Remover.remove = lambda *_: os._exit(0)
    dsv("evict", "letters@v0")


def make(folder: Path, commit: str) -> None:
    os.environ.update(
        DSV_STORE=str(folder / "store"), DSV_CACHE=str(folder / "cache"), DSV_CONFIG="/nonexistent"
    )
    work = folder / "work"
    work.mkdir()
    os.chdir(work)
    in_a_process(lambda: dsv("init", "letters"))
    for version in VERSIONS:
        for path in work.glob("own/*"):
            path.unlink()
        write(work, version)
        in_a_process(lambda: dsv("sync", "-q"))
        in_a_process(lambda version=version: dsv("tag", version))
    os.chdir("/")
    in_a_process(lambda: dsv("cache", "letters@v0"))
    in_a_process(lambda: dsv("cache", "letters@v1"))
    in_a_process(lambda: dsv("pin", "letters@v1", "-m", "the reference"))
    in_a_process(lambda: dsv("cache", "letters@v2", "--hold", "36500d"))
    in_a_process(lambda: dsv("cache", "letters@v1:own"))
    in_a_process(lambda: killed_while_evicting(commit))
    in_a_process(lambda: killed_while_filling(commit))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        in_a_process(lambda: make(folder, sys.argv[1]))
        with tarfile.open(sys.argv[2], "w:xz") as archive:
            for name in ("store", "cache"):
                archive.add(folder / name, name)


if __name__ == "__main__":
    main()
