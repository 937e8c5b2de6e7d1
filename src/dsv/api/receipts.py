"""Receipts: files of targets with full commit ids, one a line, such as `resized@4f2a…`. Each line is a target."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

from dsv.errors import UsageError
from dsv.files.small_files import read_small, replace_file
from dsv.values.names import Target

_LINES = re.compile(rb"([^@:\n]+@[0-9a-f]{64}(:[^\n]+)?\n)*")


def write_receipt(path: Path, targets: Iterable[Target]) -> None:
    """Make this file the sorted lines of these targets. One that is equal already keeps its time, one that changes its
    mode. Raises `OSError`."""
    path = _resolved(path)
    data = b"".join(sorted({f"{target}\n".encode("utf-8", "surrogateescape") for target in targets}))
    if read_small(path) != data:
        replace_file(path, data, mode=path.stat().st_mode & 0o777 if path.exists() else None)


def check_receipt(path: Path, target: Target) -> None:
    """Check that a receipt for this target can be written there. Raises `UsageError` for a file with other content and
    for a target that is not one line, and `OSError` if nothing can be written there."""
    if b"\n" in (target.path or b""):
        raise UsageError("a receipt can't hold a path with a line break", subject=str(target))
    path = _resolved(path)
    content = read_small(path)
    if path.exists() and (content is None or not _LINES.fullmatch(content)):
        raise UsageError(
            f"{path} is not a receipt", subject=str(path), hint="choose a path that does not exist"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        number = errno.EACCES if path.parent.is_dir() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(path))


def _resolved(path: Path) -> Path:
    path = Path(os.path.realpath(path))
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return path
