"""Large files between a client and an S3 server that answers from memory, in turns: what does each GB cost the client?

    python -m benchmarks.wire                        this dsv with 1, 2 and 4 processes
    python -m benchmarks.wire PATH/bin/dsv ...       and earlier ones
    python -m benchmarks.wire --s5cmd PATH/s5cmd     and s5cmd, alone and with `sync -f` after it

Prints medians: seconds, and seconds of the processor for each GB; then the median of the rounds' ratios to the first
row. Files are written below `--folder`, whose disk counts. Needs no root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.data import Shape, make
from benchmarks.measure import Command, Cost, run_all

_DSV = Path(sys.executable).with_name("dsv")


class Bench:
    """One server with the files in it, as they are and as a dataset, and an empty folder for each turn."""

    def __init__(self, folder: Path, source: Path, port: int) -> None:
        self.folder, self.source = folder, source
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "DSV_CACHE": str(folder / "turn" / "cache"),
            "HOME": str(folder / "turn"),
        }

    def dsv(self, program: Path, *words: str, store: str = "dataset") -> Command:
        env = {**self.env, "DSV_STORE": f"s3://bucket/{store}"}
        return Command([program, "--quiet", *words], self.folder / "turn", env)

    def s5cmd(self, program: Path, *, synced: bool) -> list[Command]:
        back = self.folder / "turn" / "back"
        words = ["--endpoint-url", self.env["AWS_ENDPOINT_URL"], "--log", "error"]
        copy = Command([program, *words, "cp", "s3://bucket/plain/*", f"{back}/"], self.folder, self.env)
        return [copy, *([Command(["sync", "-f", back], self.folder)] if synced else [])]

    def turn(self, commands: list[Command]) -> Cost:
        shutil.rmtree(self.folder / "turn", ignore_errors=True)
        (self.folder / "turn").mkdir(parents=True)
        subprocess.run(["sync", "-f", self.folder], check=True)
        return run_all(commands)

    def fill(self, s5cmd: Path | None) -> None:
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.source, work)
        init, sync = self.dsv(_DSV, "init", "large"), self.dsv(_DSV, "sync", "-m", "large")
        self.turn([Command(one.argv, work, one.env) for one in (init, sync)])
        if s5cmd is not None:
            argv = [*self.s5cmd(s5cmd, synced=False)[0].argv[:-2], f"{self.source}/", "s3://bucket/plain/"]
            self.turn([Command(argv, self.folder, self.env)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("earlier", type=Path, nargs="*", help="earlier programs")
    parser.add_argument("--s5cmd", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=6, help="of 128 MiB")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/dsv-bench/wire"))
    options = parser.parse_args()
    shape = Shape(options.files, 128 << 20)
    argv = [sys.executable, "-m", "benchmarks.memory_server"]
    root = Path(__file__).parents[1]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=root) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            bench = Bench(options.folder, make(shape, options.folder / "data"), port)
            bench.fill(options.s5cmd)
            _measure(_rows(bench, options), options.rounds, shape.bytes)
        finally:
            server.kill()
            shutil.rmtree(options.folder / "turn", ignore_errors=True)
            shutil.rmtree(options.folder / "work", ignore_errors=True)


def _rows(bench: Bench, options: argparse.Namespace) -> dict[str, Callable[[], Cost]]:
    rows: dict[str, Callable[[], Cost]] = {}

    def add(name: str, *commands: Command) -> None:
        rows[name] = lambda: bench.turn([*commands])

    for number, program in enumerate([_DSV, *options.earlier]):
        name = os.path.relpath(program) if number else "dsv"
        for jobs in ("1", "2", "4"):
            add(f"{name} cache --jobs {jobs}", bench.dsv(program, "cache", "large", "--jobs", jobs))
        add(f"{name} cache", bench.dsv(program, "cache", "large"))
        add(f"{name} export", bench.dsv(program, "export", "large", "back/"))
    if options.s5cmd is not None:
        add("s5cmd", *bench.s5cmd(options.s5cmd, synced=False))
        add("s5cmd; sync -f", *bench.s5cmd(options.s5cmd, synced=True))
    return rows


def _measure(rows: dict[str, Callable[[], Cost]], rounds: int, size: int) -> None:
    costs: dict[str, list[Cost]] = {name: [] for name in rows}
    for number in range(rounds):
        for name in [*rows][:: 1 if number % 2 == 0 else -1]:
            costs[name].append(rows[name]())
    first = costs[next(iter(rows))]
    print("| | s | processor s for each GB | ratio | of processor |")
    print("|---|--:|--:|--:|--:|")
    for name, found in costs.items():
        ratio = statistics.median(
            one.seconds / other.seconds for one, other in zip(found, first, strict=True)
        )
        cpu = statistics.median(one.cpu / other.cpu for one, other in zip(found, first, strict=True))
        seconds = statistics.median(one.seconds for one in found)
        per_gb = statistics.median(one.cpu for one in found) / size * 1e9
        print(f"| {name} | {seconds:.2f} | {per_gb:.2f} | {ratio:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
