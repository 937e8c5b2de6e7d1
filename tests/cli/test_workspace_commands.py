"""status, clone, pull and restore: their text, their JSON, their exit codes."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from dsv.workspace.write import CheckoutWriter
from tests.kit.dsv import Dsv, assert_documented, write_files
from tests.privileges import modes_count

FILES = {"a.txt": b"alpha\n", "train/1.png": b"1", "train/2.png": b"2"}


@pytest.fixture
def pets(dsv: Dsv) -> Dsv:
    write_files(dsv.cwd, FILES)
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "first")
    return dsv


@pytest.fixture
def other(pets: Dsv) -> Dsv:
    """A clone of the dataset beside it."""
    pets.at(pets.cwd.parent).ok("clone", "pets", "other")
    return pets.at(pets.cwd.parent / "other")


def test_clone_says_one_line(pets: Dsv) -> None:
    above = pets.at(pets.cwd.parent)
    result = above.ok("clone", "pets")
    assert len(result.lines) == 1
    assert result.out.startswith(f"{pets.cwd.parent}/pets follows pets@main at ")
    for name, content in FILES.items():
        assert (pets.cwd.parent / "pets" / name).read_bytes() == content
    made = above.ok("clone", "pets", "deep/er", "--json").json
    assert_documented("clone", made)
    assert made["workspace"] == f"{pets.cwd.parent}/deep/er"
    again = above("clone", "pets")
    assert (again.code, again.out) == (4, "")
    assert above("clone", "nothing").code == 3
    assert above("clone", "pets", "").code == 2
    assert above("clone").code == 2


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


def test_the_first_sync_says_as_whom_it_signs(dsv: Dsv) -> None:
    write_files(dsv.cwd, FILES)
    dsv.ok("init", "pets")
    said = dsv.ok("sync").err
    author = dsv.ok("log", "--json").json["items"][0]["author"]
    assert f"signed as {author}; dsv config author " in said
    write_files(dsv.cwd, {"a.txt": b"changed"})
    assert "signed as" not in dsv.ok("sync").err
    named = dsv.at(dsv.cwd, DSV_AUTHOR="Ann Lee")
    (dsv.cwd / ".dsv/config.toml").parent.rename(dsv.cwd.parent / "away")
    named.ok("init", "others")
    assert "signed as" not in named.ok("sync").err


def test_a_sync_without_a_message_counts_its_changes(pets: Dsv) -> None:
    write_files(pets.cwd, {"a.txt": b"changed", "new": b"n"})
    (pets.cwd / "train/1.png").unlink()
    pets.ok("sync")
    assert pets.ok("log", "--oneline").lines[0].endswith("(main) 1 added, 1 changed, 1 removed")


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


def test_pull_brings_what_others_synced(pets: Dsv, other: Dsv) -> None:
    assert other.ok("pull").out.startswith("pets@main is already at ")
    write_files(pets.cwd, {"a.txt": b"beta\n", "b.txt": b"b"})
    head = pets.ok("sync").out.strip()
    write_files(other.cwd, {"mine.txt": b"mine"})
    moved = other("sync")
    assert (moved.code, moved.out) == (4, "")
    assert "dsv pull" in moved.err
    assert "dsv sync --new-branch NAME" in moved.err
    assert other.ok("pull").lines == [f"pulled pets@main ({head[:12]}): 1 file added, 1 replaced, 0 removed"]
    assert (other.cwd / "a.txt").read_bytes() == b"beta\n"
    assert other.ok("sync", "--json").json["parent"] == head
    document = pets.ok("pull", "--json").json
    assert_documented("pull", document)
    assert document["any_change"] is True


def test_pull_where_both_changed_a_path_writes_nothing(pets: Dsv, other: Dsv) -> None:
    write_files(pets.cwd, {"a.txt": b"theirs\n", "b.txt": b"b"})
    pets.ok("sync")
    write_files(other.cwd, {"a.txt": b"mine\n"})
    result = other("pull")
    assert (result.code, result.out) == (4, "")
    assert "a.txt" in result.err
    assert (other.cwd / "a.txt").read_bytes() == b"mine\n"
    assert not (other.cwd / "b.txt").exists()
    beside = other.ok("sync", "--new-branch", "mine", "--json").json
    assert beside["branch"] == "mine"
    assert other.ok("status", "--json").json["branch"] == "mine"


def test_restore_of_named_paths(pets: Dsv) -> None:
    write_files(pets.cwd, {"a.txt": b"changed", "train/1.png": b"changed"})
    (pets.cwd / "train/2.png").unlink()
    result = pets.at(pets.cwd / "train").ok("restore", ".")
    assert len(result.lines) == 1
    assert result.out.endswith(": 1 file added, 1 replaced, 0 removed\n")
    assert (pets.cwd / "a.txt").read_bytes() == b"changed"
    base = pets.ok("resolve").out[:12]
    assert result.out.startswith(f"restored pets@{base}: ")
    pets.ok("tag", "v1")
    tagged = pets.ok("restore", "train", "--from", "@v1").out
    assert re.fullmatch(r"restored pets@v1 \([0-9a-f]{12}\): 0 files added, 0 replaced, 0 removed\n", tagged)
    document = pets.ok("restore", "a.txt", "--json").json
    assert_documented("restore", document)
    assert (pets.cwd / "a.txt").read_bytes() == b"alpha\n"
    assert pets("restore", "nothing").code == 3
    assert pets("restore", "../elsewhere").code == 2


def test_restore_of_everything_wants_force_where_work_would_go(pets: Dsv) -> None:
    pets.ok("tag", "v1")
    write_files(pets.cwd, {"a.txt": b"second\n"})
    pets.ok("sync")
    write_files(pets.cwd, {"a.txt": b"unsynced\n"})
    result = pets("restore", "--from", "@v1")
    assert (result.code, result.out) == (4, "")
    assert (pets.cwd / "a.txt").read_bytes() == b"unsynced\n"
    pets.ok("restore", "--from", "@v1", "--force")
    assert (pets.cwd / "a.txt").read_bytes() == b"alpha\n"
    assert pets.ok("resolve").out == pets.ok("resolve", "@v1").out


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


def test_an_edit_by_another_name_meanwhile_is_not_lost(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it keeps the size, and sets the time back."""
    write_files(pets.cwd, {"one": b"same\n"})
    os.link(pets.cwd / "one", pets.cwd / "two")
    pets.ok("sync")
    pets.at(pets.home).ok("rm", "pets:one", "pets:two")
    remove, edits = CheckoutWriter.remove, iter([True])

    def remove_and_edit(writer: CheckoutWriter, path: bytes, expected: bytes | None) -> bool:
        done = remove(writer, path, expected)
        if next(edits, False):
            time.sleep(0.1)  # the clock of the file system goes on
            before = (pets.cwd / "two").stat()
            (pets.cwd / "two").write_bytes(b"edit\n")
            os.utime(pets.cwd / "two", ns=(before.st_atime_ns, before.st_mtime_ns))
        return done

    with monkeypatch.context() as patched:
        patched.setattr(CheckoutWriter, "remove", remove_and_edit)
        assert pets("pull").code == 4
    assert (pets.cwd / "two").read_bytes() == b"edit\n"


@pytest.mark.parametrize("end", ["rm", "put"])
def test_files_with_several_names_follow_the_branch(pets: Dsv, end: str) -> None:
    """To remove or replace one name changes the ctime of the file, which its other names show."""
    write_files(pets.cwd, {"one": b"same\n"})
    for name in ("two", "three"):
        os.link(pets.cwd / "one", pets.cwd / name)
    pets.ok("sync")
    write_files(pets.home, {"new": b"new\n"})
    elsewhere = pets.at(pets.home)
    for name in ("one", "two", "three"):
        elsewhere.ok(*(["rm", f"pets:{name}"] if end == "rm" else ["put", "new", f"pets:{name}"]))
    pets.ok("pull")
    left = {
        name: (pets.cwd / name).read_bytes() for name in ("one", "two", "three") if (pets.cwd / name).exists()
    }
    assert left == ({} if end == "rm" else dict.fromkeys(("one", "two", "three"), b"new\n"))
    assert pets.ok("status", "--json").json["clean"] is True


def test_where_the_store_has_moved_the_hint_names_the_line_that_takes_its_new_place(pets: Dsv) -> None:
    config = pets.cwd / ".dsv/config.toml"
    store = Path(pets.ok("config", "store").lines[0])
    moved = store.rename(store.with_name("moved"))
    refused = pets("sync")
    assert refused.code == 6 and "as store in the workspace's .dsv/config.toml" in refused.err
    config.write_text(config.read_text().replace(f'store = "{store}"', f'store = "{moved}"'))
    assert "nothing changed here" in pets.ok("sync").err
