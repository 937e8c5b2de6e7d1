"""A file system of the benchmark's own, made anew for each turn.

On an ext4 without a journal, as virtual machines have them, the kernel looks at every recently deleted inode
before it makes a file. Clearing up after one turn would slow the next one down by a factor of twenty.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = 64 << 30  # bytes at most; the image is sparse


@contextmanager
def fresh(below: Path) -> Iterator[Path]:
    """An empty ext4 with a journal, mounted; its image is below `below` and gone at the end. Needs root."""
    image, mount = below / "disk.img", below / "disk"
    below.mkdir(parents=True, exist_ok=True)
    mount.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(SIZE)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        subprocess.run(["mount", "-o", "loop,noinit_itable", image, mount], check=True)
        try:
            yield mount
        finally:
            subprocess.run(["umount", mount], check=True)
    finally:
        image.unlink()
