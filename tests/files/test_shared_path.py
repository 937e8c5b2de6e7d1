"""Paths in a folder that others may change: no operation follows a symlink, whoever puts it there and when."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.files import shared_path
from dsv.files.attributes import refresh
from dsv.files.folders import FolderRights, make_folder, open_folder
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names, read_small, replace_file, write_new


@pytest.fixture(params=["openat2", "step by step"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedPath:
    if request.param == "step by step":
        monkeypatch.setattr(shared_path, "_openat2", lambda: None)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(b"private")
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "a" / "b" / "file").write_bytes(b"content")
    return SharedPath(tmp_path / "root")


OPERATIONS: dict[str, Callable[[SharedPath], object]] = {
    "stat": lambda path: path.stat(),
    "open": lambda path: path.descriptor(os.O_RDONLY),
    "create": lambda path: path.with_name("new").descriptor(os.O_WRONLY | os.O_CREAT),
    "mkdir": lambda path: path.with_name("new").mkdir(),
    "rmdir": lambda path: path.rmdir(),
    "unlink": lambda path: path.unlink(),
    "rename": lambda path: path.rename(SharedPath(path.root) / "taken"),
    "rename to": lambda path: (SharedPath(path.root) / "a/b/file").rename(path),
    "link": lambda path: path.with_name("new").hardlink_to(SharedPath(path.root) / "a/b/file"),
    "link from": lambda path: (SharedPath(path.root) / "new").hardlink_to(path),
    "symlink": lambda path: path.with_name("new").symlink_to("x"),
    "readlink": lambda path: path.readlink(),
    "list": lambda path: path.parent.entries(),
    "time": refresh,
    "replace": lambda path: replace_file(path, b"x"),
    "write": lambda path: write_new(path.with_name("new"), b"x"),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("where", ["link/file", "../secret/file", "a/../link/file"])
def test_nothing_below_a_symlink_is_touched(root: SharedPath, name: str, where: str) -> None:
    path = SharedPath(root.root, where)
    with pytest.raises(OSError) as caught:
        OPERATIONS[name](path)
    assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)
    secret = root.root.parent / "secret"
    assert [one.name for one in secret.iterdir()] == ["file"]
    assert (secret / "file").read_bytes() == b"private"


def test_a_symlink_itself_is_neither_followed_nor_read(root: SharedPath) -> None:
    (root.path / "a" / "alias").symlink_to("b/file")
    assert read_small(root / "a/alias") is None
    assert not (root / "link").is_dir() and (root / "link").is_symlink()
    assert not (root / "link/file").exists()
    assert stat.S_ISLNK((root / "link").stat().st_mode)
    (root / "link").unlink()
    assert (root.path.parent / "secret" / "file").read_bytes() == b"private"


def test_it_does_as_pathlib_does(root: SharedPath) -> None:
    assert list_names(root) == ["a", "link"] and read_small(root / "a/b/file") == b"content"
    (root / "a/new").mkdir()
    (root / "a/b/file").rename(root / "a/new/moved")
    (root / "a/again").hardlink_to(root / "a/new/moved")
    assert (root / "a/again").stat().st_nlink == 2
    (root / "a/new/moved").unlink()
    (root / "a/new/moved").unlink(missing_ok=True)
    (root / "a/new").rmdir()
    assert sorted(one.name for one in (root / "a").entries()) == ["again", "b"]
    with pytest.raises(FileNotFoundError):
        (root / "a/none/x").stat()
    assert refresh(root / "a") == (root.path / "a").stat().st_mtime_ns
    with pytest.raises(TypeError):
        os.stat(root / "a")  # type: ignore[arg-type]


def test_no_descriptor_is_left_open(root: SharedPath) -> None:
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    for where in ("link/file", "../secret/file", "a/none/file"):
        for operation in OPERATIONS.values():
            with pytest.raises(OSError):
                operation(SharedPath(root.root, where))
    assert count() == before


def test_the_rights_of_a_new_folder_are_not_given_to_what_a_symlink_in_its_place_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (tmp_path / "root").mkdir()
    make = os.mkdir

    def make_and_swap(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(path, mode, dir_fd=dir_fd)
        os.rename(path, f"x{path}", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        os.symlink(private, path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", make_and_swap)
    with open_folder(tmp_path / "root") as folder, pytest.raises(NotADirectoryError):
        make_folder(folder, "new", FolderRights(given=0o2775, free=0, group=os.getegid()))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
