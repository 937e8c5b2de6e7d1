"""Finding out what really differs from the base, by reading what the stats alone can't tell."""

from __future__ import annotations

import os
from collections.abc import Callable

from blake3 import blake3

from dsv.fs.descent import Descent
from dsv.fs.errors import about
from dsv.model.entry import Entry, Kind
from dsv.model.ids import FileId
from dsv.model.progress import NoProgress, Progress
from dsv.worktree.folder import Relation, row_of
from dsv.worktree.problem import Problem
from dsv.worktree.stable_read import read_stable
from dsv.worktree.status import Differences, What, difference, retyped
from dsv.worktree.workspace_scan import Gone, Pending, WorkspaceScan

_PIECE = 4 << 20  # bytes read at a time
BaseEntry = Callable[[bytes], Entry | None]


def detect_changes(
    scan: WorkspaceScan, base_entry: BaseEntry, progress: Progress | None = None
) -> tuple[Differences, list[Problem]]:
    """What a sync would commit, and which files could not be read.

    Reads files whose size is the base's and whose times are not, and remembers what it read; files that are
    new or of another size are not read. `base_entry` gives the base's entry of a path; it is asked for few.
    The scan is exact.
    """
    found = Differences()
    problems: list[Problem] = []
    progress = progress or NoProgress()
    with about(scan.root), Descent(scan.root) as descent:
        for item in scan.work():
            if isinstance(item, Gone):
                found.note(item.path, What.REMOVED)
                continue
            sure = item.relation is Relation.DIFFERS and item.known is not None
            if item.relation in (Relation.UNKNOWN, Relation.DIFFERS) and not sure:
                scan.relate(item, base_entry(item.path))
            if item.base is not None and item.known is None and not item.surely_changed:
                problem = read(scan, item, descent)
                progress.advance(files=1, bytes=item.size)
                if problem is not None:
                    problems.append(problem)
                    continue
            found.note(item.path, _difference(item))
    return found, problems


def read(scan: WorkspaceScan, item: Pending, descent: Descent) -> Problem | None:
    """Hashes a file and remembers it; `item` knows the outcome as far as hashing tells."""
    stable = read_stable(descent, item.path, hash_content)
    if isinstance(stable, Problem):
        return stable
    item.size = stable.stat.st_size
    row, device = row_of(stable.stat), stable.stat.st_dev
    item.known = scan.record(item, row, device, stable.value, quiet=stable.quiet)
    item.kind = Kind.EXECUTABLE if stable.stat.st_mode & 0o100 else Kind.FILE
    if item.known is None:  # a large file: only its upload works out the recipe that a tree needs
        item.known = Entry(item.path, item.kind, item.size, stable.value)
    return None


def hash_content(descriptor: int, size: int) -> tuple[FileId, int]:
    """The file id of a whole file, and its size in bytes."""
    if size <= _PIECE:
        data = os.read(descriptor, size + 1)  # the one byte more tells that this was all
        if len(data) == size:
            return FileId.hash(data), size
        os.lseek(descriptor, 0, os.SEEK_SET)
    hasher, total = blake3(), 0
    while piece := os.read(descriptor, _PIECE):
        hasher.update(piece)
        total += len(piece)
    return FileId(hasher.digest()), total


def _difference(item: Pending) -> What | None:
    if item.relation is Relation.ABSENT:
        return What.ADDED
    if item.base is not None and item.known is not None:
        return difference(item.base, item.known)
    before = item.base.kind if item.base is not None else item.base_kind
    assert before is not None
    return What.RETYPED if retyped(before, item.kind) else What.CHANGED
