from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.format.codec import Codec
from dsv.format.locator import Location, ObjectKind
from dsv.values.ids import CommitId, Id, PackId, RecipeId, StoreId
from dsv.workspace.sync_journal import Publishing, Row, SyncJournal

STORE = StoreId.random()


def rows(pack: PackId, count: int) -> list[Row]:
    return [
        (
            random.choice(list(ObjectKind)),
            Id.of(random.randbytes(32)),
            Location(pack, number * 7, 5, 900 + number, Codec.ZSTD, number % 3),
        )
        for number in range(count)
    ]


def fill(path: Path) -> tuple[dict[PackId, tuple[int, list[Row]]], dict[RecipeId, bytes]]:
    packs = {pack: (1000, rows(pack, 20)) for pack in (PackId.random() for _ in range(3))}
    recipes = {RecipeId.hash(bytes([n])): bytes([n]) * n for n in range(4)}
    with SyncJournal.open(path, STORE) as journal:
        for recipe, encoded in recipes.items():
            journal.recipe(recipe, encoded)
        for pack, (size, listed) in packs.items():
            journal.pack_uploaded(pack, size, listed)
    return packs, recipes


def test_the_next_one_reads_the_journal_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    packs, recipes = fill(path)
    commit = CommitId.hash(b"c")
    with SyncJournal.open(path, STORE) as journal:
        assert journal.left.packs == packs and journal.left.recipes == recipes
        assert journal.left.publishing is None
        journal.publishing("scans", "main", 7, commit)
    with SyncJournal.open(path, STORE) as journal:
        assert journal.left.packs == packs
        assert journal.left.publishing == Publishing("scans", "main", 7, commit)
        journal.clear()
        journal.recipe(RecipeId.hash(b"x"), b"after")
    with SyncJournal.open(path, STORE) as journal:
        assert not journal.left.packs and journal.left.recipes == {RecipeId.hash(b"x"): b"after"}


def test_a_system_without_fdatasync_syncs_all_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    packs, _ = fill(tmp_path / "journal")
    assert len(synced) >= len(packs)
    with SyncJournal.open(tmp_path / "journal", STORE) as journal:
        assert journal.left.packs == packs


def test_a_journal_about_another_store_is_dropped(tmp_path: Path) -> None:
    fill(tmp_path / "journal")
    with SyncJournal.open(tmp_path / "journal", StoreId.random()) as journal:
        assert not journal.left.packs and not journal.left.recipes


@settings(deadline=None)
@given(st.data())
def test_a_torn_or_damaged_journal_gives_a_true_beginning(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("j") / "journal"
    packs, recipes = fill(path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with SyncJournal.open(path, STORE) as journal:
        left = journal.left
        assert list(left.packs.items()) == list(packs.items())[: len(left.packs)]
        assert list(left.recipes.items()) == list(recipes.items())[: len(left.recipes)]
        journal.recipe(RecipeId.hash(b"behind"), b"b")
    with SyncJournal.open(path, STORE) as journal:  # what was written behind the damage can be read
        assert journal.left.recipes == {**left.recipes, RecipeId.hash(b"behind"): b"b"}


def test_many_threads(tmp_path: Path) -> None:
    ids = [PackId.random() for _ in range(40)]
    with SyncJournal.open(tmp_path / "journal", STORE) as journal:
        threads = [
            threading.Thread(target=lambda part=part: [journal.pack_uploaded(p, 1, rows(p, 3)) for p in part])  # type: ignore[misc]
            for part in (ids[:20], ids[20:])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with SyncJournal.open(tmp_path / "journal", STORE) as journal:
        assert set(journal.left.packs) == set(ids)


def test_half_a_record_of_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv.errors import NoRoom
    from dsv.workspace import sync_journal as module

    path = tmp_path / "journal"
    with SyncJournal.open(path, STORE) as journal:
        journal.recipe(RecipeId.hash(b"1"), b"one")
        real = module.write_all

        def full(descriptor: int, data: bytes) -> None:
            real(descriptor, data[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, "write_all", full)
        with pytest.raises(NoRoom):
            journal.recipe(RecipeId.hash(b"2"), b"two")
        monkeypatch.undo()
        journal.recipe(RecipeId.hash(b"3"), b"three")
    with SyncJournal.open(path, STORE) as journal:
        assert list(journal.left.recipes.values()) == [b"one", b"three"]
