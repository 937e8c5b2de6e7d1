"""A commit by ratarmount beside `dsv cache`: 3 files of 100 MB and 600 of 20 kB, in a folder store and on Ceph's S3.

    python -m benchmarks.mount [--rounds 3] [--only folder]

Needs fuse3, the extra `mount`, and for S3 what the Ceph lab needs. Each turn has an empty home and a new mount or
cache. The first column is the time until the mount is there, or until all is in the cache. Figures are medians
of the rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import Command, run
from benchmarks.server import fresh

DSV = (sys.executable, "-m", "dsv.cli.main")


def write_files(folder: Path) -> None:
    source = random.Random(1)
    for name in (*(f"big/{n}.bin" for n in range(3)), *(f"small/{n:03}.bin" for n in range(600))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(source.randbytes(100_000_000 if name.startswith("big") else 20_000))


def read_large(folder: Path) -> int:
    buffer, count = bytearray(1 << 20), 0
    for path in sorted((folder / "big").iterdir())[1:]:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                count += size
    return count


def read_small(folder: Path) -> int:
    return sum(len(path.read_bytes()) for path in sorted((folder / "small").iterdir()))


def read_at_random(folder: Path) -> int:
    places = random.Random(2)
    file = os.open(folder / "big/0.bin", os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        return sum(len(os.pread(file, 4096, places.randrange(99_000_000))) for _ in range(300))
    finally:
        os.close(file)


READS: list[tuple[str, Callable[[Path], int], int]] = [
    ("300 reads of 4 kB", read_at_random, 300 * 4096),
    ("600 files of 20 kB", read_small, 600 * 20_000),
    ("200 MB", read_large, 200_000_000),
]


def timed(read: Callable[[Path], int], folder: Path, size: int) -> float:
    began = time.perf_counter()
    assert read(folder) == size, read
    return time.perf_counter() - began


@contextmanager
def mounted(env: dict[str, str], folder: Path) -> Iterator[None]:
    argv = [sys.executable, "-m", "ratarmount", "-f", "dsv://bench@main", str(folder)]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            while not os.path.ismount(folder):
                assert process.poll() is None, "no mount"
                time.sleep(0.005)
            yield
        finally:
            subprocess.run(["fusermount3", "-u", str(folder)], check=False)


def turn(below: Path, store: dict[str, str], way: str) -> list[float]:
    home = Path(tempfile.mkdtemp(dir=below))
    (home / "mount").mkdir()
    env = {**os.environ, **store, "HOME": str(home), "DSV_CACHE": str(home / "cache")}
    began = time.perf_counter()
    with ExitStack() as stack:
        if way == "mount":
            folder = home / "mount"
            stack.enter_context(mounted(env, folder))
        else:
            folder = Path(run(Command([*DSV, "cache", "bench"], home, env)).output.strip())
        return [time.perf_counter() - began, *(timed(read, folder, size) for _, read, size in READS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("folder", "S3"))
    given = parser.parse_args()
    print(
        "| store, way | there after | "
        + " | ".join(name for name, _, _ in READS)
        + " |\n|---|--:|--:|--:|--:|"
    )
    with tempfile.TemporaryDirectory(prefix="dsv-mount-") as name, ExitStack() as stack:
        below = Path(name)
        write_files(below / "files")
        for kind in ("folder", "S3") if given.only is None else (given.only,):
            store = {"DSV_STORE": str(below / "store")}
            if kind == "S3":
                server = stack.enter_context(fresh())
                store = {"DSV_STORE": f"s3://{server.bucket}/bench", **server.s3.env}
            env = {"HOME": str(below / f"home-{kind}"), **store}
            (below / kind).mkdir()
            run(Command([*DSV, "init", "boot"], below / kind, env))
            run(Command([*DSV, "put", f"{below}/files/.", "bench:", "--create"], below, env))
            times: dict[str, list[list[float]]] = {"mount": [], "dsv cache": []}
            for _ in range(given.rounds):
                for way, rounds in times.items():
                    rounds.append(turn(below, store, way))
            for way, rounds in times.items():
                medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
                print(
                    f"| {kind}, {way} | " + " | ".join(f"{value:.2f} s" for value in medians) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
