"""What dsv says of the operating system's errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dsv.errors import NoRoom
from dsv.files.errors import as_error


@pytest.mark.parametrize(("inodes", "command"), [(0, "df -i"), (5, "df -h")])
def test_a_full_disk_names_the_file_system_and_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inodes: int, command: str
) -> None:
    look = os.statvfs

    def few(path: Path) -> os.statvfs_result:
        return os.statvfs_result([*look(path)[:5], 100, inodes, inodes, *look(path)[8:]])

    monkeypatch.setattr(os, "statvfs", few)
    error = as_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path / "none" / "file")
    assert isinstance(error, NoRoom) and error.hint == f"{command} {tmp_path}"
