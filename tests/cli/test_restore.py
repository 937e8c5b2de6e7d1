"""dsv restore: its text, its JSON, its exit codes."""

from __future__ import annotations

import re

import pytest

from tests.kit.dsv import Dsv, assert_documented, write_files


@pytest.fixture
def pets(untagged_pets: Dsv) -> Dsv:
    return untagged_pets


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
