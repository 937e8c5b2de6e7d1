"""What the commands of a history cost in a large dataset: merge, mv, put, diff and the log of a folder.

    python -m benchmarks.history                        a million files, into /var/tmp/dsv-bench/history
    python -m benchmarks.history --files 100000         a look, not a result
    python -m benchmarks.history --only merge,mv        some of it
    python -m benchmarks.history --program OLD/bin/dsv  with another dsv, for a comparison in turns

The trees are made without files: none of these commands reads one. They are made once for each number of files. Each
command runs on a copy of the store, on the machine that made it: metadata is in its local copy, as it is for anyone who
has worked with the dataset. Processor seconds are of the whole command, so another program hardly changes them.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import SEED
from benchmarks.measure import Command, Cost, run
from dsv.format.codec import Codec
from dsv.format.locator import Location
from dsv.format.records import RefEntry, WriterIdentity
from dsv.format.tree import Entry, Kind
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange
from dsv.stores.directory import DirectoryStore
from dsv.transfer.commit import Committed, Draft, commit_changes
from dsv.values.ids import FileId, Nonce, PackId, StoreId
from dsv.values.names import MAIN, BranchName, DatasetName
from dsv.values.paths import sort_key

DATASET = DatasetName.parse("bench")
WRITER = WriterIdentity(author="Bench <bench@example.org>", host="lab", tool="benchmarks")
SIZE = 4096
PER_PACK = 20_000
CHANGED, DIFFERENT, MOVED, PUT, COMMITS = 1_000, 100, 100_000, 10, 1_000


def path_of(number: int) -> bytes:
    return b"part-%04d/image-%07d.png" % (number // 1000, number)


def main() -> None:
    options = _options()
    bench = Bench(options.folder / str(options.files), options.files, options.program)
    bench.make()
    for part in options.only.split(","):
        for _ in range(options.rounds):
            for what, cost in PARTS_OF[part](bench):
                print(
                    f"{what:42} {cost.cpu:8.2f} s CPU {cost.seconds:8.2f} s wall {cost.memory >> 20:6} MiB",
                    flush=True,
                )


@dataclass(frozen=True, slots=True)
class Bench:
    """The store of so many files below a folder, and the dsv that is measured."""

    folder: Path
    files: int
    program: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def work(self) -> Path:
        """The copy of the store, which the commands change."""
        return self.folder / "work"

    def make(self) -> None:
        """The store, unless it is there: a branch for each of the works, with a local copy of all metadata."""
        done = self.folder / "done"
        if done.exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.store.mkdir(parents=True)
        making = _Making(self)
        first = making.commit(MAIN, None, _entries(range(self.files), "first"))
        spread = self.files // max(1, min(CHANGED, self.files))
        making.commit("left", first, _entries(range(0, self.files, spread), "left"))
        making.commit("right", first, _entries(range(spread // 2, self.files, spread), "right"))
        few = max(1, self.files // DIFFERENT)
        making.commit("few", first, _entries(range(0, self.files, few), "few"))
        head = first
        for number in range(COMMITS):
            at = number * 997 % self.files
            head = making.commit("long", head, _entries([at], f"commit {number}"))
        done.touch()

    def command(self, *arguments: str) -> Command:
        env = {"HOME": str(self.folder), "DSV_STORE": str(self.work), "XDG_CACHE_HOME": str(self.cache)}
        return Command([self.program, "--quiet", *arguments], self.folder, env)

    @property
    def cache(self) -> Path:
        """Where the local copies of metadata are."""
        return self.folder / "metadata"

    def fresh(self) -> None:
        """The store as it was made."""
        shutil.rmtree(self.work, ignore_errors=True)
        subprocess.run(["cp", "-r", "--reflink=auto", str(self.store), str(self.work)], check=True)
        os.sync()


class _Making:
    def __init__(self, bench: Bench) -> None:
        self._clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 60_000))
        folder = bench.cache / "dsv" / ".dsv"

        def metadata(store_id: StoreId) -> Path:
            return folder / "stores" / str(store_id) / "objects"

        self._repository = Repository.create(
            DirectoryStore(bench.store),
            metadata,
            author=WRITER.author,
            tool=WRITER.tool,
            clock=lambda: next(self._clock),
        )
        self._heads: dict[str, Head] = {}

    def commit(self, branch: BranchName | str, parent: Head | None, changes: Iterable[TreeChange]) -> Head:
        """A commit on a branch, which is made at `parent` if it is not there."""
        name = branch if isinstance(branch, BranchName) else BranchName.parse(branch)
        after = self._heads.get(str(name))
        repository = self._repository
        if after is None and parent is not None:
            assert parent.commit is not None
            entry = RefEntry(parent.commit, False, Nonce.random(), next(self._clock), WRITER.author, "branch")
            moved = repository.refs.move(DATASET, name, None, entry)
            assert isinstance(moved, Head)
            after = moved
        parents = () if parent is None or parent.commit is None else (parent.commit,)
        base = TreeReader(repository.objects, parents[0]) if parents else None
        draft = Draft(DATASET, name, after, parents, "a commit of the benchmark", "sync")
        done = commit_changes(repository, WRITER, draft, base, lambda _: changes)
        assert isinstance(done, Committed)
        self._heads[str(name)] = done.head
        return done.head


def _entries(numbers: Iterable[int], seed: str) -> Iterator[TreeChange]:
    """Files of random ids, with places in packs that nobody reads."""
    source = random.Random(f"{SEED} {seed}")
    pack, row = PackId(source.randbytes(16)), 0
    for path in sorted(map(path_of, numbers), key=sort_key):
        if row == PER_PACK:
            pack, row = PackId(source.randbytes(16)), 0
        place = Location(pack, row * SIZE, SIZE, SIZE, Codec.RAW)
        row += 1
        yield TreeChange(path, Entry(path, Kind.FILE, SIZE, FileId(source.randbytes(32))), place)


def _merge(bench: Bench) -> Iterator[tuple[str, Cost]]:
    bench.fresh()
    yield (
        f"merge, {CHANGED:,} changed files on each side",
        run(bench.command("merge", f"{DATASET}@right", "--into", "left")),
    )


def _mv(bench: Bench) -> Iterator[tuple[str, Cost]]:
    bench.fresh()
    moves = bench.folder / "moves.csv"
    chosen = random.Random(SEED).sample(range(bench.files), min(MOVED, bench.files // 10))
    with moves.open("w", newline="") as file:
        rows = csv.writer(file)
        for number in sorted(chosen):
            old = path_of(number).decode()
            rows.writerow([old, old.replace("image", "moved")])
    yield (
        f"mv, {len(chosen):,} scattered files",
        run(bench.command("mv", "--from-file", str(moves), str(DATASET))),
    )


def _put(bench: Bench) -> Iterator[tuple[str, Cost]]:
    bench.fresh()
    folder = bench.folder / "new"
    folder.mkdir(exist_ok=True)
    for number in range(PUT):
        (folder / f"new-{number}.png").write_bytes(random.Random(number).randbytes(SIZE))
    yield f"put, {PUT} files", run(bench.command("put", *map(str, folder.iterdir()), f"{DATASET}:part-0000/"))


def _diff(bench: Bench) -> Iterator[tuple[str, Cost]]:
    bench.fresh()
    yield f"diff, {DIFFERENT} different files", run(bench.command("diff", str(DATASET), f"{DATASET}@few"))


def _log(bench: Bench) -> Iterator[tuple[str, Cost]]:
    bench.fresh()
    command = bench.command("log", f"{DATASET}@long", "-n", str(COMMITS), "--", "part-0007/")
    yield f"log of a folder over {COMMITS:,} commits, first", run(command)
    yield f"log of a folder over {COMMITS:,} commits, warm", run(command)


PARTS_OF: dict[str, Callable[[Bench], Iterator[tuple[str, Cost]]]] = {
    "merge": _merge,
    "mv": _mv,
    "put": _put,
    "diff": _diff,
    "log": _log,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/dsv-bench/history"))
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(PARTS_OF), help=f"some of {','.join(PARTS_OF)}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--program", type=Path, default=Path(sys.executable).with_name("dsv"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
