"""Syncs that die at one call after another, to a store with names elsewhere whose bucket can't decide who wins."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from dsv.repo.repository import Repository
from dsv.stores.open import OpenStore, open_raw
from dsv.stores.options import StoreOptions
from dsv.stores.retry import Retrying
from dsv.values.ids import CommitId
from dsv.values.names import MAIN
from tests.kit.people import SCANS, Files, Person, every_store_is, read_commit
from tests.stores.faulty import Crash, Fault, Faulty, Kind

WithFaults = Callable[[OpenStore, int], tuple[OpenStore, Faulty]]


def opened(names: Path, url: str, options: StoreOptions) -> OpenStore:
    return OpenStore(Retrying(open_raw(url, options)), Retrying(open_raw(str(names), options, create=True)))


def in_the_names(store: OpenStore, number: int) -> tuple[OpenStore, Faulty]:
    """A crash after the n-th call to the place of the names."""
    faulty = Faulty(store.names, {number: Fault(Kind.CRASH_AFTER)})
    return OpenStore(store.data, faulty), faulty


def in_the_data(store: OpenStore, number: int) -> tuple[OpenStore, Faulty]:
    """A crash after the n-th call to the bucket."""
    faulty = Faulty(store.data, {number: Fault(Kind.CRASH_AFTER)})
    return OpenStore(faulty, store.names), faulty


def sync_through_crashes(home: Path, store: OpenStore, faults: WithFaults) -> int:
    """Sync with a crash after each call, and return the number of calls.

    After each crash the branch has the old commit or the whole new one, and the next sync continues; in the end all
    commits are as they were published.
    """
    person = Person(home, "memory://unused")
    with every_store_is(store):
        person.init()
        person.write({"kept.txt": b"kept", "changed.txt": b"0"})
        person.sync()
    published: dict[CommitId, Files] = {}
    for number in count(1):
        before = person.files() if not published else next(reversed(published.values()))
        person.write({"changed.txt": str(number).encode(), f"d/{number}.txt": b"new" * number})
        after = person.files()
        failing, faulty = faults(store, number)
        with every_store_is(failing):
            try:
                person.sync()
            except Crash:
                assert faulty.crashed
        head = Repository.open(store, None).refs.head(SCANS, MAIN).commit
        assert head is not None
        assert read_commit(store, head) in (before, after), number
        with every_store_is(store):
            done = person.sync()
        assert done.commit is not None
        published[done.commit] = after
        assert person.files() == after
        if faulty.calls < number:
            break
    for commit, files in published.items():
        assert read_commit(store, commit) == files
    history = [one.commit for one in Repository.open(store, None).refs.history(
        Repository.open(store, None).refs.head(SCANS, MAIN)
    )]  # fmt: skip
    assert history[::-1][-len(published) :] == list(published)
    return number - 1


def main(home: str, names: str, url: str) -> None:
    """On a host: its answer is how many calls there were."""
    store = opened(Path(names), url, StoreOptions.from_environment(os.environ))
    print(json.dumps(sync_through_crashes(Path(home), store, in_the_names)))


if __name__ == "__main__":
    main(*sys.argv[1:])
