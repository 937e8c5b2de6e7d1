"""This dsv and an earlier one, in turns: what `python -m benchmarks` measures, without other programs.

    git worktree add /var/tmp/earlier COMMIT; cd /var/tmp/earlier; python3 -m venv .venv; .venv/bin/pip install -e .
    .venv/bin/python -m benchmarks.versions /var/tmp/earlier/.venv/bin/dsv

Each turn has a new file system and a new server. Prints the medians of both, and the median of the ratios of the
rounds: of the seconds, and of the processor's. Needs root and Debian's packages for the Ceph lab.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import later, many, memory
from benchmarks.__main__ import BITS_PER_SECOND, ROUND_TRIP
from benchmarks.data import LARGE, SMALL, Shape, make
from benchmarks.measure import run
from benchmarks.network import network
from benchmarks.notebook import Notebook
from benchmarks.peers import Dsv
from benchmarks.transfers import Transfer, measure, turn

PARTS = ("small", "large", "directory", "later", "big", "start", "network", "many", "memory")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("earlier", type=Path, help="the earlier program")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/dsv-bench"), help="for data")
    parser.add_argument("--only", default=",".join(PARTS[:7]), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of small files")
    options = parser.parse_args()
    below, rounds, parts = options.folder, options.rounds, options.only.split(",")
    both = [Dsv("now"), Dsv("earlier", options.earlier)]
    book = Notebook.new(below / "versions.json", {each.name: each.version() for each in both}, rounds)
    book.rows.clear()
    small = Shape(round(SMALL.files * options.scale), SMALL.size)
    every = [(small, "small"), (LARGE, "large")]
    shapes = [each for each in every if each[1] in parts] or every

    def in_turns(work: Callable[[Dsv], None]) -> None:
        for number in range(rounds):
            for each in both if number % 2 == 0 else reversed(both):
                work(each)

    for shape, what in shapes if {"small", "large"} & {*parts} else ():
        names = f"{what} files to S3", f"{what} files from S3"
        measure(Transfer(shape, *names, both, True), book, below, rounds)
    for shape, what in shapes if "directory" in parts else ():
        names = f"{what} files to a folder", f"{what} files from a folder"
        measure(Transfer(shape, *names, both, False), book, below, rounds)
    if "later" in parts:
        in_turns(lambda dsv: later.measure(small, dsv, book, below, 1))
    if "big" in parts:
        in_turns(lambda dsv: later.measure_big(dsv, book, below, 1))
    if "start" in parts:
        in_turns(lambda dsv: _measure_commands(small, dsv, book, below))
    if "network" in parts:
        with network(ROUND_TRIP, BITS_PER_SECOND) as net:
            for shape, what in shapes:
                names = f"{what} files to S3 over 20 ms", f"{what} files from S3 over 20 ms"
                measure(Transfer(shape, *names, both, True), book, below, rounds, net)
    for each in both if "many" in parts else ():
        many.measure(options.scale, each, [], book, below)
    for each in both if "memory" in parts else ():
        memory.measure(each, book, below)
    report(book)


def _measure_commands(shape: Shape, dsv: Dsv, book: Notebook, below: Path) -> None:
    """Commands that do nothing, or little, with a folder store."""
    with turn(dsv, make(shape, below / "data"), below, on_server=False) as job:
        for command in (*dsv.up(job), *dsv.up(job), *dsv.down(job)):
            run(command)
        for line in ("--version", "--help", "status", "log", "resolve", "sync", "cache bench"):
            for _ in range(5):
                book.add(f"dsv {line}", dsv.name, run(dsv.call(job, *line.split())))


def report(book: Notebook) -> None:
    print(f"\n{'':<46} {'now':>8} {'earlier':>8} {'ratio':>6} {'cpu':>6}")
    for work in dict.fromkeys(row.work for row in book.rows):
        now, earlier = (book.row(work, name) for name in ("now", "earlier"))
        if now.seconds and earlier.seconds:
            ratio, cpu = (
                statistics.median(one / other for one, other in zip(*columns, strict=False))
                for columns in ((now.seconds, earlier.seconds), (now.cpu, earlier.cpu))
            )
            print(f"{work:<46} {now.median:8.2f} {earlier.median:8.2f} {ratio:6.2f} {cpu:6.2f}")


if __name__ == "__main__":
    main()
