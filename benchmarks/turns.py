"""Where dsv is closest to other programs, in turns with them and with an earlier dsv: seconds, and processor seconds.

    python -m benchmarks.turns PATH/bin/dsv --tools FOLDER     five rounds; half an hour on two cores
    python -m benchmarks.turns PATH/bin/dsv --tools FOLDER --only large,small

The other programs are those of `python -m benchmarks`, in the folder `--tools`. Each turn has a new file system and,
for `large`, a new server. Prints the medians of each work, and the median of the rounds' ratios of dsv to each program.
Needs root, and what `python -m benchmarks` needs.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from pathlib import Path

from benchmarks import tools
from benchmarks.data import Shape, make
from benchmarks.measure import Command, run, run_all
from benchmarks.notebook import Notebook
from benchmarks.peers import Copy, Dsv, Peer, Restic, S5cmd
from benchmarks.transfers import turn

SHAPES = {
    "large": Shape(6, 128 << 20),
    "small": Shape(30_000, 8 << 10),
    "tiny": Shape(40_000, 2 << 10),
    "middle": Shape(500, 1_150_000),
}
"""`large` goes to S3, the others to a folder."""
_STARTS = ("status", "resolve", "cache bench")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("earlier", type=Path, nargs="?", help="the earlier program")
    parser.add_argument("--tools", type=Path, default=Path("/var/tmp/dsv-bench/tools"))
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/dsv-bench"), help="for data")
    parser.add_argument("--only", default=",".join([*SHAPES, "start"]))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    programs = tools.install(options.tools)
    both = [Dsv(), *([Dsv("earlier", options.earlier)] if options.earlier else [])]
    book = Notebook.new(options.folder / "turns.json", {one.name: one.version() for one in both}, 1)
    book.rows.clear()
    for number in range(options.rounds):
        for name in options.only.split(","):
            if name == "start":
                for dsv in both[:: -1 if number % 2 else 1]:
                    _start(dsv, book, options.folder)
                continue
            others: list[Peer] = [S5cmd(programs)] if name == "large" else [Copy(), Restic(programs)]
            peers = [*both, *others]
            at = number % len(peers)
            for peer in [*peers[at:], *peers[:at]]:
                _transfer(peer, name, book, options.folder)
    print(f"load {os.getloadavg()[0]:.1f}")
    _report(book)


def _transfer(peer: Peer, name: str, book: Notebook, below: Path) -> None:
    with turn(peer, make(SHAPES[name], below / "data"), below, on_server=name == "large") as job:
        os.sync()
        book.add(f"{name}: up", peer.name, run_all(peer.up(job)))
        peer.arrive(job)
        os.sync()
        cost = run_all(peer.down(job))
        synced = cost + run(Command(["sync", "-f", job.back], job.work))
        book.add(f"{name}: down, on the disk", peer.name, cost if isinstance(peer, Dsv) else synced)
        if isinstance(peer, Dsv):
            os.sync()
            cost = run(peer.call(job, "export", "bench", str(job.work / "out")))
        if not isinstance(peer, Restic):
            book.add(f"{name}: down, as files", peer.name, cost)


def _start(dsv: Dsv, book: Notebook, below: Path) -> None:
    with turn(dsv, make(Shape(10, 8 << 10), below / "data"), below, on_server=False) as job:
        run_all([*dsv.up(job), *dsv.down(job)])
        for line in _STARTS:
            for _ in range(5):
                book.add(f"dsv {line}", dsv.name, run(dsv.call(job, *line.split())))
                plain = job.command(sys.executable, "-c", "pass")
                book.add(f"dsv {line}", f"python for {dsv.name}", run(plain))


def _report(book: Notebook) -> None:
    print("\n| work | program | s | processor s | ratio of dsv to it | of processor |")
    print("|---|---|--:|--:|--:|--:|")
    for row in book.rows:
        own = book.row(row.work, "dsv")
        ratio, cpu = (
            statistics.median(one / other for one, other in zip(*columns, strict=False))
            for columns in ((own.seconds, row.seconds), (own.cpu, row.cpu))
        )
        figures = f"{row.median:.2f} | {statistics.median(row.cpu):.2f} | {ratio:.2f} | {cpu:.2f}"
        print(f"| {row.work} | {row.program} | {figures} |")


if __name__ == "__main__":
    main()
