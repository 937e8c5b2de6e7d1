"""What `dsv verify` prints, and its exit codes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from dsv.format.locator import ObjectKind
from dsv.stores.base import NoAnswer
from dsv.stores.directory import DirectoryStore
from tests.api.test_damage_marks import flip
from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.kit.people import Person


@pytest.fixture
def store(pets: Dsv) -> Path:
    return Path(pets.ok("config", "store").out.strip())


def test_a_whole_store(pets: Dsv) -> None:
    done = pets.ok("verify")
    assert not done.out and "no damage" in done.err
    done = pets.ok("verify", "--full", "pets@v1")
    assert "1 commit" in done.err
    found = pets.ok("verify", "--full", "--json").json
    assert found["whole"] and found["commits"] == 2 and found["packs_read"] == found["packs"]
    assert found["oldest_unverified"] is not None
    some = pets.ok("verify", "--budget", "1m")
    assert "oldest unverified: 20" in some.out
    assert f"{found['packs']} packs read (" in some.err and " 0 " not in some.err


def test_damage_is_reported_as_the_files_that_were_lost(pets: Dsv, store: Path) -> None:
    flip(Person(pets.home, str(store)), ObjectKind.CHUNK)
    done = pets("verify", "--full")
    assert done.code == 5
    assert "(pets@main" in done.out and "tag pets@v1" in done.out and "'a.txt'" in done.out
    found = pets("verify", "--json")
    assert found.code == 5
    assert_documented("verify", found.json)
    lost = {one["path"] for one in found.json["items"]}
    assert "a.txt" in lost
    assert {why for one in found.json["items"] for why in one["names"]} >= {"tag pets@v1"}
    pets.ok("sync")
    assert "a.txt" not in {
        one["path"] for one in pets("verify", "--json").json["items"] if "pets@main" in one["names"]
    }


def test_what_could_not_be_asked_is_not_lost(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    get = DirectoryStore.get

    def failing(self: DirectoryStore, key: str, limit: int = 1 << 27) -> bytes:
        if key.startswith("packs/"):
            raise NoAnswer("no route to host")
        return get(self, key, limit)

    monkeypatch.setattr(DirectoryStore, "get", failing)
    done = pets("verify", "--full", "--json")
    assert done.code == 6 and done.json["unasked"] and not done.json["items"]


def test_a_listing_that_ends_early_is_not_damage(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = DirectoryStore.list

    def short(self: DirectoryStore, prefix: str, start_after: str | None = None) -> object:
        found = listed(self, prefix, start_after)
        return iter(list(found)[:1]) if prefix == "packs/" else found

    monkeypatch.setattr(DirectoryStore, "list", short)
    assert pets.ok("verify", "--json").json["packs_read"] == 0


def test_wrong_options(pets: Dsv) -> None:
    assert pets("verify", "--budget", "2h", "--full").code == 2
    refused = pets("verify", "pets@v1:a.txt")
    assert refused.code == 2 and "hint: dsv verify pets@v1\n" in refused.err
    refused = pets("du", "pets@v1:a.txt")
    assert refused.code == 2 and "hint: dsv du pets@v1 --by-folder 1\n" in refused.err
    assert pets("verify", "nothing").code == 3


def test_a_repair_from_a_folder(pets: Dsv, store: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for number, text in enumerate((b"alpha\n", b"beta\n")):
        (tmp_path / "old" / f"{number}").write_bytes(text)
    shutil.copytree(pets.cwd, tmp_path / "old" / "now", ignore=shutil.ignore_patterns(".dsv"))
    flip(Person(pets.home, str(store)), ObjectKind.CHUNK)
    assert pets("verify", "--full").code == 5
    done = pets.ok("verify", "--repair", "--from", str(tmp_path / "old"), "--json")
    assert done.json["whole"] and done.json["repaired"]
    after = pets.ok("verify", "--full")
    assert "no data is lost: there are intact copies of everything in 2 damaged or missing packs" in after.err
    assert pets("verify", "--from", str(tmp_path)).code == 2
    assert pets("verify", "--repair", "--from", str(tmp_path / "nothing")).code == 6


def test_a_commit_that_no_name_leads_to_any_more_is_listed(pets: Dsv, store: Path) -> None:
    write_files(pets.cwd, {"a.txt": b"gamma\n"})
    pets.ok("sync")
    newest = pets.ok("resolve", "pets").out.strip()
    min((store / "refs/pets/branches/main").iterdir()).unlink()
    bob = pets.at(pets.home, HOME=str(pets.home / "bob"), XDG_CACHE_HOME=str(pets.home / "bob"))
    done = bob.ok("verify", "--store", str(store))
    line = done.lines[0]
    assert "the move to it is lost" in line and line.startswith(f"pets@{newest[:12]}: no name leads to")
    found = bob.ok("verify", "--store", str(store), "--json").json
    assert [one["commit"] for one in found["unnamed"]] == [newest] and found["whole"]
    assert f"child of {found['unnamed'][0]['parent'][:12]} of pets@main, by" in line
    assert_documented("verify", found)
    words = line.partition("dsv branch ")[2].split()[:2]
    bob.ok("branch", *words, "--store", str(store))
    assert bob.ok("resolve", words[0], "--store", str(store)).out.strip() == newest
    assert not bob.ok("verify", "--store", str(store), "--json").json["unnamed"]


@pytest.mark.parametrize("gone", [True, False])
def test_a_lost_or_damaged_commit_is_read_from_its_copy_with_a_note(
    pets: Dsv, store: Path, gone: bool
) -> None:
    newest = pets.ok("resolve", "pets").out.strip()
    if gone:
        (store / "commits" / newest).unlink()
    else:
        damage(store / "commits" / newest)
    for number, name in enumerate(("pets", f"pets@{newest}")):
        bob = pets.at(pets.home, XDG_CACHE_HOME=str(pets.home / f"bob{number}"))
        read = bob.ok("cat", f"{name}:a.txt", "--store", str(store))
        assert read.out == "beta\n"
        assert (
            f"commit {newest[:12]} is {'gone' if gone else 'damaged'}, and was read from the copy" in read.err
        )


def damage(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-3] + b"???")


def test_a_run_that_used_what_another_dataset_has_freed_has_lost_nothing(pets: Dsv, store: Path) -> None:
    for text in ("one", "two"):
        write_files(pets.cwd, {"mask": text.encode()})
        pets.ok("put", "mask", "masks:mask", "--create", "-m", text)
    old = pets.ok("log", "masks", "--json").json["items"][1]["commit"]
    pets.ok("run", "pets@v1", "--data", f"m=masks@{old}", "--engine", "process", "--", "true")
    pets.ok("expire", "masks", "--keep-last", "1", "--also-runs")
    pets.ok("gc", "--yes", "--grace", "0s")
    for targets in ([], ["pets"], ["masks"]):
        assert pets.ok("verify", "--full", "--json", *targets).json["whole"], targets


def test_whatever_ends_a_collection_is_listed(pets: Dsv, store: Path) -> None:
    """Names, rules, records of runs, expiry logs, commits that are freed or that nothing names, and an empty index
    file: all of it at once."""
    write_files(pets.cwd, {"c": b"3"})
    pets.ok("sync")
    for number in range(2):
        pets.ok("put", "c", f"old:{number}", "--create", "-m", "old")
    freed = pets.ok("log", "old", "--json").json["items"][1]["commit"]
    pets.ok("expire", "old", "--keep-last", "1")
    pets.ok("gc", "--yes", "--grace", "0s")
    pets.ok("branch", "--protect", "main")
    pets.ok("run", "pets@v1", "--engine", "process", "--", "true")
    assert pets.ok("verify", "--full", "--json").json["whole"]
    (record,) = store.glob("runs/pets/*/record")
    for path in (
        store / "refs/pets/branches/main/0-rule-ffffffffffffffff",
        store / "refs/pets/tags/v1/value", store / "refs/pets/tags/v2/value",
        store / "refs/old/expired/ffffffffffffffff", store / "commits" / freed, record,
    ):  # fmt: skip
        damage(path)
    (store / "commits" / ("ab" * 32)).write_bytes(b"?")
    empty = sorted((store / "index").iterdir())[0]
    empty.chmod(0o644)
    empty.write_bytes(b"")
    done = pets.at(pets.cwd, HOME=str(pets.home / "other"))("verify", "--full", "--json")
    assert done.code == 5
    assert {(one["what"], one["name"]) for one in done.json["faults"]} >= {
        ("branch", "pets@main"), ("tag", "pets@v1"), ("tag", "pets@v2"), ("run", record.parent.name),
        ("expiry", "old"), ("commit", freed), ("commit", "ab" * 32), ("index", empty.name),
    }  # fmt: skip


@pytest.mark.parametrize("seen", [["verify", "--full"], ["cat", "pets@v1:big"]])
def test_a_pull_keeps_the_last_copy_of_what_is_damaged(dsv: Dsv, seen: list[str]) -> None:
    """As of what is lost. It is stored again, and then the pull overwrites it here."""
    big = random.Random(3).randbytes(200_000)
    write_files(dsv.cwd, {"big": big})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("tag", "v1")
    dsv.ok("clone", "pets", str(dsv.home / "copy"))
    copy = dsv.at(dsv.home / "copy")
    store = dsv.home / ".local/share/dsv/store"
    flip(Person(dsv.home, str(store)), ObjectKind.CHUNK)
    (dsv.cwd / "big").write_bytes(b"new")
    dsv.ok("sync")
    assert dsv(*seen).code == 5
    refused = copy("pull")
    assert refused.code == 4 and "lost the content of 1 file" in refused.err
    assert (dsv.home / "copy/big").read_bytes() == big
    copy("sync", "--reupload")  # it has stored it, although the branch is further
    copy.ok("pull")
    assert (dsv.home / "copy/big").read_bytes() == b"new"
    assert dsv.ok("verify", "--full").code == 0
    dsv.ok("export", "pets@v1", str(dsv.home / "out"))
    assert (dsv.home / "out/big").read_bytes() == big
