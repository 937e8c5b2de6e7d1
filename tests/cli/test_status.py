"""dsv status: its text, its JSON, its exit codes."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.privileges import modes_count


@pytest.fixture
def pets(untagged_pets: Dsv) -> Dsv:
    return untagged_pets


def test_status_lists_each_difference_in_words(pets: Dsv) -> None:
    clean = pets.ok("status")
    assert clean.out == ""
    assert "no differences" in clean.err
    write_files(pets.cwd, {"new\n1": b"x", "a.txt": b"beta\n"})
    (pets.cwd / "train/1.png").unlink()
    (pets.cwd / "train/2.png").unlink()
    (pets.cwd / "train/2.png").symlink_to("../a.txt")
    result = pets.ok("status")
    assert sorted(result.lines) == [
        "added     new\\n1",
        "changed   a.txt",
        "removed   train/1.png",
        "retyped   train/2.png",
    ]
    assert pets("status", "--exit-code").code == 1
    document = pets.ok("status", "--json").json
    assert_documented("status", document)
    assert document["clean"] is False
    assert {"path": "new\n1", "change": "added"} in document["items"]
    assert pets.at(pets.cwd / "train").ok("status", "1.png").lines == ["removed   train/1.png"]


def test_status_on_a_terminal_sums_up_many_paths_by_folder(pets: Dsv) -> None:
    write_files(pets.cwd, {f"new/{number}": b"x" for number in range(1500)})
    write_files(pets.cwd, {f"val/{number}": b"x" for number in range(5)})
    (pets.cwd / "train/1.png").unlink()
    terminal = pets.at(pets.cwd, NO_COLOR="1")
    shown = terminal("status", terminal=True, width=100)
    assert shown.out.splitlines() == [
        "FOLDER  ADDED  REMOVED     SIZE",
        "new/    1,500           1.50 kB",
        "train/               1      0 B",
        "val/        5               5 B",
    ]
    total, hint, *_, following = shown.err.splitlines()
    assert following == "next: dsv sync"
    assert total.endswith(": 1,506 paths differ (1,505 added, 1 removed; 1.50 kB)")
    assert hint == "dsv status --all lists every path"
    assert len(terminal("status", "--all", terminal=True).lines) == 1506
    assert pets.ok("status").lines == [
        "added     new/  (1,500 paths)",
        "added     val/  (5 paths)",
        "removed   train/1.png",
    ], "a pipe gets every path but those in folders that are new or gone as a whole"
    assert len(pets.ok("status", "--all").lines) == 1506
    assert len(pets("status", "--json", terminal=True).json["items"]) == 1506


def test_status_in_a_pipe_offers_all_paths_only_if_it_joined_some(pets: Dsv) -> None:
    write_files(pets.cwd, {f"val/{number}": b"x" for number in range(60)})
    pets.ok("sync")
    write_files(pets.cwd, {f"val/{number}": b"xy" for number in range(60)})
    listed = pets.ok("status")
    assert len(listed.lines) == 60 and "--all" not in listed.err
    write_files(pets.cwd, {f"new/{number}": b"x" for number in range(2)})
    joined = pets.ok("status")
    assert len(joined.lines) == 61 and "dsv status --all lists every path" in joined.err


def test_a_folder_is_one_line_only_if_it_is_new_or_gone_as_a_whole(pets: Dsv) -> None:
    write_files(pets.cwd, {f"{name}/in/{n}": b"x" for name in ("gone", "part", "mixed") for n in range(30)})
    write_files(pets.cwd, {"mixed/other": b"o"})
    (pets.cwd / "hollow").mkdir()
    pets.ok("sync")
    shutil.rmtree(pets.cwd / "gone")
    (pets.cwd / "part/in/7").unlink()
    write_files(pets.cwd, {f"mixed/new/{n}": b"y" for n in range(30)} | {"hollow/sub/file": b"f"})
    assert pets.ok("status").lines == [
        "added     hollow/sub/  (1 path)",
        "added     mixed/new/  (30 paths)",
        "removed   gone/  (30 paths)",
        "removed   hollow",
        "removed   part/in/7",
    ]


def test_status_shows_a_renamed_file_as_diff_does(pets: Dsv) -> None:
    (pets.cwd / "train/1.png").rename(pets.cwd / "moved.png")
    write_files(pets.cwd, {"same size": b"!" * (pets.cwd / "moved.png").stat().st_size})
    shown = pets.ok("status")
    assert shown.lines == ["renamed   train/1.png => moved.png", "added     same size"]
    assert ": 2 paths differ" in shown.err and "will publish 2 added, 1 removed (1 renamed)" in shown.err
    assert "renamed   train/1.png => moved.png" in pets.ok("diff").out
    items = pets.ok("status", "--json").json["items"]
    assert {"path": "moved.png", "change": "added"} in items and {
        "path": "train/1.png",
        "change": "removed",
    } in items


def test_status_shows_what_a_sync_would_refuse(pets: Dsv) -> None:
    os.mkfifo(pets.cwd / "pipe")
    (pets.cwd / "train/1.png").unlink()
    (pets.cwd / "train/2.png").unlink()
    result = pets("status", "--exit-code")
    assert result.code == 1
    assert "refused   " in result.out
    assert "named pipe" in result.out
    assert "warning: this sync would remove " in result.err
    document = pets.ok("status", "--json").json
    assert document["problems"][0]["path"] == "pipe"
    assert document["suspicious"]


def test_status_distinguishes_the_base_from_the_commit_of_the_branch(pets: Dsv) -> None:
    first = pets.ok("resolve").out.strip()
    write_files(pets.cwd, {"a.txt": b"second\n"})
    head = pets.ok("sync").out.strip()
    assert "up to date with main (checked " in pets.ok("status").err
    pets.ok("restore", "--from", f"@{first}")
    said = pets.ok("status").err
    assert f"pets@main, base {first[:12]}: no differences\n" in said
    assert "behind main by 1 commit (checked " in said
    assert pets.ok("status", "--json").json["branch_at"] == head
    elsewhere = pets("sync")
    assert (elsewhere.code, elsewhere.out) == (4, "")
    assert f"nothing differs here from {first[:12]}" in elsewhere.err
    assert f"dsv rollback @{first[:12]}" in elsewhere.err
    done = pets.ok("rollback", f"@{first[:12]}", "--json").json
    assert_documented("rollback", done)
    assert (done["before"], done["source"]) == (head, first)
    assert ": no differences\nup to date with main " in pets.ok("status").err


def test_misspelt_paths_and_branches_are_errors(pets: Dsv) -> None:
    for command in ("sync", "status"):
        wrong = pets(command, "a.tx")
        assert (wrong.code, wrong.out) == (3, "")
        assert "did you mean a.txt?" in wrong.err
        assert pets(command, "@v1.0").code == 3
    assert pets("sync", "--branch", "experimnt").code == 3
    assert pets("sync", "--branch", "a", "--new-branch", "b").code == 2
    assert pets.ok("log", "--oneline").err == ""


def test_below_another_users_workspace_all_goes_as_outside_of_one(pets: Dsv) -> None:
    theirs = pets.at(pets.cwd.parent / "theirs")
    write_files(theirs.cwd, {".dsv/config.toml": b"", "below/a": b"1"})
    (theirs.cwd / ".dsv").chmod(0)
    with modes_count():
        assert pets.at(theirs.cwd / "below").ok("ls", "pets").lines == pets.ok("ls", "pets").lines
        denied = pets.at(theirs.cwd / "below")("status")
        assert denied.code == 8 and "can't read the workspace" in denied.err
        out = pets("run", "pets", "--out", "../theirs/out", "--", "true")
        assert out.code == 2 and "lies in the workspace" in out.err
        for command in (["init", "cats"], ["clone", "pets", "z"]):
            bound = pets.at(theirs.cwd / "below")(*command)
            assert bound.code == 4 and "which this user can't read" in bound.err
        assert not [*theirs.cwd.rglob("below/**/.dsv")] and not (theirs.cwd / "out").exists()
    (theirs.cwd / ".dsv").chmod(0o700)


def test_a_named_path_below_a_folder_that_cannot_be_read_is_not_called_unchanged(pets: Dsv) -> None:
    write_files(pets.cwd, {"d/1": b"one\n", "d/2": b"two\n", "e": b"e\n"})
    pets.ok("sync")
    write_files(pets.cwd, {"d/1": b"changed\n"})
    (pets.cwd / "e").unlink()
    (pets.cwd / "d").chmod(0)
    with modes_count():
        for command in (["diff", "--exit-code", "--", "d/1"], ["status", "d/1"]):
            assert "d: " in pets(*command).err, command
        assert pets("sync", "d/1").code == 9
        refused = pets("restore", "d/1", "e", "--force")
    (pets.cwd / "d").chmod(0o755)
    assert refused.code == 8 and "can't be read, so it was not restored" in refused.err
    assert (pets.cwd / "e").read_bytes() == b"e\n" and (pets.cwd / "d/1").read_bytes() == b"changed\n"
