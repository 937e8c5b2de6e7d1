"""Writes through a mapping that leave a file's size and times as they were."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsv.api.checkout import pull
from dsv.api.clone import clone
from dsv.api.status import status
from dsv.errors import Conflict
from dsv.files import mapped
from dsv.files.mapped import Notice, has_writers, notice
from dsv.transfer import stable_read
from dsv.values.names import Target
from tests.kit.people import Person

SIZE = 2 << 20
NAMES = ["small", "large"]


@contextmanager
def in_memory(tmp_path: Path) -> Iterator[Path]:
    shared = Path("/dev/shm")
    if not shared.is_dir() or notice(shared) is not Notice.NEVER:
        pytest.skip("/dev/shm is no tmpfs")
    with tempfile.TemporaryDirectory(dir=shared, prefix="dsv-") as folder:
        yield Path(folder)


@contextmanager
def on_xfs(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        pytest.skip("needs root and xfsprogs")
    image, folder = tmp_path / "xfs.image", tmp_path / "xfs"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    folder.mkdir()
    subprocess.run(["mkfs.xfs", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, check=False).returncode:
        pytest.skip("loop devices can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def here(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


@pytest.fixture(params=[here, in_memory, on_xfs], ids=["here", "tmpfs", "xfs"])
def ann(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Person]:
    with request.param(tmp_path) as folder:
        person = Person(folder / "ann", str(tmp_path / "store"))
        person.init()
        person.write({"small": bytes(4096), "large": bytes(SIZE), "other": b"o"})
        yield person


def past(stamp: int, folder: Path) -> None:
    """Waits until files in the folder get a later time."""
    probe = folder / ".dsv/probe"
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_mtime_ns > stamp:
            probe.unlink()
            return
        time.sleep(0.001)


@contextmanager
def mapping(path: Path) -> Iterator[mmap.mmap]:
    """As numpy.memmap has it: the file itself is closed."""
    with path.open("r+b") as file:
        found = mmap.mmap(file.fileno(), 0)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_that_is_written_again_after_a_sync_is_seen(ann: Person, name: str) -> None:
    path = ann.workspace / name
    with mapping(path) as pages:
        pages[0] = 1
        past(path.stat().st_ctime_ns, ann.workspace)
        first = ann.sync().commit
        for value in (2, 3):
            pages[0] = value
            assert status(ann.context()).differences.changed == [name.encode()]
            found = ann.sync()
            assert found.any_change and found.changed == 1 and found.commit is not None
            content = ann.read(found.commit)[name]
            assert content is not None and content[0] == value
    assert first is not None and not ann.sync().any_change


@pytest.mark.parametrize("name", NAMES)
def test_a_pull_does_not_overwrite_what_was_written_to_a_page_that_was_dirty(ann: Person, name: str) -> None:
    path = ann.workspace / name
    with mapping(path) as pages:
        pages[0] = 1
        past(path.stat().st_ctime_ns, ann.workspace)
        ann.sync()
        bob = Person(ann.home.parent / "bob", ann.store, "bob")
        clone(bob.context(ann.home), Target.parse("scans"), bob.workspace)
        bob.write({name: b"bob's"})
        bob.sync()
        pages[0] = 2
        with pytest.raises(Conflict, match="was changed here, and changed there"):
            pull(ann.context())
        assert path.read_bytes()[0] == 2


def test_a_rehash_finds_changes_that_no_stat_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here with a kernel that would say of a mapped file that nobody writes to it."""
    monkeypatch.setattr(stable_read, "has_writers", lambda _: False)
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    ann.write({"a/small": bytes(4096), "a/large": bytes(SIZE), "b": b"b"})
    with mapping(ann.workspace / "a/small") as small, mapping(ann.workspace / "a/large") as large:
        small[0] = large[0] = 1
        past((ann.workspace / "a/large").stat().st_ctime_ns, ann.workspace)
        ann.sync()
        small[0] = large[0] = 2
        assert not ann.sync().any_change
        assert not status(ann.context()).differences
        found = status(ann.context(), (b"a/small",), rehash=True)
        assert found.differences.changed == [b"a/small"]
        small[0] = 1
        done = ann.sync(paths=(b"a/large",), rehash=True)
        assert done.changed == 1
        small[0] = 3
        done = ann.sync(rehash=True)
        assert done.changed == 1 and done.commit is not None
        assert ann.read(done.commit) == ann.files()
        assert not ann.sync(rehash=True).any_change


def test_who_has_a_file_open_for_writing_is_known(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    if notice(tmp_path) is not Notice.UNMAPPED:
        pytest.skip("this file system does not tell")

    def written() -> bool:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return has_writers(descriptor)
        finally:
            os.close(descriptor)

    assert not written()
    with path.open("r+b"):
        assert written()
    with mapping(path):
        assert written()
    assert not written()


def test_what_is_never_written_back_is_never_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "write_back_ns", lambda: None)
    assert not mapped.is_old(0)
    monkeypatch.setattr(mapped, "write_back_ns", lambda: 10**9)
    assert mapped.is_old(0) and not mapped.is_old(time.time_ns())
