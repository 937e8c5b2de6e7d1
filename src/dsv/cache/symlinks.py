"""No folder that dsv keeps in a cache may be a symlink.

Everybody who shares a cache may write to its dot folder. A symlink in place of the trash, say, would make the next
`dsv evict`, of whatever user, empty the folder that it leads to.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsv.cache.disk import GONE, explain
from dsv.cache.layout import CacheRoot
from dsv.errors import Conflict

# How many levels below each folder are folders of dsv's own: down to one commit's claims, and to the folders of one
# fill. The trash may hold symlinks, which are removed as such.
_LEVELS = {"claims": 2, "fill": 4}


def refuse_symlinks(root: CacheRoot) -> None:
    """Raises `Conflict` that names one of dsv's own folders that is a symlink, `Denied`, `Unreachable`.

    It costs one listing for each dataset. Links that appear later are another matter: who shares a cache is trusted
    not to race.
    """
    try:
        if root.dot.is_symlink():
            raise _refusal(root.dot)
        _check(root.dot, 1)
        for name, levels in _LEVELS.items():
            _check(root.dot / name, levels)
    except OSError as error:
        raise explain(error, root.dot, "look into") from error


def _check(folder: Path, levels: int) -> None:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return
    for entry in found:
        if entry.is_symlink():
            raise _refusal(Path(entry.path))
        if levels > 1 and entry.is_dir(follow_symlinks=False):
            _check(Path(entry.path), levels - 1)


def _refusal(path: Path) -> Conflict:
    return Conflict(
        f"{path} is a symlink, and in a folder of dsv's own none is followed",
        subject=str(path),
        hint=f"ask who made it (ls -l {path}), then: rm {path}",
    )
