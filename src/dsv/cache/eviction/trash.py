"""What evictions have taken out of sight and not deleted: they are still at it, were killed, or could not."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dsv.cache.root import CacheRoot
from dsv.cache.usage import Extent
from dsv.fs.files import list_names

_MOST = 10_000  # files that are counted, so that `dsv cached` takes no time for a large commit that is being deleted


class Trash(msgspec.Struct, frozen=True):
    """room: what it takes on disk; counted: whether that is all of it."""

    path: Path
    room: Extent
    counted: bool


def find_trash(root: CacheRoot) -> list[Trash]:
    """Raises `OSError`."""
    found = []
    for name in list_names(root.trash):
        folder = root.trash / name
        if folder == root.spare_folder or folder.is_symlink() or not folder.is_dir():
            continue
        trash = measure(folder)
        if trash is not None:
            found.append(trash)
    return found


def measure(folder: Path) -> Trash | None:
    """Counts the room that a folder takes, up to some files; None for an empty folder, or none. Raises `OSError`."""
    room, seen = Extent(), 0
    links: set[tuple[int, int]] = set()
    empty = True
    for below, folders, files in os.walk(folder):
        empty = empty and not folders and not files
        for name in files:
            seen += 1
            if seen > _MOST:
                return Trash(folder, room, counted=False)
            try:
                status = (Path(below) / name).lstat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            if (status.st_dev, status.st_ino) not in links:
                links.add((status.st_dev, status.st_ino))
                room += Extent(status.st_blocks * 512, 1)
    return None if empty else Trash(folder, room, counted=True)
