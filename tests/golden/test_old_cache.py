"""Caches that earlier versions left in the middle of their work are read, filled and evicted by today's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make_old_cache import content

COMMITS = ("4fac948", "39b5163")

AS_ROOT = """
import sys
from dsv.cli.main import main
from dsv.files import process
process.pwd.getpwuid = lambda uid: process.pwd.struct_passwd(("root", "", uid, 0, "", "", ""))
sys.exit(main())
"""
"""A command line of the user who wrote the cache, by name: a hold is ended by its own user alone."""


class Old:
    """The store and the cache, unpacked."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.cache = folder / "cache"
        self._environ = {
            **os.environ,
            "DSV_STORE": str(folder / "store"),
            "DSV_CACHE": str(self.cache),
            "DSV_CONFIG": "/nonexistent",
        }
        with tarfile.open(Path(__file__).parent / f"cache-{commit}.tar.xz") as archive:
            # Each as it is: Python's own filter would change the modes. Before 3.11.4 there is no argument for it.
            archive.extraction_filter = lambda member, _: member
            archive.extractall(folder)

    def dsv(self, *arguments: str) -> Any:
        argv = [sys.executable, "-c", AS_ROOT, *arguments, "--json"]
        done = subprocess.run(argv, env=self._environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def left(self) -> list[str]:
        """Everything in the dot folder but what stays in each empty cache."""
        dot = self.cache / ".dsv"
        paths = [str(path.relative_to(dot)) for path in dot.rglob("*")]
        return [path for path in paths if path.startswith(("claims/", "fill/", "room/", "tmp/", "trash/"))]


@pytest.fixture(params=COMMITS)
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Old:
    return Old(tmp_path, request.param)


def read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_cached_and_who_claims_it_is_read(old: Old) -> None:
    report = old.dsv("cached")
    assert len(report["items"]) == 3
    assert all(item["complete"] for item in report["items"])
    assert sorted(len(item["pins"]) for item in report["items"]) == [0, 0, 1]
    assert sorted(len(item["leases"]) for item in report["items"]) == [0, 0, 1]
    assert len(report["fills"]) == 1
    assert not report["fills"][0]["live"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_is_cached_is_a_hit(old: Old, version: str) -> None:
    (item,) = old.dsv("cache", f"letters@{version}")["items"]
    assert item["hit"]
    assert read(Path(item["path"])) == content(version)


def test_a_selection_is_a_hit(old: Old) -> None:
    (item,) = old.dsv("cache", "letters@v1:own")["items"]
    assert item["hit"]
    own = {path: data for path, data in content("v1").items() if path.startswith("own/")}
    assert read(Path(item["path"])) == own


def test_half_a_fill_is_continued(old: Old) -> None:
    (half,) = (old.cache / ".dsv/fill/letters").glob("*/at-*")
    there = {path.name: path.stat().st_ino for path in (half / "tree").rglob("*") if path.is_file()}
    assert 16 <= len(there) < len(content("v3"))
    (item,) = old.dsv("cache", "letters@v3")["items"]
    assert not item["hit"]
    visible = Path(item["path"])
    assert read(visible) == content("v3")
    kept = {path.name: path.stat().st_ino for path in visible.rglob("*") if path.is_file()}
    assert there.items() <= kept.items(), "no file that was whole is made again"
    assert {path.stat().st_mode & 0o777 for path in visible.rglob("*") if path.is_file()} == {0o444}
    assert not (old.cache / ".dsv/fill/letters").exists()


def test_a_commit_that_went_is_filled_anew_from_those_that_stayed(old: Old) -> None:
    (item,) = old.dsv("cache", "letters@v0")["items"]
    assert (item["hit"], item["linked_files"]) == (False, 40)
    assert read(Path(item["path"])) == content("v0")


def test_what_is_claimed_stays_and_the_rest_goes_with_what_the_killed_left(old: Old) -> None:
    report = old.dsv("evict", "--all")
    assert len(report["evicted"]) == 1
    cached = sorted(path.name for path in (old.cache / "letters").iterdir() if not path.is_symlink())
    assert cached == sorted(path.name for path in (old.cache / ".dsv/claims/letters").iterdir())
    assert [
        path for path in old.left() if path.startswith(("fill/", "room/", "trash/")) and "spare" not in path
    ] == []
    for version in ("v1", "v2"):
        (item,) = old.dsv("cache", f"letters@{version}", "--offline")["items"]
        assert read(Path(item["path"])) == content(version)


def test_nothing_is_left_once_its_claims_are_ended(old: Old) -> None:
    old.dsv("release", "letters@v1", "--everyone")
    (held,) = (lease["id"] for item in old.dsv("cached")["items"] for lease in item["leases"])
    old.dsv("release", "--id", held)
    assert len(old.dsv("evict", "--all")["evicted"]) == 3
    assert not (old.cache / "letters").exists()
    assert [path for path in old.left() if path != "trash/spare"] == []
