"""The differences of a workspace from its base, which a sync would commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from dsv.format.tree import Entry, Kind
from dsv.fs.descent import Descent
from dsv.fs.errors import about
from dsv.repo.tree.diff import What, difference, retyped
from dsv.transfer.file_reader import Problem, hash_content, read_stable, row_of
from dsv.values.paths import folders_above
from dsv.values.progress import NoProgress
from dsv.workspace.scan.folder import KEPT, OWN_SAME, Relation
from dsv.workspace.scan.result import Gone, Pending

if TYPE_CHECKING:
    from dsv.values.progress import Progress
    from dsv.workspace.scan.result import WorkspaceScan

BaseEntry = Callable[[bytes], Entry | None]


class Differences(msgspec.Struct):
    """Paths in tree order, one list for each way to differ."""

    added: list[bytes] = msgspec.field(default_factory=list)
    changed: list[bytes] = msgspec.field(default_factory=list)
    removed: list[bytes] = msgspec.field(default_factory=list)
    retyped: list[bytes] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed) + len(self.retyped)

    def __iter__(self) -> Iterator[bytes]:
        return chain(self.added, self.changed, self.removed, self.retyped)

    def note(self, path: bytes, what: What | None) -> None:
        """Add a path; None is no difference."""
        if what is not None:
            paths: list[bytes] = getattr(self, what.value)
            paths.append(path)


def detect_changes(
    scan: WorkspaceScan, base_entry: BaseEntry, progress: Progress | None = None
) -> tuple[Differences, list[Problem]]:
    """Return the differences that a sync would commit, and the files that could not be read.

    Reads a file if it has the base's size and other times, and remembers what it read. Files that are new or of another
    size are not read. `base_entry` gives the base's entry of a path; it is called for few. The scan is exact.
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
                problem = hash_file(scan, item, descent)
                progress.advance(files=1, bytes=item.size)
                if problem is not None:
                    problems.append(problem)
                    continue
            found.note(item.path, _difference(item))
    return found, problems


def whole_folders(scan: WorkspaceScan, found: Differences) -> frozenset[bytes]:
    """Folders in which everything was added, or from which everything was removed."""
    state = scan.state
    added = Counter(path.rpartition(b"/")[0] for path in found.added if state.folder(path) is None)
    mixed: set[bytes] = set()
    for path in state.paths():
        folder = state.folder(path)
        kept = 0 if folder is None else sum(folder.kinds.count(kind) for kind in KEPT)
        if folder is not None and (kept != added[path] or (folder.is_empty and folder.own == OWN_SAME)):
            mixed.update((path, *folders_above(path)))
    for path in (*found.changed, *found.retyped, *found.removed):
        mixed.update((path, *folders_above(path)))
    new = {way for path in found.added for way in folders_above(path) if way not in mixed}
    gone = {way for path in found.removed for way in folders_above(path) if state.folder(way) is None}
    return frozenset(new | gone)


def may_differ(scan: WorkspaceScan, *, reading: bool) -> bool:
    """Return whether a path that is on disk may differ from the base. reading: find out even if only contents can
    tell.
    """
    with Descent(scan.root) as descent:
        for item in scan.pending():
            if item.base is not None and item.known == item.base:
                continue  # too young to be trusted without another look, and the same
            if not reading or item.surely_changed or item.known is not None or item.base is None:
                return True
            if hash_file(scan, item, descent) is not None or difference(item.base, item.known) is not None:
                return True
    return False


def hash_file(scan: WorkspaceScan, item: Pending, descent: Descent) -> Problem | None:
    """Hash a file, remember the result, and update `item` with it."""
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


def _difference(item: Pending) -> What | None:
    if item.relation is Relation.ABSENT:
        return What.ADDED
    if item.base is not None and item.known is not None:
        return difference(item.base, item.known)
    before = item.base.kind if item.base is not None else item.base_kind
    assert before is not None
    return What.RETYPED if retyped(before, item.kind) else What.CHANGED


def read_contents(scan: WorkspaceScan, changed: Iterable[Pending | Gone]) -> list[Problem]:
    """Hash these files, so that their entries have ids; return those that could not be read."""
    problems = []
    with about(scan.root), Descent(scan.root) as descent:
        for item in changed:
            if isinstance(item, Pending) and item.known is None:
                problem = hash_file(scan, item, descent)
                if problem is not None:
                    problems.append(problem)
    return problems
