"""Keep local copies within limits: the least recently used go first.

A command that adds seven files must not walk 50,000, and a counter shared by all would be wrong after kills and on
NFS. So each copy that is written begins a trim with a small probability, 32 times for as many as the limits allow: it
pays for about 32 that are looked at. A trim leaves seven eighths, so the limits are seldom passed, and by little.
The last use is the later of atime and mtime. Mounts may stop the atime, so a reader renews both, at most once a day;
for another user's file it can't. Hosts and users may trim at once: all agree on the order, and readers ask the store.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

import msgspec

from dsv.files.folders import open_folder
from dsv.files.shared_path import AnyPath, SharedPath
from dsv.files.small_files import list_names, replace_file
from dsv.files.system import kind_of

STORES: Final = "stores"  # its copies are stores/STORE/objects/KIND/AB/ABCD…
KINDS: Final = (  # not the notes of damage, nor the erasures, which are obeyed offline
    *("samples", "index", "commit", "commit-locator", "node", "node-locator", "segment", "segment-locator"),
    *("recipe", "recipe-locator", "index-filter", "index-merge", "external-pack"),
)
_DAY, _KEPT_DAYS, _STEPS, _MARK = 86_400.0, 30, 32, ".trimmed"


class CopyLimits(msgspec.Struct, frozen=True):
    max_size: int = 512_000_000  # bytes on disk
    max_files: int = 50_000

    def is_due(self, size: int) -> bool:
        """Return whether to trim now, after a copy of this many bytes was written."""
        from random import random  # takes a while to import

        return random() < _STEPS * (1 / (self.max_files or 1) + max(size, 4096) / (self.max_size or 1))


def note_use(file: int) -> os.stat_result:
    """Return the attributes of an open copy; renew its times if they are older than a day."""
    status = os.fstat(file)
    if max(status.st_atime, status.st_mtime) < time.time() - _DAY:
        with suppress(OSError):
            os.utime(file)
    return status


def copies_in(folder: AnyPath) -> list[tuple[float, int, AnyPath]]:
    """Return the last use, bytes on disk and path of each copy of one kind, and of drafts that killed writers left."""
    found: list[tuple[float, int, AnyPath]] = []
    with suppress(OSError):
        for above in (folder / name for name in list_names(folder)):
            with suppress(OSError), open_folder(above) as descriptor, os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and entry.name.lstrip(".").startswith(above.name):
                        with suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            last_use = max(status.st_atime, status.st_mtime)
                            found.append((last_use, status.st_blocks * 512, above / entry.name))
    return found


def find_copies(stores: AnyPath, kinds: tuple[str, ...] = KINDS) -> list[tuple[float, int, AnyPath]]:
    """Do what `copies_in` does for all stores. Raises `OSError`."""
    folders = (stores / store / "objects" / kind for store in list_names(stores) for kind in kinds)
    return [copy for folder in folders for copy in copies_in(folder)]


def trim(stores: AnyPath, limits: CopyLimits, pause: float = 0.0) -> None:
    """Delete the least recently used copies until seven eighths of the limits are left. Ignores errors.

    pause: do nothing within so many seconds after the last trim, because cron evicts on each node of a cluster.
    An index of samples stays for 30 days, because a training that opens it again can't make it. So does an index that
    another host may have mapped: SIGBUS would kill that process.
    """
    with suppress(OSError):
        if stores.name != STORES or 0 <= time.time() - (stores / _MARK).stat().st_mtime < pause:
            return
    with suppress(OSError):
        replace_file(stores / _MARK, sync=False)
    with suppress(OSError):
        several_hosts = kind_of(stores.path if isinstance(stores, SharedPath) else stores).remote
        spared, old = KINDS[: 1 + several_hosts], time.time() - _KEPT_DAYS * _DAY
        copies = [copy for copy in find_copies(stores, spared) if copy[0] < old]
        copies = sorted(copies + find_copies(stores, KINDS[len(spared) :]), key=lambda copy: copy[0])
        files, total = len(copies), sum(size for _, size, _ in copies)
        for _, size, path in copies:
            if files * 8 <= limits.max_files * 7 and total * 8 <= limits.max_size * 7:
                return
            with suppress(OSError):
                path.unlink(missing_ok=True)
            files, total = files - 1, total - size  # also of another user's that stays
