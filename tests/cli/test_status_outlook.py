"""dsv status: where the branch is, what a sync will do, and what to type next."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.dsv import Dsv, assert_documented, made_once, write_files


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "train/1.png": b"1", "train/2.png": b"2"})
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "first")
    return dsv


@pytest.fixture
def other(pets: Dsv) -> Dsv:
    """A clone of the dataset beside it."""
    pets.at(pets.cwd.parent).ok("clone", "pets", "other")
    return pets.at(pets.cwd.parent / "other")


def told(dsv: Dsv, *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = dsv.ok("status", "--json", *arguments).json
    assert_documented("status", document)
    return document


def place(dsv: Dsv, *arguments: str) -> tuple[object, ...]:
    document = told(dsv, *arguments)
    return tuple(document[key] for key in ("position", "ahead", "behind", "sync", "next"))


def commit(dsv: Dsv, name: str) -> str:
    write_files(dsv.cwd, {name: name.encode()})
    return dsv.ok("sync", "-m", name).out.strip()


def follow(dsv: Dsv, steps: list[str], branch: str = "mine") -> None:
    """Types what status has said."""
    for step in steps:
        program, *words = step.replace("NAME", branch).split()
        assert program == "dsv"
        dsv.ok(*words)


def test_a_dataset_without_a_commit(dsv: Dsv) -> None:
    dsv.ok("init", "pets")
    assert place(dsv) == ("unknown", None, None, "nothing", [])
    assert "main not checked yet: dsv status --fetch" in dsv.ok("status").err
    write_files(dsv.cwd, {"a": b"a"})
    assert place(dsv, "--fetch") == ("no-commit", None, None, "publish", ["dsv sync"])


def test_nothing_to_do(pets: Dsv, other: Dsv) -> None:
    for each in (pets, other):
        assert place(each) == ("up-to-date", 0, 0, "nothing", [])
        said = each.ok("status").err.splitlines()
        assert said[1].startswith("up to date with main (checked ")
        assert said[2:] == ["no local changes to publish"]
        assert each.ok("status", "-q").err == ""


def test_what_a_sync_will_publish_and_its_command_with_the_paths_that_were_named(pets: Dsv) -> None:
    write_files(pets.cwd, {"a b.txt": b"new", "a.txt": b"beta\n"})
    said = pets.ok("status").err.splitlines()
    assert said[2:] == ["dsv sync will publish 1 added, 1 changed", "next: dsv sync"]
    assert told(pets, "a b.txt")["next"] == ["dsv sync 'a b.txt'"]
    pets.ok("sync", "a b.txt")
    follow(pets, told(pets)["next"])
    assert place(pets) == ("up-to-date", 0, 0, "nothing", [])


def test_a_branch_that_moved_is_behind_once_a_refused_sync_or_fetch_has_asked(pets: Dsv, other: Dsv) -> None:
    commit(pets, "b")
    head = commit(pets, "c")
    note = other.cwd / ".dsv/tracking.json"
    known = json.loads(note.read_text())
    known["branches"]["main"]["time_ms"] -= 3_600_000
    note.write_text(json.dumps(known))
    assert place(other)[0] == "up-to-date", "the store is not asked"
    said = other.ok("status").err
    assert "up to date with main (checked 1h ago; dsv status --fetch checks again)" in said
    assert "nothing to do" not in said
    assert place(other, "--fetch") == ("behind", 0, 2, "refused", ["dsv pull"])
    write_files(other.cwd, {"mine": b"mine"})
    assert other("sync").code == 4
    found = told(other)
    assert (found["position"], found["behind"], found["branch_at"]) == ("behind", 2, head)
    assert found["next"] == ["dsv pull", "dsv sync"]
    said = other.ok("status").err.splitlines()
    assert said[1].startswith("behind main by 2 commits (checked ")
    assert said[2:] == [
        "dsv sync would be refused: main has new commits: pull first",
        "next: dsv pull",
        "then: dsv sync",
    ]
    follow(other, found["next"])
    assert place(other) == ("up-to-date", 0, 0, "nothing", [])


def test_a_branch_that_went_back_or_aside(pets: Dsv, other: Dsv) -> None:
    first = pets.ok("resolve").out.strip()
    commit(pets, "b")
    pets.at(pets.cwd.parent).ok("branch", "pets@main", f"pets@{first}", "--reset")
    assert place(pets, "--fetch") == ("ahead", 1, 0, "refused", ["dsv sync --new-branch NAME"])
    commit(other, "c")
    found = told(pets, "--fetch")
    assert (found["position"], found["ahead"], found["behind"]) == ("diverged", 1, 1)
    assert pets("sync").code == 4
    assert found["next"] == ["dsv sync --new-branch NAME", "dsv merge NAME --into main"]
    follow(pets, found["next"])
    assert sorted(pets.ok("ls", "pets@main").lines) == ["a.txt", "b", "c", "train/1.png", "train/2.png"]


def test_a_deleted_branch_is_brought_back_by_the_next_command(pets: Dsv, other: Dsv) -> None:
    pets.ok("branch", "side")
    other.at(other.cwd.parent).ok("clone", "pets@side", "third")
    third = other.at(other.cwd.parent / "third")
    pets.ok("branch", "--delete", "side")
    assert place(third, "--fetch") == ("gone", None, None, "refused", ["dsv branch --restore pets@side"])
    follow(third, told(third)["next"])
    assert place(third, "--fetch")[0] == "up-to-date"


def test_a_protected_branch_is_reported_with_the_way_around(pets: Dsv, other: Dsv) -> None:
    pets.ok("branch", "--protect", "main", "--only-merge")
    write_files(other.cwd, {"mine": b"mine"})
    assert told(other)["protected"] is None, "the store was not asked since"
    assert other("sync").code == 4
    found = told(other)
    assert (found["protected"], found["sync"]) == ("only merges", "refused")
    assert found["reason"] == "main is protected: only a merge moves it"
    assert found["next"] == ["dsv sync --new-branch NAME", "dsv merge NAME --into main"]
    assert "main is protected: only merges\n" in other.ok("status").err
    follow(other, found["next"])
    assert "mine" in pets.ok("ls", "pets@main").lines
    pets.ok("branch", "--unprotect", "main")
    assert told(pets, "--fetch")["protected"] is None


def test_who_may_move_a_protected_branch_is_the_author_that_a_sync_signs_with(pets: Dsv) -> None:
    pets.ok("config", "author", "Ann Lee <ann@example.org>")
    pets.ok("branch", "--protect", "main", "--who", "Ann Lee")
    write_files(pets.cwd, {"mine": b"mine"})
    found = told(pets, "--fetch")
    assert (found["sync"], found["reason"], found["next"]) == ("publish", None, ["dsv sync"])
    pets.ok("sync")
    pets.ok("config", "author", "Ben <ben@example.org>")
    write_files(pets.cwd, {"mine": b"other"})
    reason = told(pets)["reason"]
    assert reason == "main is protected: Ben <ben@example.org> is not among those who may move it, Ann Lee"
    assert reason.removeprefix("main is protected: ") in pets("sync").err


def test_a_removed_folder_is_restored_unless_its_removal_is_to_be_published(pets: Dsv) -> None:
    shutil.rmtree(pets.cwd / "train")
    (pets.cwd / "link").symlink_to("x" * 10)
    found = told(pets)
    assert (found["sync"], found["next"]) == ("refused", ["dsv restore", "dsv sync"])
    assert found["instead"] == "dsv sync --allow-removals"
    said = pets.ok("status").err
    assert (
        "next: dsv restore\nthen: dsv sync\nor, to publish the removal: dsv sync --allow-removals\n" in said
    )
    assert "if unintended, check .dsvignore and the mounts" in pets("sync").err
    follow(pets, found["next"])
    assert sorted(path.name for path in (pets.cwd / "train").iterdir()) == ["1.png", "2.png"]
    assert told(pets)["clean"]
    shutil.rmtree(pets.cwd / "train")
    follow(pets, [told(pets)["instead"]])
    assert told(pets)["clean"] and pets.ok("ls").lines == ["a.txt", "link"]


def test_what_is_offered_to_restore_never_loses_a_local_change(pets: Dsv) -> None:
    shutil.rmtree(pets.cwd / "train")
    assert told(pets)["next"] == ["dsv restore"]
    write_files(pets.cwd, {"a.txt": b"mine"})
    assert told(pets)["next"] == ["dsv restore PATH", "dsv sync"]
    follow(pets, ["dsv restore train"])
    assert told(pets)["next"] == ["dsv sync"] and (pets.cwd / "a.txt").read_bytes() == b"mine"


def test_what_was_renamed_is_not_restored(pets: Dsv) -> None:
    (pets.cwd / "train").rename(pets.cwd / "val")
    found = told(pets)
    assert (found["sync"], found["next"], found["instead"]) == (
        "refused",
        ["dsv sync --allow-removals"],
        None,
    )
    (pets.cwd / "val/1.png").unlink()
    assert told(pets)["next"] == ["dsv restore", "dsv sync"]


def test_a_sparse_workspace_restores_what_was_removed(pets: Dsv, tmp_path: Path) -> None:
    pets.at(tmp_path).ok("clone", "pets", "part", "--only", "train")
    part = pets.at(tmp_path / "part")
    shutil.rmtree(part.cwd / "train")
    assert told(part)["next"] == ["dsv restore"]
    follow(part, told(part)["next"])
    assert told(part)["clean"] and sorted(os.listdir(part.cwd / "train")) == ["1.png", "2.png"]


def test_an_unreachable_store_neither_fails_nor_is_asked(pets: Dsv, tmp_path: Path) -> None:
    before = place(pets)
    away = str(tmp_path / "away")
    assert place(pets, "--store", away) == before
    asked = pets("status", "--fetch", "--store", away)
    assert (asked.code, asked.out) == (6, "")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"branches":{"main":{"time_ms":1,"commit":"00"}}}'])
def test_a_note_that_can_not_be_read_is_as_none(pets: Dsv, text: str) -> None:
    (pets.cwd / ".dsv/tracking.json").write_text(text)
    assert place(pets) == ("unknown", None, None, "nothing", [])


def test_commits_without_a_local_copy_are_not_asked_for(pets: Dsv, other: Dsv) -> None:
    head = commit(pets, "b")
    note = other.cwd / ".dsv/tracking.json"
    known = json.loads(note.read_text())
    known["branches"]["main"]["commit"] = "0" * len(head)
    note.write_text(json.dumps(known))
    assert place(other) == ("elsewhere", None, None, "refused", ["dsv pull"])
