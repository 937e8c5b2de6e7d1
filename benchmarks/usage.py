"""The memory and time of `dsv du` on a store of very many files and commits.

    python -m benchmarks.usage                                1,000,000 files, 1,000 commits; the store takes an hour
    python -m benchmarks.usage --files 200000 --commits 50    some minutes
    python -m benchmarks.usage --store DIR                    keeps the store, or measures one that is there

Each commit after the first changes 200 files: every other one a run of neighbours, the others files all over the tree.
`dsv du` then runs twice in processes of its own: with nothing of the store on this machine, and with what the first
has left.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path

from dsv.format.records import CommitRecord, RefEntry, WriterIdentity
from dsv.format.tree import Entry, Kind
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange, write_tree
from dsv.stores.directory import DirectoryStore
from dsv.transfer.upload import Uploader
from dsv.values.ids import Nonce
from dsv.values.names import MAIN, DatasetName

WRITER = WriterIdentity("bench", "bench", "benchmarks.usage")
DATASET = DatasetName.parse("bench")
CHANGES = 200
LIMIT = 500 << 20


def commit(repository: Repository, numbers: Iterable[int], label: str) -> None:
    """Commit new contents of these files."""
    head = repository.refs.head(DATASET, MAIN)
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        changes = []
        for number in numbers:
            path = f"d{number // 1000:05}/f{number:08}.bin".encode()
            stored = uploader.add_bytes(f"{number} {label}".encode())
            entry = Entry(path, Kind.FILE, stored.size, stored.file_id, stored.recipe_id)
            changes.append(TreeChange(path, entry, stored.location))
        base = None if head.commit is None else TreeReader(repository.objects, head.commit)
        tree = write_tree(uploader, base, changes)
        uploader.finish()
        made = CommitRecord(
            root=tree.root, level=tree.level, parents=() if head.commit is None else (head.commit,),
            author=WRITER.author, time_ms=repository.clock(), message=label, files=tree.files, bytes=tree.bytes,
            entries=tree.entries,
        )  # fmt: skip
        commit_id = session.put_commit(repository.named(made, DATASET, MAIN), tree.locator)
        move = RefEntry(commit_id, False, Nonce.random(), repository.clock(), WRITER.author, "sync")
        assert isinstance(session.publish(DATASET, MAIN, head, move), Head)
        session.close()


def fill(folder: Path, files: int, commits: int) -> None:
    folder.mkdir(parents=True)
    store = DirectoryStore(folder)
    repository = Repository.create(store, None, author=WRITER.author, tool=WRITER.tool)
    entry = RefEntry(None, False, Nonce.random(), repository.clock(), WRITER.author, "init")
    assert isinstance(repository.refs.move(DATASET, MAIN, None, entry), Head)
    chance = random.Random(1)
    for number in range(commits):
        start = chance.randrange(max(1, files - CHANGES))
        near, far = range(start, min(files, start + CHANGES)), sorted(chance.sample(range(files), CHANGES))
        commit(repository, range(files) if not number else near if number % 2 else far, str(number))
        if number % 100 == 0:
            print(f"  {number + 1:,} of {commits:,} commits", flush=True)
    store.close()


def measure(store: Path, home: Path, what: str) -> int:
    """Run `dsv du`, and return the most memory that it took."""
    environ = {**os.environ, "HOME": str(home)}
    for name in [name for name in environ if name.startswith(("XDG_", "DSV_"))]:
        del environ[name]
    command = [str(Path(sys.executable).parent / "dsv"), "du", "--store", str(store), "--progress", "none"]
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environ, cwd=home)
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    took = time.monotonic() - begin
    memory = used.ru_maxrss * 1024
    processor = used.ru_utime + used.ru_stime
    print(f"{what}: {took:.1f} s, {processor:.1f} s of a processor, {memory / (1 << 20):.0f} MiB", flush=True)
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--store", type=Path, help="a folder; one that is there is measured as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store, home = options.store or Path(temporary) / "store", Path(temporary) / "home"
        home.mkdir()
        if not store.exists():
            # In a process of its own: the most memory of what is started here counts from this one's on.
            filling = get_context("spawn").Process(target=fill, args=(store, options.files, options.commits))
            filling.start()
            filling.join()
            assert not filling.exitcode
        most = max(measure(store.resolve(), home, what) for what in ("the first", "the second"))
        shutil.rmtree(home)
    sys.exit(f"more than {LIMIT >> 20} MiB" if most > LIMIT else 0)


if __name__ == "__main__":
    main()
