"""What `dsv gc` costs: requests, memory and time, of the first one in a store and of one after few changes.

    python -m benchmarks.gc                                1,000,000 files, 100 commits; the store takes a while
    python -m benchmarks.gc --files 200000 --commits 20    some minutes
    python -m benchmarks.gc --files 200000 --commits 20 --unused 50000000     with so many chunks that nothing refers to

The store is that of `benchmarks.usage`. All commits but the last two expire, and `dsv gc` runs on a machine that knows
nothing of the store. Then a commit changes one file in a hundred, its parent expires, and `dsv gc` runs again. Each is
a process of its own. Before and after, a small commit is made and the head is read whole, without copies of metadata:
what gc has copied lies elsewhere than locators say. Chunks of --unused are 64 KiB each, 512 in a pack, as index files
and listings have them; their packs take no room on the disk, as nobody reads them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from benchmarks.usage import DATASET, LIMIT, WRITER, commit, fill
from dsv.format import index, keys
from dsv.format.codec import Codec
from dsv.format.locator import ObjectKind
from dsv.format.pack import FOOTER_SIZE, ROW_SIZE
from dsv.format.records import ExpiryAction
from dsv.repo.expiry import append
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.directory import DirectoryStore
from dsv.stores.open import OpenStore
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import CommitId, IndexId, PackId
from dsv.values.names import MAIN

MOST = 0.05
"""Of the requests of the first gc, after one chunk in a hundred is new."""

CHUNK, IN_A_PACK, IN_A_FILE = 64 << 10, 512, 1 << 18


def add_unused(folder: Path, chunks: int) -> None:
    """Add chunks that nothing refers to. Their ids are chance, and their packs are holes."""
    store, chance = DirectoryStore(folder), np.random.default_rng(1)
    small, large = ("kind", "where", "codec", "zero"), ("pack", "offset", "stored", "length", "tail")
    kind = np.dtype([("id", "S32"), *((name, "u1") for name in small), *((name, "<u4") for name in large)])
    for start in range(0, chunks, IN_A_FILE):
        count = min(IN_A_FILE, chunks - start)
        packs = sorted(PackId.random() for _ in range(-(-count // IN_A_PACK)))
        for pack in packs:
            path = folder / keys.pack_key(pack)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(8 + IN_A_PACK * (CHUNK + ROW_SIZE) + FOOTER_SIZE)
        ids = np.frombuffer(np.sort(np.frombuffer(chance.bytes(32 * count), "V32")).tobytes(), "V32")
        rows = np.zeros(count, kind)
        rows["id"], rows["kind"], rows["codec"] = ids.view("S32"), ObjectKind.CHUNK, Codec.RAW
        order = chance.permutation(count).astype("<u4")
        rows["pack"], rows["offset"] = order // IN_A_PACK, 8 + order % IN_A_PACK * CHUNK
        rows["stored"] = rows["length"] = CHUNK
        fanout = np.searchsorted(ids.view("u1")[::32], np.arange(1, 257)).astype("<u4")
        head = index.MAGIC + np.array([len(packs), count], "<u4").tobytes() + fanout.tobytes()
        encoded = head + b"".join(packs) + rows.tobytes()
        store.put_if_absent(keys.index_key(IndexId.random()), encoded + blake3(encoded).digest())
    store.close()


def expire(store: Path, keep: int) -> None:
    repository = Repository.open(DirectoryStore(store), None)
    head = repository.refs.head(DATASET, MAIN).commit
    found: list[CommitId] = []
    while head is not None:
        found.append(head)
        head = next(iter(repository.objects.commit(head).parents), None)
    append(repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: found[keep:])


def collect(store: Path, home: Path, what: str) -> tuple[int, int]:
    """Run `dsv gc`; return its requests, and the most memory that it took."""
    environ = {**os.environ, "HOME": str(home)}
    for name in [name for name in environ if name.startswith(("XDG_", "DSV_"))]:
        del environ[name]
    words = ["gc", "--yes", "--grace", "0s", "--json", "--store", str(store), "--progress", "none"]
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "dsv"), *words], env=environ, cwd=home, stdout=out
        )
        _, status, used = os.wait4(process.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        took = time.monotonic() - begin
        out.seek(0)
        done: dict[str, Any] = json.loads(out.read())
    counts = {name: number for name, number in done["requests"].items() if name != "delete"}
    total, memory = sum(counts.values()), used.ru_maxrss * 1024
    print(
        f"{what}: {total:,} requests {counts}, {memory / (1 << 20):.0f} MiB, {took:.1f} s; "
        f"{done['deleted']:,} packs with {done['deleted_bytes']:,} bytes are gone, {done['copied_bytes']:,} copied",
        flush=True,
    )
    return total, memory


def counted(store: Path, what: str, work: Callable[[Repository], object]) -> None:
    opened = OpenStore(DirectoryStore(store))
    repository = Repository.open(opened, None)
    before, begin = opened.counts, time.monotonic()
    work(repository)
    took = time.monotonic() - begin
    print(f"{what}: {(opened.counts - before).requests:,} requests, {took:.1f} s", flush=True)
    repository.objects.threads.close()
    opened.close()


def read_head(repository: Repository) -> None:
    head = repository.refs.head(DATASET, MAIN).commit
    assert head is not None
    entries = TreeReader(repository.objects, head).below(b"")
    for _, pieces in Fetcher(repository.objects).files(WantedFile(entry, where) for entry, where in entries):
        for _ in pieces:
            pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--unused", type=int, default=0, help="chunks more that nothing refers to")
    parser.add_argument("--folder", type=Path, help="where the store is made, and removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        store, home = Path(temporary) / "store", Path(temporary) / "home"
        home.mkdir()
        fill(store, options.files, options.commits)
        counted(store, "a commit before", lambda repository: commit(repository, [3], "before"))
        counted(store, "reading the head before", read_head)
        expire(store, 2)
        add_unused(store, options.unused)
        first, memory = collect(store, home, "the first")
        counted(store, "a commit after", lambda repository: commit(repository, [5], "after"))
        counted(store, "reading the head after", read_head)
        repository = Repository.open(DirectoryStore(store), None)
        commit(repository, range(7, options.files, 100), "one in a hundred")
        repository.objects.threads.close()
        expire(store, 1)
        second, more = collect(store, home, "the second")
    print(f"the second made {second / first:.1%} of the requests of the first")
    sys.exit(f"more than {LIMIT >> 20} MiB" if max(memory, more) > LIMIT else 0)


if __name__ == "__main__":
    main()
