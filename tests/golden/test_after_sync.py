"""Stores that dsv itself has written, read without dsv, and mended from the packs alone."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from dsv import reader
from dsv.format import keys, pack
from dsv.format.index import Index, IndexBuilder
from tests.golden.building import name_of
from tests.kit import packs
from tests.kit.people import Files, Person, read_folder

noise = random.Random(7)
FILES: Files = {
    **{f"train/{n % 9}/{n:05}.png": noise.randbytes(200 + n % 50) for n in range(3000)},
    **{f"text/{n:03}.txt": b"the same words again and again\n" * n for n in range(40)},
    "big.bin": noise.randbytes(9 << 20),
    "run.sh": b"#!/bin/sh\n",
    "text/link@": b"../big.bin",
    "empty folder": None,
}


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Files, Files]:
    """A store with two commits of `scans`, and their files."""
    home = tmp_path_factory.mktemp("home")
    ann = Person(home / "ann", str(home / "store"))
    ann.init()
    ann.write(FILES)
    ann.sync("first")
    changed = {
        "train/3/00003.png": b"changed",
        "new/file": b"new",
        "big.bin": (FILES["big.bin"] or b"") + b"a row more",
    }
    ann.write(changed)
    (ann.workspace / "train/0/00000.png").unlink()
    ann.sync("second")
    later = {path: content for path, content in FILES.items() if path != "train/0/00000.png"} | changed
    return home / "store", FILES, later


def restored(store: Path, target: str, out: Path) -> Files:
    reader.restore(store, target, out)
    return read_folder(out)


def test_the_reader_restores_what_was_synced(synced: tuple[Path, Files, Files], tmp_path: Path) -> None:
    store, first, second = synced
    assert restored(store, "scans", tmp_path / "second") == second
    assert restored(store, "scans@main~1", tmp_path / "first") == first
    assert "reader.py STORE_DIR DATASET" in (store / "README.txt").read_text()


def test_indexes_are_rebuilt_from_the_packs_alone(synced: tuple[Path, Files, Files], tmp_path: Path) -> None:
    store, _, second = synced
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    before = {row for path in (copy / "index").iterdir() for row in Index.parse(path.read_bytes()).rows()}
    shutil.rmtree(copy / "index")
    shutil.rmtree(copy / "locators")
    builder = IndexBuilder()
    after = set()
    for path in (copy / "packs").rglob("*/*"):
        pack_id = keys.parse_pack_key(str(path.relative_to(copy)))
        assert pack_id is not None
        for row in packs.verify(path.read_bytes()).indexed(pack_id):
            builder.add(*row)
            after.add(row)
    assert after == before
    (copy / "index").mkdir()
    (copy / keys.index_key(name_of("mended").index)).write_bytes(builder.finish())
    assert restored(copy, "scans", tmp_path / "out") == second


def test_dsv_itself_reads_the_mended_store(synced: tuple[Path, Files, Files], tmp_path: Path) -> None:
    """Without any locator of a commit: the index decides."""
    store, _, second = synced
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    shutil.rmtree(copy / "locators")
    bob = Person(tmp_path / "bob", str(copy), "bob")
    bob.workspace.mkdir(parents=True)
    (commit,) = {path.name for path in (copy / "commits").iterdir()} - {
        parent.hex()
        for path in (copy / "commits").iterdir()
        for parent in reader.read_commit(reader.StoreFolder(copy), bytes.fromhex(path.name))[2]
    }
    assert bob.read(keys.CommitId.parse(commit)) == second


def test_metadata_never_waits_behind_data(synced: tuple[Path, Files, Files]) -> None:
    """Packs hold chunks, or everything else, never both; chunks lie in the order of their paths."""
    store, _, _ = synced
    for path in (store / "packs").rglob("*/*"):
        kinds = {row.kind for row in packs.verify(path.read_bytes())}
        assert kinds == {pack.ObjectKind.CHUNK} or pack.ObjectKind.CHUNK not in kinds
