"""What names elsewhere cost: a first sync of small files, and a sync of one changed file, beside the same without.

    python -m benchmarks.names                                    stores and names in a folder of its own
    python -m benchmarks.names --store s3://bucket/prefix         data in a bucket, names in a folder
    python -m benchmarks.names --files 2000 --rounds 2            a look, not a result

A bucket is reached by the AWS variables; the prefix must be new, and its objects stay (`python -m tests.labs ceph-rgw`
starts a server). Each turn has a store, a home and a workspace that nobody has used, and each command is a process of
its own. Both kinds take turns, and change which goes first. A ratio is of the two medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import Shape, some_files, write
from benchmarks.measure import Command, Cost, run

PROGRAM = Path(sys.executable).with_name("dsv")
FIRST, CHANGED = "first sync", "one file changed"


@dataclass(frozen=True, slots=True)
class Turn:
    """One person with a store of their own. files: the workspace, which each turn begins anew."""

    folder: Path
    files: Path
    store: str
    names: Path | None

    def syncs(self, number: int) -> Iterator[tuple[str, Cost]]:
        shutil.rmtree(self.files / ".dsv", ignore_errors=True)
        where = ["--store", self.store, *(() if self.names is None else ("--names", str(self.names)))]
        run(self._dsv("init", "bench", *where))
        os.sync()
        yield FIRST, run(self._dsv("sync"))
        some_files(self.files, 1)[0].write_text(f"{self.store} {number}\n")
        os.sync()
        yield CHANGED, run(self._dsv("sync"))

    def _dsv(self, *arguments: str) -> Command:
        reached = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return Command([PROGRAM, "--quiet", *arguments], self.files, {**reached, "HOME": str(self.folder)})


def main() -> None:
    options = _options()
    found: dict[str, dict[bool, list[Cost]]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as base:
        files = Path(base) / "files"
        files.mkdir()
        write(Shape(options.files, options.size), files)
        for number in range(options.rounds):
            for elsewhere in (number % 2 == 0, number % 2 != 0):
                turn = _turn(Path(base), files, options.store, number, elsewhere=elsewhere)
                for what, cost in turn.syncs(number):
                    found.setdefault(what, {}).setdefault(elsewhere, []).append(cost)
    for what, costs in found.items():
        for elsewhere in (False, True):
            _show(f"{what}, names {'elsewhere' if elsewhere else 'in the store'}", costs[elsewhere])
        wall, cpu = (_ratio(costs, measure) for measure in ("seconds", "cpu"))
        print(f"{what}: elsewhere takes {wall:.3f} of the time, {cpu:.3f} of the processor", flush=True)


def _turn(base: Path, files: Path, store: str | None, number: int, *, elsewhere: bool) -> Turn:
    folder = base / f"{number}-{elsewhere:d}"
    folder.mkdir()
    url = str(folder / "store") if store is None else f"{store}/{folder.name}"
    return Turn(folder, files, url, folder / "names" if elsewhere else None)


def _ratio(costs: dict[bool, list[Cost]], measure: str) -> float:
    there, here = (
        statistics.median(getattr(cost, measure) for cost in costs[each]) for each in (True, False)
    )
    return float(there / here)


def _show(what: str, costs: list[Cost]) -> None:
    wall, cpu = ([getattr(cost, measure) for cost in costs] for measure in ("seconds", "cpu"))
    print(
        f"{what:42} {statistics.median(wall):7.2f} s wall ({' '.join(f'{one:.2f}' for one in wall)})"
        f" {statistics.median(cpu):7.2f} s CPU ({' '.join(f'{one:.2f}' for one in cpu)})",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", help="a prefix of a bucket, which must be new; default: a folder")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="for files, names and stores")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
