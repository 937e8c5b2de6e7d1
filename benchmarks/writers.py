"""Many who put a file each at once: on one branch, and each on a branch of its own.

    python -m benchmarks.writers                    five rounds of 24 processes, on a folder store
    python -m benchmarks.writers --latency 0.02     each request takes 20 ms
    python -m benchmarks.writers --source OLD/src   an earlier dsv too, in turns

Prints seconds and new objects of each round, and the ratios of both. A round makes a store of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OWN = Path(__file__).parents[1] / "src"

_PUT = """
import os, sys, time
from dsv.cli.main import main
from dsv.stores.directory import DirectoryStore
latency = float(os.environ["LATENCY"])
def slow(does):
    def waits(*given, **named):
        time.sleep(latency)
        return does(*given, **named)
    return waits
for name in ("get", "get_range", "put_if_absent", "list", "folders", "delete", "modified"):
    if latency:
        setattr(DirectoryStore, name, slow(getattr(DirectoryStore, name)))
raise SystemExit(main())
"""


class Round:
    def __init__(self, folder: Path, source: Path, latency: float) -> None:
        self._folder, self._store = folder, folder / "store"
        self._env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder / "home"),
            "PYTHONPATH": str(source),
            "DSV_STORE": str(self._store),
            "DSV_AUTHOR": "Bench <bench@example.org>",
        }
        self._latency = latency

    def measure(self, writers: int, *, apart: bool) -> tuple[float, int]:
        """Return the seconds until the last has ended, and how many objects are new."""
        (self._folder / "home").mkdir()
        for number in range(writers + 1):
            (self._folder / f"f{number}").write_bytes(b"%d" % number)
        self._call("init", "bench")
        self._call("put", f"f{writers}", "bench:", "--create")
        for number in range(writers if apart else 0):
            self._call("branch", f"b{number}", "bench@main")
        before = self._objects()
        began = time.perf_counter()
        started = [
            self._start(self._latency, "put", f"f{number}", f"bench@b{number}:" if apart else "bench:")
            for number in range(writers)
        ]
        for process in started:
            assert process.wait() == 0
        return time.perf_counter() - began, self._objects() - before

    def _start(self, latency: float, *words: str) -> subprocess.Popen[bytes]:
        env = {**self._env, "LATENCY": str(latency)}
        command = [sys.executable, "-c", _PUT, "-q", *words]
        return subprocess.Popen(command, cwd=self._folder, env=env, stdout=subprocess.DEVNULL)

    def _call(self, *words: str) -> None:
        assert self._start(0.0, *words).wait() == 0

    def _objects(self) -> int:
        return sum(path.is_file() for path in self._store.rglob("*"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--writers", type=int, default=24)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each request takes")
    parser.add_argument("--source", type=Path, action="append", default=[], help="the src of an earlier dsv")
    options = parser.parse_args()
    ratios: dict[Path, list[float]] = {source: [] for source in (OWN, *options.source)}
    for number in range(options.rounds):
        for source, of_source in ratios.items():
            costs: dict[bool, tuple[float, int]] = {}
            for apart in (False, True) if number % 2 else (True, False):
                folder = Path(tempfile.mkdtemp(prefix="dsv-writers-"))
                costs[apart] = Round(folder, source, options.latency).measure(options.writers, apart=apart)
                shutil.rmtree(folder)
            (seconds, objects), (seconds_apart, objects_apart) = costs[False], costs[True]
            of_source.append(seconds / seconds_apart)
            print(
                f"one branch {seconds:.2f} s, {objects} objects; apart {seconds_apart:.2f} s, {objects_apart};"
                f" ratios {of_source[-1]:.2f} and {objects / objects_apart:.2f}  {source}",
                flush=True,
            )
    for source, of_source in ratios.items():
        print(f"median of the ratios of seconds: {statistics.median(of_source):.2f}  {source}")


if __name__ == "__main__":
    main()
