"""dsv show."""

from __future__ import annotations

import random

import pytest

from dsv.cli.declare import load
from tests.kit.dsv import Dsv, made_once, write_files

MB = 1 << 20


@pytest.fixture
@made_once
def zoo(dsv: Dsv) -> Dsv:
    """Two commits: everything of the first was touched by the second, but for `same`."""
    big = random.Random(5).randbytes(6 * MB)
    write_files(dsv.cwd, {"train/1": b"one", "train/2": b"two", "same": b"s", "big": big, "moved": big[::-1]})
    (dsv.cwd / "link").symlink_to("same")
    dsv.ok("init", "zoo")
    dsv.ok("sync", "-m", "Begin")
    dsv.ok("tag", "v1")
    write_files(dsv.cwd, {"train/1": b"ONE", "big": big + b"more"})
    (dsv.cwd / "moved").rename(dsv.cwd / "train/moved")
    (dsv.cwd / "train/2").chmod(0o755)
    dsv.ok("sync", "-m", "Relabel\n\nBy hand \x1b[31m.")
    dsv.ok("tag", "v2")
    return dsv


def test_a_commit_with_its_names_and_its_change_by_folder(zoo: Dsv) -> None:
    first, second = (zoo.ok("resolve", tag).out.strip() for tag in ("@v1", "@v2"))
    lines = zoo.ok("show").lines
    assert lines[:2] == [f"commit {second} (main, v2)", f"Parent: {first[:12]}"]
    assert lines[4:] == [
        "Files:  5, 12.6 MB",
        "",
        "    Relabel",
        "    ",
        "    By hand \\x1b[31m.",
        "",
        f"Since zoo@{first[:12]}: 3 changed, 1 renamed; +4 B",
        "FOLDER      CHANGED      RENAMED       NET",
        "./      1 (6.29 MB)            -  -6.29 MB",
        "train/      2 (6 B)  1 (6.29 MB)  +6.29 MB",
        "total   3 (6.29 MB)  1 (6.29 MB)      +4 B",
    ]
    assert zoo.at(zoo.home).ok("show", "zoo@v2").lines == lines
    assert zoo.ok("show", "@v2", "--name-status").lines == [
        "M\tbig",
        "M\ttrain/1",
        "M\ttrain/2",
        "R100\tmoved\ttrain/moved",
    ]
    assert "total   3" in zoo.ok("show", "--dirs", "1").out


def test_of_a_first_commit_everything_is_added(zoo: Dsv) -> None:
    shown = zoo.ok("show", "@v1")
    assert "Parent: none, it is the first commit" in shown.lines
    assert "The first commit: 6 added; +12.6 MB" in shown.lines
    assert len(zoo.ok("show", "@v1", "--name-only").lines) == 6


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("same", "unchanged since zoo@PARENT"),
        ("train/1", "changed since zoo@PARENT"),
        ("train/2", "mode changed since zoo@PARENT"),
        ("train/moved", "renamed from moved since zoo@PARENT"),
        ("link", "unchanged since zoo@PARENT"),
    ],
)
def test_what_became_of_a_path(zoo: Dsv, path: str, told: str) -> None:
    parent = zoo.ok("resolve", "@v1").out[:12]
    assert zoo.ok("show", f"@v2:{path}").lines[-1].partition("  ")[2].strip() == told.replace(
        "PARENT", parent
    )
    assert (
        zoo.ok("show", f"@v1:{path.replace('train/moved', 'moved')}")
        .lines[-1]
        .endswith("added, by the first commit")
    )


def test_a_large_file_with_what_it_shares_with_the_version_before(zoo: Dsv) -> None:
    document = zoo.ok("show", "@v2:big", "--json").json
    path = document["path"]
    assert (path["kind"], path["size"], path["change"]) == ("file", 6 * MB + 4, "changed")
    assert path["chunks"] > 2 and 4 * MB < path["shared_bytes"] < 6 * MB
    lines = dict(line.split(maxsplit=1) for line in zoo.ok("show", "@v2:big").lines)
    assert lines["size"] == "6.29 MB (6,291,460 bytes)" and lines["mode"] == "644"
    assert lines["id"] == path["id"] and lines["chunks"] == str(path["chunks"])
    share = 100 * path["shared_bytes"] // path["size"]
    assert lines["change"].endswith(f" ({share}%) in the same chunks")


def test_a_folder_with_its_change(zoo: Dsv) -> None:
    lines = zoo.ok("show", "@v2:train").lines
    assert lines[0] == "folder  train" and lines[2] == "size    3 files, 6.29 MB"
    assert lines[4].endswith(
        ": 1 added, 2 changed; +6.29 MB"
    )  # what it was before lies outside of the folder


def test_json_has_the_documented_keys(zoo: Dsv) -> None:
    document = zoo.ok("show", "@v2:train/moved", "--json").json
    found = {key for key in document if key not in ("schema", "path", "folders")}
    found |= {f"path.{key}" for key in document["path"]}
    found |= {f"folders.{key}" for key in document["folders"][0]}
    assert found == set(load("show").result.dotted())
    assert document["path"]["old_path"] == "moved" and document["names"] == ["main", "v2"]
    assert zoo.ok("show", "--json").json["path"] is None


def test_json_is_summed_up_by_as_many_levels_as_said(zoo: Dsv) -> None:
    usual, none = (zoo.ok("show", "--json", *more).json for more in ((), ("--dirs", "0")))
    assert [row["folder"] for row in usual.pop("folders")] == ["./", "train/"]
    assert len(none.pop("folders")) == 1 and none == usual
    refused = zoo("show", "--dirs", "0", "--name-only")
    assert refused.code == 2 and "can't be used together" in refused.err


def test_what_is_not_there(zoo: Dsv) -> None:
    for target, code in (("@v2:nope", 3), ("@v9", 3), ("nobody", 3), ("@v2:../x", 2)):
        done = zoo("show", target)
        assert (done.code, done.out) == (code, ""), done
    outside = zoo.at(zoo.home)
    assert outside("show").code == 2
    empty = zoo.at(zoo.home / "empty")
    empty.cwd.mkdir()
    empty.ok("init", "empty")
    assert empty("show").code == 3


def test_offline(zoo: Dsv) -> None:
    online = zoo.ok("show", "@v2").out
    zoo.ok("cache", "@v2")
    assert zoo.ok("show", "@v2", "--offline").out == online
