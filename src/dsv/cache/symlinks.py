"""No folder that dsv keeps in its dot folder may be a symlink.

All users of a cache may write to its dot folder. A symlink in place of the trash, say, would make the next
`dsv evict`, of whatever user, empty the folder that it leads to.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsv.cache.disk import explain, no_symlink, own_folder
from dsv.cache.root import CacheRoot
from dsv.fs.files import GONE, list_names

# How many levels below each folder are folders of dsv's own: down to one commit's claims, to the folders of one fill,
# and to each store's. The trash may hold symlinks, which are removed as such. The folders of datasets and of commits
# are looked at where they are used: see `disk.own_folder`.
_LEVELS = {"claims": 2, "fill": 4}


def refuse_symlinks(root: CacheRoot) -> None:
    """Raises `Conflict` that names one of dsv's own folders that is a symlink, `Denied`, `Unreachable`.

    It costs one listing for each dataset. Links that appear later are another matter: the users of a cache are trusted
    not to race.
    """
    try:
        if root.dot.is_symlink():
            raise no_symlink(root.dot)
        _check(root.dot, 1)
        for name, levels in _LEVELS.items():
            _check(root.dot / name, levels)
        for store in list_names(root.dot / "stores"):
            for folder in (".", "objects", "refs"):  # beside the last two are records
                own_folder(root.dot / "stores" / store / folder)
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
            raise no_symlink(Path(entry.path))
        if levels > 1 and entry.is_dir(follow_symlinks=False):
            _check(Path(entry.path), levels - 1)
