"""A tree that nobody made for a test: this machine's own /usr/share with a good part of /usr/lib."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exhaustive import is_full
from tests.kit.dsv import Dsv
from tests.labs.s3_server import S3Server
from tests.real.documents import document
from tests.real.trees import Seen, entries, leaves, look

MIN_FILES = 50_000
MAX_LIBRARY_BYTES = 1 << (30 if is_full() else 27)  # of /usr/lib: the server keeps everything in memory


def _bytes(folder: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_size for entry in entries(folder))


def _copy(source: Path, target: Path) -> None:
    """By hard links where that is possible: the tests only read."""
    same = source.stat().st_dev == target.parent.stat().st_dev
    shutil.copytree(source, target, symlinks=True, copy_function=os.link if same else shutil.copy2)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("machine") / "tree"
    (root / "lib").mkdir(parents=True)
    _copy(Path("/usr/share"), root / "share")
    room = MAX_LIBRARY_BYTES
    folders = [path for path in Path("/usr/lib").iterdir() if path.is_dir() and not path.is_symlink()]
    for size, folder in sorted((_bytes(folder), folder) for folder in folders):
        if size <= room:
            room -= size
            _copy(folder, root / "lib" / folder.name)
    yield root
    shutil.rmtree(root)


@pytest.fixture
def dsv(ceph_s3: S3Server, tree: Path, tmp_path: Path) -> Iterator[Dsv]:
    bucket = ceph_s3.bucket()
    store = {"DSV_STORE": f"s3://{bucket}/lake", "DSV_CACHE": str(tmp_path / "cache")}
    yield Dsv.of(tmp_path / "home", tree, **ceph_s3.env, **store)
    ceph_s3.remove_bucket(bucket)


@pytest.mark.timeout(1800)
def test_the_machines_own_files_come_back_as_they_were(dsv: Dsv, tree: Path, tmp_path: Path) -> None:
    original = look(tree)
    _assert_varied(original)
    outside = {path for path, seen in original.items() if seen.kind == "link" and leaves(tree, tree / path)}
    inside = {path: seen for path, seen in original.items() if path not in outside}

    document(dsv, "init", "machine")
    refused = dsv.process("sync", "-m", "as it is", timeout=900)
    assert refused.code == 9
    assert outside
    assert all(path in refused.err for path in outside)
    assert refused.err.count("symlink that leads out") == len(outside)

    synced = document(dsv, "sync", "--skip-unsupported", "-m", "this machine")
    assert synced["files"] == sum(seen.kind != "link" for seen in inside.values())
    assert synced["uploaded_bytes"] < _unique_bytes(tree, inside)
    cached = document(dsv, "cache", "machine")
    (item,) = cached["items"]
    assert (item["commit"], item["hit"]) == (synced["commit"], False)

    copy = Path(item["path"])
    assert look(copy) == inside
    assert not any(entry.stat(follow_symlinks=False).st_mode & 0o222 for entry in _files(copy))

    again = document(dsv, "sync", "--skip-unsupported")
    assert (again["commit"], again["any_change"], again["uploaded_bytes"]) == (synced["commit"], False, 0)
    hit = document(dsv, "cache", "machine")
    assert (hit["items"][0]["hit"], hit["items"][0]["fetched_bytes"]) == (True, 0)


def _unique_bytes(tree: Path, seen: dict[str, Seen]) -> int:
    """Return the size when every content is counted once."""
    one_each = {each.content: path for path, each in seen.items() if each.kind != "link"}
    return sum((tree / path).stat().st_size for path in one_each.values())


def _files(root: Path) -> list[os.DirEntry[str]]:
    return [entry for entry in entries(root) if not entry.is_symlink()]


def _assert_varied(original: dict[str, Seen]) -> None:
    """This machine has what the test is about."""
    kinds = Counter(seen.kind for seen in original.values())
    contents = Counter(seen.content for seen in original.values() if seen.kind != "link")
    assert kinds["file"] + kinds["executable"] >= MIN_FILES
    assert kinds["link"] > 500
    assert kinds["executable"] > 100
    assert sum(count > 1 for count in contents.values()) > 1000
    assert max(path.count("/") for path in original) >= 8
