"""dsv ls, cat and resolve: their text, their JSON, their exit codes."""

from __future__ import annotations

import json

import pytest
from blake3 import blake3

from tests.cli.conftest import SIGNED_FILES
from tests.kit.dsv import Dsv, assert_documented


@pytest.fixture
def pets(signed_pets: Dsv) -> Dsv:
    return signed_pets


def test_ls_lists_everything_below_a_path(pets: Dsv) -> None:
    assert pets.ok("ls").lines == sorted(SIGNED_FILES)
    assert pets.ok("ls", ":train/cat").lines == ["train/cat/1.png"]
    items = pets.ok("ls", "pets@v1:a.txt", "--json").json["items"]
    file_id = blake3(b"alpha\n").hexdigest()
    assert items == [{"path": "a.txt", "kind": "file", "size": 6, "id": file_id, "url": None, "erased": None}]
    assert_documented("ls", {"schema": 1, "items": items})
    assert [json.loads(line)["path"] for line in pets.ok("ls", "--jsonl").lines] == sorted(SIGNED_FILES)
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
