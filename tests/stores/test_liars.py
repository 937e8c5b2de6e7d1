"""Servers that do not keep what they promise, behind the conformance suite and under syncs that die at every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dsv.errors import DsvError
from dsv.stores.base import LARGEST, Bytes, ListedObject, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore, open_raw
from dsv.stores.options import StoreOptions
from dsv.stores.probe import prove_data
from dsv.stores.retry import Retrying
from tests.api.test_sync_crash import Overwriting
from tests.labs.s3_server import S3Server
from tests.stores.conformance import ANSWERS, StoreConformance, Subject, subjects
from tests.stores.crashing import WithFaults, in_the_data, in_the_names, opened, sync_through_crashes
from tests.stores.outside import Outside, OutsideDirectory, OutsideS3
from tests.stores.split_world import World
from tests.stores.wrapper import Wrapper


class Below(Wrapper):
    """The keys of a store that begin with `folder`, without it."""

    def __init__(self, inner: StoreBackend, folder: str) -> None:
        super().__init__(inner)
        self._folder = folder

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        with self._named():
            return self.inner.get(self._folder + key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        with self._named():
            return self.inner.get_range(self._folder + key, start, length)

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        return self.inner.put_if_absent(self._folder + key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        after = None if start_after is None else self._folder + start_after
        for item in self.inner.list(self._folder + prefix, after):
            yield ListedObject(item.key.removeprefix(self._folder), item.size)

    def folders(self, prefix: str) -> Sequence[str]:
        return self.inner.folders(self._folder + prefix)

    def modified(self, key: str) -> float:
        return self.inner.modified(self._folder + key)

    def delete(self, key: str) -> None:
        self.inner.delete(self._folder + key)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An error names the key as it was asked for."""
        try:
            yield
        except DsvError as error:
            error.subject = (error.subject or "").removeprefix(self._folder)
            raise


class TestNames(StoreConformance):
    """Keys that need a winner have one, whatever the bucket does."""

    runs = ANSWERS
    many = 50

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        names = tmp_path / "names"
        store = OpenStore(Overwriting(), open_raw(str(names), StoreOptions(), create=True))
        yield from subjects(lambda: Subject(Below(store, "refs/"), OutsideDirectory(names / "refs")))


class TestData(StoreConformance):
    """Keys that need none are read, listed and deleted as usual, though the server is busy and cuts bodies."""

    runs = (*ANSWERS, "test_big_value")
    many = 50

    @pytest.fixture
    def subject(self, world: World, ceph_s3: S3Server) -> Iterator[Subject]:
        world.does.ignores_condition, world.does.slow_down, world.does.cut_body = True, 7, 5
        options = StoreOptions.from_environment(world.server.env)
        store = OpenStore(Retrying(open_raw(world.url, options), sleep=lambda _: None), MemoryStore())
        store.conditional = False  # as `dsv init` finds out
        outside = OutsideS3(ceph_s3.client(), world.bucket, "dsv/packs")
        yield from subjects(lambda: Subject(Below(store, "packs/"), outside))

    def test_never_overwrites(self, store: StoreBackend, outside: Outside) -> None:
        """The same bytes twice are the same bytes."""
        assert [store.put_if_absent("k", b"same") for _ in range(2)] == [PutResult.WON] * 2
        assert store.get("k") == outside.get("k") == b"same"

    def test_is_proven(self, store: StoreBackend, outside: Outside) -> None:
        assert prove_data(store) == ()
        assert outside.keys() == set()

    test_empty_value = test_one_of_many_threads_wins = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("answer", "faults"),
    [(None, in_the_names), (None, in_the_data), (501, in_the_names)],
    ids=["ignored, names", "ignored, data", "refused, names"],
)
def test_a_sync_that_dies_after_any_call_is_continued(
    world: World, tmp_path: Path, answer: int | None, faults: WithFaults
) -> None:
    world.does.ignores_condition, world.does.condition_answer = answer is None, answer
    with closing(opened(world.names, world.url, StoreOptions.from_environment(world.server.env))) as store:
        calls = sync_through_crashes(tmp_path / "ann", store, faults)
    assert calls > 8
    print(f"{calls} calls")
