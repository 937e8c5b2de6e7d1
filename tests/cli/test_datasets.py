"""init, sync, tag, and what looks into a store: their text, their JSON, their exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from blake3 import blake3

from tests.kit.dsv import Dsv, assert_documented, write_files

FILES = {
    "a.txt": b"alpha\n",
    "train/cat/1.png": b"\x89PNG1",
    "train/dog/1.png": b"\x89PNG2",
    "big.bin": bytes(2 << 20),
}


@pytest.fixture
def pets(dsv: Dsv) -> Dsv:
    """A workspace of the dataset `pets` with one commit, tagged v1."""
    write_files(dsv.cwd, FILES)
    dsv.ok("init", "pets", "--author", "Ann Lee")
    dsv.ok("sync", "-m", "first\n\nwith a second paragraph", "--author", "Ann Lee")
    dsv.ok("tag", "v1")
    return dsv


def test_init_says_one_line_and_documents_what_it_made(dsv: Dsv) -> None:
    result = dsv.ok("init", "pets")
    assert result.lines == [
        f"{dsv.cwd} is bound to the new dataset pets in {dsv.home}/.local/share/dsv/store"
    ]
    (dsv.cwd.parent / "birds").mkdir()
    other = dsv.at(dsv.cwd.parent / "birds").ok("init", "--json").json
    assert other == {
        "schema": 1,
        "dataset": "birds",
        "store": f"{dsv.home}/.local/share/dsv/store",
        "workspace": str(dsv.cwd.parent / "birds"),
        "branch": "main",
        "new_store": False,
        "warnings": [],
    }
    assert_documented("init", other)


def test_init_of_a_folder_whose_name_is_none_suggests_one(dsv: Dsv) -> None:
    folder = dsv.cwd / "My Data (2)"
    folder.mkdir()
    result = dsv.at(folder)("init")
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("hint: dsv init My-Data-2\n")


def test_init_of_a_dataset_that_exists_leads_to_clone(pets: Dsv) -> None:
    other = pets.cwd.parent / "other"
    other.mkdir()
    result = pets.at(other)("init", "pets")
    assert (result.code, result.out) == (4, "")
    assert "hint: dsv clone pets\n" in result.err
    assert list(other.iterdir()) == []


def test_init_of_a_folder_with_the_files_of_a_dataset_leads_to_a_clone_that_keeps_them(pets: Dsv) -> None:
    shutil.rmtree(pets.cwd / ".dsv")
    write_files(pets.cwd, {"a.txt": b"mine\n"})
    result = pets("init", "pets")
    assert result.code == 4
    [_, command, _] = re.split("hint: dsv | makes a workspace", result.err)
    pets.ok(*shlex.split(command))
    assert (pets.cwd / "a.txt").read_bytes() == b"mine\n"
    assert pets.ok("status").lines == ["changed   a.txt"]


def test_sync_says_that_it_counts_paths_and_then_files(pets: Dsv) -> None:
    files = pets.ok("sync", "--json").json["files"]
    (pets.cwd / "link").symlink_to("a.txt")
    (pets.cwd / "empty").mkdir()
    (pets.cwd / "new.txt").write_bytes(b"new\n")
    said = pets.ok("sync").err
    assert f"pets@main: 3 paths added, 0 changed, 0 removed; {files + 1} files, " in said


def test_sync_prints_the_commit_id_and_nothing_else(pets: Dsv) -> None:
    (pets.cwd / "a.txt").write_bytes(b"beta\n")
    (pets.cwd / "new.txt").write_bytes(b"new\n")
    (pets.cwd / "big.bin").unlink()
    before = pets.ok("resolve").out.strip()
    result = pets.ok("sync", "-m", "second")
    assert re.fullmatch(r"[0-9a-f]{64}\n", result.out)
    assert "1 path added, 1 changed, 1 removed" in result.err
    assert pets.ok("sync", "-q").err == ""
    again = pets.ok("sync", "--json").json
    assert_documented("sync", again)
    assert again["commit"] == result.out.strip()
    assert again["parent"] == before
    assert (again["any_change"], again["added"], again["files"]) == (False, 0, 4)
    assert (again["dataset"], again["branch"]) == ("pets", "main")


def test_sync_of_some_paths_from_a_folder_below(pets: Dsv) -> None:
    write_files(pets.cwd, {"train/cat/2.png": b"x", "train/dog/2.png": b"x", "b.txt": b"x"})
    below = pets.at(pets.cwd / "train")
    first = below.ok("sync", "cat", "--json").json
    assert (first["added"], first["files"]) == (1, 5)
    second = below.ok("sync", "../b.txt", str(pets.cwd / "train/dog"), "--json").json
    assert (second["added"], second["files"]) == (2, 7)
    assert below.ok("sync", "..", "--json").json["any_change"] is False
    outside = below("sync", "../../elsewhere")
    assert (outside.code, outside.out) == (2, "")
    assert below("sync", "").code == 2


def test_sync_lists_all_that_it_cannot_store_at_once(pets: Dsv) -> None:
    os.mkfifo(pets.cwd / "pipe\n1")
    (pets.cwd / "out").symlink_to("/etc/passwd")
    result = pets("sync")
    assert (result.code, result.out) == (9, "")
    assert "pipe" in result.err
    assert "it is a named pipe" in result.err
    assert "'out'" in result.err
    assert "--skip-unsupported" in result.err
    done = pets.ok("sync", "--skip-unsupported")
    assert done.err.count("warning: left out ") == 2


def test_sync_that_would_empty_a_dataset_is_refused(pets: Dsv) -> None:
    (pets.cwd / "train/cat/1.png").unlink()
    (pets.cwd / "train/dog/1.png").unlink()
    result = pets("sync", "--json")
    assert (result.code, result.json["error"]["kind"]) == (4, "conflict")
    assert "--allow-removals" in result.json["error"]["hint"]
    assert pets.ok("sync", "--allow-removals", "--json").json["removed"] == 2


def test_outside_of_a_workspace_sync_says_how_to_make_one(dsv: Dsv) -> None:
    result = dsv("sync")
    assert (result.code, result.out) == (3, "")
    assert "hint: dsv init" in result.err


def test_log_shows_people_and_programs_the_same_commits(pets: Dsv) -> None:
    (pets.cwd / "a.txt").write_bytes(b"beta\n")
    head = pets.ok("sync", "-m", "second", "--author", "Bo").out.strip()
    items = pets.ok("log", "--json").json["items"]
    assert items[0]["commit"] == head
    assert_documented("log", {"schema": 1, "items": items}, without="moves")
    assert items[0]["parents"] == [items[1]["commit"]]
    assert (items[0]["author"], items[1]["author"]) == ("Bo", "Ann Lee")
    assert items[1]["message"] == "first\n\nwith a second paragraph"
    age = datetime.now(UTC) - datetime.fromisoformat(items[0]["time"])
    assert abs(age.total_seconds()) < 600
    assert [json.loads(line) for line in pets.ok("log", "--jsonl").lines] == items
    text = pets.ok("log").out
    assert re.search(rf"commit {head} \(main\)\nAuthor: Bo\nDate:   \d{{4}}-\d\d-\d\d \d\d:\d\d\n", text)
    assert "    first\n    \n    with a second paragraph" in text.replace("\n\n    with", "\n    \n    with")
    assert pets.ok("log", "--oneline", "-n", "1").lines == [f"{head[:12]} (main) second"]
    assert pets.ok("log", "@v1", "--oneline").lines == [f"{items[1]['commit'][:12]} (v1) first"]
    assert pets("log", "-n", "0").code == 2


def test_ls_lists_everything_below_a_path(pets: Dsv) -> None:
    assert pets.ok("ls").lines == sorted(FILES)
    assert pets.ok("ls", ":train/cat").lines == ["train/cat/1.png"]
    items = pets.ok("ls", "pets@v1:a.txt", "--json").json["items"]
    file_id = blake3(b"alpha\n").hexdigest()
    assert items == [{"path": "a.txt", "kind": "file", "size": 6, "id": file_id, "erased": None}]
    assert_documented("ls", {"schema": 1, "items": items})
    assert [json.loads(line)["path"] for line in pets.ok("ls", "--jsonl").lines] == sorted(FILES)
    missing = pets("ls", "@v1:nothing", "--json")
    assert (missing.code, missing.json["error"]["kind"]) == (3, "not-found")


def test_ls_long_shows_what_kind_each_path_is(pets: Dsv) -> None:
    (pets.cwd / "link").symlink_to("a.txt")
    (pets.cwd / "empty").mkdir()
    (pets.cwd / "run.sh").write_bytes(b"#!/bin/sh\n")
    (pets.cwd / "run.sh").chmod(0o755)
    pets.ok("sync")
    kinds = {line.split()[0]: line for line in pets.ok("ls", "-l").lines}
    assert set(kinds) == {"file", "executable", "symlink", "directory"}
    assert kinds["symlink"].endswith("link -> a.txt")
    linked = [
        item for item in pets.ok("ls", "--json").json["items"] if item["kind"] in ("symlink", "directory")
    ]
    assert all(item["id"] is None and item["size"] == 0 for item in linked)


def test_a_name_with_a_newline_stays_one_line(pets: Dsv) -> None:
    (pets.cwd / "two\nlines \x1b[31m").write_bytes(b"x")
    pets.ok("sync")
    assert "two\\nlines \\x1b[31m" in pets.ok("ls").lines


def test_cat_gives_the_bytes(pets: Dsv) -> None:
    assert pets.ok("cat", ":a.txt").out == "alpha\n"
    (pets.cwd / "a.txt").unlink()
    assert pets.process("cat", "pets@v1:a.txt").out == "alpha\n"
    for target, code in ((":train", 2), (":none", 3), ("pets@v1", 2)):
        result = pets("cat", target)
        assert (result.code, result.out) == (code, "")


def test_resolve_prints_the_whole_id(pets: Dsv) -> None:
    full = pets.ok("resolve", "@v1").out.strip()
    assert len(full) == 64
    assert pets.ok("resolve", f"pets@{full[:8]}").out.strip() == full
    assert pets.ok("resolve", "pets", "--json").json == {"schema": 1, "dataset": "pets", "commit": full}
    bare = pets("resolve", "v1")
    assert bare.code == 3
    assert "@v1" in bare.err


def test_datasets(pets: Dsv) -> None:
    (pets.cwd.parent / "birds").mkdir()
    pets.at(pets.cwd.parent / "birds").ok("init")
    items = pets.ok("datasets", "--json").json["items"]
    assert [(item["dataset"], item["files"]) for item in items] == [("birds", 0), ("pets", 4)]
    assert (items[0]["commit"], items[0]["time"]) == (None, None)
    assert_documented("datasets", {"schema": 1, "items": items})
    lines = pets.ok("datasets").lines
    assert lines[0].split() == ["DATASET", "COMMIT", "COMMITTED", "FILES", "SIZE"]
    assert pets("datasets", "--store", f"{pets.cwd}/none").code == 6


def test_tags(pets: Dsv) -> None:
    commit = pets.ok("resolve").out.strip()
    made = pets.ok("tag", "v2", "pets@v1", "-m", "as published", "--json").json
    assert_documented("tag", made)
    assert made["items"][0]["commit"] == commit
    listed = pets.ok("tag", "--list", "pets", "--json").json["items"]
    assert [(item["tag"], item["message"]) for item in listed] == [("v1", ""), ("v2", "as published")]
    assert pets.ok("tag").lines[1].split()[:2] == ["v1", commit[:12]]
    assert pets.ok("tag", "v1").out == f"pets@v1 is {commit}\n"
    (pets.cwd / "a.txt").write_bytes(b"beta\n")
    pets.ok("sync")
    assert pets("tag", "v1").code == 4
    refused = pets("tag", "--delete", "v2")
    assert refused.code == 4 and "--force" in refused.err
    commit = pets.ok("resolve", "pets@v2").out.strip()
    done = pets.ok("tag", "--delete", "v2", "--force")
    assert done.out == f"tag v2 is deleted; it was pets@{commit[:12]}\n"
    assert f"dsv tag NEW-NAME pets@{commit}" in done.err
    assert pets.ok("tag", "again", f"pets@{commit}").out == f"pets@again is {commit}\n"
    assert pets("tag", "v2").code == 4
    assert pets("tag", "--delete", "v2", "nowhere").code == 3


def test_every_command_refuses_text_that_is_no_utf_8(pets: Dsv) -> None:
    for arguments in (
        ["sync", "-m", "\udcff"],
        ["tag", "v3", "-m", "\udcff"],
        ["sync", "--author", "\udcff"],
    ):
        assert pets(*arguments).code == 2


def test_an_author_or_a_store_of_the_surroundings_that_is_no_utf_8(pets: Dsv, tmp_path: Path) -> None:
    """Values without a parser of their own: variables, and names of folders."""
    latin = pets.at(pets.cwd, DSV_AUTHOR="Ren\udce9")
    (pets.cwd / "b.txt").write_bytes(b"beta\n")
    for arguments in (["sync"], ["tag", "v9"]):
        refused = latin(*arguments)
        assert refused.code == 2 and "the author from DSV_AUTHOR is not valid UTF-8" in refused.err
    assert latin("sync", "--author", "René").code == 0
    (tmp_path / "new").mkdir()
    there = pets.at(tmp_path / "new")
    store = f"{tmp_path}/st\udcff"
    for refused in (
        there("init", "cats", "--store", store),
        there.at(there.cwd, DSV_STORE=store)("init", "cats"),
    ):
        assert refused.code == 2 and "is not valid UTF-8" in refused.err
        assert "from --store" in refused.err or "from DSV_STORE" in refused.err
    assert not Path(store).exists() and not (there.cwd / ".dsv").exists()
