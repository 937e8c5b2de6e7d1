"""dsv sync: its text, its JSON, its exit codes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import SIGNED_FILES
from tests.kit.dsv import Dsv, assert_documented, write_files


@pytest.fixture
def pets(signed_pets: Dsv) -> Dsv:
    return signed_pets


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


def test_the_first_sync_says_as_whom_it_signs(dsv: Dsv) -> None:
    write_files(dsv.cwd, SIGNED_FILES)
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


def test_a_sync_without_a_message_counts_its_changes(untagged_pets: Dsv) -> None:
    write_files(untagged_pets.cwd, {"a.txt": b"changed", "new": b"n"})
    (untagged_pets.cwd / "train/1.png").unlink()
    untagged_pets.ok("sync")
    assert untagged_pets.ok("log", "--oneline").lines[0].endswith("(main) 1 added, 1 changed, 1 removed")


def test_where_the_store_has_moved_the_hint_names_the_line_that_takes_its_new_place(pets: Dsv) -> None:
    config = pets.cwd / ".dsv/config.toml"
    store = Path(pets.ok("config", "store").lines[0])
    moved = store.rename(store.with_name("moved"))
    refused = pets("sync")
    assert refused.code == 6 and "as store in the workspace's .dsv/config.toml" in refused.err
    config.write_text(config.read_text().replace(f'store = "{store}"', f'store = "{moved}"'))
    assert "nothing changed here" in pets.ok("sync").err
