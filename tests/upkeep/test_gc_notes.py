"""What a garbage collection has noted saves the next one requests, and changes nothing that it does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.format import keys
from dsv.format.records import RefEntry
from dsv.repo.merge_indexes import merge_indexes
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.stores.memory import MemoryStore
from dsv.upkeep.roots import read_notes
from dsv.values.ids import Nonce
from dsv.values.names import MAIN
from tests.kit.repositories import DATASET, WRITER, read
from tests.stores.faulty import Faulty
from tests.upkeep.gc_world import SOON, World, collect


def requests(world: World, folder: Path, *, noted: bool = True) -> Counter[str]:
    """Return the reads of a gc by the first part of the key. It joins no packs, and with them index files."""
    asked = Faulty(world.store)
    number = len(list(folder.parent.glob("*")))
    collect(
        asked,
        folder.parent / f"gc {number}",
        replace(SOON, max_repack=0),
        notes=folder if noted else None,
        metadata=folder.parent / "metadata",
    )
    return Counter(
        key.partition("/")[0]
        for what, key in asked.log
        if what.value in ("get", "get_range") and "merge-" not in key
    )


def test_only_new_moves_and_index_files_are_read(tmp_path: Path) -> None:
    world = World(MemoryStore(), 40, 0, merged=False)
    notes = tmp_path / "notes"
    first = requests(world, notes)
    assert first["refs"] > 40 and first["index"] >= 40
    idle = requests(world, notes)
    assert idle["refs"] == 1 and idle["index"] == 0
    for number in range(3):
        world.change({f"new {number}": b"new" * 100})
    further = requests(world, notes)
    assert further["refs"] == 4 and further["index"] <= 3
    without = requests(world, notes, noted=False)
    assert without["refs"] > 43 and without["index"] > 40
    world.check()


def test_index_files_that_a_gc_has_written_are_not_read_by_the_next_one(tmp_path: Path) -> None:
    world = World(MemoryStore(), 1, 0, merged=False)
    for number in range(10):  # the packs of chunks stay, and those of trees go
        world.change({f"kept too {number}": random.Random(number).randbytes(20_000)})
    world.expired = list(world.files)[1:9]
    world.expire(world.expired)
    notes = tmp_path / "notes"
    before = {item.key for item in world.store.list(keys.INDEX_PREFIX)}
    assert requests(world, notes)["index"] > 10
    assert len({item.key for item in world.store.list(keys.INDEX_PREFIX)} - before) > 5
    assert requests(world, notes)["index"] == 0
    assert requests(world, notes, noted=False)["index"] > 5
    world.check()


def test_names_that_were_put_back_from_a_backup_and_moved_elsewhere(tmp_path: Path) -> None:
    """A commit that only an earlier move names stays, though the notes say that this move names another."""
    world = World(MemoryStore(), 3, 0)
    backup = {item.key for item in world.store.list(keys.REFS_PREFIX)}
    before = dict(world.files)
    for number in range(2):
        world.change({"lost": bytes([number]) * 1000})
    collect(world.store, tmp_path / "1", notes=tmp_path / "notes")
    for item in list(world.store.list(keys.REFS_PREFIX)):
        if item.key not in backup:
            world.store.delete(item.key)
    world.files, world.repository = before, Repository.open(world.store, None)
    old = next(reversed(world.files))
    for number in range(2):
        world.change({"instead": bytes([number]) * 1000})
    head = world.repository.refs.head(DATASET, MAIN)
    back = RefEntry(old, False, Nonce.random(), 9, WRITER.author, "reset")
    assert isinstance(world.repository.refs.move(DATASET, MAIN, head, back), Head)
    collect(world.store, tmp_path / "2", notes=tmp_path / "notes")
    world.check()
    done = collect(world.store, tmp_path / "3", notes=tmp_path / "notes")
    assert not done.deleted
    world.check()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "harm", [_cut, _flip, Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.chmod(0o666)]
)
def test_notes_that_are_damaged_or_that_others_can_write_count_nothing(
    harm: Callable[[Path], object], tmp_path: Path
) -> None:
    world = World(MemoryStore())
    notes = tmp_path / "notes"
    collect(world.store, tmp_path / "1", notes=notes)
    moves, ends = read_notes(notes)
    assert moves and ends
    notes.chmod(0o600)
    harm(notes)
    assert read_notes(notes) == ({}, {})
    collect(world.store, tmp_path / "2", notes=notes)
    world.check()
    assert read_notes(notes)[0] == moves


def test_a_local_copy_of_an_index_file_that_is_another_one_is_not_believed(tmp_path: Path) -> None:
    world = World(MemoryStore(), 5, 0, merged=False)
    metadata, notes = tmp_path / "metadata", tmp_path / "notes"
    collect(world.store, tmp_path / "1", notes=notes, metadata=metadata)
    copies = sorted(path for path in (metadata / "index").rglob("*") if path.is_file())
    assert len(copies) > 1
    other = copies[0].read_bytes()
    for path in copies[1:]:
        path.chmod(0o600)
        path.write_bytes(other)
    world.change({"new": b"new" * 100})
    merge_indexes(world.repository, WRITER)
    collect(world.store, tmp_path / "2", notes=notes, metadata=metadata)
    world.check()
    for one, files in world.files.items():
        assert read(world.repository, one) == files
