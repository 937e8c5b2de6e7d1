"""Names of stores that other versions have made, older ones and newer ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsv.format.records import FormatEntry
from dsv.repo.format_log import make_layout
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import Nonce, StoreId
from tests.kit.dsv import Dsv, write_files

READ_ONLY = (
    Path(__file__).parent / "store"
)  # it has a feature that no version knows, with the rule `read-only`


@pytest.fixture
def ann(tmp_path: Path) -> Dsv:
    (tmp_path / "data").mkdir()
    made = Dsv.of(tmp_path / "home", tmp_path / "work")
    made.ok("config", "stores.old.url", str(tmp_path / "data"))
    made.ok("config", "store", "old")
    return made


def test_lost_names_of_commits_that_do_not_say_their_dataset_are_found(tmp_path: Path, ann: Dsv) -> None:
    store = DirectoryStore(tmp_path / "data")
    make_layout(
        store, FormatEntry(StoreId.random(), nonce=Nonce.random(), time_ms=1, author="a", tool="dsv 0.0")
    )
    store.close()
    ann.ok("init", "xrays")
    for number in range(2):
        write_files(ann.cwd, {f"{number}.txt": b"%d" % number})
        ann.ok("sync")
    ann.ok("store", "move-names", str(tmp_path / "names"))
    shutil.rmtree(tmp_path / "names")
    ann = ann.at(tmp_path)
    ann.ok("config", "stores.old.names", str(tmp_path / "found"))
    found = ann.ok("store", "rebuild-names", "--json").json["items"]
    assert [(item["dataset"], item["head_of"]) for item in found] == [
        ("recovered", "main"),
        ("recovered", None),
    ]
    ann.ok("clone", "recovered", str(tmp_path / "copy"))
    write_files(tmp_path / "copy", {"new.txt": b"new"})
    ann.at(tmp_path / "copy").ok("sync")
    assert [ann.ok("cat", f"recovered:{name}.txt").out for name in ("0", "1", "new")] == ["0", "1", "new"]


def test_names_of_a_store_that_is_not_to_be_written_do_not_move(tmp_path: Path, ann: Dsv) -> None:
    shutil.copytree(READ_ONLY, tmp_path / "data", dirs_exist_ok=True)
    before = sorted((tmp_path / "data").rglob("*"))
    refused = ann("store", "move-names", str(tmp_path / "names"))
    assert refused.code == 9 and "cannot write" in refused.err, refused
    assert sorted((tmp_path / "data").rglob("*")) == before
    assert not (tmp_path / "names").exists()
