"""dsv export: a tar or a folder, whole or not at all."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from dsv.api import export as export_module
from tests.cli.runner import Dsv, assert_documented

BIG = os.urandom(5 << 20)


@pytest.fixture
def mixed(pets: Dsv) -> Dsv:
    (pets.cwd / "run.sh").write_bytes(b"#!/bin/sh\n")
    (pets.cwd / "run.sh").chmod(0o755)
    (pets.cwd / "train/l").symlink_to("1.png")
    (pets.cwd / "none").mkdir()
    (pets.cwd / "train/big").write_bytes(BIG)
    (pets.cwd / "zero").write_bytes(b"")
    pets.ok("sync")
    return pets.at(pets.cwd.parent)


def seen(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode & 0o777)
        if path.is_file()
        else None
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("name", ["out.tar", "out.tar.gz", "out.tgz"])
def test_a_folder_and_a_tar_have_the_same_files(mixed: Dsv, name: str) -> None:
    document = mixed.ok("export", "pets", "folder", "--json").json
    assert_documented("export", document)
    assert document["paths"] == document["files"] + 2
    mixed.ok("export", "pets", name)
    with tarfile.open(mixed.cwd / name) as tar:
        tar.extractall(mixed.cwd / "unpacked", filter="tar")
    found = seen(mixed.cwd / "folder")
    assert found == seen(mixed.cwd / "unpacked")
    assert (
        found["run.sh"] == (b"#!/bin/sh\n", 0o755) and found["train/l"] == "1.png" and found["none"] is None
    )
    assert found["train/big"] == (BIG, 0o644)
    assert not [one for one in os.listdir(mixed.cwd) if one.startswith(".")]


def test_a_path_is_exported_from_there(mixed: Dsv) -> None:
    with mixed.start("export", "pets:train", "-") as process:
        out, _ = process.communicate()
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        assert tar.getnames() == ["1.png", "2.png", "big", "l"]
    mixed.ok("export", "pets:a.txt", "one")
    assert (mixed.cwd / "one/a.txt").read_bytes() == b"beta\n"


def test_what_is_there_stays(mixed: Dsv) -> None:
    (mixed.cwd / "there").mkdir()
    assert mixed("export", "pets", "there").code == 4
    assert mixed("export", "pets:nowhere", "new").code == 3 and not (mixed.cwd / "new").exists()


@pytest.mark.parametrize("to", ["out.tar", "folder"])
def test_after_a_failure_nothing_is_there(mixed: Dsv, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    def failing(*_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "contents_of", failing)
    before = sorted(os.listdir(mixed.cwd))
    assert mixed("export", "pets", to).code == 7
    assert sorted(os.listdir(mixed.cwd)) == before
