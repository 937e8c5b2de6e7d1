from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv.fs import folders
from dsv.fs.folders import Rights, make_durable, make_folder


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("rights", "mode"),
    [(Rights(), 0o700), (Rights(given=0o2070), 0o2770), (Rights(given=0o755, free=0), 0o755)],
)
def test_a_folder_appears_with_its_rights(tmp_path: Path, parent: int, rights: Rights, mode: int) -> None:
    old = os.umask(0o077)
    try:
        make_folder(parent, "a", rights)
        make_folder(parent, "a", rights)  # there already
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_with_something_in_it_stays(tmp_path: Path, parent: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/f").touch()
    make_folder(parent, "a", Rights(given=0o770))
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a") == ["f"]


def test_a_failure_leaves_no_draft(tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError("chmod")

    monkeypatch.setattr(folders.os, "chmod", fail)
    with pytest.raises(PermissionError):
        make_folder(parent, "a", Rights(given=0o770))
    assert os.listdir(tmp_path) == []


def test_missing_parents_are_made(tmp_path: Path) -> None:
    make_durable(tmp_path / "a/b/c")
    make_durable(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()
