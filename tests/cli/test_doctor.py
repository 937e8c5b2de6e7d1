"""dsv doctor: each check asks the real thing, and what fails makes the exit code 1."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from dsv.api.doctor import LITTLE_ROOM
from dsv.cache.inventory import take_inventory
from dsv.cache.record import Extent, add_share, read_record
from dsv.cache.root import CacheRoot
from dsv.format.locator import ObjectKind
from dsv.stores.base import Bytes, PutResult
from dsv.stores.directory import DirectoryStore
from dsv.values.units import format_bytes
from tests.api.test_damage_marks import flip
from tests.cli.test_pools import by_hand
from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.kit.people import Person
from tests.privileges import modes_count


def findings(dsv: Dsv, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    result = dsv("doctor", "--json", *arguments)
    assert result.code == code, result
    assert_documented("doctor", result.json)
    return {item["check"]: item for item in result.json["items"]}


def bad(found: dict[str, dict[str, Any]]) -> set[str]:
    """Return the checks that failed, except those of engines: which of them a machine has is not the test's."""
    return {check for check, item in found.items() if item["state"] != "ok" and "engine" not in check}


def test_the_size_of_the_runs_own_folders_is_named(pets: Dsv) -> None:
    folder = pets.home / ".local/state/dsv/runs"
    assert findings(pets)["run folders"]["text"].startswith(f"0 B in {folder}; ")
    write_files(folder, {"pets/a-run/out/m": bytes(range(256)) * 4000})
    size = 512 * (folder / "pets/a-run/out/m").stat().st_blocks
    assert findings(pets)["run folders"]["text"].startswith(f"{format_bytes(size)} in {folder}; ")


def test_accounts_of_a_cache_are_compared_with_the_disk_and_corrected(pets: Dsv) -> None:
    folder = Path(pets.ok("cache", "pets@v1", "--json").json["items"][0]["path"])
    assert findings(pets)["cache accounts"]["text"].endswith("agree with the disk")
    (record,) = take_inventory(root := CacheRoot(Path(pets.environ["DSV_CACHE"]))).visible
    known = read_record(root, record.place)
    assert known is not None and folder == record.path
    add_share(root, record.place, known.fill, Extent(5_000_000, 1))
    wrong = findings(pets)["cache accounts"]
    assert wrong["state"] == "warn" and wrong["text"].endswith("are wrong by 5.00 MB")
    pets.ok("cached", "--recount")
    assert findings(pets)["cache accounts"]["text"].endswith("agree with the disk")


def test_all_is_well(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1")
    found = findings(pets)
    disk = shutil.disk_usage(pets.home)
    assert bad(found) == ({"cache"} if disk.free * 100 < disk.total * LITTLE_ROOM else set())
    assert "1 dataset" in found["read"]["text"]
    assert "pets@main" in found["workspace"]["text"]
    assert {"versions", "author", "store", "write", "clock", "cache", "gpus", "engine process"} <= set(found)
    store = pets.home / ".local/share/dsv/store"
    assert not [*store.glob("probe/*/**/*")]  # what it wrote is gone


def test_a_name_that_was_renamed_is_no_dataset(pets: Dsv) -> None:
    pets.ok("datasets", "--rename", "pets", "cats")
    found = findings(pets.at(pets.home))
    assert "1 dataset," in found["read"]["text"]


def test_pools_are_asked_and_clusters_without_one_are_not(pets: Dsv) -> None:
    assert not {"engine slurm", "engine kubernetes"} & set(findings(pets))
    pets.ok("config", "pools.desk.engine", "process")
    pets.ok("config", "pools.gpus.engine", "kubernetes")
    found = findings(pets)
    assert (found["pool desk"]["state"], found["pool gpus"]["state"]) == ("ok", "warn")
    assert "kubernetes.context" in found["pool gpus"]["hint"]
    by_hand(pets, "pools.odd.engine", "abacus")
    odd = findings(pets, code=1)["pool odd"]
    assert odd["state"] == "fail" and "abacus" in odd["text"] and "dsv config pools.odd.engine" in odd["hint"]


def test_a_person_reads_it(pets: Dsv) -> None:
    shown = pets("doctor", terminal=True)
    assert shown.code == 0
    assert "\x1b[32mok  \x1b[0m  write:" in shown.out
    assert shown.err == ""


def test_no_word_is_broken_on_a_terminal(pets: Dsv) -> None:
    whole = {word for item in findings(pets).values() for word in item["text"].split()}
    shown = pets("doctor", terminal=True, width=60)
    lines = re.sub(r"\x1b[^m]*m", "", shown.out).splitlines()
    assert {word for line in lines for word in line[23:].split()} >= {
        word
        for word in whole
        if "/" not in word and not any(map(str.isdigit, word))  # no time or size
    }
    assert all(len(line) <= 60 or len(line[23:].split()) == 1 for line in lines)


def test_nothing_is_set_up_yet(dsv: Dsv) -> None:
    found = findings(dsv)
    assert bad(found) == {"store"}
    assert found["store"]["state"] == "warn"
    assert "dsv init" in found["store"]["hint"]
    assert not list((dsv.home / ".local").rglob("dsv"))  # the programs of an engine may keep theirs there
    assert "is not there yet" in found["cache"]["text"]
    assert not (dsv.home / ".cache").exists()


@pytest.mark.usefixtures("impatient")
def test_a_store_that_does_not_answer(pets: Dsv) -> None:
    pets.ok("config", "stores.lake.url", "s3://lake/dsv")
    pets.ok("config", "stores.lake.endpoint", "http://127.0.0.1:9")
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    found = findings(pets.at(pets.home, **keys), "--store", "lake", code=1)
    assert found["store"]["state"] == "fail"
    assert "127.0.0.1:9" in found["store"]["text"] + found["store"]["hint"]
    assert "cache" in found  # the other checks continue


def test_a_store_that_may_only_be_read(pets: Dsv) -> None:
    store = pets.home / ".local/share/dsv/store"
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with modes_count():
            found = findings(pets)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert bad(found) == {"write"}
    assert found["write"]["state"] == "warn"
    assert "you may not write" in found["write"]["text"]


def test_a_store_that_lets_two_writers_win(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DirectoryStore.put_if_absent

    def overwriting(self: DirectoryStore, key: str, data: Bytes) -> PutResult:
        if key.startswith("probe/"):
            self.delete(key)
            honest(self, key, data)
            return PutResult.WON
        return honest(self, key, data)

    monkeypatch.setattr(DirectoryStore, "put_if_absent", overwriting)
    found = findings(pets, code=1)
    assert bad(found) == {"write"}


def test_a_clock_that_is_wrong(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryStore, "modified", lambda self, key: time.time() - 7200)
    found = findings(pets)
    assert found["clock"]["state"] == "warn"
    assert "7,1" in found["clock"]["text"] or "7,2" in found["clock"]["text"]


@pytest.mark.parametrize("content", ["unused_for = 3\n", "protocol = 99\n"])
def test_a_cache_that_can_not_be_used(pets: Dsv, content: str) -> None:
    pets.ok("cache", "pets@v1")
    (pets.cwd.parent / "cache/dsv-cache.toml").write_text(content)
    found = findings(pets, code=1)
    assert bad(found) == {"cache"}


def test_a_setting_that_means_nothing(pets: Dsv) -> None:
    config = pets.home / ".config/dsv/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('stoer = "x"\n')
    found = findings(pets)
    assert bad(found) == {"config"}
    assert "stoer" in found["config"]["text"]


def test_a_workspace_of_another_store(pets: Dsv, tmp_path: Path) -> None:
    other = tmp_path / "other"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pets.at(elsewhere).ok("init", "cats", "--store", str(other))
    found = findings(pets, "--store", str(other), code=1)
    assert found["workspace"]["state"] == "fail"
    assert os.fspath(other) in found["workspace"]["text"]


def test_what_is_known_of_contents(pets: Dsv) -> None:
    """`doctor` and `store check` read none, and say so; what `verify` has found they report."""
    assert "never read" in findings(pets)["contents"]["text"]
    pets.ok("verify", "--full")
    assert "every pack since 20" in findings(pets)["contents"]["text"]
    store = pets.ok("config", "store").out.strip()
    flip(Person(pets.home, store), ObjectKind.CHUNK)
    assert "dsv doctor does not read contents" in findings(pets)["contents"]["text"]
    assert pets("verify", "--full").code == 5
    for command in (["doctor"], ["store", "check"]):
        items = {item["check"]: item for item in pets(*command, "--json").json["items"]}
        assert items["contents"]["state"] == "fail" and "dsv verify" in items["contents"]["hint"]
    pets.ok("sync")
    write_files(pets.cwd, {"a.txt": b"alpha\n"})  # of the first commit
    pets.ok("sync")
    pets.ok("verify")
    assert findings(pets)["contents"]["state"] == "ok"
