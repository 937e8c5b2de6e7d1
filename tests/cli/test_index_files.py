"""`dsv store merge-indexes`, what `dsv store check` says of index files, and merges while others write."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsv.format import keys
from dsv.format.records import IndexMerge
from tests.kit.dsv import Dsv, write_files


def person(root: Path, name: str) -> Dsv:
    return Dsv.of(root / name / "home", root / name / "work", DSV_STORE=str(root / "store"))


def sync(dsv: Dsv, numbers: range) -> None:
    for number in numbers:
        write_files(dsv.cwd, {f"{number}.txt": b"%d\n" % number})
        dsv.ok("sync", "-q")


def long_ago(store: Path) -> None:
    """All that is there was written two hours ago."""
    for path in (store / "index").iterdir():
        os.utime(path, (time.time() - 7200, time.time() - 7200))


def in_index(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "index").iterdir())


def findings(dsv: Dsv) -> list[dict[str, str]]:
    return [item for item in dsv("store", "check", "--json").json["items"] if item["check"] == "index files"]


@pytest.fixture
def ann(tmp_path: Path) -> Dsv:
    """With a dataset of four syncs."""
    dsv = person(tmp_path, "ann")
    dsv.ok("init", "scans")
    sync(dsv, range(4))
    return dsv


def test_index_files_are_merged_and_then_deleted(ann: Dsv, tmp_path: Path) -> None:
    store = tmp_path / "store"
    before = in_index(store)
    merged = ann.ok("store", "merge-indexes", "--json").json
    assert set(merged) == {"schema", "merged", "files", "deleted"}
    assert (merged["merged"], merged["files"], merged["deleted"]) == (4, 1, 0)
    assert len(in_index(store)) == 4 + 2
    long_ago(store)
    sync(ann, range(4, 6))
    merged = ann.ok("store", "merge-indexes", "--json").json
    assert (merged["files"], merged["deleted"]) == (1, 4)
    assert not {*before} & {*in_index(store)}
    text = ann.ok("store", "merge-indexes").err
    assert "a sync needs to know 1" in text
    bob = person(tmp_path, "bob")
    bob.ok("clone", "scans", str(bob.cwd / "copy"), "-q")
    assert sorted(path.name for path in (bob.cwd / "copy").glob("*.txt")) == [f"{n}.txt" for n in range(6)]


def test_check_reads_index_files(ann: Dsv, tmp_path: Path) -> None:
    assert findings(ann)[0]["text"] == "4 are whole; a sync needs to know 4 of them"
    ann.ok("store", "merge-indexes", "-q")
    assert findings(ann)[0]["text"] == "5 are whole; a sync needs to know 1 of them"
    folder = tmp_path / "store/index"
    record = next(path for path in folder.iterdir() if path.name.startswith("merge-"))
    (run,) = IndexMerge.decode(record.read_bytes()).by_run
    (folder / f"{run[0].id}-filter").write_bytes(b"no filter")
    found = findings(ann)
    assert [item["state"] for item in found] == ["fail"] and "is not the filter" in found[0]["text"]
    (folder / f"{run[0].id}-filter").unlink()
    wrong = next(path for path in folder.iterdir() if len(path.name) == 32 and path.name != str(run[0].id))
    data = wrong.read_bytes()
    wrong.chmod(0o644)
    wrong.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = findings(ann)
    assert f"index/{wrong.name}" in found[0]["text"] and f"put index/{wrong.name} back" in found[0]["hint"]


def test_check_reports_a_merge_that_lacks_rows(ann: Dsv, tmp_path: Path) -> None:
    """A person who may write but not delete could have put it there, so that others would delete what it names."""
    ann.ok("store", "merge-indexes", "-q")
    sync(ann, range(4, 5))
    folder = tmp_path / "store/index"
    (record,) = (path for path in folder.iterdir() if path.name.startswith("merge-"))
    right = IndexMerge.decode(record.read_bytes())
    listed = [
        one for path in folder.iterdir() if (one := keys.parse_index_key(f"index/{path.name}")) is not None
    ]
    wrong = IndexMerge.of(right.by_run, {*listed} - {right.files[0].id}, 0, "somebody")
    name = keys.index_merge_key(1, right.files[0].id).removeprefix("index/")
    (folder / name).write_bytes(wrong.encode())
    found = findings(ann)
    assert [item["state"] for item in found] == ["fail"]
    assert "has rows that no other index file has" in found[0]["text"] and name in found[0]["hint"]
    long_ago(tmp_path / "store")
    ann.ok("store", "merge-indexes", "-q")
    bob = person(tmp_path, "bob")
    bob.ok("clone", "scans", str(bob.cwd / "copy"), "-q")
    assert len([*(bob.cwd / "copy").glob("*.txt")]) == 5


def test_who_may_not_write_can_not_merge(ann: Dsv) -> None:
    result = ann("--store", "memory://none", "store", "merge-indexes")
    assert result.code == 3 and "there is no dsv store" in result.err
    result = ann("store", "merge-indexes", "--dry-run")
    assert result.code == 2 and "does not support --dry-run" in result.err


def test_processes_that_merge_and_sync_at_the_same_time(ann: Dsv, tmp_path: Path) -> None:
    """Merges without an end, while two people sync to branches of their own; then a third reads all of it."""
    people = [person(tmp_path, name) for name in ("bob", "eve")]
    for one in people:
        one.ok("clone", "scans", str(one.cwd / "copy"), "-q")
    syncing = True

    def merge(_: int) -> int:
        rounds = 0
        while syncing or not rounds:
            result = ann.process("store", "merge-indexes", "-q")
            assert result.code == 0, result.err
            long_ago(tmp_path / "store")
            rounds += 1
        return rounds

    def write(one: Dsv) -> None:
        here = one.at(one.cwd / "copy")
        name = one.cwd.parent.name
        for number in range(5):
            write_files(here.cwd, {f"{name}/{number}": f"{name} {number}".encode()})
            result = (
                here.process("sync", "-q", "--new-branch", name) if not number else here.process("sync", "-q")
            )
            assert result.code == 0, result.err

    with ThreadPoolExecutor(4) as pool:
        merging = [pool.submit(merge, number) for number in range(2)]
        try:
            list(pool.map(write, people))
        finally:
            syncing = False
        assert all(future.result() for future in merging)
    long_ago(tmp_path / "store")
    ann.ok("store", "merge-indexes", "-q")
    for path in (tmp_path / "store/locators").iterdir():
        path.unlink()  # so that only the index has the places of objects
    reader = person(tmp_path, "reader")
    for name in ("bob", "eve"):
        for number in range(5):
            assert reader.ok("cat", f"scans@{name}:{name}/{number}").out == f"{name} {number}"
    assert findings(ann)[0]["state"] == "ok"
