"""Small stores with something to collect, and what must hold afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dsv.errors import Conflict
from dsv.format import keys
from dsv.format.records import CommitRecord, ExpiryAction, RefEntry
from dsv.repo.expiry import append
from dsv.repo.merge_indexes import merge_indexes
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import write_tree
from dsv.stores.base import ListedObject, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.upload import Uploader
from dsv.upkeep.gc import Collected, Collector, Options
from dsv.values.ids import CommitId, Nonce, PackId
from dsv.values.names import MAIN
from tests.kit.packs import verify
from tests.kit.repositories import DATASET, WRITER, Files, change, commit, create, read
from tests.stores.wrapper import Watched, Wrapper

SOON = Options(grace=-60.0, silent=60.0, poll=10.0, max_wait=3600.0)
"""A store in memory says of each key that it was made just now."""


ORPHAN = PackId(bytes(16))
"""A pack that no index names."""


class Time:
    """A clock that advances when somebody sleeps. asleep: what happens meanwhile."""

    def __init__(self, asleep: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._asleep = asleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._asleep()


def collect(
    store: StoreBackend,
    folder: Path,
    options: Options = SOON,
    time: Time | None = None,
    *,
    notes: Path | None = None,
    metadata: Path | None = None,
) -> Collected:
    """A garbage collection of its own, as another process would make it."""
    time = Time() if time is None else time
    repository = Repository.open(store, None if metadata is None else lambda _: metadata)
    try:
        return Collector(repository, WRITER, folder, options, clock=time, sleep=time.sleep, notes=notes).run()
    finally:
        repository.objects.threads.close()


class World:
    """Commits of one branch, of which the first ones are expired; what each had when it was made; and the rest of a
    killed upload."""

    def __init__(
        self, store: StoreBackend, commits: int = 5, expired: int = 3, *, merged: bool = True
    ) -> None:
        self.store = store
        self.files: dict[CommitId, Files] = {}
        self.repository = create(store)
        source = random.Random(5)
        for number in range(commits):
            self.change({
                "changes": source.randbytes(20_000), f"kept {number}": source.randbytes(300),
                f"d/same {number % 2}": bytes([number % 2]) * 500, "empty": b"",
            })  # fmt: skip
            if merged and number == 2:
                merge_indexes(self.repository, WRITER)
        self.expired = list(self.files)[:expired]
        self.expire(self.expired)
        first = next(iter(store.list(keys.PACK_PREFIX))).key
        store.put_if_absent(keys.pack_key(ORPHAN), store.get(first))

    def change(self, files: Files) -> CommitId:
        before = next(reversed(self.files.values())) if self.files else {}
        made = commit(self.repository, files)
        self.files[made] = {**before, **files}
        return made

    def expire(self, commits: list[CommitId]) -> None:
        append(self.repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: commits)

    @property
    def kept(self) -> dict[CommitId, Files]:
        return {one: files for one, files in self.files.items() if one not in self.expired}

    def check(self, store: StoreBackend | None = None) -> None:
        """Every commit that is not expired is there, byte for byte, for somebody without a copy of anything; and every
        pack is whole."""
        store = self.store if store is None else store
        repository = Repository.open(store, None)
        for one, files in self.kept.items():
            assert read(repository, one) == files
        repository.objects.threads.close()
        for item in store.list(keys.PACK_PREFIX):
            verify(store.get(item.key))


def read_left(repository: Repository, commit_id: CommitId) -> tuple[Files, set[str]]:
    """Return the files of a commit that were not erased, and the paths of those that were."""
    wanted, erased = [], set[str]()
    for entry, where in TreeReader(repository.objects, commit_id).below(b""):
        if repository.objects.erasures.of(entry) is not None:
            erased.add(entry.path.decode())
        elif entry.is_file:
            wanted.append(WantedFile(entry, where))
    files: Files = {}
    for file, pieces in Fetcher(repository.objects).files(wanted):
        files[file.entry.path.decode()] = b"".join(pieces)
    return files, erased


def size(store: StoreBackend) -> int:
    return sum(item.size for item in store.list(keys.PACK_PREFIX))


class Writing:
    """A commit under way: all of it is in packs and indexes, and nothing names it."""

    def __init__(self, store: StoreBackend, files: Mapping[str, bytes | None]) -> None:
        self.repository = Repository.open(store, None)
        self.head = self.repository.refs.head(DATASET, MAIN)
        assert self.head.commit is not None
        self.files = {**read_left(self.repository, self.head.commit)[0], **files}
        self.session = Session.open(self.repository, WRITER)
        uploader = Uploader(self.session)
        base = TreeReader(self.repository.objects, self.head.commit)
        changes = [change(uploader, name, files[name]) for name in sorted(files)]
        tree = write_tree(uploader, base, changes)
        uploader.finish()
        uploader.__exit__()
        made = CommitRecord(
            root=tree.root, level=tree.level, parents=(self.head.commit,), author=WRITER.author, time_ms=9,
            message="beside", files=tree.files, bytes=tree.bytes, entries=tree.entries,
        )  # fmt: skip
        self.commit = self.session.put_commit(self.repository.named(made, DATASET, MAIN), tree.locator)

    def publish(self) -> bool:
        """Return whether gc let it."""
        entry = RefEntry(self.commit, False, Nonce.random(), 9, WRITER.author, "sync")
        try:
            assert isinstance(self.session.publish(DATASET, MAIN, self.head, entry), Head)
        except Conflict:
            return False
        finally:
            self.session.__exit__()
        return True


class Beside(Watched):
    """Before the n-th request, or the first one of a kind, somebody else does something. A kind is the last part of a
    key that is put, or `get packs`, `list packs`, with the first part of a key."""

    def __init__(self, inner: StoreBackend, actions: Mapping[int | str, Callable[[], None]]) -> None:
        super().__init__(inner, self._begin)
        self._actions = dict(actions)
        self._lock = threading.Lock()
        self.calls = 0

    def _begin(self, kind: str, key: str) -> None:
        """gc asks from several threads; the others come one after the other."""
        last = key.rpartition("/")[2] if kind == "put" else f"{kind} {key.partition('/')[0]}"
        with self._lock:
            self.calls += 1
            for moment in (self.calls, last):
                self._actions.pop(moment, lambda: None)()


class Meanwhile:
    """Calls something before the n-th request that reads of a store that a command has opened, and lets it finish."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, action: Callable[[], None]) -> None:
        self._left = number
        self._action = action
        self._lock = threading.Lock()
        self.called = False
        for name in ("get", "get_range", "list"):
            patch.setattr(OpenStore, name, self._counted(getattr(OpenStore, name)))

    def _counted(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self._left -= 1
                mine = self._left == 0
            if mine:
                self.called = True
                self._action()
            return read(*arguments, **named)

        return counted


def copy_of(store: StoreBackend) -> MemoryStore:
    made = MemoryStore()
    for item in store.list(""):
        made.put_if_absent(item.key, store.get(item.key))
    return made


class EndsEarly(Wrapper):
    """The n-th listing, or all from the n-th on, end after half of what they have, and say nothing."""

    def __init__(self, inner: StoreBackend, number: int, *, further: bool = False) -> None:
        super().__init__(inner)
        self._number = number
        self._further = further
        self.listings = 0

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        found = list(self.inner.list(prefix, start_after))
        return iter(found[: len(found) // 2] if self._cut() else found)

    def folders(self, prefix: str) -> Sequence[str]:
        found = self.inner.folders(prefix)
        return found[: len(found) // 2] if self._cut() else found

    def _cut(self) -> bool:
        self.listings += 1
        return self.listings == self._number or (self._further and self.listings > self._number)
