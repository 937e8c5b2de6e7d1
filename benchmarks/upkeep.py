"""A garbage collection of a store that others go on using.

    python -m benchmarks.upkeep                                 200,000 files, 1,000 commits; some twenty minutes
    python -m benchmarks.upkeep --files 5000 --commits 60       a minute
    python -m benchmarks.upkeep --store DIR                     makes the store there, or uses the one that is there

Each commit after the first changes 200 files, as of `benchmarks.usage`. The older half of them expires and
is collected at once, without grace. Beside that four workspaces, in processes of their own, change files and sync, and
two caches fill one commit after the other. Their times before and meanwhile are compared.

Then every commit that is left is read: `dsv verify --full`, and some files of each are compared with what was put
there, as are all files that the workspaces have synced. Anything that is lost ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.usage import CHANGES, DATASET, WRITER, fill
from dsv.format import keys
from dsv.repo.expiry import read_expiry
from dsv.repo.history import walk
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.open import open_store
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import CommitId
from dsv.values.names import MAIN

SAMPLE = 20
"""Files of each commit that are compared."""
ROUNDS = 5
"""Syncs of each workspace before the garbage collection."""


@dataclass
class Timed:
    """A command's times and the most memory that it took."""

    before: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    memory: int = 0

    def line(self, what: str) -> str:
        both = " and ".join(
            f"{statistics.median(times):.2f} s (at most {max(times):.2f} s, {len(times)} times) {when}"
            for times, when in ((self.before, "before"), (self.beside, "beside it"))
            if times
        )
        return f"{what}: {both}, {self.memory >> 20} MiB"


class Bench:
    """A store, and what is done to it."""

    def __init__(self, store: Path, folder: Path) -> None:
        self.store = store.resolve()
        self.folder = folder
        self.collecting = False
        self.done = threading.Event()
        self.written: list[dict[str, str]] = []
        """What each workspace has synced: the last content of each path."""
        self.syncs, self.fills = Timed(), Timed()
        self._lock = threading.Lock()

    def run(
        self, home: str, cwd: Path, *arguments: str, ok: tuple[int, ...] = (0,)
    ) -> tuple[int, str, float, int]:
        """Run dsv as somebody with a home of their own, and return code, output, seconds and memory."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DSV_"))}
        environ |= {"HOME": str(self.folder / home), "DSV_STORE": str(self.store)}
        (self.folder / home).mkdir(exist_ok=True)
        command = [str(Path(sys.executable).parent / "dsv"), *arguments, "--progress", "none"]
        begin = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(command, env=environ, cwd=cwd, stdout=out, stderr=err)
            _, status, used = os.wait4(process.pid, 0)
            took, code = time.monotonic() - begin, os.waitstatus_to_exitcode(status)
            process.returncode = code
            out.seek(0)
            err.seek(0)
            if code not in ok:
                raise SystemExit(f"{' '.join(command)}: exit code {code}: {err.read().decode()}")
            return code, out.read().decode(), took, used.ru_maxrss * 1024

    def note(self, timed: Timed, took: float, memory: int, beside: bool) -> None:
        with self._lock:
            (timed.beside if beside else timed.before).append(took)
            timed.memory = max(timed.memory, memory)

    def work(self, number: int, ready: threading.Barrier) -> None:
        """Sync changed files in a workspace of one folder, until the garbage collection is over. Who comes second takes
        over what the others did, and syncs again."""
        home, draw, mine = f"w{number}", random.Random(number), self.written[number]
        (self.folder / home).mkdir()
        root = self.folder / home / "data"
        self.run(home, self.folder, "clone", DATASET, str(root), "--only", f"d{number:05}")
        for turn in self._turns(ready):
            for path in (
                f"d{number:05}/f{number * 1000 + draw.randrange(1000):08}.bin",
                f"d{number:05}/new {turn}",
            ):
                mine[path] = f"{home} {turn} {draw.random()}"
                (root / path).write_text(mine[path])
            beside = self.collecting
            code, _, took, memory = self.run(home, root, "sync", "-m", f"{home} {turn}", ok=(0, 4))
            self.note(self.syncs, took, memory, beside)
            while code:
                self.run(home, root, "pull")
                code = self.run(home, root, "sync", "-m", f"{home} {turn}", ok=(0, 4))[0]

    def cache(self, number: int, commits: list[CommitId], ready: threading.Barrier) -> None:
        """Fill a cache with one commit after the other that is not expired."""
        home, cache = f"c{number}", str(self.folder / f"c{number}" / "cache")
        for turn in self._turns(ready, 1):
            beside = self.collecting
            one = f"{DATASET}@{commits[turn * 7 % len(commits)]}"
            _, _, took, memory = self.run(home, self.folder, "cache", one, "--cache", cache)
            self.note(self.fills, took, memory, beside)

    def _turns(self, ready: threading.Barrier, before: int = ROUNDS) -> Iterator[int]:
        """Some turns, then with all others from the beginning of the garbage collection to its end."""
        yield from range(before)
        ready.wait()
        turn = before
        while turn == before or not self.done.is_set():
            yield turn
            turn += 1

    def begin(self) -> None:
        self.collecting = True

    def collect(self) -> None:
        """In a process of its own, for its memory."""
        command = [
            sys.executable,
            "-m",
            "benchmarks.upkeep",
            "--collect",
            str(self.store),
            str(self.folder / "ids"),
        ]
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        told = process.stdout.read().decode().strip()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = time.monotonic() - begin
        if process.returncode:
            raise SystemExit("the garbage collection failed")
        processor = used.ru_utime + used.ru_stime
        print(
            f"gc: {took:.1f} s, {processor:.1f} s of a processor, {used.ru_maxrss >> 10} MiB; {told}",
            flush=True,
        )

    def size(self) -> str:
        packs = [path for path in (self.store / keys.PACK_PREFIX).glob("*/*") if path.is_file()]
        return f"{sum(path.stat().st_size for path in packs) / 1e6:,.0f} MB in {len(packs):,} packs"


def collect(store: str, folder: Path) -> None:
    """Collect the garbage of a store, and print what that took."""
    from dsv.upkeep.gc import (
        Collector,
        Options,
    )  # with numpy, and the memory of processes counts from this one's on

    opened = open_store(store)
    repository = Repository.open(opened, None)
    done = Collector(repository, WRITER, folder, Options(grace=0.0, poll=1.0)).run()
    repository.objects.threads.close()
    print(
        f"{opened.counts.requests:,} requests, {done.deleted:,} packs deleted, {done.copied:,} objects copied"
    )


def contents(files: int, commits: int) -> Iterator[Callable[[int], str]]:
    """Yield for each commit of `fill`, the oldest first, a function that returns what a file has there. It is valid
    until the next one is taken."""
    chance, changed = random.Random(1), dict[int, int]()
    for number in range(commits):
        start = chance.randrange(max(1, files - CHANGES))
        near, far = range(start, min(files, start + CHANGES)), sorted(chance.sample(range(files), CHANGES))
        changed.update(dict.fromkeys([] if not number else near if number % 2 else far, number))
        yield lambda one: f"{one} {changed.get(one, 0)}"


def check(bench: Bench, files: int, commits: int) -> int:
    """Compare files of every commit that is left with what was put there, and return how many were compared."""
    repository = Repository.open(open_store(str(bench.store)), None)
    head = repository.refs.head(DATASET, MAIN).commit
    assert head is not None
    freed = read_expiry(repository.refs, DATASET).freed
    listed = list(walk(repository.objects, [head]))[::-1]
    draw, compared = random.Random(2), 0

    def compare(commit_id: CommitId, wanted: dict[str, str]) -> None:
        tree, found = TreeReader(repository.objects, commit_id), []
        for path in sorted(wanted):
            entry = tree.entry(path.encode())
            if entry is None:
                raise SystemExit(f"{path} of {commit_id} is lost")
            found.append(WantedFile(*entry))
        for file, pieces in Fetcher(repository.objects).files(found):
            got, content = b"".join(pieces), wanted[file.entry.path.decode()]
            if got != content.encode():
                raise SystemExit(f"{file.entry.path!r} of {commit_id} is {got!r}, and was {content!r}")

    for (commit_id, _), content in zip(listed, contents(files, commits), strict=False):
        if commit_id not in freed:
            some = draw.sample(range(files), SAMPLE)
            compare(commit_id, {f"d{one // 1000:05}/f{one:08}.bin": content(one) for one in some})
            compared += SAMPLE
    for written in bench.written:
        compare(head, written)
        compared += len(written)
    print(
        f"{len(listed) - len(freed):,} of {len(listed):,} commits are left, {compared:,} files compared",
        flush=True,
    )
    repository.objects.threads.close()
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--store", type=Path, help="a folder; one that is there must have been made by this")
    parser.add_argument("--folder", type=Path, help="where workspaces and caches are made, and removed")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--collect", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        collect(options.collect[0], Path(options.collect[1]))
        return
    if options.fill:
        fill(options.fill, options.files, options.commits)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        bench = Bench(options.store or folder / "store", folder)
        if not bench.store.exists():
            sizes = "--files", str(options.files), "--commits", str(options.commits)
            command = [sys.executable, "-m", "benchmarks.upkeep", *sizes, "--fill", str(bench.store)]
            subprocess.run(command, check=True)
        measure(bench, options.files, options.commits)


def measure(bench: Bench, files: int, commits: int) -> None:
    _, told, took, memory = bench.run(
        "admin", bench.folder, "expire", DATASET, "--keep-last", str(commits // 2), "--json"
    )
    expired = sum(item["expired"] for item in json.loads(told)["items"])
    print(
        f"expire: {expired:,} of {commits:,} commits, {took:.1f} s, {memory >> 20} MiB; {bench.size()}",
        flush=True,
    )
    _, told, _, _ = bench.run("admin", bench.folder, "log", DATASET, "-n", str(commits // 2), "--json")
    kept = [CommitId.parse(item["commit"]) for item in json.loads(told)["items"]]
    bench.written = [{} for _ in range(4)]
    ready = threading.Barrier(7, bench.begin)
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(bench.work, number, ready) for number in range(4)]
        jobs += [pool.submit(bench.cache, number, kept[number::2], ready) for number in range(2)]
        for job in jobs:
            job.add_done_callback(lambda one: ready.abort() if one.exception() else None)
        try:
            with suppress(threading.BrokenBarrierError):  # of those who are told below why they failed
                ready.wait()
                bench.collect()
        finally:
            bench.done.set()
        for job in jobs:
            job.result()
    print(bench.syncs.line("syncs of four workspaces"))
    print(bench.fills.line("fills of two caches"))
    print(f"after it: {bench.size()}", flush=True)
    _, told, took, memory = bench.run("admin", bench.folder, "verify", "--full", "--json")
    print(f"verify --full: {took:.1f} s, {memory >> 20} MiB, nothing lost", flush=True)
    check(bench, files, commits)


if __name__ == "__main__":
    main()
