"""Finding files of this machine that go into a commit without a workspace.

A folder is taken as `dsv sync` would take it: symlinks as symlinks, of a mode only whether its owner may execute, less
what the `.dsvignore` files in it name, and nothing that is called `.dsv` or `.git`. A file or folder that is named
itself is never ignored, and followed if it is a symlink.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dsv.errors import NotFound, Unsupported
from dsv.format.tree import Kind
from dsv.fs.errors import about
from dsv.fs.files import what_it_is
from dsv.transfer.file_reader import Problem
from dsv.transfer.save import Source
from dsv.values.paths import show
from dsv.workspace.scan.ignore import NAME
from dsv.workspace.scan.scanner import scan_workspace
from dsv.workspace.scan.state import State


def walk(
    root: Path, start: bytes = b"", ignoring: tuple[str, ...] = (NAME,), *, check_links: bool = False
) -> tuple[list[tuple[bytes, Source]], list[Problem]]:
    """Return every path of a folder, which is no workspace, that goes into a tree, in tree order; and those that can't
    be stored or can't be read.

    start: a folder below the root, to which the walk is limited. All paths are from the root. ignoring: names of the
    files that say what is left out, in the folders from the root on; later ones have the last word.
    check_links: symlinks that lead out of the root can't be stored.
    """
    scan = scan_workspace(
        root, State(root), None, lambda: (), (start,) if start else (),
        ignoring=ignoring, check_links=check_links, named=True,
    )  # fmt: skip
    found: list[tuple[bytes, Source]] = []
    for item in scan.pending():
        if item.kind is Kind.SYMLINK or item.kind is Kind.EMPTY_DIRECTORY:
            assert item.known is not None
            source = Source(item.kind, target=item.known.target)
        else:
            source = Source(item.kind, item.size, root, item.path)
        if item.path != start:
            found.append((item.path, source))
    return found, scan.problems


def named_file(path: Path) -> Source | None:
    """Return a file that somebody named; None for a folder. Raises `NotFound`, `Unsupported`, `Denied`."""
    with about(path):
        try:
            whole = Path(os.path.realpath(path))
            info = whole.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"there is no file or folder {show(os.fsencode(path))}", subject=str(path)
            ) from None
    if stat.S_ISDIR(info.st_mode):
        return None
    if not stat.S_ISREG(info.st_mode):
        raise Unsupported(
            f"{show(os.fsencode(path))} can't be stored: {what_it_is(info.st_mode)}",
            subject=str(path),
            hint="to store what a command prints: COMMAND | dsv put - DATASET:PATH",
        )
    kind = Kind.EXECUTABLE if info.st_mode & stat.S_IXUSR else Kind.FILE
    return Source(kind, info.st_size, whole.parent, os.fsencode(whole.name))
