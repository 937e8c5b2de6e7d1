"""What reading a dataset costs that came in many small edits: cold, from a Ceph server, before and after `dsv gc`.

    python -m benchmarks.edits                               3,000 files in 600 edits, 1,000 in 200: half an hour
    python -m benchmarks.edits --files 300 --edits 60        a look, not a result
    python -m benchmarks.edits --source OLD/src              an earlier dsv too, in turns, on the same stores
    python -m benchmarks.edits --only cache --rounds 5       some of the commands, several times; prints all seconds

Each edit adds its part of the files, which are in random order. The same files are also synced at once, to another
store. Each command runs with a home of its own, without copies of metadata. Prints its seconds and, from the server's
log, its requests. Needs root, PyTorch, and Debian's packages for the Ceph lab.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Command, run
from benchmarks.server import Running, fresh

SIZE = 8 << 10
BACK = 150
"""Commits from the head to the one that is resolved, shown and compared."""
OWN = Path(__file__).parents[1] / "src"

_EDIT = """
import sys, dsv
from pathlib import Path
for number, line in enumerate(Path(sys.argv[1]).read_text().splitlines()):
    with dsv.edit("bench", message=f"edit {number}") as edit:
        for name in line.split():
            edit.put(name, Path(name))
"""
_LOAD = """
import sys, time, dsv
from dsv.torch import Loader
begin = time.monotonic()
samples = dsv.open("bench").samples(cache=False)
loader = Loader(samples, batch_size=64, shuffle=False, transform=lambda one: len(one.data))
assert sum(sum(batch) for batch in loader) == int(sys.argv[1])
print(time.monotonic() - begin)
"""


class Measured(NamedTuple):
    seconds: float
    """Of the whole process; of the loader without the imports."""
    requests: int


class Bench:
    """Two stores with the same files: of edits, and of one sync."""

    def __init__(self, server: Running, folder: Path, files: int, edits: int) -> None:
        self.server, self.folder, self.files, self.edits = server, folder, files, edits
        self._data, self._homes = folder / "data", 0

    def make(self) -> None:
        chance, names = random.Random(1), [f"d{number % 10}/f{number}" for number in range(self.files)]
        for name in names:
            path = self._data / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(chance.randbytes(SIZE))
        chance.shuffle(names)
        each = self.files // self.edits
        parts = "\n".join(" ".join(names[at : at + each]) for at in range(0, self.files, each))
        (self.folder / "parts").write_text(parts)
        for store in ("edits", "whole"):
            work = self.folder / f"work-{store}"
            work.mkdir()
            self._dsv(OWN, store, work, "init", "bench")
            if store == "edits":
                self._run(OWN, store, self._data, "-c", _EDIT, self.folder / "parts")
            else:
                shutil.copytree(self._data, work, dirs_exist_ok=True)
                self._dsv(OWN, store, work, "sync", "-m", "at once")

    def measure(
        self, found: dict[str, list[Measured]], store: str, sources: Sequence[Path], only: Sequence[str]
    ) -> None:
        """Add seconds and requests of each command with each dsv."""
        path, back = "d3/", f"bench@main~{BACK}"
        commands = {
            "cache": ("cache", "bench", "--cache", "./cache"),
            "clone": ("clone", "bench", "clone"),
            "loader": (),  # in order
            "copy": ("copy", "bench", "--to", "./copied", "--create"),
            "verify": ("verify",),
            "verify --full": ("verify", "--full"),
            "du": ("du",),
            "log": ("log", "bench"),
            "log -- PATH": ("log", "bench", "--", path),
            f"resolve ~{BACK}": ("resolve", back),
            f"show ~{BACK}": ("show", back),
            f"diff ~{BACK}": ("diff", "--stat", back, "bench"),
        }
        for what, words in commands.items():
            of_history = self.edits <= BACK or store == "whole"
            if (only and what.split()[0] not in only) or (of_history and str(BACK) in what):
                continue
            for source in sources:
                measured = self._dsv(source, store, None, *words) if words else self._load(source, store)
                found.setdefault(what, []).append(measured)
                print(f"  {store} {what}: {_text([measured])} {source}", file=sys.stderr, flush=True)

    def gc(self) -> Measured:
        return self._dsv(OWN, "edits", None, "gc", "--yes", "--grace", "0s")

    def _dsv(self, source: Path, store: str, folder: Path | None, *words: str) -> Measured:
        program = "from dsv.cli.main import main; raise SystemExit(main())"
        return self._run(source, store, folder, "-c", program, "-q", *words)

    def _load(self, source: Path, store: str) -> Measured:
        return self._run(source, store, None, "-c", _LOAD, str(self.files * SIZE))

    def _run(self, source: Path, store: str, folder: Path | None, *words: str | Path) -> Measured:
        """Run Python in a new home, which is also its folder unless another is given; then the home goes."""
        self._homes += 1
        home = self.folder / f"home-{self._homes}"
        home.mkdir()
        env = {
            **self.server.s3.env,
            "HOME": str(home),
            "PYTHONPATH": str(source),
            "DSV_STORE": f"s3://{self.server.bucket}/{store}",
            "DSV_AUTHOR": "Bench <bench@example.org>",
        }
        before = len(self.server.requests())
        cost = run(Command([sys.executable, *words], folder or home, env))
        requests = len(self.server.requests()) - before
        run(Command(["chmod", "-R", "u+w", home], self.folder))
        shutil.rmtree(home)
        return Measured(float(cost.output) if words[1] == _LOAD else cost.seconds, requests)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int)
    parser.add_argument("--edits", type=int)
    parser.add_argument("--source", type=Path, action="append", default=[], help="the src of an earlier dsv")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="some of the commands: cache,log")
    options = parser.parse_args()
    sizes = (
        [(options.files or 3000, options.edits or 600)]
        if options.files or options.edits
        else [(3000, 600), (1000, 200)]
    )
    for files, edits in sizes:
        with fresh() as server, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            bench = Bench(server, Path(folder), files, edits)
            bench.make()
            sources, only = [OWN, *options.source], [one for one in options.only.split(",") if one]
            columns: dict[str, dict[str, list[Measured]]] = {"at once": {}, "in edits": {}, "after gc": {}}
            for column in ("in edits", "after gc"):
                for _ in range(options.rounds):  # in turns, so that a load meets both
                    bench.measure(columns["at once"], "whole", [OWN], only)
                    bench.measure(columns[column], "edits", sources, only)
                if column == "in edits":
                    print(f"gc: {_text([bench.gc()])}", flush=True)
            print(
                f"{files:,} files of 8 KB in {edits} edits; seconds (requests), of this dsv and of each --source"
            )
            print(f"{'':14}" + "".join(f"  {name:>30}" for name in columns))
            for what in columns["in edits"]:
                cells = (_text(column.get(what, [])) for column in columns.values())
                print(f"{what:14}" + "".join(f"  {cell:>30}" for cell in cells), flush=True)


def _text(costs: Sequence[Measured]) -> str:
    return "; ".join(f"{seconds:.1f} ({requests:,})" for seconds, requests in costs)


if __name__ == "__main__":
    main()
