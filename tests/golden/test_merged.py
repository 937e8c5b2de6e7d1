"""The golden store with a merge commit on a protected branch: it is still written so, read, and written on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsv import reader
from dsv.format.records import CommitRecord
from dsv.repo.history import merge_bases
from dsv.repo.repository import Repository
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from tests.counts.people import person
from tests.golden import make
from tests.golden.test_golden import files_of, keys_of

MERGED_STORE = Path(__file__).parent / "store-merged"


def commits() -> dict[CommitId, CommitRecord]:
    found = {key: data for key, data in keys_of(MERGED_STORE).items() if key.startswith("commits/")}
    return {
        CommitId.parse(key.removeprefix("commits/")): CommitRecord.decode(data) for key, data in found.items()
    }


def test_the_code_still_writes_it() -> None:
    assert make.build_merged() == keys_of(MERGED_STORE)


@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("demo/letters", make.MERGED),
        ("demo/letters@main~1", make.SECOND),  # the first parent
        ("demo/letters@main~2", make.FIRST),
        ("demo/letters@relabel", make.SIDE),
        ("demo/letters@relabel~1", make.FIRST),
    ],
)
def test_the_independent_reader_restores_each_side(
    tmp_path: Path, target: str, files: dict[bytes, make.File]
) -> None:
    reader.restore(MERGED_STORE, target, tmp_path / "out")
    assert files_of(tmp_path / "out") == files


def test_both_parents_count(tmp_path: Path) -> None:
    store = DirectoryStore(shutil.copytree(MERGED_STORE, tmp_path / "store"))
    objects = Repository.open(store, None).objects
    (merge,) = (one for one, commit in commits().items() if len(commit.parents) > 1)
    main, side = commits()[merge].parents
    (first,) = commits()[main].parents
    assert commits()[side].branch == make.RELABEL and commits()[merge].branch == make.MAIN
    assert merge_bases(objects, main, side) == (first,)
    assert merge_bases(objects, merge, side) == (side,)


def test_it_is_written_on_by_the_rule_of_its_branch(tmp_path: Path) -> None:
    store = shutil.copytree(MERGED_STORE, tmp_path / "golden")
    anyone = person(tmp_path / "home", str(store))
    drawn = anyone.ok("log", "demo/letters", "--oneline", "--graph").lines
    assert [line[:3].rstrip(" 0123456789abcdef") for line in drawn] == ["*", "|\\", "| *", "* |", "|/", "*"]
    assert anyone.ok("merge", "demo/letters@relabel", "--json").json["outcome"] == "up-to-date"
    (anyone.cwd / "x").write_bytes(b"x")
    refused = anyone("put", "x", "demo/letters:x")
    assert refused.code == 4 and "main of demo/letters is protected" in refused.err
    anyone.ok("put", "x", "demo/letters@relabel:x")
    done = anyone.ok("merge", "demo/letters@relabel", "--json").json
    assert (done["outcome"], done["added"]) == ("merged", 1)
    reader.restore(store, "demo/letters", tmp_path / "out")
    assert files_of(tmp_path / "out") == {**make.MERGED, b"x": (make.Kind.FILE, b"x")}
    kept = keys_of(MERGED_STORE)
    assert {key: data for key, data in keys_of(store).items() if key in kept} == kept
