"""cache, cached, hold, release, evict: their text, their JSON, their exit codes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv.cache.claims import LeaseOwner, at
from dsv.cli.app import load
from dsv.format.locator import ObjectKind
from tests.api.test_damage_marks import flip
from tests.cli.conftest import FILES
from tests.kit.dsv import PROGRAM, Dsv, Result, assert_documented, name_of, write_files
from tests.kit.people import Person
from tests.strace import needs_strace


def test_cache_prints_a_path_for_each_target(pets: Dsv) -> None:
    result = pets.ok("cache", "pets@v1", "@v2:train")
    first, second = map(Path, result.lines)
    assert first == pets.cwd.parent / "cache/pets" / pets.ok("resolve", "@v1").out.strip()
    assert (first / "a.txt").read_bytes() == b"alpha\n"
    assert sorted(path.name for path in second.rglob("*.png")) == ["1.png", "2.png"]
    assert not (second / "a.txt").exists()
    assert result.err.count("; kept until ") == 2
    assert pets.ok("cache", "@v1", "-q").err == ""


def test_a_hit_imports_nothing_that_fills_or_runs(pets: Dsv) -> None:
    """Importing it would take longer than all that a hit does."""
    banned = [
        "dsv.cache.fill.fill",
        "dsv.cache.evict",
        "dsv.transfer",
        "dsv.engines",
        "obstore",
        "rich",
    ]
    code = "import sys; sys.argv = ['dsv', 'cache', 'pets@v1']\nfrom dsv.cli.main import main\nmain()\n"
    code += f"print([name for name in {banned!r} if name in sys.modules], file=sys.stderr)"

    def imported() -> str:
        line = [sys.executable, "-c", code]
        done = subprocess.run(
            line, env=dict(pets.environ), cwd=pets.cwd, capture_output=True, text=True, check=True
        )
        return done.stderr.splitlines()[-1]

    assert imported() == "['dsv.cache.fill.fill', 'dsv.cache.evict', 'dsv.transfer']"
    assert imported() == "[]"


def test_cache_prints_as_json_what_it_cost(pets: Dsv) -> None:
    first = pets.ok("cache", "@v1", "--json").json
    assert_documented("cache", first)
    item = first["items"][0]
    assert set(item) == {
        "path",
        "dataset",
        "commit",
        "files",
        "bytes",
        "fetched_bytes",
        "linked_files",
        "erased",
        "hit",
        "seconds",
        "hold",
        "held_until",
    }
    assert item["seconds"] > 0
    assert (item["files"], item["bytes"], item["fetched_bytes"], item["hit"]) == (4, 9, 9, False)
    again = pets.ok("cache", "@v1", "--json").json["items"][0]
    assert (again["hit"], again["fetched_bytes"]) == (True, 0)
    linked = pets.ok("cache", "@v2", "--json").json["items"][0]
    assert (linked["linked_files"], linked["fetched_bytes"]) == (3, 5)


@pytest.mark.parametrize("arguments", [[], [""], ["@v1", " "]])
def test_an_empty_target_is_a_usage_error(pets: Dsv, arguments: list[str]) -> None:
    result = pets("cache", *arguments)
    assert (result.code, result.out) == (2, "")


def test_a_store_is_no_cache(pets: Dsv) -> None:
    """The link of a tag would be a key of the store."""
    store = pets.home / ".local/share/dsv/store"
    before = sorted(path.relative_to(store) for path in store.rglob("*"))
    refused = pets.at(pets.cwd, DSV_CACHE=str(store))("cache", "pets@v1")
    assert refused.code == 4 and f"{store} is a store" in refused.err
    assert sorted(path.relative_to(store) for path in store.rglob("*")) == before


def test_an_unreadable_binding_of_a_dataset_is_named(pets: Dsv) -> None:
    path = Path(pets.ok("cache", "pets@v1").lines[0])
    (binding,) = path.parents[1].glob(".dsv/datasets/*")
    binding.chmod(0o644)
    binding.write_bytes(b"")
    refused = pets("cache", "pets@v1")
    assert refused.code == 5 and f"{binding} does not say which store's" in refused.err
    binding.unlink()
    pets.ok("cache", "pets@v1")


def test_a_cached_tag_needs_no_store(pets: Dsv) -> None:
    path = pets.ok("cache", "pets@v1").out
    (pets.home / ".local/share/dsv/store").rename(pets.home / "away")
    assert pets.ok("cache", "pets@v1").out == path
    gone = pets("cache", "pets@v2")
    assert (gone.code, gone.out) == (6, "")
    assert pets("cache", "pets@v2", "--offline").code == 6
    assert pets("cache", "pets@v2", "--json").json["error"]["retryable"] is True


def test_cached_is_a_dashboard(pets: Dsv) -> None:
    empty = pets.ok("cached")
    assert len(empty.lines) == 1
    pets.ok("cache", "pets@v1", "--hold", "1h")
    pets.ok("cache", "pets@v2:train")
    pets.ok("hold", "pets@v1", "-m", "the paper")
    report = pets.ok("cached", "--json").json
    assert_documented("cached", report, without="checked.")
    by_name = {tuple(item["names"]): item for item in report["items"]}
    assert by_name[("v1",)]["pins"][0]["why"] == "the paper"
    assert by_name[("v2",)]["selection"] == ["train"]
    assert report["room"]["unused_for"] == 86400
    room = report["room"]
    files = [path for path in (Path(report["cache"]) / ".dsv/stores").rglob("*") if path.is_file()]
    assert room["metadata_bytes"] == sum(path.stat().st_blocks * 512 for path in files) > 0
    assert room["used_bytes"] > room["metadata_bytes"]
    pets.ok("evict", "pets@v2:train")
    text = pets.ok("cached").out
    assert "of it metadata)" in text
    pets.ok("cache", "pets@v2:train")
    text = pets.ok("cached").out
    assert "  held by " in text
    assert ": the paper\n" in text
    assert "  only train\n" in text
    assert "limits: unused for 1d" in text


@pytest.mark.parametrize("columns", [60, 120])
def test_cached_fits_the_window(pets: Dsv, columns: int) -> None:
    pets.ok("cache", "pets@v1")
    shown = pets("cached", terminal=True, width=columns).out.partition("\n\n")[0]
    assert max(map(len, shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= columns


def test_a_check_reads_again_and_repairs(pets: Dsv) -> None:
    path = Path(pets.ok("cache", "pets@v1").lines[0])
    assert pets.ok("cached", "--check").out == f"{path}: 4 files, 9 B, as committed\n"
    (path / "a.txt").chmod(0o644)
    (path / "a.txt").write_bytes(b"gamma\n")
    wrong = pets("cached", "--check", "--no-repair", "pets@v1")
    assert (wrong.code, wrong.out) == (5, "")
    assert "a.txt" in wrong.err and "hint: dsv cached --check pets@" in wrong.err
    report = pets.ok("cached", "--check", "--json").json
    item = report["checked"][0]
    assert item["repaired"] == 1
    assert item["wrong"][0]["path"] == "a.txt"
    assert set(item) == set(load("cached").result["checked"])
    assert (path / "a.txt").read_bytes() == b"alpha\n"
    assert pets("cached", "pets@v1").code == 2
    (path / "alien").touch()
    (path / "a.txt").chmod(0o644)
    (path / "a.txt").write_bytes(b"gamma\n")
    polluted = pets("cached", "--check")
    assert (polluted.code, polluted.out) == (5, "")
    assert "repaired 1 of 1 wrong file; 1 file never committed: 'alien'" in polluted.err
    assert f"hint: dsv cached --check --repair pets@{path.name[:12]} " in polluted.err
    assert pets("cached", "--check", "--no-repair", "--json").code == 5
    assert "removed 1 file never committed: 'alien'" in pets.ok("cached", "--check", "--repair").out
    assert not (path / "alien").exists()
    assert "as committed" in pets.ok("cached", "--check").out


def test_a_file_that_the_disk_cannot_read_is_replaced(pets: Dsv, tmp_path: Path) -> None:
    """The rest is read, too, and a commit that shares the file gets the new one."""
    needs_strace()
    first, second = (Path(line) for line in pets.ok("cache", "pets@v1", "pets@v2").lines)
    broken = [path / "train/1.png" for path in (first, second)]
    assert broken[0].samefile(broken[1])
    before = broken[0].stat().st_ino
    at_fault = [part for path in broken for part in ("-P", str(path))]
    upset = ["strace", "-f", "-o", str(tmp_path / "strace"), *at_fault, "-e", "inject=read,pread64:error=EIO"]

    def check(*options: str) -> Result:
        line = [*upset, *PROGRAM, "cached", "--check", "--json", *options]
        done = subprocess.run(
            line, env=dict(pets.environ), cwd=pets.cwd, capture_output=True, check=False, text=True
        )
        return Result(done.returncode, done.stdout, done.stderr)

    found = check("--no-repair")
    assert found.code == 5
    unreadable = "1 of 4 files: 'train/1.png' (can't be read: Input/output error)"
    assert found.json["error"]["message"].count(unreadable) == 2
    assert broken[0].stat().st_ino == before
    mended = check()
    assert mended.code == 0
    assert [item["repaired"] for item in mended.json["checked"]] == [1, 1]
    assert mended.json["checked"][0]["wrong"] == [
        {"path": "train/1.png", "problem": "can't be read: Input/output error", "links": 1}
    ]
    assert broken[0].samefile(broken[1])
    assert broken[0].stat().st_ino != before
    assert broken[0].read_bytes() == FILES["train/1.png"]
    assert pets.ok("cached", "--check").out.count("as committed") == 2


@pytest.mark.parametrize("name", ["dsv-cache.toml", "DSV-Cache.TOML", "dsv-cache.toml/x"])
def test_a_dataset_may_have_the_name_of_the_settings_file(dsv: Dsv, name: str) -> None:
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.cwd.parent / "cache"))
    write_files(here.cwd, FILES)
    here.ok("init", name)
    here.ok("sync")
    path = Path(here.ok("cache", name, "--hold", "1h").lines[0])
    assert (path / "a.txt").read_bytes() == FILES["a.txt"]
    settings = path.parents[1] / "dsv-cache.toml"
    assert settings.is_file() and path.parent.name.casefold() != settings.name
    assert here.ok("cached", "--json").json["items"][0]["dataset"] == name
    assert here.ok("cached").err == ""
    assert here.ok("release", name).out.startswith(f"released {name}@")
    assert here.ok("hold", name).out.startswith(f"held {name}@")
    settings.write_text(f'max_files = 0\nprotected = ["{name}"]\n')
    assert here.ok("release", name).code == 0
    assert here("evict").code == 7 and path.is_dir()
    settings.write_text("")
    assert here.ok("evict", name).out.startswith(f"evicted {name}@")
    assert not path.parent.exists()


def test_evict_is_quiet_when_nothing_is_due(pets: Dsv) -> None:
    nothing = pets.ok("evict")
    assert (nothing.out, nothing.err) == ("", "")
    pets.ok("cache", "pets@v1")
    fresh = pets.ok("evict")
    assert (fresh.out, fresh.err) == ("", "")
    report = pets.ok("evict", "--json").json
    assert (report["evicted"], report["freed_bytes"]) == ([], 0)


@pytest.mark.parametrize("option", ["--all", "--dry-run"])
def test_evict_says_to_a_person_that_there_is_nothing_to_evict(pets: Dsv, option: str) -> None:
    nothing = pets.ok("evict", option)
    assert (nothing.out, nothing.err) == ("", f"nothing to evict in {pets.cwd.parent / 'cache'}\n")
    assert pets.ok("evict", option, "--json").err == pets.ok("evict", option, "--quiet").err == ""
    name = name_of(pets.ok("cache", "pets@v1").lines[0])
    pets.ok("hold", "pets@v1")
    kept = pets.ok("evict", "--all").err
    assert "nothing to evict" in kept and f"kept {name}" in kept
    pets.ok("release", "pets@v1")
    assert "nothing to evict" not in pets.ok("evict", "--all").err


def test_evict_by_age_says_what_it_does(pets: Dsv) -> None:
    path = pets.ok("cache", "pets@v1").lines[0]
    time.sleep(1.1)
    would = pets.ok("evict", "--unused-for", "1s", "--dry-run")
    assert would.out.startswith(f"would evict {name_of(path)}: ")
    assert Path(path).exists()
    report = pets.ok("evict", "--unused-for", "1s", "--json").json
    assert_documented("evict", report)
    assert report["evicted"][0]["path"] == path
    assert report["freed_bytes"] > 0
    assert not Path(path).exists()


def test_evict_says_that_the_owners_shorter_age_applies(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1")
    assert "unused_for of 1d" in pets.ok("evict", "--unused-for", "3d").err
    assert "unused_for" not in pets.ok("evict", "--unused-for", "12h").err


def test_small_files_take_at_least_a_block_each(dsv: Dsv) -> None:
    write_files(dsv.cwd, {f"{number}": b"x" for number in range(200)})
    dsv.ok("init", "small")
    dsv.ok("sync", "-q")
    folder = Path(dsv.ok("cache", "small").lines[0])
    taken = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    room = dsv.ok("cached", "--json").json["items"][0]["own_bytes"]
    assert taken <= room <= taken + 8192


def test_times_are_printed_in_the_time_zone_of_the_process(
    pets: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert at(1_764_400_000.0) == "2025-11-29 16:06"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_limit_that_stays_exceeded_is_seven_with_results(pets: Dsv) -> None:
    held = pets.ok("cache", "pets@v1", "--hold", "1h").lines[0]
    other = pets.ok("cache", "pets@v2").lines[0]
    result = pets("evict", "--max-files", "1")
    assert result.code == 7
    assert result.out.startswith(f"evicted {name_of(other)}: ")
    assert "warning: still exceeded: " in result.err
    assert Path(held).exists()


def test_mistakes_of_usage(pets: Dsv) -> None:
    for arguments in (
        ["evict", "pets@v1", "--all"],
        ["evict", "--max-size", "lots"],
        ["evict", "--max-size", "10"],
        ["evict", "--min-free", "10"],
        ["evict", "--min-free", "x"],
        ["cache", "pets@v1", "--hold", "0m"],
        ["cache", "pets@v1", "--hold", "9999999d"],
        ["hold", "pets@v1", "--for", "9999999d"],
        ["cache", "pets@v1", "--cache", "s3://bucket"],
        ["release"],
        ["release", "--id", "xyz"],
        ["release", "--id", "0" * 32, "pets@v1"],
        ["release", "--id", "0" * 32, "--all"],
        ["release", "--id", "0" * 32, "--job", "7"],
    ):
        assert pets(*arguments).code == 2, arguments


@pytest.fixture
def undeletable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names that no rename and no unlink takes away, as `chattr +i` has it."""
    names: set[str] = set()

    def refusing(real: Callable[..., None]) -> Callable[..., None]:
        def act(path: str | bytes | Path, *arguments: Any, **options: Any) -> None:
            if Path(os.fsdecode(path)).name in names:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
            real(path, *arguments, **options)

        return act

    monkeypatch.setattr(os, "rename", refusing(os.rename))
    monkeypatch.setattr(os, "unlink", refusing(os.unlink))
    return names


def test_commits_that_cannot_be_evicted_are_reported(pets: Dsv, undeletable: set[str]) -> None:
    stays, goes = (Path(pets.ok("cache", f"pets@{tag}").lines[0]) for tag in ("v1", "v2"))
    undeletable.add(stays.name)
    result = pets("evict", "--all", "--quiet")
    assert result.code == 8
    assert result.err.startswith(f"error: cannot evict pets@{stays.name}: Operation not permitted\nhint: ")
    assert result.lines == [result.out.strip()] and result.out.startswith(f"evicted {name_of(goes)}: ")
    assert stays.is_dir() and not goes.exists()

    alone = pets("evict", "--all", "--json")
    assert alone.code == 8 and "cannot evict" in alone.err
    assert_documented("evict", alone.json)
    (failed,) = alone.json["failed"]
    assert (failed["commit"], failed["half_removed"], alone.json["evicted"]) == (stays.name, False, [])
    assert [kept["commit"] for kept in alone.json["kept"]] == [stays.name]
    assert pets("evict", "pets@v1").code == 8

    undeletable.clear()
    assert pets.ok("evict", "--all").out.startswith(f"evicted {name_of(stays)}: ")


def test_half_removed_commits_are_reported(
    pets: Dsv, undeletable: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    half, goes = (Path(pets.ok("cache", f"pets@{tag}").lines[0]) for tag in ("v1", "v2"))
    (goes / "a.txt").rename(goes / "b.txt")
    undeletable.add("a.txt")
    result = pets("evict", "--all", "--json")
    assert result.code == 8
    assert "it is half removed; the next evict deletes the rest from the trash" in result.err
    assert [item["commit"] for item in result.json["evicted"]] == [goes.name]
    assert [(item["commit"], item["half_removed"]) for item in result.json["failed"]] == [(half.name, True)]
    assert result.json["kept"] == [] and not half.exists() and not goes.exists()
    trash = half.parents[1] / ".dsv/trash"
    assert [path.name for path in trash.rglob("a.txt")] == ["a.txt"]

    shown = pets.ok("cached", "--json").json
    (left,) = shown["trash"]
    assert left["files"] == 1 and left["bytes"] > 0 and Path(left["path"]).parent == trash
    assert f"in 1 file of evicted data not deleted yet, in {left['path']}" in pets.ok("cached").err
    # Elsewhere each command is a process of its own.
    monkeypatch.setattr(LeaseOwner, "surely_dead", lambda owner: True)
    later = pets("evict", "--all", "--json")
    assert later.code == 8
    (stuck,) = later.json["stuck"]
    assert {key: stuck[key] for key in left if key != "counted"} == {
        key: left[key] for key in left if key != "counted"
    }
    assert stuck["problem"].startswith(f"cannot delete {left['path']}: Operation not permitted; an earlier ")
    assert stuck["problem"] in later.err

    undeletable.clear()
    again = pets.ok("cache", "pets@v1").lines[0]
    assert (Path(again) / "a.txt").read_bytes() == b"alpha\n"


def test_a_cache_of_a_damaged_commit_names_every_path_and_shows_nothing(pets: Dsv) -> None:
    for number in range(4):
        write_files(pets.cwd, {f"d/{number}": b"%d" % number * 99, f"d/whole{number}": b"whole %d" % number})
        pets.ok("sync")
    write_files(pets.cwd, {"d/big": os.urandom(6 << 20)})
    pets.ok("sync")
    store = pets.ok("config", "store").out.strip()
    flip(Person(pets.home, store), ObjectKind.CHUNK)
    other = Dsv.of(pets.home.parent / "other").at(pets.home, DSV_STORE=store, DSV_CACHE=str(pets.home / "c"))
    files = [str(path.relative_to(pets.cwd)) for path in pets.cwd.rglob("*") if path.is_file()]
    files = [name for name in files if not name.startswith(".dsv/")]
    bad = {name for name in files if other("cat", f"pets:{name}").code == 5}
    assert {"a.txt", "d/big", *(f"d/{number}" for number in range(4))} == bad
    done = other("cache", "pets", "--json")
    assert done.code == 5
    assert {name for name in files if f"pets:{name} can't be read" in done.json["error"]["message"]} == bad
    assert not list((pets.home / "c/pets").glob("*")) and not other.ok("cached", "--json").json["items"]
    write_files(pets.cwd, {"more": b"more"})
    pets.ok("sync")
    assert other("cache", "pets").code == 5  # only this user's reads know of the damage
    assert other("verify", "--full").code == 5
    assert pets.ok("sync", "--json").json["reuploaded"] == len(bad)
    cached = Path(other.ok("cache", "pets").out.strip())
    assert {name: (cached / name).read_bytes() for name in files} == {
        name: (pets.cwd / name).read_bytes() for name in files
    }
