"""A sync with very many syncs behind it: cold and warm, against a store that has seen ten.

    python -m benchmarks.indexes                                  in a folder of its own
    python -m benchmarks.indexes --store s3://bucket/prefix       in a bucket; the prefix must be new
    python -m benchmarks.indexes --syncs 1000 --rounds 3

Index files as a sync of one small file leaves them are written straight into the store. Then one file is changed and
synced, with nothing of the store on this machine (cold) and with what earlier syncs have left (warm): as the store is,
after the merge that the first of these syncs makes, and after what it replaced is deleted.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.index import IndexBuilder
from dsv.format.locator import Location, ObjectKind
from dsv.format.records import WriterIdentity
from dsv.repo import merge_indexes
from dsv.repo.repository import Repository
from dsv.stores.base import StoreBackend
from dsv.stores.open import open_store
from dsv.stores.options import StoreOptions
from dsv.values.ids import Id, IndexId, PackId

ROWS = (ObjectKind.CHUNK, ObjectKind.SEGMENT, ObjectKind.NODE)
WRITER = WriterIdentity("bench", "bench", "benchmarks.indexes")


class Person:
    """Somebody with a home and a workspace of their own."""

    def __init__(self, folder: Path, store: str) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        self.environ = {**os.environ, "HOME": str(self.home), "DSV_STORE": store}
        for name in [name for name in self.environ if name.startswith("XDG_")]:
            del self.environ[name]
        self.number = 0
        self.dsv("init", "bench")
        self.change()
        self.dsv("sync", "-q")

    def dsv(self, *arguments: str) -> float:
        begin = time.monotonic()
        subprocess.run(
            [str(Path(sys.executable).parent / "dsv"), *arguments],
            cwd=self.work,
            env=self.environ,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.monotonic() - begin

    def change(self) -> None:
        self.number += 1
        (self.work / "file.txt").write_text(f"{self.number}\n")

    def syncs(self, rounds: int, *, cold: bool) -> list[float]:
        took = []
        for _ in range(rounds):
            if cold:
                shutil.rmtree(self.home / ".cache", ignore_errors=True)
            self.change()
            took.append(self.dsv("sync", "-q"))
        return took


def fill(store: StoreBackend, syncs: int) -> None:
    """Index files of as many syncs, which say nothing that anybody looks for."""

    def put(_: int) -> None:
        builder, pack = IndexBuilder(), PackId.random()
        for at, kind in enumerate(ROWS):
            builder.add(kind, Id(os.urandom(32)), Location(pack, 8 + 100 * at, 100, 100, Codec.RAW))
        store.put_if_absent(keys.index_key(IndexId.random()), builder.finish())

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(syncs)))


def settle(store: StoreBackend) -> None:
    """As it is an hour after the last merge and the next one."""
    merge_indexes.GRACE_SECONDS = 0.0
    for _ in range(3):
        print("  ", merge_indexes.merge_indexes(Repository.open(store, None), WRITER))


def show(what: str, took: list[float]) -> None:
    print(
        f"{what:45} median {statistics.median(took):6.2f} s   ({' '.join(f'{one:.2f}' for one in took)})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", help="a prefix of a bucket, or a folder that is not there yet")
    parser.add_argument("--syncs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for syncs in (10, options.syncs):
            url = f"{options.store or base / 'store'}-{syncs}"
            person = Person(base / str(syncs), url)
            store = open_store(url, StoreOptions.from_environment(os.environ))
            fill(store, syncs)
            print(f"{syncs} syncs behind")
            if syncs > 10:
                show("cold, none was merged; this one merges", person.syncs(1, cold=True))
                show("cold, nothing deleted yet", person.syncs(options.rounds, cold=True))
                show("warm, nothing deleted yet", person.syncs(options.rounds, cold=False))
                settle(store)
            show("cold", person.syncs(options.rounds, cold=True))
            show("warm", person.syncs(options.rounds, cold=False))
            store.close()


if __name__ == "__main__":
    main()
