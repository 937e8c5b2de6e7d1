"""dsv evict: its text, its JSON, its exit codes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv.cache.claims import LeaseOwner
from tests.kit.dsv import Dsv, assert_documented, name_of


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
