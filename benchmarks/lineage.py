"""How long lineage takes over a store with a latency: python -m benchmarks.lineage

The store has 10,000 commits and 100,000 runs, of which 1,000 used one commit; each request takes 20 ms, and a listing
that much for each 1,000 keys. Everything is in memory; the graph is built anew, with no copies on this machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec
from tests.kit.lineage import MODELS, RAW, Lab

from dsv.format.keys import commit_key
from dsv.format.records import CommitRecord
from dsv.repo.repository import Repository
from dsv.run.record import IntoBranch, RunData, RunId, RunOutput
from dsv.stores.base import LARGEST, ListedObject
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import MAIN, DatasetName

PAGE = 1000


class Slow(MemoryStore):
    """A store whose answers take `latency` seconds. `requests` counts them."""

    latency = 0.0
    requests = 0

    def _wait(self) -> None:
        self.requests += 1
        time.sleep(self.latency)

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self._wait()
        return super().get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self._wait()
        return super().get_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        self._wait()
        for number, item in enumerate(super().list(prefix, start_after), 1):
            yield item
            if not number % PAGE:
                self._wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=1_000, help="runs that used the commit")
    options = parser.parse_args()
    store = Slow()
    lab = Lab(store)
    used = lab.commit(RAW, {"a": b"a"})
    like = lab.repository.objects.commit(used)
    model = lab.record(lab.data(RAW, used))

    def commit(dataset: DatasetName, number: int) -> CommitRecord:
        root = NodeId.hash(f"{dataset} {number}".encode())
        made = msgspec.structs.replace(like, root=root, dataset=dataset, message=f"{number}")
        store.put_if_absent(commit_key(made.id), made.encode())
        return made

    commits = [commit(RAW, number) for number in range(max(1, options.commits - options.users))]
    data = [(one.id, one.root.hex()) for one in commits]
    for number in range(options.runs):
        is_user = number < options.users
        saw, root = (used, lab.root(used)) if is_user else data[number % len(data)]
        record = replace(
            model,
            run=RunId.parse(f"20261128-{number // 1000:06d}-{number:08x}"),
            data=(RunData("", RAW, saw, None, 1, 1, root, root),),
        )
        if is_user:
            result = commit(MODELS, number)
            into = IntoBranch(MODELS, MAIN, result.id, result.root.hex(), None, True)
            record = replace(record, output=RunOutput(into=into))
        lab.end(record)
    print(f"made {options.runs:,} runs and {options.commits:,} commits")
    store.latency = 0.02
    _report("down", lab, RAW, used, down=True)

    store.latency = 0.0
    last, dataset = used, RAW
    for number in range(10):
        after = DatasetName.parse(f"step-{number}")
        _, last = lab.step(after, {f"{number}": b"x"}, lab.data(dataset, last))
        dataset = after
    store.latency = 0.02
    _report("up, ten steps", lab, dataset, last, down=False)


def _report(what: str, lab: Lab, dataset: DatasetName, commit: CommitId, *, down: bool) -> None:
    store = lab.store
    assert isinstance(store, Slow)
    lab.repository = Repository.open(store, None)
    store.requests, began, cpu = 0, time.monotonic(), time.process_time()
    found = lab.lineage(dataset, commit, down=down)
    took, busy = time.monotonic() - began, time.process_time() - cpu
    counts = f"{len(found.nodes):,} nodes, {len(found.edges):,} edges, {store.requests:,} requests"
    print(f"{what}: {counts}, {took:.1f} s, {busy:.1f} s of CPU")


if __name__ == "__main__":
    main()
