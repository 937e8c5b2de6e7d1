"""A file system of a few megabytes, whose room and number of files can be changed while it is in use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = os.sysconf("SC_PAGE_SIZE")
PLENTY = 64 << 20


@dataclass(frozen=True)
class SmallDisk:
    path: Path

    def limit(self, *, free: int | None = None, files: int | None = None) -> None:
        """Leaves room for so many bytes, and so many files and folders; None: for plenty."""
        room = os.statvfs(self.path)
        used = (room.f_blocks - room.f_bavail) * room.f_frsize
        size = PLENTY if free is None else used + -(-free // PAGE) * PAGE
        inodes = 0 if files is None else self._inodes() + files
        _mount("remount", f"size={size}", f"nr_inodes={inodes}", path=self.path)

    def free(self) -> int:
        room = os.statvfs(self.path)
        return room.f_bavail * room.f_frsize

    def _inodes(self) -> int:
        return sum(1 + len(files) for _, _, files in os.walk(self.path))


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Skips the test where nothing may be mounted."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        _mount(f"size={PLENTY}", "mode=755", path=path)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else error
        pytest.skip(f"a small file system can't be mounted: {said}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _mount(*options: str, path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "dsv-test", str(path)]
    subprocess.run(command, capture_output=True, check=True)
