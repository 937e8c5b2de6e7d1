from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from dsv.errors import Denied
from dsv.stores.directory import DirectoryStore
from tests.kit.dsv import Dsv, assert_documented, made_once, write_files

BIG = random.Random(2).randbytes(2 << 20)


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    """A dataset with two commits, the first one tagged."""
    write_files(dsv.cwd, {"train/1": BIG, "train/2": b"same", "test/1": b"same", "top": b"top"})
    dsv.ok("init", "pets", "--author", "Ann Lee")
    dsv.ok("sync", "-m", "first", "--author", "Ann Lee")
    dsv.ok("tag", "v1", "--author", "Ann Lee")
    write_files(dsv.cwd, {"test/2": BIG[: 1 << 20]})
    dsv.ok("sync", "-m", "second", "--author", "Ann Lee")
    return dsv


def store_bytes(dsv: Dsv) -> int:
    root = Path(dsv.ok("du", "--json").json["url"])
    files = [Path(folder) / name for folder, _, names in os.walk(root) for name in names]
    return sum(path.stat().st_size for path in files if not path.name.startswith("."))


def test_the_sums_are_all_that_the_store_has(pets: Dsv) -> None:
    found = pets.ok("du", "--json").json
    assert_documented("du", found)
    store, [item] = found["store"], found["items"]
    assert store["total"] == store_bytes(pets)
    frame = 64
    sums = [store[key]["stored"] for key in ("needed", "unused", "duplicates")]
    assert store["packs"]["bytes"] == sum(sums) + frame * store["packs"]["count"]
    parts = [store[key] for key in ("indexes", "commits", "names", "runs", "other")]
    assert store["total"] == store["packs"]["bytes"] + sum(parts)
    assert (item["name"], item["kind"], item["commits"]) == ("pets", "dataset", 2)
    assert item["stored"] == item["alone"] == store["needed"]["stored"]
    assert store["unused"]["objects"] == store["expired"]["commits"] == found["lost"] == 0
    pets.ok("erase", "pets@v1:top", "--reason", "asked", "--yes")
    assert pets.ok("du", "--json").json["store"]["total"] == store_bytes(pets)


def test_a_branch_a_commit_and_a_range(pets: Dsv) -> None:
    found = pets.ok("du", "pets@main", "pets@v1", "@v1..main", "--json").json
    assert_documented("du", found)
    assert found["store"] is None
    history, first, added = found["items"]
    assert [one["kind"] for one in found["items"]] == ["branch", "commit", "range"]
    assert [one["commits"] for one in found["items"]] == [2, 1, 1]
    assert first["alone"] + added["alone"] < history["alone"] == history["stored"]
    assert first["shared"] == added["shared"] == first["stored"] - first["alone"] > 1 << 20
    assert history["stored"] == first["stored"] + added["alone"]
    assert history["original"] == first["original"] + added["alone_original"]


def test_what_two_datasets_share_is_alone_in_none(pets: Dsv) -> None:
    pets.ok("put", "train/1", "others:1", "--create", "-m", "a copy", "--author", "Ann Lee")
    mine, others = pets.ok("du", "--json").json["items"]
    assert [mine["name"], others["name"]] == ["others", "pets"]
    assert mine["shared"] == others["shared"] > 2 << 20
    assert mine["alone"] < 10_000


def test_folders(pets: Dsv) -> None:
    found = pets.ok("du", "pets", "--by-folder", "1", "--json").json
    assert_documented("du", found)
    by_name = {one["name"]: one for one in found["items"]}
    assert list(by_name) == ["./", "test/", "train/", "(nodes and segments)"]
    assert by_name["train/"]["original"] > 2 << 20
    assert by_name["test/"]["shared_original"] == 4 and by_name["test/"]["alone_original"] == 1 << 20
    assert by_name["./"]["alone_original"] == 3
    text = pets.ok("du", "@v1", "--by-folder", "1")
    assert text.lines[0].split() == ["FOLDER", "STORED", "ALONE", "SHARED", "ORIGINAL"]


def test_the_text_names_each_part(pets: Dsv) -> None:
    lines = pets.ok("du").lines
    assert lines[0].split() == ["NAME", "COMMITS", "STORED", "ALONE", "SHARED", "ORIGINAL"]
    assert lines[1].split()[:2] == ["pets", "2"]
    assert any(line.startswith("total") for line in lines)
    assert lines[-1] == "gc would free nothing"
    assert [line for line in pets.ok("du", "--unused").lines if line.startswith("pets")] == []


def test_what_runs_have_left_is_no_version(pets: Dsv) -> None:
    """Their code and output take space, and are commits that no history has."""
    before = pets.ok("du", "--json").json["items"][0]
    pets.ok(
        "run",
        "pets",
        "--engine",
        "process",
        "--keep-output",
        "--",
        "sh",
        "-c",
        'echo much > "$DSV_OUT/model"',
    )
    after = pets.ok("du", "--json").json["items"][0]
    assert after["commits"] == before["commits"] == 2 and after["stored"] > before["stored"]


def test_what_a_killed_sync_left_is_unused(pets: Dsv) -> None:
    root = Path(pets.ok("du", "--json").json["url"])
    (root / "packs" / "ab").mkdir(exist_ok=True)
    (root / "packs" / "ab" / ("ab" + "0" * 30)).write_bytes(b"x" * 5000)
    found = pets.ok("du", "--unused", "--json").json["store"]
    assert found["packs"]["free_bytes"] == found["packs"]["unindexed_bytes"] == 5000
    assert found["total"] == store_bytes(pets)
    assert "gc would free 5.00 kB at once (1 pack)" in pets.ok("du", "--unused").out


def test_expired_commits_take_what_they_have_alone(pets: Dsv) -> None:
    pets.ok("tag", "--delete", "v1", "--force", "--author", "Ann Lee")
    before = pets.ok("du", "--json").json
    alone = pets.ok("du", "pets@main~1", "--json").json["items"][0]["alone"]
    pets.ok("expire", "pets", "--keep-last", "1", "--author", "Ann Lee")
    store = pets.ok("du", "--json").json["store"]
    assert (store["expired"]["commits"], store["expired"]["alone"]) == (1, alone) and alone > 0
    assert store["needed"] == before["store"]["needed"]
    assert "of 1 expired commit" in pets.ok("du").out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["pest"], 3, "there is no dataset pest"),
        (["pets@v9"], 3, "no branch or tag v9"),
        (["pets@v1..v9"], 3, "no branch or tag v9"),
        (["pets@v1.."], 2, "names no revision after the .."),
        (["pets@..v1"], 2, "names no revision"),
        (["pets:train"], 2, "is about whole commits"),
        (["--by-folder", "1"], 2, "measures one target"),
        (["pets", "@v1", "--by-folder", "1"], 2, "measures one target"),
        (["pets", "--by-folder", "0"], 2, "not a whole number from 1"),
        (["pets", "--unused"], 2, "--unused is about the whole store"),
    ],
)
def test_wrong_arguments_are_reported(pets: Dsv, words: list[str], code: int, said: str) -> None:
    result = pets("du", *words)
    assert result.code == code and said in result.err and not result.out


def test_a_dataset_is_needed_outside_a_workspace(dsv: Dsv, tmp_path: Path) -> None:
    result = dsv.at(tmp_path)("du", "@v1")
    assert result.code in (2, 3) and "hint:" in result.err


def test_no_store_and_no_answer(dsv: Dsv, tmp_path: Path) -> None:
    result = dsv("du", "--store", str(tmp_path / "none"))
    assert result.code == 6 and "hint:" in result.err and not result.out
    assert dsv("du").code == 3  # none is set up


def test_an_empty_store(dsv: Dsv) -> None:
    dsv.ok("init", "pets", "--author", "Ann Lee")
    found = dsv.ok("du", "--json").json
    assert found["store"]["needed"]["objects"] == 0 and found["items"] == []
    assert "gc would free nothing" in dsv.ok("du").out


def test_lost_objects_are_reported(pets: Dsv) -> None:
    root = Path(pets.ok("du", "--json").json["url"])
    for pack in (root / "packs").rglob("*"):
        if pack.is_file() and pack.stat().st_size > 1 << 20:
            pack.unlink()
    result = pets("du")
    assert result.code == 5 and "that an index lists; run dsv verify" in result.err
    assert "gc would free nothing, as data that is needed is lost" in result.out
    assert " -" not in result.out  # as the sizes of lost packs are still counted as needed
    assert pets("du", "--json").json["lost"] == pets("verify", "--json").json["lost_objects"]


def test_an_index_that_is_lost_frees_nothing(pets: Dsv) -> None:
    """The objects that it lists would count as unused."""
    root = Path(pets.ok("du", "--json").json["url"])
    for index in (root / "index").iterdir():
        index.unlink()
    for options in ((), ("--unused",)):
        result = pets("du", *options)
        assert result.code == 5 and "gc would free nothing, as " in result.out, result
        assert "warning: lost: " in result.err


def test_who_may_not_list_gets_no_wrong_answer(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise Denied("packs/ was refused")

    monkeypatch.setattr(DirectoryStore, "folders", refused)
    result = pets("du")
    assert result.code == 8 and not result.out


def test_nothing_is_left_behind(pets: Dsv) -> None:
    pets.ok("du")
    assert not list(Path(pets.home).rglob("upkeep-*"))
    json.loads(pets.ok("du", "--json").out)
