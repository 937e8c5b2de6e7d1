"""Many small packs, as edits make them, become a few, and are read as if everything had been stored at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.errors import Denied, NotFound
from dsv.format import keys
from dsv.format.locator import ObjectKind
from dsv.format.records import Damage
from dsv.repo.damage import mark_damage
from dsv.repo.repository import Repository
from dsv.repo.session import point_branch
from dsv.stores.memory import MemoryStore
from dsv.upkeep import gc_packs
from dsv.upkeep.gc_packs import Joined
from dsv.values.ids import ChunkId, CommitId, Nonce
from dsv.values.names import BranchName
from tests.kit.packs import verify
from tests.kit.repositories import DATASET, WRITER, Files, commit, create, read
from tests.stores.faulty import Crash
from tests.stores.wrapper import Watched, Wrapper
from tests.upkeep.gc_world import SOON, collect
from tests.upkeep.test_gc import counted

FILES = 300


def some_files(count: int = FILES) -> Files:
    chance = random.Random(1)
    return {f"d{number % 30:02}/{number:04}": chance.randbytes(2000) for number in range(count)}


def in_edits(store: MemoryStore, files: Files, *, each: int = 5) -> CommitId:
    """Store files in edits of a few each, scattered over the tree."""
    repository, names = create(store), list(files)
    random.Random(2).shuffle(names)
    for at in range(0, len(names), each):
        made = commit(repository, {name: files[name] for name in names[at : at + each]})
    return made


def packs(store: MemoryStore) -> list[str]:
    return [item.key for item in store.list(keys.PACK_PREFIX)]


def test_it_reads_with_the_requests_of_a_dataset_that_was_stored_at_once(tmp_path: Path) -> None:
    files, store, once = some_files(), MemoryStore(), MemoryStore()
    head = in_edits(store, files)
    at_once = commit(create(once), files)
    least = counted(once, lambda repository: read(repository, at_once)).requests
    assert len(packs(store)) == 2 * FILES / 5
    assert counted(store, lambda repository: read(repository, head)).requests > 10 * least
    done = collect(store, tmp_path / "1")
    assert done.plan is not None
    assert (done.plan.joined, len(packs(store))) == (Joined(2 * FILES // 5, 2), 2)
    assert "120 small packs become 2" in done.plan.text
    assert counted(store, lambda repository: read(repository, head)).requests <= 1.3 * least
    assert read(Repository.open(store, None), head) == files
    again = collect(store, tmp_path / "2")
    assert again.copied == again.deleted == 0


def test_contents_lie_in_the_order_of_the_tree(tmp_path: Path) -> None:
    files, store = some_files(), MemoryStore()
    in_edits(store, files)
    collect(store, tmp_path / "1")
    order = [ChunkId.hash(files[name] or b"") for name in sorted(files)]
    tables = [verify(store.get(key)) for key in packs(store)]
    data = next(table for table in tables if table.ids.find(order[0]) >= 0)
    assert [data.ids.find(one) for one in order] == [32 * at for at in range(FILES)]


def test_a_pack_with_a_place_that_is_marked_as_damaged_is_not_joined(tmp_path: Path) -> None:
    files, store = some_files(100), MemoryStore()
    in_edits(store, files)
    chunk = ChunkId.hash(files["d00/0000"] or b"")
    key = next(one for one in packs(store) if verify(store.get(one)).ids.find(chunk) >= 0)
    pack = keys.parse_pack_key(key)
    assert pack is not None
    mark = Damage((), ((pack, ObjectKind.CHUNK, chunk),), (), True, Nonce.random(), 0, "", "")
    mark_damage(Repository.open(store, None), WRITER, lambda _: mark)
    done = collect(store, tmp_path / "1")
    assert done.plan is not None and done.plan.joined.packs == 39
    assert key in packs(store) and len(packs(store)) == 3


def test_a_damaged_pack_stays_and_the_others_are_joined(tmp_path: Path) -> None:
    files, store = some_files(100), MemoryStore()
    in_edits(store, files)
    chunk = ChunkId.hash(files["d00/0000"] or b"")
    key = next(one for one in packs(store) if verify(store.get(one)).ids.find(chunk) >= 0)
    data = bytearray(store.get(key))
    data[20] ^= 1
    store.delete(key)
    store.put_if_absent(key, bytes(data))
    done = collect(store, tmp_path / "1")
    assert done.deleted == 39 and done.plan is not None and len(done.plan.rewrite) == 39
    assert len(packs(store)) == 3 and store.get(key) == data
    assert collect(store, tmp_path / "2").deleted == 0 and store.get(key) == data


def test_no_more_is_joined_than_may_be_copied(tmp_path: Path) -> None:
    store = MemoryStore()
    in_edits(store, some_files(100))
    before = set(packs(store))
    assert collect(store, tmp_path / "1", replace(SOON, max_repack=0)).deleted == 0
    assert set(packs(store)) == before
    done = collect(store, tmp_path / "2", replace(SOON, max_repack=150_000))
    assert done.plan is not None and 8 <= done.plan.joined.packs < len(before)
    assert done.copied_bytes <= 150_000


def test_packs_get_equal_parts_and_few_packs_are_held_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last one might be small, and be copied again the next night."""
    monkeypatch.setattr(gc_packs, "_HELD", 6 << 20)
    chance, store = random.Random(1), MemoryStore()
    files: Files = {f"{number:02}": chance.randbytes(1 << 20) for number in range(40)}
    head = in_edits(store, files, each=2)
    done = collect(store, tmp_path / "1")
    assert done.plan is not None and done.plan.joined == Joined(40, 3)
    sizes = sorted(item.size for item in store.list(keys.PACK_PREFIX))
    assert len(sizes) == 3 and sizes[0] < 100_000, "one of metadata"
    assert sizes[1] > 18 << 20 and sizes[2] < 22 << 20
    assert read(Repository.open(store, None), head) == files


class KeepsLocators(Wrapper):
    """Refuses to delete locators."""

    def delete(self, key: str) -> None:
        if key.startswith(keys.LOCATOR_PREFIX):
            raise Denied("no right to delete", subject=key)
        self.inner.delete(key)


def test_a_store_that_lets_nobody_delete_locators_is_joined_too(tmp_path: Path) -> None:
    files, store = some_files(100), MemoryStore()
    head = in_edits(store, files)
    done = collect(KeepsLocators(store), tmp_path / "1")
    assert done.deleted == 40 and len(packs(store)) == 2
    assert read(Repository.open(store, None), head) == files


def test_a_locator_is_renewed_again_by_a_machine_with_a_copy_of_the_first_one(tmp_path: Path) -> None:
    files, store = some_files(200), MemoryStore()
    names, joined = list(files), 0
    repository = create(store)
    for at in range(0, 200, 5):
        made = commit(repository, {name: files[name] for name in names[at : at + 5]})
        if at == 95:
            old = made
            point_branch(repository, WRITER, (DATASET, BranchName("old")), None, old, "branch")
        if at in (95, 135):
            joined += collect(store, tmp_path / f"{at}", metadata=tmp_path / "metadata").copied > 0
    locator = Repository.open(store, None).objects.commit_locator(old)
    assert joined > 1 and locator is not None
    assert {keys.pack_key(pack) for pack in locator.packs} <= set(packs(store))


class DiesAfterDelete(Wrapper):
    """Ends the process when the first locator is deleted."""

    def delete(self, key: str) -> None:
        self.inner.delete(key)
        if key.startswith(keys.LOCATOR_PREFIX):
            raise Crash


@pytest.mark.parametrize("same_machine", [False, True])
def test_the_next_gc_puts_the_locator_of_a_head_that_a_killed_one_has_deleted(
    tmp_path: Path, same_machine: bool
) -> None:
    """Also where copies of metadata answer for the trees."""
    files, store = some_files(100), MemoryStore()
    head = in_edits(store, files)
    metadata = tmp_path / "metadata" if same_machine else None
    with pytest.raises(Crash):
        collect(DiesAfterDelete(store), tmp_path / "1", metadata=metadata)
    with pytest.raises(NotFound):
        store.get(keys.locator_key(head))
    collect(store, tmp_path / "2", metadata=metadata)
    locator = Repository.open(store, None).objects.commit_locator(head)
    assert locator is not None and {keys.pack_key(pack) for pack in locator.packs} <= set(packs(store))
    assert len(locator) == 1, "the root's place is all that such a locator has"
    assert len(packs(store)) == 2 and read(Repository.open(store, None), head) == files
    asked = list[str]()
    watched = Watched(store, lambda what, key: asked.append(key) if what == "get" else None)
    assert collect(watched, tmp_path / "3", metadata=tmp_path / "other").deleted == 0
    assert asked.count(keys.locator_key(head)) == 1, "by the walk; a gc that deletes nothing renews nothing"
