"""Trees as the tests see them, read with the standard library alone."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Seen:
    """What a file or symlink is: `content` is the hash of its bytes, or its target."""

    kind: str  # file, executable, link
    content: str


def entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """Every file and symlink below `root`, in no order; no `.dsv` folder is entered."""
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != ".dsv":
                yield from entries(Path(entry.path))
        else:
            yield entry


def look(root: Path) -> dict[str, Seen]:
    """Relative path -> what is there."""
    return {os.path.relpath(entry.path, root): _see(entry) for entry in entries(root)}


def _see(entry: os.DirEntry[str]) -> Seen:
    if entry.is_symlink():
        return Seen("link", os.readlink(entry.path))
    mode = entry.stat(follow_symlinks=False).st_mode
    with open(entry.path, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    return Seen("executable" if mode & stat.S_IXUSR else "file", digest)


def leaves(root: Path, link: Path) -> bool:
    """Return whether a symlink's target, followed step by step through the tree's own links, gets out of `root`."""
    at, steps, followed = link.parent, list(reversed(os.readlink(link).split("/"))), 0
    if os.readlink(link).startswith("/"):
        return True
    while steps:
        step = steps.pop()
        if step in ("", "."):
            continue
        if step == "..":
            if at == root:
                return True
            at = at.parent
            continue
        at = at / step
        if at.is_symlink():
            target = os.readlink(at)
            followed += 1
            if target.startswith("/") or followed > 40:
                return target.startswith("/")
            at = at.parent
            steps += reversed(target.split("/"))
    return False
