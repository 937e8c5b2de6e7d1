"""A member of a shared cache's group who puts symlinks in place of folders, while others use the cache."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cache.places import make_root, place, publish

import dsv.cache
from dsv.cache.evict import evict
from dsv.cache.policy import EvictionRequest
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheSettings
from dsv.errors import DsvError

# What takes a path, unless it is given the descriptor of a folder (or, for those of a descriptor, gets one).
_BY_PATH = {
    "access", "chmod", "chown", "lchown", "link", "listdir", "lstat", "makedirs", "mkdir", "mkfifo", "open",
    "readlink", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "statvfs",
    "symlink", "truncate", "unlink", "utime", "walk",
}  # fmt: skip
_BY_DESCRIPTOR = {"descriptor", "folder", "copy", "source", "file"}
# The name of a file or folder in one that is open. A path of several could lead through a symlink.
_ONE_NAME = {"draft", "last", "name", "old", "one", "source[1]"}
# Only the root itself, which symlinks may lead to, and what is above it.
_OF_THE_ROOT = {"nearest_folder(root.path)", "nearest_folder(path)", "root.path"}
_PATHLIB = {
    "absolute", "chmod", "expanduser", "glob", "is_file", "lchmod", "lstat", "open", "read_bytes", "read_text",
    "resolve", "rglob", "samefile", "touch", "write_bytes", "write_text",
}  # fmt: skip


def by_path(source: str) -> list[str]:
    """The calls that reach a file or folder by its whole path."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        call, first = ast.unparse(node), ast.unparse(node.args[0]) if node.args else ""
        options = {one.arg for one in node.keywords}
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            found.append(call)
        names = [ast.unparse(one) for one in node.args[:2]]
        named = names[1:] if "symlink" in ast.unparse(node.func) else names[:1]
        if options & {"dir_fd", "src_dir_fd"} and not _ONE_NAME.issuperset(named):
            found.append(call)
        if not isinstance(node.func, ast.Attribute):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        if owner in ("shutil", "glob", "os.path") and name not in ("abspath", "basename", "join"):
            found.append(call)
        elif owner == "os" and name in _BY_PATH:
            relative = options & {"dir_fd", "src_dir_fd"} or first in _BY_DESCRIPTOR or first in _OF_THE_ROOT
            if not relative:
                found.append(call)
        elif name in _PATHLIB or (owner.endswith(".path") and name not in ("is_relative_to", "mkdir")):
            found.append(call)
    return found


def test_nothing_in_a_cache_is_reached_by_its_path() -> None:
    """`SharedPath` is no `os.PathLike`, so what is not found here does not pass mypy, or fails at once."""
    allowed = {
        "os.path.abspath(path)",
        *("self.open(folder)", "self.asked.open(run.folder)", "self.asked.open(path)"),  # of `Folders`
        "os.close(os.open(os.devnull, os.O_RDONLY))",
        "open(os.devnull, 'w', encoding='ascii')",
        "self.path.stat()",  # of the root
        "self.path.mkdir(parents=True, exist_ok=True)",
    }
    folder = Path(dsv.cache.__file__).parent
    found = {
        f"{path.relative_to(folder)}: {call}"
        for path in sorted(folder.rglob("*.py"))
        for call in by_path(path.read_text())
        if call not in allowed
    }
    assert found == set()


def test_a_call_by_path_is_seen() -> None:
    for call in ("os.open(entry.path, 0, dir_fd=top)", "link(path, name, src_dir_fd=a, dst_dir_fd=b)",
                 "os.open(path, 0)", "os.rename(a, b)", "shutil.rmtree(x)", "open(x)", "x.read_bytes()",
                 "root.visible(p).path.rmdir()", "os.scandir(top)", "os.link(a, b)"):  # fmt: skip
        assert by_path(call) == [call]
    for call in ("os.open(name, 0, dir_fd=folder)", "os.rename(old, b, src_dir_fd=c, dst_dir_fd=d)",
                 "os.symlink(target, name, dir_fd=folder)"):  # fmt: skip
        assert by_path(call) == []


@contextlib.contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Another process exchanges two names again and again."""
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        while os.getppid() != 1:
            libc.renameat2(-100, bytes(one), -100, bytes(other), 2)
            time.sleep(0.002)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("where", [".dsv", ".dsv/trash", ".dsv/claims", ".dsv/tmp", "xrays"])
def test_what_a_symlink_leads_to_stays_as_it_is(tmp_path: Path, where: str) -> None:
    """Names and modes of what is there too, while others cache, take leases and evict."""
    root = make_root(tmp_path / "cache")
    private = tmp_path / "private"
    for name in ("trash", "claims/xrays", "tmp", "fill", "f", "d/f"):
        (private / name).mkdir(parents=True, exist_ok=True)
        (private / name / "precious").write_bytes(b"mine")
    before = snapshot(private)
    publish(root, place(0), {"a": b"1"}, age=1e6)
    (tmp_path / "link").symlink_to(private)
    with exchanging(root.path / where, tmp_path / "link"):
        for number in range(25):
            with contextlib.suppress(DsvError, OSError):
                evict(CacheRoot(root.path), CacheSettings(), EvictionRequest(everything=True))
            with contextlib.suppress(DsvError, OSError):
                root.write_once(root.claims(place(number)) / "pin-1", b"{}")
            with contextlib.suppress(DsvError, OSError):
                root.prepare()
            assert snapshot(private) == before


def snapshot(folder: Path) -> list[tuple[str, int, int]]:
    every = [folder, *sorted(folder.rglob("*"))]
    return [(str(one), one.lstat().st_mode, one.lstat().st_gid) for one in every]
