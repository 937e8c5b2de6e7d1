from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsv.errors import Unsupported
from dsv.files import folders
from dsv.files.folders import FolderRights, make_durable, make_folder


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("rights", "mode"),
    [
        (FolderRights(), 0o700),
        (FolderRights(given=0o2070), 0o2770),
        (FolderRights(given=0o755, free=0), 0o755),
    ],
)
def test_a_folder_appears_with_its_rights(
    tmp_path: Path, parent: int, rights: FolderRights, mode: int
) -> None:
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
    make_folder(parent, "a", FolderRights(given=0o770))
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a") == ["f"]


def test_another_folder_that_got_the_name_of_a_draft_is_not_opened_to_others(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of the group may rename what lies beside it, also folders of others that he can't enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "key").touch()
    mkdir = os.mkdir

    def exchange(name: str, mode: int, **where: int) -> None:
        mkdir(name, mode, **where)
        (tmp_path / name).rename(tmp_path / "aside")
        private.rename(tmp_path / name)

    monkeypatch.setattr(folders.os, "mkdir", exchange)
    with pytest.raises(PermissionError, match="has replaced a folder"):
        make_folder(parent, "a", FolderRights(given=0o2775, free=0, group=os.getegid()))
    (moved,) = [one for one in tmp_path.iterdir() if (one / "key").exists()]
    assert stat.S_IMODE(moved.stat().st_mode) == 0o700


def test_a_failure_leaves_no_draft(tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError("chmod")

    monkeypatch.setattr(folders.os, "fchmod", fail)
    with pytest.raises(PermissionError):
        make_folder(parent, "a", FolderRights(given=0o770))
    assert os.listdir(tmp_path) == []


def test_a_draft_is_made_in_the_given_folder_and_is_only_its_makers(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drafts").mkdir()
    drafts = os.open(tmp_path / "drafts", os.O_RDONLY)
    seen: list[int] = []
    rename = os.rename

    def look(draft: str, name: str, **where: int) -> None:
        assert where == {"src_dir_fd": drafts, "dst_dir_fd": parent}
        assert os.listdir(tmp_path) == ["drafts"]
        rename(draft, name, **where)

    def fchmod(draft: int, mode: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(draft).st_mode))
        real(draft, mode)

    real = os.fchmod
    monkeypatch.setattr(folders.os, "rename", look)
    monkeypatch.setattr(folders.os, "fchmod", fchmod)
    make_folder(parent, "a", FolderRights(given=0o775, free=0, group=os.getegid()), drafts)
    os.close(drafts)
    assert seen == [0o700]
    assert os.listdir(tmp_path / "drafts") == []
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o775


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to any group")
def test_a_folder_appears_with_its_group(tmp_path: Path, parent: int) -> None:
    make_folder(parent, "a", FolderRights(given=0o2775, free=0, group=12345))
    found = (tmp_path / "a").stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 0o2775)


def test_a_folder_that_has_its_rights_from_birth_needs_no_draft(
    tmp_path: Path, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders.os, "rename", None)
    old = os.umask(0o022)
    try:
        make_folder(parent, "a", FolderRights(given=0o755, free=0, plain=True))
        make_folder(parent, "a", FolderRights(given=0o755, free=0, plain=True))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755


def test_missing_parents_are_made(tmp_path: Path) -> None:
    make_durable(tmp_path / "a/b/c")
    make_durable(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (str, (False, False)),
        (str.lower, (True, False)),
        (lambda name: unicodedata.normalize("NFC", name), (True, False)),
        (lambda name: name.replace("\u200d", ""), (True, False)),
        (lambda name: name.rstrip(". "), (False, True)),
        (lambda name: name.rstrip(".").lower(), (True, True)),
    ],
)
def test_it_is_tried_how_a_file_system_changes_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], expected: tuple[bool, bool]
) -> None:
    def is_there(path: Path) -> bool:
        return change(path.name) in map(change, os.listdir(path.parent))

    monkeypatch.setattr(Path, "is_dir", is_there)
    assert folders.how_folded(tmp_path) == expected
    assert os.listdir(tmp_path) == []
    if expected == (False, True):
        with pytest.raises(Unsupported, match="are one name in"):
            folders.check_folding(tmp_path, tmp_path, [b"A", b"a", b"a."])
