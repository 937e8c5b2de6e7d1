from __future__ import annotations

import random
from pathlib import Path

import pytest

from dsv.api.clone import Differing, clone, init
from dsv.errors import Conflict, NotFound
from dsv.stores.memory import MemoryStore
from dsv.values.names import DatasetName, Target
from tests.exhaustive import some
from tests.kit.dsv import write_files
from tests.kit.people import Files, Person, every_store_is, read_folder
from tests.stores.faulty import Crash, Fault, Faulty, Kind

FILES: Files = {
    "a/one.txt": b"1\n",
    "a/two.sh": b"#!/bin/sh\n",
    "a/link@": b"one.txt",
    "b": None,
    "empty": b"",
    "big.bin": random.Random(1).randbytes(3 << 20),
    **{f"d/{n:03}": str(n).encode() * 50 for n in range(300)},
}


def test_a_clone_is_what_was_synced(ann: Person, tmp_path: Path) -> None:
    ann.write(FILES)
    first = ann.sync()
    bob = Person(tmp_path / "bob", ann.store, "bob")
    made = clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    assert made.commit == first.commit and made.root == bob.workspace
    assert bob.files() == FILES
    assert not bob.sync().any_change
    bob.write({"new": b"n"})
    assert bob.sync().parent == first.commit


def test_an_empty_dataset_can_be_cloned_and_begun(ann: Person, tmp_path: Path) -> None:
    bob = Person(tmp_path / "bob", ann.store, "bob")
    assert clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace).commit is None
    bob.write({"first": b"1"})
    assert bob.sync().any_change


def test_a_clone_of_a_revision(ann: Person, tmp_path: Path) -> None:
    ann.write(FILES)
    first = ann.sync()
    ann.write({"later": b"l"})
    ann.sync()
    made = clone(ann.context(tmp_path), Target.parse(f"scans@{first.commit}"), tmp_path / "old")
    assert made.commit == first.commit and read_folder(tmp_path / "old") == FILES


def test_what_is_in_the_folder_stays(ann: Person, tmp_path: Path) -> None:
    ann.write(FILES)
    ann.sync()
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").write_bytes(b"m")
    with pytest.raises(Conflict, match="not empty"):
        clone(ann.context(tmp_path), Target.parse("scans"), other)
    with pytest.raises(Conflict, match="already a workspace of scans"):
        clone(ann.context(tmp_path), Target.parse("scans"), ann.workspace)
    with pytest.raises(Conflict, match="lies in the workspace"):
        clone(ann.context(tmp_path), Target.parse("scans"), ann.workspace / "inside")
    assert read_folder(other) == {"mine": b"m"}
    assert ann.files() == FILES


def test_a_dataset_that_is_not_there(ann: Person, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no dataset nope"):
        clone(ann.context(tmp_path), Target.parse("nope"))
    assert not (tmp_path / "nope").exists()


def test_a_clone_that_dies_at_any_call_is_continued(tmp_path: Path) -> None:
    store = MemoryStore()
    ann = Person(tmp_path / "ann", "memory://unused")
    with every_store_is(store):
        ann.init()
        ann.write(FILES)
        ann.sync()
    counting = Faulty(store)
    with every_store_is(counting):
        clone(
            Person(tmp_path / "zero", ann.store).context(tmp_path), Target.parse("scans"), tmp_path / "zero/w"
        )
    for number in some(range(1, counting.calls + 1)):
        bob = Person(tmp_path / f"bob-{number}", ann.store)
        with every_store_is(Faulty(store, {number: Fault(Kind.CRASH_BEFORE)})), pytest.raises(Crash):
            clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
        with every_store_is(store):
            clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
            assert bob.files() == FILES
            assert not bob.sync().any_change


def test_what_the_commit_does_not_have_is_never_overwritten(ann: Person, tmp_path: Path) -> None:
    ann.write({"labels.csv": b"l", "val/1.txt": b"1", "same": b"s"})
    ann.sync()
    for name, there in (
        ("folder for a file", {"labels.csv/deep/thesis.tex": b"precious"}),
        ("file for a folder", {"val": b"precious"}),
    ):
        other = tmp_path / name
        write_files(other, there | {"same": b"otherwise"})
        with pytest.raises(Conflict, match="in the way"):
            clone(
                ann.context(tmp_path),
                Target.parse("scans"),
                other,
                differing=Differing.OVERWRITE,
            )
        assert read_folder(other) == there | {"same": b"otherwise"}
    good = tmp_path / "good"
    write_files(good, {"labels.csv": b"mine", "extra": b"e"})
    clone(ann.context(tmp_path), Target.parse("scans"), good, differing=Differing.OVERWRITE)
    assert read_folder(good) == {"labels.csv": b"l", "val/1.txt": b"1", "same": b"s", "extra": b"e"}


def test_no_folder_of_a_cache_becomes_a_workspace(ann: Person, tmp_path: Path) -> None:
    ann.write(FILES)
    ann.sync()
    inside = tmp_path / "cache" / "scans" / "commit"
    write_files(tmp_path / "cache", {"dsv-cache.toml": b"", "scans/commit/empty": b""})
    with pytest.raises(Conflict, match="lies in the cache"):
        clone(ann.context(tmp_path), Target.parse("scans"), inside)
    with pytest.raises(Conflict, match="lies in the cache"):
        init(ann.context(inside), inside, DatasetName.parse("more"))
    assert read_folder(inside) == {"empty": b""}
