from __future__ import annotations

import random
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import IntegrityError, Unreachable
from dsv.format import index, keys
from dsv.format.codec import Codec
from dsv.format.index import Index, IndexBuilder
from dsv.format.locator import Location, ObjectKind
from dsv.format.pack import FOOTER_SIZE
from dsv.repo.merge_indexes import merge_indexes
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.base import ListedObject, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.upkeep.index_rows import IndexRows, PackList, id_of
from dsv.upkeep.verify import Verifier
from dsv.values.ids import ChunkId, Id, PackId
from tests.kit.repositories import WRITER, commit, create
from tests.stores.wrapper import Wrapper

Row = tuple[ObjectKind, bytes, Location]
KINDS = [kind for kind in ObjectKind if kind is not ObjectKind.LOCATOR]

ids = st.builds(
    lambda first, end: first + b"\0" * (30 - len(first)) + end,
    st.sampled_from([b"\0" * 8, b"\0" * 9, b"\xff" * 8, b"a" * 8, b"a" * 7]),
    st.binary(min_size=2, max_size=2),
)
places = st.builds(
    Location,
    st.sampled_from([PackId(bytes([n]) * 15 + b"\0") for n in range(4)]),
    *(st.integers(1, 9) for _ in range(3)),
    st.sampled_from(list(Codec)),
    st.integers(0, 3),
)
rows = st.tuples(st.sampled_from(KINDS), ids, places)


def put(repository: Repository, files: list[list[Row]]) -> None:
    with Session.open(repository, WRITER) as session:
        for file in files:
            builder = IndexBuilder()
            for kind, object_id, where in file:
                builder.add(kind, Id(object_id), where)
            session.put_index(builder.finish())
        session.close()


def everything(found: IndexRows) -> list[Row]:
    rows: list[Row] = []
    for first in range(256):
        bucket = found.bucket(first)
        heads = bucket["head"].tolist()
        assert heads == sorted(heads) and all(head >> 56 == first for head in heads)
        for at, row in enumerate(bucket):
            assert id_of(bucket, at)[:8] == int(row["head"]).to_bytes(8, "big")
            numbers = [int(row[name]) for name in ("offset", "stored", "length")]
            where = Location(found.packs[row["pack"]], *numbers, Codec(row["codec"]), int(row["tail"]))
            rows.append((ObjectKind(row["kind"]), id_of(bucket, at), where))
    return rows


def places(rows: list[Row] | set[Row]) -> list[tuple[ObjectKind, bytes, PackId, int]]:
    """In a store no two lengths of one object are at one place of a pack, as they may be here."""
    return [(kind, one, where.pack, where.offset) for kind, one, where in rows]


@given(st.lists(st.lists(rows, max_size=12), max_size=5))
@settings(max_examples=40, deadline=None)
def test_the_rows_are_those_of_all_files(files: list[list[Row]]) -> None:
    repository = create(MemoryStore())
    put(repository, files)
    wanted: set[Row] = set()
    for item in repository.store.list(keys.INDEX_PREFIX):
        if keys.parse_index_key(item.key) is not None:
            parsed = Index.parse(repository.store.get(item.key))
            wanted.update((kind, bytes(one), where) for kind, one, where in parsed.rows())
    with tempfile.TemporaryDirectory() as folder, IndexRows(repository, Path(folder) / "rows") as found:
        got = everything(found)
        assert set(got) <= wanted and Counter(places(got)) == Counter(set(places(wanted)))
        assert list(found.packs) == sorted({where.pack for _, _, where in wanted})


def test_a_merge_changes_nothing(tmp_path: Path) -> None:
    repository = create(MemoryStore())
    put(repository, [[(ObjectKind.CHUNK, ChunkId.hash(b"%d" % n), Location(PackId.random(), 8, 1, 1, Codec.RAW))]
                     for n in range(40)])  # fmt: skip
    with IndexRows(repository, tmp_path / "one") as found:
        before = everything(found)
        assert len(before) == len(found) == 40
    assert merge_indexes(repository, WRITER).merged
    with IndexRows(Repository.open(repository.store, None), tmp_path / "two") as found:
        assert everything(found) == before
    assert not list(tmp_path.iterdir())


def test_local_copies_are_used_and_not_believed(tmp_path: Path) -> None:
    """A copy that is not the store's file is read again; the right one costs a look at the file's end."""
    store = OpenStore(create(MemoryStore()).store)
    here = tmp_path / "copies"
    commit(Repository.open(store, None), {f"f{n}": b"%d" % n for n in range(300)})
    with IndexRows(Repository.open(store, lambda _: here), tmp_path / "one") as found:
        right = everything(found)
    copies = [path for path in here.glob("index/*/*") if path.is_file()]
    assert copies
    before = store.counts
    with IndexRows(Repository.open(store, lambda _: here), tmp_path / "two") as found:
        assert everything(found) == right
    assert (store.counts - before).ranges == len(copies)
    assert (store.counts - before).bytes_down < 32 * len(copies) + 1000
    for path in copies:
        data = bytearray(path.read_bytes())
        data[index.FIXED_SIZE + 50] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
    with IndexRows(Repository.open(store, lambda _: here), tmp_path / "three") as found:
        assert everything(found) == right


def damage(store: StoreBackend, key: str) -> None:
    data = bytearray(store.get(key))
    data[-40] ^= 1
    store.delete(key)
    store.put_if_absent(key, data)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    repository = create(MemoryStore())
    commit(repository, {"a": b"1"})
    [key] = [item.key for item in repository.store.list(keys.INDEX_PREFIX)]
    damage(repository.store, key)
    with pytest.raises(IntegrityError, match=key) as caught:
        IndexRows(Repository.open(repository.store, None), tmp_path / "rows")
    assert caught.value.hint is not None and key in caught.value.hint


def test_a_damaged_merged_file_is_replaced_by_its_originals(tmp_path: Path) -> None:
    repository = create(MemoryStore())
    put(repository, [[(ObjectKind.CHUNK, ChunkId.hash(b"%d" % n), Location(PackId.random(), 8, 1, 1, Codec.RAW))]
                     for n in range(40)])  # fmt: skip
    with IndexRows(repository, tmp_path / "one") as found:
        before = everything(found)
    originals = {item.key for item in repository.store.list(keys.INDEX_PREFIX)}
    merge_indexes(repository, WRITER)
    for item in list(repository.store.list(keys.INDEX_PREFIX)):
        if item.key not in originals and keys.parse_index_key(item.key) is not None:
            damage(repository.store, item.key)
    with IndexRows(Repository.open(repository.store, None), tmp_path / "two") as found:
        assert everything(found) == before


def test_files_that_a_merge_replaces_meanwhile_are_looked_for_again(tmp_path: Path) -> None:
    repository = create(MemoryStore())
    put(repository, [[(ObjectKind.CHUNK, ChunkId.hash(b"%d" % n), Location(PackId.random(), 8, 1, 1, Codec.RAW))]
                     for n in range(40)])  # fmt: skip

    class Overtaken(Wrapper):
        done = False

        def get_range(self, key: str, start: int, length: int) -> memoryview:
            if not self.done:
                self.done = True
                old = [item.key for item in self.inner.list(keys.INDEX_PREFIX)]
                merge_indexes(Repository.open(self.inner, None), WRITER)
                for one in old:
                    self.inner.delete(one)
            return self.inner.get_range(key, start, length)

    with IndexRows(repository, tmp_path / "one") as found:
        before = everything(found)
    with IndexRows(Repository.open(Overtaken(repository.store), None), tmp_path / "two") as found:
        assert everything(found) == before


def test_a_store_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    repository = create(MemoryStore())
    commit(repository, {"a": b"1"})

    class Away(Wrapper):
        def get_range(self, key: str, start: int, length: int) -> memoryview:
            raise Unreachable("the store is away")

    with pytest.raises(Unreachable):
        IndexRows(Repository.open(Away(repository.store), None), tmp_path / "rows")


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    with IndexRows(create(MemoryStore()), tmp_path / "rows") as found:
        assert everything(found) == [] and len(found.packs) == 0


def test_a_list_of_packs_is_read_by_places() -> None:
    packs = sorted(PackId.random() for _ in range(5))
    found = PackList(b"".join(packs))
    assert list(found) == packs and found[-1] == packs[-1]
    assert np.searchsorted(found.column, np.frombuffer(packs[3], "S16"))[0] == 3
    with pytest.raises(IndexError):
        found[5]


@pytest.mark.parametrize("count", [1 << 17, pytest.param(1 << 20, marks=pytest.mark.exhaustive)])
def test_a_million_packs_take_little_memory(tmp_path: Path, count: int) -> None:
    files = 4
    names = random.Random(5).randbytes(16 * count)
    repository = create(MemoryStore())
    size = 8 + 100 + 52 + FOOTER_SIZE
    with Session.open(repository, WRITER) as session:
        for number in range(files):
            builder = IndexBuilder()
            for at in range(16 * number, 16 * count, 16 * files):
                place = Location(PackId(names[at : at + 16]), 8, 100, 100, Codec.RAW)
                builder.add(ObjectKind.CHUNK, Id(names[at : at + 16] * 2), place)
            session.put_index(builder.finish())
        session.close()

    class Listed(Wrapper):
        def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
            if prefix != keys.PACK_PREFIX:
                yield from self.inner.list(prefix, start_after)
                return
            for at in range(0, 16 * count, 16):
                yield ListedObject(keys.pack_key(PackId(names[at : at + 16])), size)

    folder = tmp_path / "scratch"
    repository = Repository.open(Listed(repository.store), None)
    tracemalloc.start()
    try:
        verifier = Verifier(repository, WRITER, folder, full=True)
        assert len(verifier.rows.packs) == count
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        verifier.look_at_packs(only_needed=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verifier.result.packs_seen == count and not verifier.result.packs_read
    assert held < 24 * count + (4 << 20) and peak < 64 * count + (4 << 20), (held, peak)


@pytest.mark.skipif(sys.platform != "linux", reason="it asks Linux for the memory that mapped files take")
def test_the_memory_of_what_was_read_is_given_back(tmp_path: Path) -> None:
    """Index files of a large store are larger than memory together."""
    repository, chance = create(MemoryStore()), random.Random(1)
    where = Location(PackId.random(), 8, 1, 1, Codec.RAW, 0)
    put(
        repository,
        [[(ObjectKind.CHUNK, chance.randbytes(32), where) for _ in range(20_000)] for _ in range(6)],
    )
    most = 0
    with IndexRows(repository, tmp_path / "rows") as found:
        for first in range(256):
            found.bucket(first)
            if first % 16 == 15:  # what is not given back stays
                most = max(most, _mapped_memory(tmp_path / "rows"))
        assert len(found) == 120_000
    assert most < 120_000 * index.ROW_SIZE / 8


def _mapped_memory(folder: Path) -> int:
    """Return how many bytes of the files in a folder count as memory of this process."""
    found, inside, files = 0, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            inside = words[-1].startswith(str(folder))
            files += inside
        elif inside and words[0] == "Rss:":
            found += int(words[1]) << 10
    assert files
    return found
