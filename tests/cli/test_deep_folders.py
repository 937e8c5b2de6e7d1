"""Folders that are deeper than Python's stack, with every command that walks them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsv.reader
from dsv.files.descent import Descent, remove_tree
from tests.kit.dsv import Dsv

LEVELS = 1200
FILE = "d/" * LEVELS + "leaf"


@pytest.fixture
def deep(dsv: Dsv) -> Iterator[Dsv]:
    with Descent(dsv.cwd) as descent:
        folder = descent.at(b"/".join([b"d"] * LEVELS), make=True)
        os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        os.mkdir("empty", dir_fd=folder)
        os.symlink("leaf", "link", dir_fd=folder)
    (dsv.cwd / "top").write_bytes(b"top")
    dsv.ok("init", "deep")
    dsv.ok("sync")
    yield dsv
    for folder in (*dsv.home.parent.iterdir(), dsv.home):  # what cleans up after tests recurses
        if folder.is_dir() and not folder.is_symlink():
            remove_tree(folder)


def levels(folder: Path) -> int:
    """Return how many folders are there, and check what is in the last one."""
    with Descent(folder) as descent:
        found = [{one.name for one in entries} for _, _, entries in descent.walk()]
    assert {"leaf", "empty", "link"} in found
    return sum("d" in names for names in found)


def test_every_command_takes_folders_of_any_depth(deep: Dsv) -> None:
    out = deep.at(deep.home / "out")
    out.cwd.mkdir()
    assert deep.ok("status", "--json").json["clean"]
    assert FILE in out.ok("ls", "deep").lines
    out.ok("export", "deep", "folder")
    out.ok("export", "deep", "all.tar")
    out.ok("clone", "deep", "work")
    cached = Path(out.ok("cache", "deep").lines[-1])
    for folder in (out.cwd / "folder", out.cwd / "work", cached):
        assert levels(folder) == LEVELS, folder
    out.ok("evict", "--all")
    assert not cached.exists()


def test_edits_and_checks_take_folders_of_any_depth(deep: Dsv) -> None:
    for command in (("verify", "--full"), ("du", "deep"), ("gc", "--dry-run"), ("mv", "deep:d", "moved")):
        deep.ok(*command)
    deep.ok("pull")
    assert deep.ok("status", "--json").json["clean"] and (deep.cwd / "moved").exists()


def test_the_reader_restores_folders_of_any_depth(deep: Dsv) -> None:
    store = next(deep.home.rglob("format")).parent
    to = deep.home / "r"
    done = subprocess.run(
        [sys.executable, dsv.reader.__file__, str(store), "deep", str(to)], capture_output=True, check=False
    )
    assert done.returncode == 0 and levels(to) == LEVELS, done


def test_a_removed_tree_is_gone_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").touch()
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to("../other")
    with Descent(top) as descent:
        descent.at(b"/".join([b"e"] * 3000), make=True)
    remove_tree(top)
    assert not top.exists() and (tmp_path / "other/x").exists()
