"""Index files that a merge has replaced: what is proved before they are deleted, and who still finds their rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from blake3 import blake3

from dsv.api import doctor as index_files_module
from dsv.api.context import Context
from dsv.api.doctor import CheckState, examine_indexes
from dsv.errors import IntegrityError, NotFound
from dsv.format import keys
from dsv.format.codec import Codec
from dsv.format.index import ERASED, EXTERNAL, FIXED_SIZE, Index, IndexBuilder
from dsv.format.locator import Location, ObjectKind
from dsv.format.records import IndexMerge, MergedFile
from dsv.repo import session as session_module
from dsv.repo.merge_indexes import GRACE_SECONDS, IndexMergeResult, IndexReport, check_indexes, merge_indexes
from dsv.repo.objects import indexes as indexes_module
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.open import OpenStore
from dsv.transfer.upload import Uploader
from dsv.values.ids import ChunkId, Id, IndexId, PackId
from tests.kit.repositories import WRITER, create
from tests.repo.test_merge_indexes import (
    Clocked,
    add,
    found_by,
    found_by_old_version,
    index_files,
    reopened,
    store_record,
)

PACK = PackId.random()


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files have filters from a size on that tests reach."""
    monkeypatch.setattr(indexes_module, "FILTERED_BYTES", 4_000)
    monkeypatch.setattr(session_module, "FILTERED_BYTES", 4_000)


def reserved(object_id: Id, where: int) -> bytes:
    """An index file with one row, that says of the object that it is in no pack."""
    builder = IndexBuilder()
    builder.add(ObjectKind.CHUNK, object_id, Location(PackId.random(), 8, 1, 1, Codec.RAW))
    encoded = bytearray(builder.finish())
    encoded[FIXED_SIZE + 16 + 33] = where
    encoded[-32:] = blake3(encoded[:-32]).digest()
    return bytes(encoded)


def damage(store: Clocked, key: str, at: int) -> None:
    data = bytearray(store.get(key))
    data[at] ^= 1
    store.delete(key)
    store.put_if_absent(key, bytes(data))


@pytest.mark.parametrize("at", [-1, 3000])
def test_a_run_that_is_damaged_in_the_store_stands_for_nothing(tmp_path: Path, at: int) -> None:
    """Whoever merged has a good copy, of which the store knows nothing."""
    store = Clocked()
    rows = add(create(store), 40)
    merge_indexes(reopened(store, tmp_path), WRITER)
    (run,) = IndexMerge.decode(store.get(store_record(store))).files
    damage(store, keys.index_key(run.id), at)
    store.now += 2 * GRACE_SECONDS
    assert merge_indexes(reopened(store, tmp_path), WRITER).deleted == 0
    store.delete(keys.index_key(run.id))
    assert found_by(reopened(store), rows) and found_by_old_version(store, rows)


def test_the_originals_of_a_damaged_run_are_read_if_all_are_there() -> None:
    store = Clocked()
    rows = add(create(store), 40)
    merge_indexes(reopened(store), WRITER)
    (run,) = IndexMerge.decode(store.get(store_record(store))).files
    damage(store, keys.index_key(run.id), -1)
    assert found_by(reopened(store), rows)
    (fault,) = check_indexes(reopened(store)).faults
    assert str(run.id) in fault.text
    assert merge_indexes(reopened(store), WRITER) == IndexMergeResult(40, 1, 0)
    assert found_by(reopened(store), rows)


def test_a_damaged_run_is_reported_if_an_original_is_gone() -> None:
    store = Clocked()
    rows = add(create(store), 40)
    merge_indexes(reopened(store), WRITER)
    record = IndexMerge.decode(store.get(store_record(store)))
    damage(store, keys.index_key(record.files[0].id), -1)
    store.delete(keys.index_key(record.replaced[7]))
    with pytest.raises(IntegrityError, match="damaged"):
        found_by(reopened(store), rows)


def test_a_damaged_run_is_reported_if_its_own_record_is_gone() -> None:
    """A record of two runs does not say what was merged to the earlier one."""
    store = Clocked()
    rows = add(create(store), 40)
    merge_indexes(reopened(store), WRITER)
    key = store_record(store)
    first = IndexMerge.decode(store.get(key))
    rows |= add(reopened(store), 1, start=40)
    (loose,) = set(index_files(store)) - {first.files[0].id, *first.replaced}
    later = IndexMerge.of((first.files, (MergedFile(loose, 0, 0xFFFFFFFF),)), [], 0, "test")
    store.put_if_absent(keys.index_merge_key(1, IndexId.random()), later.encode())
    for gone in (key, *map(keys.index_key, first.replaced)):
        store.delete(gone)
    assert found_by(reopened(store), rows)
    damage(store, keys.index_key(first.files[0].id), -1)
    with pytest.raises(IntegrityError, match="damaged"):
        found_by(reopened(store), rows)


@pytest.mark.usefixtures("filtered")
@pytest.mark.parametrize("gone", [False, True])
def test_a_large_run_is_compared_with_the_store(tmp_path: Path, gone: bool) -> None:
    store = Clocked()
    rows = add(create(store), 60)
    merge_indexes(reopened(store, tmp_path), WRITER)
    (run,) = IndexMerge.decode(store.get(store_record(store))).files
    store.now += 2 * GRACE_SECONDS
    one = reopened(store, tmp_path)
    one.objects.indexes.refresh()
    if gone:
        store.delete(keys.index_key(run.id))
    else:
        damage(store, keys.index_key(run.id), -1)
    assert merge_indexes(one, WRITER).deleted == 0
    assert found_by_old_version_without(store, run.id, rows)


def found_by_old_version_without(store: Clocked, run: Id, rows: dict[Id, Location]) -> bool:
    store.delete(f"index/{run}")
    return found_by_old_version(store, rows)


@pytest.mark.usefixtures("filtered")
def test_a_writer_finds_what_was_in_a_large_file_that_is_gone(tmp_path: Path) -> None:
    """It has read some rows of the file, and what stands for it by now appeared later."""
    memory = Clocked()
    store = OpenStore(memory)
    rows = add(create(store), 60)
    merge_indexes(reopened(store), WRITER)
    with Session.open(reopened(store), WRITER) as session:
        indexes = session.repository.objects.indexes
        assert indexes.find(ObjectKind.CHUNK, next(iter(rows))) is not None
        for count, start in ((60, 1000), (130, 5000)):
            add(reopened(store), count, start)
            merge_indexes(reopened(store), WRITER)
            memory.now += 2 * GRACE_SECONDS
        before = store.counts
        assert all(indexes.find(ObjectKind.CHUNK, one) == place for one, place in rows.items())
        asked = store.counts - before
        assert asked.lists == 1 and asked.gets < 8
        assert [*indexes.places(ObjectKind.CHUNK, next(iter(rows)))]


def test_an_upload_looks_again_before_it_says_that_the_base_is_lost() -> None:
    store = Clocked()
    create(store)
    with Session.open(reopened(store), WRITER) as session, Uploader(session) as uploader:
        session.repository.objects.indexes.refresh()
        (object_id, place), *_ = add(reopened(store), 1).items()
        assert uploader._present(ObjectKind.CHUNK, object_id) == place
        with pytest.raises(IntegrityError, match="is in no index of") as failure:
            uploader._present(ObjectKind.CHUNK, ChunkId.hash(b"none"))
        assert failure.value.hint


@pytest.mark.parametrize("where", [ERASED, EXTERNAL])
def test_a_reserved_row_of_one_object_keeps_no_other_file(where: int) -> None:
    store = Clocked()
    repository = create(store)
    rows = add(repository, 30)
    object_id = next(iter(rows))
    with Session.open(repository, WRITER) as session:
        session.put_index(reserved(object_id, where))
        session.close()
    merge_indexes(reopened(store), WRITER)
    store.now += 2 * GRACE_SECONDS
    assert merge_indexes(reopened(store), WRITER).deleted == 31
    assert check_indexes(reopened(store)).faults == ()
    del rows[object_id]
    assert found_by(reopened(store), rows)


def test_an_erased_row_wins_over_a_larger_file() -> None:
    store = Clocked()
    repository = create(store)
    rows = add(repository, 30)
    merge_indexes(repository, WRITER)
    object_id = next(iter(rows))
    with Session.open(repository, WRITER) as session:
        session.put_index(reserved(object_id, ERASED))
        session.close()
    for one in (repository, reopened(store)):
        with pytest.raises(NotFound, match="was erased"):
            one.objects.indexes.find(ObjectKind.CHUNK, object_id)
    assert len(index_files(store)) == 32
    assert [*Index.parse(reserved(object_id, ERASED)).erased()] == [(ObjectKind.CHUNK, object_id)]


@pytest.mark.usefixtures("filtered")
def test_the_newest_run_is_asked_first() -> None:
    """A replaced row is mostly in the run of the last merge: older ones, which are large, are not read for it."""
    memory = Clocked()
    store = OpenStore(memory)
    repository = create(store)
    old, new = made("old", 1000), made("new", 100)
    with Session.open(repository, WRITER) as session:
        ids = [session.put_index(one) for one in (old, new, made("new", 10))]
        runs = [
            (MergedFile(one, *Index.parse(data).bounds),)
            for one, data in zip(ids[:2], (old, new), strict=True)
        ]
        record = IndexMerge.of(runs, ids[2:], 0, "test")
        store.put_if_absent(keys.index_merge_key(0, IndexId.random()), record.encode())
        session.close()
    memory.now += 2 * GRACE_SECONDS
    before = store.counts
    assert merge_indexes(reopened(store), WRITER, most_rows=8 * 1000) == IndexMergeResult(0, 2, 1)
    asked = store.counts - before
    assert asked.bytes_down < len(old) / 4


def made(name: str, rows: int) -> bytes:
    builder = IndexBuilder()
    for number in range(rows):
        object_id = ChunkId.hash(b"%s %d" % (name.encode(), number))
        builder.add(ObjectKind.CHUNK, object_id, Location(PACK, 8 + number, 1, 1, Codec.RAW))
    return builder.finish()


def test_a_check_that_fails_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = create(Clocked())

    def fail(_: Repository) -> IndexReport:
        raise NotFound("index/x is gone")

    class Opened:
        @contextmanager
        def repository(self) -> Iterator[Repository]:
            yield repository

    class Absent:
        @contextmanager
        def repository(self) -> Iterator[Repository]:
            raise NotFound("there is no store")
            yield

    monkeypatch.setattr(index_files_module, "check_indexes", fail)
    (found,) = examine_indexes(cast(Context, Opened()))
    assert (found.state, found.text) == (CheckState.FAIL, "index/x is gone")
    assert [*examine_indexes(cast(Context, Absent()))] == []
