from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from dsv.files.descent import Descent
from dsv.transfer.stable_read import TRIES, Problem, StableRead, hash_content, read_stable
from dsv.values.ids import FileId


@pytest.fixture
def descent(tmp_path: Path) -> Descent:
    (tmp_path / "sub").mkdir()
    return Descent(tmp_path)


def test_a_quiet_file_is_read_once(descent: Descent, tmp_path: Path) -> None:
    (tmp_path / "sub/f").write_bytes(b"content")
    found = read_stable(descent, b"sub/f", hash_content)
    assert (
        isinstance(found, StableRead) and found.value == FileId.hash(b"content") and found.stat.st_size == 7
    )


@pytest.mark.parametrize("writes", range(TRIES + 2))
def test_a_file_that_is_written_meanwhile_is_read_again_and_then_reported(
    descent: Descent, tmp_path: Path, writes: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0")
    reads = 0

    def read(descriptor: int, size: int) -> tuple[bytes, int]:
        nonlocal reads
        data = os.read(descriptor, 100)
        reads += 1
        if reads <= writes:
            with path.open("ab") as file:
                file.write(b"+")
        return data, len(data)

    found = read_stable(descent, b"f", read)
    if writes < TRIES:
        assert isinstance(found, StableRead) and found.value == path.read_bytes() and reads == writes + 1
    else:
        assert isinstance(found, Problem) and "times in a row" in found.reason and reads == TRIES


def test_what_is_no_file_any_more_is_reported(descent: Descent, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it must not wait for a writer
    (tmp_path / "link").symlink_to("sub")
    for name in (b"pipe", b"link", b"gone", b"sub", b"no/folder"):
        found = read_stable(descent, name, hash_content)
        assert isinstance(found, Problem) and found.path == name


def test_a_process_without_descriptors_says_nothing_about_a_file(descent: Descent, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")

    def read(descriptor: int, size: int) -> tuple[bytes, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(OSError, match="Too many open files"):
        read_stable(descent, b"f", read)


def test_hashing_of_large_and_growing_files(descent: Descent, tmp_path: Path) -> None:
    data = random.Random(9).randbytes((9 << 20) + 5)
    (tmp_path / "big").write_bytes(data)
    descriptor = os.open(tmp_path / "big", os.O_RDONLY)
    assert hash_content(descriptor, len(data)) == (FileId.hash(data), len(data))
    assert hash_content(descriptor, 3) == (FileId.hash(data), len(data))  # it grew since its size was seen
    os.close(descriptor)
