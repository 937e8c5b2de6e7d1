"""`dsv bench feed` over folders, caches and stores. How fast the machine is decides nothing here."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dsv.api.bench_feed import LOADS
from dsv.format.locator import ObjectKind
from tests.api.test_damage_marks import flip
from tests.cli.test_completion import offered
from tests.kit.dsv import Dsv, assert_documented
from tests.kit.people import Person
from tests.processes import running
from tests.waiting import until

ONE = ("--model", "cosmoflow", "--accelerators", "1", "--steps", "3")
"""A short round."""


def feed(dsv: Dsv, *words: str) -> dict[str, Any]:
    found = dsv.ok("bench", "feed", *words, "--json")
    assert_documented("bench", found.json)
    document: dict[str, Any] = found.json
    assert document["note"] == "like MLPerf Storage, not a result of it"
    for item in document["items"]:
        assert 0 < item["au"] <= 1 and item["passed"] == (item["au"] >= document["load"]["mark"])
        assert item["steps"] >= 2 and item["seconds"] > 0 and item["bytes"] > 0
    return document


def test_a_commit_from_the_store(pets: Dsv) -> None:
    found = feed(pets, "pets@v1", *ONE)
    assert (found["from"], found["files"], found["bytes"], found["made"]) == ("store", 4, 9, False)
    assert found["sample_bytes"] == 9 / 4 and found["load"]["sample"] == 2_828_486
    assert found["demand"] == pytest.approx(9 / 4 / 0.0035)
    assert found["page_cache"] is None and not found["page_cache_dropped"]
    assert found["most"] is None and [item["accelerators"] for item in found["items"]] == [1]
    assert found["place"].startswith("pets@") and not found["five_times_memory"]
    assert feed(pets, "pets@v1:train", *ONE)["files"] == 2


def test_a_commit_from_the_cache(pets: Dsv) -> None:
    found = feed(pets, "pets@v1", "--from", "cache", *ONE)
    assert (found["from"], found["files"], found["bytes"]) == ("cache", 4, 9)
    assert Path(found["place"]).is_relative_to(pets.cwd.parent / "cache")
    assert found["page_cache_dropped"]
    assert "no hold" not in pets.ok("cached").out and len(pets.ok("cached", "--json").json["items"]) == 1
    away = pets.at(pets.cwd.parent, DSV_STORE="/nowhere")
    assert feed(away, "pets@v1", "--from", "cache", "--offline", *ONE)["files"] == 4


def test_a_folder_and_bytes_of_the_model(dsv: Dsv) -> None:
    data = dsv.cwd / "data"
    for number in range(6):
        path = data / f"{number % 2}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(10_000))
    (data / "link").symlink_to("0/0")
    found = feed(dsv, "--folder", "data", *ONE)
    assert (found["from"], found["files"], found["bytes"]) == ("folder", 6, 60_000)
    assert found["place"] == str(data) and found["sample_bytes"] == 10_000
    found = feed(dsv, "--folder", "data", "--batch", "bytes", "--keep-page-cache", *ONE)
    assert found["sample_bytes"] == found["load"]["sample"] and not found["page_cache_dropped"]
    assert found["demand"] == pytest.approx(2_828_486 / 0.0035)
    [item] = found["items"]
    assert item["bytes"] == 2 * 2_828_486  # of three steps, without the first
    assert feed(dsv, "--folder", "data/0/0", *ONE)["bytes"] == 10_000


def test_data_that_is_made_is_like_the_models_and_is_removed(pets: Dsv) -> None:
    (pets.cwd / "disk").mkdir()
    before = {path: path.stat().st_mtime_ns for path in (pets.home / ".local").rglob("*") if path.is_file()}
    others = {path.name for path in pets.cwd.parent.iterdir()}
    shown = pets.ok("bench", "feed", "--make", "9M", "--folder", "disk", *ONE)
    assert "writing 4 files, 1" in shown.err and "it is removed at the end" in shown.err
    assert shown.err.index("writing") < shown.err.index("measuring")
    assert shown.lines[0] == "cosmoflow on h100, as in MLPerf Storage v1.0 and v2.0:"
    assert shown.lines[-1] == "like MLPerf Storage, not a result of it"
    assert "caches may have been warm: these figures may be too good" in shown.out
    found = feed(pets, "--make", "9M", "--store", f"file://{pets.cwd.parent}/a store", *ONE)
    assert {path.name for path in pets.cwd.parent.iterdir()} == others
    found = feed(pets, "--make", "9M", *ONE)
    assert found["made"] and found["from"] == "store" and 9e6 <= found["bytes"] < 12e6
    assert found["sample_bytes"] == pytest.approx(found["load"]["sample"], rel=0.2)
    after = {path: path.stat().st_mtime_ns for path in (pets.home / ".local").rglob("*") if path.is_file()}
    assert after == before and not list((pets.cwd / "disk").iterdir())
    assert not list(pets.home.rglob("*bench-feed*"))
    assert [item["dataset"] for item in pets.ok("datasets", "--json").json["items"]] == ["pets"]


def test_a_search_ends_where_the_next_one_fails(pets: Dsv) -> None:
    found = feed(pets, "pets@v1", "--model", "cosmoflow", "--steps", "2", "--up-to", "2")
    tried = {item["accelerators"]: item["passed"] for item in found["items"]}
    most = found["most"]
    assert most == 0 or tried[most]
    assert found["at_limit"] if most == 2 else tried[most + 1] is False
    assert set(tried) <= {1, 2}


def test_a_narrow_window(pets: Dsv) -> None:
    shown = pets("bench", "feed", "pets@v1", *ONE, terminal=True, width=60)
    assert shown.code == 0
    table = shown.lines[next(at for at, line in enumerate(shown.lines) if line.split()[:1] == ["au"]) :]
    assert table[1].split()[0] == "passed" and max(map(len, table)) <= 60  # it stands on end


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        ((), "not nothing", "--make SIZE"),
        (("pets", "--folder", "."), "not TARGET and --folder", "--folder DIR"),
        (("pets", "--make", "1M"), "not TARGET and --make", "--folder DIR"),
        (("pets", "--from", "folder"), "--from folder is not for TARGET", "--from store or cache"),
        (("--make", "1M", "--from", "folder"), "--from folder is not for --make", "--from store"),
        (("--make", "1M", "--from", "cache"), "--from cache is not for --make", "--from store"),
        (("--folder", ".", "--from", "store"), "--from store is not for --folder", "--from folder"),
        (("--make", "0B"), "not nothing", "--make SIZE"),
        (("pets", "--model", "bert"), "there is no model 'bert'", "unet3d|retinanet"),
        (("pets", "--model", "retinanet", "--accelerator", "h100"), "no version of MLPerf Storage", "b200|mi355"),
        (("pets", "--model", "resnet50", "--batch", "files"), "a part of a file", "leave out --batch"),
        (("pets", "--steps", "1"), "whole number from 2", ""),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(dsv: Dsv, words: tuple[str, ...], says: str, hint: str) -> None:
    refused = dsv("bench", "feed", *words)
    assert refused.code == 2 and says in refused.err and hint in refused.err and not refused.out


def test_what_is_not_there(pets: Dsv) -> None:
    (pets.cwd / "empty").mkdir()
    for words in (
        ("nobody",),
        ("pets:none",),
        ("--folder", "none"),
        ("--folder", "empty"),
        ("--make", "1M", "--folder", "none"),
    ):
        refused = pets("bench", "feed", *words)
        assert (refused.code, refused.out) == (3, ""), refused
    refused = pets("bench", "feed", "--make", "900P", "--folder", "empty", "--json")
    assert refused.code == 7 and "to be written" in refused.json["error"]["message"]
    assert not list((pets.cwd / "empty").iterdir())


def test_an_error_of_a_reader_is_the_answer(pets: Dsv) -> None:
    flip(Person(pets.home, pets.ok("du", "--json").json["url"]), ObjectKind.CHUNK)
    refused = pets("bench", "feed", "pets@v1", *ONE, "--json")
    assert refused.code == 5 and refused.json["error"]["kind"] == "integrity"


def test_a_part_is_completed(dsv: Dsv) -> None:
    assert offered(dsv, "bench", "") == ["feed"]
    assert offered(dsv, "bench", "feed", "--model", "") == [*dict.fromkeys(load.model for load in LOADS)]
    assert offered(dsv, "bench", "feed", "--accelerator", "h") == ["h100"]
    assert offered(dsv, "bench", "feed", "--from", "") == ["store", "cache", "folder"]


def below(pid: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(one for child in found for one in below(child))]


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        (signal.SIGINT, "folder"),
        (signal.SIGINT, "store"),
        (signal.SIGTERM, "store"),
        (signal.SIGKILL, "store"),
    ],
)
def test_nothing_stays_when_it_is_stopped(pets: Dsv, how: signal.Signals, kind: str) -> None:
    disk = pets.cwd / "disk"
    disk.mkdir()
    where = ("--folder", "disk") if kind == "folder" else ()
    words = ("--model", "cosmoflow", "--accelerators", "2", "--duration", "1h", "--steps", "100000000")
    here = pets.at(pets.cwd, TMPDIR=str(pets.home))  # what a killed one leaves goes with the test's folder
    with here.start("bench", "feed", "--make", "9M", *where, *words, start_new_session=True) as process:
        until(
            lambda: len(below(process.pid)) >= 9, "the workers"
        )  # one for the round, 4 for each accelerator
        started = below(process.pid)
        process.send_signal(how)
        process.communicate()
    for pid in started:
        until(lambda pid=pid: not running(pid), "the end of a worker")  # type: ignore[misc]
    if how == signal.SIGKILL:
        return
    assert process.returncode == 128 + how
    assert not list(disk.iterdir()) and not list(pets.home.rglob("*bench-feed*"))
