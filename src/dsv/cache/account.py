"""Accounts of cached commits: which one pays for which blocks of the disk. Rule E6 of the cache protocol.

Of all visible commits that link a file, the one that was filled first pays for it. So a fill pays for what it writes,
and if a commit is evicted, each of its files that stays goes over to the one that was filled next.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator

from dsv.cache.inventory import find_all, take_inventory
from dsv.cache.policy import CachedCommit
from dsv.cache.record import Extent, add_share
from dsv.cache.removal import Removed
from dsv.cache.root import CachePlace, CacheRoot, explaining
from dsv.errors import Conflict
from dsv.files.attributes import GONE, ignoring
from dsv.files.descent import Descent
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names


def inherit(
    root: CacheRoot, gone: CachedCommit, removed: Removed, others: Iterable[CachedCommit] | None = None
) -> Iterator[tuple[CachePlace, str, Extent]]:
    """Yield which fill of which place pays from now on for how much of what an evicted commit leaves.

    others: those that count; None for all that are visible or being filled now. Raises `OSError`.
    """
    left, first = removed.shared, gone.record
    if not left or first is None or (first.counted and gone.room.files <= removed.room.files):
        return  # others pay for all that stays
    payers: list[tuple[float, CachePlace, str, SharedPath]] = []
    for place in find_all(root.dot / "fill") if others is None else ():
        for name in list_names(root.fill(place)):
            payers += [(math.inf, place, name.partition("-")[2], root.fill(place) / name / "tree")]
    for item in take_inventory(root).visible if others is None else others:
        record = item.record
        if record is not None and (record if record.time > first.time else first).linked:
            payers.append((record.time, item.place, record.fill, root.visible(item.place)))
    for when, place, fill, path in sorted(payers):
        shared: list[int] = []
        with contextlib.suppress(OSError), Descent(path) as tree:  # it may be evicted meanwhile
            for _, _, entries in tree.walk() if left else ():
                shared += [left.pop(entry.inode()) for entry in entries if entry.inode() in left]
        if shared and (when, place) > (first.time, gone.place):
            yield place, fill, Extent(sum(shared), len(shared))


def room_of(tree: SharedPath, seen: set[int] | None = None) -> Extent:
    """Return the blocks of a tree's folders; with `seen`, also of its files, except those of these inodes, to which
    linked ones are added. Raises `OSError`."""
    size = files = 0
    with Descent(tree) as descent:
        for _, folder, entries in descent.walk():
            size += os.fstat(folder).st_blocks * 512
            for entry in entries if seen is not None else ():
                if seen is not None and entry.inode() not in seen and not entry.is_dir(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    size += status.st_blocks * 512
                    files += 1
                    if status.st_nlink > 1:
                        seen.add(status.st_ino)
    return Extent(size, files)


def recount(root: CacheRoot, *, mend: bool) -> list[tuple[CachedCommit, Extent]]:
    """Count what each cached commit takes. mend: correct the accounts, but keep what was added to them meanwhile.

    Raises `Denied`, `Unreachable`, and `Conflict` if commits are evicted at the same time.
    """
    seen: set[int] = set()
    counted: list[tuple[CachedCommit, Extent]] = []
    with explaining(root.path, "count"):
        before = take_inventory(root).items
        items = [item for item in before if item.visible and item.record is not None]
        for item in sorted(items, key=lambda item: (item.record.time if item.record else 0, item.place)):
            with contextlib.suppress(PermissionError), ignoring(GONE):  # a folder may be closed to this user
                counted.append((item, room_of(root.visible(item.place), seen)))
        after = take_inventory(root).items
        # What an eviction passes on during the count may be in it already. What it passes on later is not.
        evicting = any(item.claims.intents for item in (*before, *after))
        if evicting or not {item.record for item in items} <= {item.record for item in after}:
            message = f"the accounts of {root.path} can't be counted while commits are being evicted"
            raise Conflict(message, subject=str(root.path), hint="dsv evict, then try again")
        for item, room in counted if mend else ():
            if item.record is not None and room != item.room:
                add_share(root, item.place, item.record.fill, room - item.room, item.claims.names)
    return counted
