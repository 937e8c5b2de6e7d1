"""Merged index files: what every reader and writer finds, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsv.errors import Denied
from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.index import Index, IndexBuilder
from dsv.format.locator import Location, ObjectKind
from dsv.format.records import IndexMerge
from dsv.repo import merge_indexes as module
from dsv.repo import session as session_module
from dsv.repo.merge_indexes import GRACE_SECONDS, IndexMergeResult, merge_indexes, tidy
from dsv.repo.objects import indexes as indexes_module
from dsv.repo.objects import indexes as remote_module
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import ChunkId, CommitId, Id, IndexId, PackId
from tests.kit.repositories import WRITER, commit, condemn, create, packs, read
from tests.stores.faulty import Crash, Fault, Faulty, Kind, Operation
from tests.stores.wrapper import Wrapper


class Clocked(MemoryStore):
    """Notes when each key was written, by a clock that tests turn."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1e9
        self.times: dict[str, float] = {}

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        put = super().put_if_absent(key, data)
        if put is PutResult.WON:
            self.times[key] = self.now
        return put

    def modified(self, key: str) -> float:
        super().modified(key)
        return self.times[key]


def reopened(store: StoreBackend, folder: Path | None = None) -> Repository:
    return Repository.open(store, None if folder is None else lambda _: folder)


def add(repository: Repository, syncs: int, start: int = 0) -> dict[Id, Location]:
    """As many index files as syncs leave. What they say is made up."""
    rows: dict[Id, Location] = {}
    with Session.open(repository, WRITER) as session:
        for number in range(start, start + syncs):
            builder = IndexBuilder()
            for at in range(5):
                object_id = ChunkId.hash(b"%d %d" % (number, at))
                rows[object_id] = Location(PackId.random(), 8 + at, 1, 1, Codec.RAW)
                builder.add(ObjectKind.CHUNK, object_id, rows[object_id])
            session.put_index(builder.finish())
        session.close()
    return rows


def index_files(store: StoreBackend) -> list[IndexId]:
    return [one for item in store.list("index/") if (one := keys.parse_index_key(item.key)) is not None]


def found_by(repository: Repository, rows: dict[Id, Location]) -> bool:
    indexes = repository.objects.indexes
    return all(indexes.find(ObjectKind.CHUNK, object_id) == place for object_id, place in rows.items())


def found_by_old_version(store: StoreBackend, rows: dict[Id, Location]) -> bool:
    """One that knows nothing of merges reads every index file, and nothing else."""
    files = [Index.parse(store.get(keys.index_key(one))) for one in index_files(store)]
    return all(
        any(file.find(ObjectKind.CHUNK, object_id) == place for file in files)
        for object_id, place in rows.items()
    )


def test_a_writer_reads_few_files_after_a_merge() -> None:
    store = OpenStore(Clocked())
    rows = add(create(store), 300)
    assert merge_indexes(reopened(store), WRITER) == IndexMergeResult(300, 1, 0)
    before = store.counts
    assert found_by(reopened(store), rows)
    asked = store.counts - before
    assert (asked.lists, asked.gets - 2) == (1, 2)  # format 2; the record, the file
    assert found_by_old_version(store, rows)


def test_replaced_files_are_deleted_by_a_later_merge() -> None:
    store = Clocked()
    rows = add(create(store), 40)
    first = set(index_files(store))
    merge_indexes(reopened(store), WRITER)
    rows |= add(reopened(store), 40, 40)
    store.now += GRACE_SECONDS - 1
    assert merge_indexes(reopened(store), WRITER).deleted == 0
    store.now += GRACE_SECONDS
    assert merge_indexes(reopened(store), WRITER) == IndexMergeResult(0, 1, 81)
    assert len(index_files(store)) == 1 and not first & {*index_files(store)}
    assert [item.key for item in store.list("index/merge-")] == [store_record(store)]
    assert found_by(reopened(store), rows) and found_by_old_version(store, rows)


def store_record(store: StoreBackend) -> str:
    return max(item.key for item in store.list("index/merge-"))


def test_a_file_that_is_in_no_other_is_not_deleted() -> None:
    """Whatever a record says: somebody has written one that is wrong."""
    store = Clocked()
    repository = create(store)
    rows = add(repository, 30)
    merge_indexes(repository, WRITER)
    more = add(repository, 3, 100)
    (right,) = [IndexMerge.decode(store.get(store_record(store)))]
    gone = {*index_files(store)} - {right.files[0].id}
    wrong = IndexMerge.of(right.by_run, gone, 0, "test")
    store.put_if_absent(keys.index_merge_key(1, IndexId.random()), wrong.encode())
    store.now += 2 * GRACE_SECONDS
    assert merge_indexes(reopened(store), WRITER).deleted == 30
    assert len(index_files(store)) == 4
    again = reopened(store)
    for object_id, place in more.items():  # a writer may miss them, a reader finds them
        assert [*again.objects._places(ObjectKind.CHUNK, object_id)] == [place]
    assert found_by(again, rows)


def test_whoever_may_not_delete_merges_all_the_same() -> None:
    class Kept(Wrapper):
        def delete(self, key: str) -> None:
            raise Denied(f"{key} may not be deleted", subject=key)

    clocked = Clocked()
    store = Kept(clocked)
    rows = add(create(store), 30)
    for start in range(100, 250, 30):
        merge_indexes(reopened(store), WRITER)
        rows |= add(reopened(store), 30, start)
        clocked.now += 2 * GRACE_SECONDS
    assert merge_indexes(reopened(store), WRITER).deleted == 0
    assert len(reopened_files(store)) <= 4
    assert found_by(reopened(store), rows) and found_by_old_version(store, rows)


def reopened_files(store: StoreBackend) -> list[IndexId]:
    indexes = reopened(store).objects.indexes
    indexes.refresh()
    return [*indexes.listed.standing.files]


def test_a_sync_merges_indexes_when_it_found_too_many() -> None:
    store = Clocked()
    repository = create(store)
    rows: dict[Id, Location] = {}
    counts = []
    for number in range(120):
        repository = reopened(store)
        rows |= add(repository, 1, number)
        repository.objects.indexes.find(ObjectKind.CHUNK, next(iter(rows)))
        tidy(repository, WRITER)
        counts.append(len(reopened_files(store)))
    assert max(counts) <= module.MOST_UNITS + 2 and counts.count(1) < 10
    assert found_by(reopened(store), rows)


def test_a_sync_of_few_index_files_writes_nothing_more() -> None:
    store = OpenStore(MemoryStore())
    repository = create(store)
    add(repository, 10)
    repository.objects.indexes.refresh()
    before = store.counts
    tidy(repository, WRITER)
    assert store.counts == before


def test_files_that_name_condemned_packs_are_not_merged_and_all_others_are() -> None:
    repository = create(MemoryStore())
    commit(repository, {"a": b"1"})
    named = set(index_files(repository.store))
    condemn(repository, 0, packs(repository))
    rows = add(repository, 40)
    again = reopened(repository.store)
    done = merge_indexes(again, WRITER)
    assert done.merged == len(index_files(repository.store)) - len(named) - 1 > 1
    assert set(again.objects.indexes.listed.standing.loose) == named
    assert found_by(reopened(repository.store), rows)
    assert merge_indexes(reopened(repository.store), WRITER).merged == 0


def test_every_place_of_an_object_is_kept() -> None:
    """One of its packs may be lost, and the sync that stored it again has written the other place."""
    repository = create(MemoryStore())
    object_id = ChunkId.hash(b"x")
    expected = {Location(PackId.random(), 8, 1, 1, Codec.RAW) for _ in range(3)}
    with Session.open(repository, WRITER) as session:
        for place in expected:
            builder = IndexBuilder()
            builder.add(ObjectKind.CHUNK, object_id, place)
            session.put_index(builder.finish())
    merge_indexes(repository, WRITER)
    again = reopened(repository.store).objects.indexes
    assert set(again.places(ObjectKind.CHUNK, object_id)) == expected
    absent = {place.pack for place in sorted(expected)[:2]}
    assert again.find(ObjectKind.CHUNK, object_id, usable=lambda kind, one, pack: pack not in absent) == max(
        expected
    )
    assert merge_indexes(repository, WRITER).merged == 0  # the three are one run


def crashes(operations: tuple[Operation, ...]) -> Iterator[tuple[Kind, int]]:
    """Every call of the second merge of `prepared`, before and after its effect."""
    store, _ = prepared()
    faulty = Faulty(store, only=operations)
    merge_indexes(reopened(faulty), WRITER)
    for number in range(1, faulty.calls + 1):
        for kind in (Kind.CRASH_BEFORE, Kind.CRASH_AFTER):
            yield kind, number


def prepared() -> tuple[Clocked, dict[Id, Location]]:
    """A store of which one merge was made long ago, and that needs another."""
    store = Clocked()
    rows = add(create(store), 6)
    merge_indexes(reopened(store), WRITER)
    rows |= add(reopened(store), 7, 6)
    store.now += 2 * GRACE_SECONDS
    return store, rows


def test_a_crash_after_every_call_loses_no_row() -> None:
    tried = 0
    for kind, number in crashes((Operation.PUT, Operation.DELETE)):
        store, rows = prepared()
        faulty = Faulty(store, {number: Fault(kind)}, only=(Operation.PUT, Operation.DELETE))
        with pytest.raises(Crash):
            merge_indexes(reopened(faulty), WRITER)
        assert found_by(reopened(store), rows) and found_by_old_version(store, rows)
        merge_indexes(reopened(store), WRITER)
        assert found_by(reopened(store), rows) and found_by_old_version(store, rows)
        assert len(reopened_files(store)) <= 2
        tried += 1
    assert tried > 30


def test_whoever_listed_before_a_merge_finds_everything_after_its_files_are_gone() -> None:
    """The files are deleted between the listing and the reading, with no time of grace."""
    store, rows = prepared()

    class Overtaken(Wrapper):
        done = False

        def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
            rows = [*self.inner.list(prefix, start_after)]
            if prefix == keys.INDEX_PREFIX and not self.done:
                self.done = True
                merge_indexes(reopened(store), WRITER)
                store.now += 2 * GRACE_SECONDS
                assert merge_indexes(reopened(store), WRITER).deleted
            return iter(rows)

    assert found_by(reopened(Overtaken(store)), rows)


def test_many_merge_and_write_at_the_same_time() -> None:
    store = Clocked()
    repository = create(store)
    rows = add(repository, 60)
    first = dict(rows)

    def work(number: int) -> dict[Id, Location]:
        mine: dict[Id, Location] = {}
        for step in range(6):
            one = reopened(store)
            if number % 2:
                merge_indexes(one, WRITER)
                store.now += GRACE_SECONDS
            else:
                mine |= add(one, 3, 1000 * (number + 1) + 3 * step)
            assert found_by(one, first)
        return mine

    with ThreadPoolExecutor(6) as pool:
        for mine in pool.map(work, range(6)):
            rows |= mine
    assert found_by(reopened(store), rows) and found_by_old_version(store, rows)
    store.now += 2 * GRACE_SECONDS
    merge_indexes(reopened(store), WRITER)
    assert len(reopened_files(store)) <= 4
    assert merge_indexes(reopened(store), WRITER).merged == 0  # the work is not repeated


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files have filters from a size on that tests reach."""
    monkeypatch.setattr(indexes_module, "FILTERED_BYTES", 10_000)
    monkeypatch.setattr(session_module, "FILTERED_BYTES", 10_000)


@pytest.mark.usefixtures("filtered")
def test_of_a_large_file_only_the_filter_and_a_few_rows_are_read(tmp_path: Path) -> None:
    store = OpenStore(Clocked())
    rows = add(create(store), 400)
    merge_indexes(reopened(store), WRITER)
    (index_id,) = reopened_files(store)
    size = len(store.get(keys.index_key(index_id)))
    one = reopened(store, tmp_path)
    before = store.counts
    for number in range(200):
        assert one.objects.indexes.find(ObjectKind.CHUNK, ChunkId.hash(b"new %d" % number)) is None
    object_id, place = next(iter(rows.items()))
    assert one.objects.indexes.find(ObjectKind.CHUNK, object_id) == place
    asked = store.counts - before
    assert asked.gets == 2 and 0 < asked.ranges < 16  # the record, the filter
    assert asked.bytes_down < size
    before = store.counts
    assert reopened(store, tmp_path).objects.indexes.find(ObjectKind.CHUNK, object_id) == place
    asked = store.counts - before
    assert (asked.gets - 2, asked.ranges) == (0, 1)  # the filter is here by now


@pytest.mark.usefixtures("filtered")
def test_a_file_that_is_read_much_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    store = OpenStore(Clocked())
    rows = add(create(store), 400)
    merge_indexes(reopened(store), WRITER)
    monkeypatch.setattr(remote_module, "_PARTS", 4)
    one = reopened(store)
    before = store.counts
    assert found_by(one, rows)
    asked = store.counts - before
    assert (asked.gets, asked.ranges) == (3, 4)


@pytest.mark.usefixtures("filtered")
@pytest.mark.parametrize("damage", ["absent", "of another", "cut"])
def test_a_filter_that_can_not_be_used_costs_a_read_of_the_file(damage: str) -> None:
    store = Clocked()
    rows = add(create(store), 300)
    merge_indexes(reopened(store), WRITER)
    (index_id,) = reopened_files(store)
    key = keys.index_filter_key(index_id)
    data = store.get(key)
    store.delete(key)
    if damage != "absent":
        store.put_if_absent(key, data[:-1] if damage == "cut" else data.replace(bytes(index_id), bytes(16)))
    assert found_by(reopened(store), rows)


@pytest.mark.usefixtures("filtered")
def test_rows_that_are_not_those_of_the_filter_are_not_believed() -> None:
    class Flipped(Wrapper):
        def get_range(self, key: str, start: int, length: int) -> memoryview:
            data = bytearray(self.inner.get_range(key, start, length))
            if key.startswith("index/"):
                data[length // 2] ^= 1
            return memoryview(bytes(data))

    store = Clocked()
    rows = add(create(store), 300)
    merge_indexes(reopened(store), WRITER)
    assert found_by(reopened(Flipped(store)), rows)


def test_commits_are_read_and_made_over_merged_index_files(tmp_path: Path) -> None:
    store = Clocked()
    repository = create(store)
    rng = random.Random(5)
    made: dict[CommitId, dict[str, bytes]] = {}
    files: dict[str, bytes] = {}
    for number in range(30):
        files[f"f{number % 7}"] = rng.randbytes(3000)
        made[commit(reopened(store, tmp_path / "ann"), dict(files))] = dict(files)
        if number % 10 == 9:
            merge_indexes(reopened(store), WRITER)
            store.now += 2 * GRACE_SECONDS
    for key in [item.key for item in store.list("locators/")]:
        store.delete(key)  # so that everything is found by the index
    for folder in (None, tmp_path / "ann", tmp_path / "bob"):
        for commit_id, expected in made.items():
            assert read(reopened(store, folder), commit_id) == expected
    before = len(packs(repository))
    commit(reopened(store, tmp_path / "bob"), {**files, "again": files["f0"]})
    assert len(packs(repository)) == before + 1  # metadata alone: the content is known


def test_a_copy_that_is_here_is_not_asked_for_again(tmp_path: Path) -> None:
    store = OpenStore(Clocked())
    rows = add(create(store), 50)
    merge_indexes(reopened(store, tmp_path), WRITER)
    before = store.counts
    assert found_by(reopened(store, tmp_path), rows)
    assert (store.counts - before).gets == 2  # the format
