from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.files import small_files
from dsv.files.small_files import replace_file, write_once, write_sparse


@pytest.mark.parametrize("mode", [None, 0o444, 0o660])
def test_a_replaced_file_has_its_mode_whatever_the_umask(tmp_path: Path, mode: int | None) -> None:
    old = os.umask(0o027)
    try:
        replace_file(tmp_path / "f", b"a", b"b", mode=mode)
    finally:
        os.umask(old)
    assert (tmp_path / "f").read_bytes() == b"ab"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == (0o640 if mode is None else mode)


def test_a_symlink_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"mine")
    (tmp_path / "f").symlink_to("other")
    replace_file(tmp_path / "f", b"new")
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "other").read_bytes() == b"mine"


@pytest.mark.parametrize("call", ["fsync", "fchmod"])
def test_a_failure_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(small_files.os, call, fail)
    with pytest.raises(OSError, match="full"):
        replace_file(tmp_path / "f", b"new", mode=0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_the_content_is_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, Path.rename

    def note_sync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def note_rename(self: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    replace_file(tmp_path / "f", b"new")
    assert steps == ["file", "rename", "folder"]


def test_one_of_many_writers_wins(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    won: list[bytes] = []

    def write(data: bytes) -> None:
        start.wait()
        if write_once(tmp_path / "f", data):
            won.append(data)

    writers = [threading.Thread(target=write, args=(bytes([65 + n]) * 1000,)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert won == [(tmp_path / "f").read_bytes()]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_small_file_is_read_whole_from_a_file_system_that_gives_it_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    read = os.read
    monkeypatch.setattr(small_files.os, "read", lambda descriptor, size: read(descriptor, min(size, 3)))
    assert small_files.read_small(tmp_path / "f") == b"0123456789"


@pytest.mark.parametrize(("limit", "found"), [(10, b"0123456789"), (9, None)])
def test_a_small_file_that_grows_while_it_is_read_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, found: bytes | None
) -> None:
    (tmp_path / "f").write_bytes(b"012")
    stat = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        before = stat(descriptor)
        (tmp_path / "f").write_bytes(b"0123456789")
        return before

    monkeypatch.setattr(small_files.os, "fstat", grow)
    assert small_files.read_small(tmp_path / "f", limit) == found


def test_what_is_no_file_is_no_small_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert small_files.read_small(tmp_path / "pipe") is None
    assert small_files.read_small(tmp_path) is None


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 5, 65535, 65536, 65537, 200_000])), max_size=6)
)
def test_a_sparse_file_reads_as_what_was_written(pieces: list[tuple[bool, int]]) -> None:
    content = [(b"x" * size if full else bytes(size)) for full, size in pieces]
    with TemporaryFile(buffering=0) as file:
        write_sparse(file.fileno(), [memoryview(one) for one in content])
        assert os.fstat(file.fileno()).st_size == sum(map(len, content))
        file.seek(0)
        assert file.read() == b"".join(content)


def test_blocks_of_zeros_take_no_room(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb", buffering=0) as file:
        write_sparse(file.fileno(), [b"x", bytes(5 << 20), b"y", bytes(5 << 20)])
    assert (tmp_path / "a").stat().st_size == (10 << 20) + 2
    assert (tmp_path / "a").stat().st_blocks * 512 < 1 << 20
