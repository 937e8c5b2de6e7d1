"""The result of a scan: which paths may differ from the base and which are gone, and what a sync would commit.

`scanner.scan_workspace` makes it. Everything here is about one base commit.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dsv.files.descent import Descent, join
from dsv.files.errors import about
from dsv.files.mapped import Notice, is_old, notice
from dsv.format.columns import cut
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import What, difference, retyped
from dsv.transfer.stable_read import ROW, Problem, hash_content, read_stable, row_of
from dsv.values.ids import RecipeId
from dsv.values.paths import PathSet, folders_above, show, sort_key
from dsv.values.progress import NoProgress
from dsv.values.units import format_count
from dsv.workspace.scan.folder import (
    BASE_KINDS,
    KEPT,
    KINDS,
    NO_ID,
    OWN_SAME,
    READ,
    RELATIONS,
    TRUSTED,
    Relation,
    with_relation,
)
from dsv.workspace.scan.state import relate, sync_with_tree

if TYPE_CHECKING:
    from dsv.values.ids import CommitId, FileId
    from dsv.values.progress import Progress
    from dsv.workspace.scan.folder import Folder
    from dsv.workspace.scan.ignore import IgnoreRules
    from dsv.workspace.scan.state import WorkspaceState

_OWN = -1  # the position of a folder's own entry, as an empty directory


class Pending(msgspec.Struct):
    """A path that belongs in a tree and is not known to be as in the base."""

    path: bytes
    kind: Kind
    size: int
    relation: Relation
    """With DIFFERS and UNKNOWN the base has the path, with ABSENT it does not."""
    known: Entry | None
    """Its entry, if that is known without reading the file."""
    base: Entry | None
    """With SAME, the base's entry, to compare with the content."""
    folder: bytes
    at: int
    base_kind: Kind | None = None
    """The kind of the base's entry, if the relation is SAME or DIFFERS."""

    @property
    def is_file(self) -> bool:
        return self.kind <= Kind.EXECUTABLE

    @property
    def entry(self) -> Entry:
        """The local entry; without a file id if the file was not read, because its size differs already."""
        return self.known or Entry(self.path, self.kind, self.size)

    @property
    def surely_changed(self) -> bool:
        """Return whether it is certain, without reading, that the base has another entry or none."""
        if self.base is not None:
            return self.size != self.base.size or self.kind != self.base.kind
        return self.relation is Relation.ABSENT or (
            self.relation is Relation.DIFFERS and self.known is not None
        )


class Gone(msgspec.Struct, frozen=True):
    """A path that the base has and the disk does not."""

    path: bytes
    size: int = 0
    is_file: bool = False
    known: None = None
    entry: None = None


class WorkspaceScan:
    """The result of a scan. It edits the state, which the holder of the workspace's lock saves."""

    def __init__(
        self, root: Path, state: WorkspaceState, base: CommitId | None, scope: PathSet, device: int
    ) -> None:
        self.root = root
        self.state = state
        self.base = base
        self.scope = scope
        self.problems: list[Problem] = []
        """Paths that can't be stored, in tree order."""
        self.clashes: list[tuple[bytes, bytes]] = []
        """Pairs of new names that differ only in case or Unicode normalization."""
        self.leftovers: list[bytes] = []
        """Temporary files of killed commands."""
        self.reserved: list[bytes] = []
        """Paths of the names of dsv and git, which no tree has, except those that the rules leave out."""
        self.apart: list[bytes] = []
        """Folders that are stores or caches, and are left out."""
        self.missing: list[bytes] = []
        """Paths in the base that are not on disk."""
        self.changed_folders: list[bytes] = []
        """Folders in which something is not known to be as in the base, in tree order."""
        self.unreadable: PathSet | None = None
        """Paths that can't be read. The base's entries stay there."""
        self.filled_elsewhere: frozenset[bytes] = frozenset()
        """Folders that are empty here and not in the base, which has paths in them that are left out here."""
        self.let_go: list[bytes] = []
        """Paths of the base outside the sparse patterns that were here and are no longer."""
        self.rules: dict[bytes, IgnoreRules] = {}
        """The rules in force in folders that have a `.dsvignore`."""
        self._device = device
        self._notices = {device: notice(root)}

    @property
    def exact(self) -> bool:
        """Return whether the state mirrors the base, as it does after a scan."""
        return self.state.is_exact_for(self.base)

    @property
    def hidden(self) -> PathSet | None:
        """Return the paths that were not checked: those that can't be read, and stores and caches."""
        paths = (*self.apart, *(() if self.unreadable is None else self.unreadable.paths))
        return PathSet.of(paths) if paths else None

    def ignores(self, path: bytes, *, directory: bool = False) -> bool:
        """Return whether the rules on disk leave the path out, whether it is on disk or not."""
        rules: IgnoreRules | None = None
        for way in (*reversed([*folders_above(path)]), path):
            rules = self.rules.get(way.rpartition(b"/")[0], rules)
            if rules is not None and rules.ignores(way, directory=directory or way != path):
                return True
        return False

    def ignored_files(self) -> list[bytes]:
        """Return paths of the base that are on disk, and that a sync would remove because the rules leave them out."""
        top = os.fsencode(self.root) + b"/"
        there = (path for path in self.missing if self.rules and os.path.lexists(top + path))
        return [
            path for path in there if self.ignores(path, directory=Path(os.fsdecode(top + path)).is_dir())
        ]

    @property
    def unchanged(self) -> bool:
        """Return whether it is certain, without reading, that a sync would change nothing."""
        # A symlink may be too young to be trusted without another look, and be the same.
        return not self.missing and all(
            item.base is not None and item.known == item.base for item in self.pending()
        )

    def sync_with_tree(self, entries: Iterable[Entry]) -> None:
        """Make the state mirror the base, whose entries these are, in tree order."""
        gone = sync_with_tree(self.state, entries)
        self.state.set_exact(self.base, gone)
        self._find_changed_folders()

    def compared_with_more_than_the_base(self) -> None:
        """Note that paths were compared with entries that are not the base's, for this command only."""
        self.state.provisional = True
        self._find_changed_folders()

    def _find_changed_folders(self) -> None:
        unclean = (folder.path for folder in self.state.folders() if not folder.is_clean)
        self.changed_folders = sorted(unclean, key=sort_key)
        self.find_missing()

    def find_missing(self) -> None:
        """Set `missing` from the paths that the state knows to be gone. What can't be read, or is now what can't
        be stored, or a store or a cache, stays as the base has it."""
        kept = [*(one.path for one in self.problems), *self.apart]
        refused = PathSet.of(kept) if kept else None
        gone = [path for path in self.state.gone if self.scope.touches(path)]
        self.missing = sorted((path for path in gone if refused is None or path not in refused), key=sort_key)
        replaced = {*gone, *PathSet.of(gone).ways} if gone else set()
        for at, one in enumerate(self.problems):
            if one.path in replaced:
                self.problems[at] = replace(one, data=True)

    def pending(self) -> Iterator[Pending]:
        """Yield the items in tree order."""
        found = self._pending()
        return found if self.scope.whole else (item for item in found if item.path in self.scope)

    def _pending(self) -> Iterator[Pending]:
        stack: list[tuple[bytes, Folder, list[bytes], deque[int]]] = []  # the last folder, and those above it

        def items(until: bytes | None = None) -> Iterator[Pending]:
            _, folder, names, left = stack[-1]
            while left and (until is None or names[left[0]] < until):
                at = left.popleft()
                yield pending_at(folder, at, names[at])

        for path in self.changed_folders:
            folder = self.state.folder(path)
            if folder is None:
                continue
            while stack and not path.startswith(stack[-1][0]):
                yield from items()
                stack.pop()
            if stack:
                yield from items(path[len(stack[-1][0]) :].partition(b"/")[0])
            if self._is_new_itself(folder):
                entry = Entry(path, Kind.EMPTY_DIRECTORY)
                yield Pending(path, entry.kind, 0, Relation.ABSENT, entry, None, path, _OWN)
            stack.append((join(path, b""), folder, folder.name_list(), deque(folder.unclean())))
        while stack:
            yield from items()
            stack.pop()

    def totals(self) -> tuple[int, int]:
        """Return the number of pending paths, and the bytes of those that must be read. Faster than `pending`."""
        if not self.scope.whole:
            sizes = [0 if item.known is not None else item.size for item in self.pending()]
            return len(sizes), sum(sizes)
        count = size = 0
        for path in self.changed_folders:
            folder = self.state.folder(path)
            if folder is not None:
                paths, bytes_ = folder.unclean_totals()
                count, size = count + paths + self._is_new_itself(folder), size + bytes_
        return count, size

    def _is_new_itself(self, folder: Folder) -> bool:
        """Return whether the folder is new as an empty directory. It is not if a path below can't be read:
        the base may have files there, and they stay."""
        if not folder.path or not folder.is_empty or folder.own == OWN_SAME:
            return False
        if folder.path in self.filled_elsewhere:
            return False
        return self.unreadable is None or not self.unreadable.touches(folder.path)

    def work(self) -> Iterator[Pending | Gone]:
        """Yield all that may differ from the base, in tree order, each path once."""
        missing = iter(self.missing)
        gone = next(missing, None)
        for item in self.pending():
            if gone is not None:
                key = sort_key(item.path)
                while gone is not None and sort_key(gone) < key:
                    yield Gone(gone)
                    gone = next(missing, None)
                if gone == item.path:  # the base has something else there
                    item.relation, item.base = Relation.UNKNOWN, None
                    gone = next(missing, None)
            yield item
        while gone is not None:
            yield Gone(gone)
            gone = next(missing, None)

    def record(
        self,
        item: Pending,
        row: bytes,
        device: int,
        file_id: FileId,
        recipe_id: RecipeId | None = None,
        *,
        no_writer: bool,
    ) -> Entry | None:
        """Remember what was read, and return the entry for a tree; None if `recipe_id` is needed and missing,
        as after mere hashing: the file must then be read again to be stored.

        row: the stat before and after the reading, by `row_of`. device: its st_dev. no_writer: it has no unseen
        writer, see `stable_read.has_no_writer`.
        """
        folder, at = self.state.edit(item.folder), item.at
        folder.rows[at * ROW.size : (at + 1) * ROW.size] = row
        _, size, _, ctime, mode = ROW.unpack(row)
        kind = Kind.EXECUTABLE if mode & 0o100 else Kind.FILE
        folder.kinds[at] = kind
        relation, base_kind = RELATIONS[folder.marks[at]], BASE_KINDS[folder.marks[at]]
        if relation is Relation.SAME:
            if folder.id_at(at) != file_id:
                relation = Relation.DIFFERS
            elif recipe_id is None and at in folder.recipes:
                recipe_id = RecipeId(folder.recipes[at])
            if base_kind is not kind:
                relation = Relation.DIFFERS
        if size > SINGLE_CHUNK_MAX and recipe_id is None:
            folder.set_id(at, NO_ID, None)
            folder.marks[at] = with_relation(0, relation, base_kind)
            return None
        folder.set_id(at, file_id, recipe_id)
        tells = self._tells(item.path, device, ctime, no_writer=no_writer)
        known = TRUSTED if tells and self.state.vouches(row, foreign=device != self._device) else READ
        folder.marks[at] = with_relation(known, relation, base_kind)
        return Entry(item.path, kind, size, file_id, recipe_id)

    def _tells(self, path: bytes, device: int, ctime: int, *, no_writer: bool) -> bool:
        """Return whether a later change of the file's content is bound to change its times."""
        kind = self._notices.get(device)
        if kind is None:
            kind = self._notices[device] = notice(self.root / os.fsdecode(path))
        if kind is Notice.WRITTEN_BACK:
            return is_old(ctime)
        return kind is Notice.ALWAYS or (no_writer and kind is Notice.UNMAPPED)

    @property
    def keeps_ids(self) -> bool:
        """Return whether files on this file system can be known without being read."""
        return self._notices[self._device] is not Notice.NEVER

    def note_left_out(self, progress: Progress, *, top: bool = False) -> None:
        """Tell a person what is left out because of its name, or as it is dsv's own. top: also in the root."""
        for path in self.apart:
            progress.note(f"{show(path)} is a dsv store or cache, and is left out")
        found = [path for path in self.reserved if b"/" in path or (top and path != b".dsv")]
        if found:
            progress.note(
                f"{format_count(len(found), 'path')} left out, such as {show(found[0])}: no commit can hold a .git or "
                ".dsv, as git and dsv would obey what is in it. To keep one, pack it with tar; to end this note, "
                "write .git or .dsv as a line in .dsvignore"
            )

    def rows_in(self, path: bytes) -> dict[bytes, bytes]:
        """Return the stat of each file and symlink of a folder as it was listed, or read since; other names
        have none."""
        folder = self.state.folder(path)
        if folder is None:
            return {}
        columns = zip(folder.name_list(), folder.kinds, cut(bytes(folder.rows), ROW.size), strict=True)
        return {name: row if kind in KEPT else b"" for name, kind, row in columns}

    def not_stored(self, item: Pending) -> None:
        """Forget what was known of a file that could not be read to be stored: the base's entry stays, and
        `published` must not count the file as committed."""
        folder = self.state.edit(item.folder)
        before = folder.marks[item.at]
        folder.marks[item.at] = with_relation(0, RELATIONS[before], BASE_KINDS[before])

    def relate(self, item: Pending, base: Entry | None) -> None:
        """Compare a path with the base's entry (None: it has none), and note the relation."""
        item.base = base
        if item.at == _OWN:
            item.relation = Relation.ABSENT if base is None else Relation.DIFFERS
            return
        folder = self.state.edit(item.folder)
        relate(folder, item.at, base)
        item.relation = folder.relation(item.at)

    def published(self, commit: CommitId) -> None:
        """Make `commit` the base: it has all from `work` that was recorded, and nothing that is `missing`."""
        for path in self.changed_folders:
            folder = self.state.edit(path)
            if self.scope.whole or path in self.scope:
                if self._is_new_itself(folder):
                    folder.own = OWN_SAME
                folder.adopt()
                continue
            names = folder.name_list()
            for at in list(folder.unclean()):
                if folder.path_of(names[at]) in self.scope:
                    folder.adopt_name(at)
        self.base = commit
        self.state.set_exact(commit, self.state.gone.difference(self.missing))
        self.missing = []


def pending_at(folder: Folder, at: int, name: bytes | None = None) -> Pending:
    """Return the item for one file or symlink."""
    path = folder.path_of(folder.name_list()[at] if name is None else name)
    value = folder.marks[at]
    kind, relation = KINDS[folder.kinds[at]], RELATIONS[value]
    return Pending(
        path,
        kind,
        folder.size_on_disk(at) if kind is not Kind.SYMLINK else 0,
        relation,
        folder.known_entry(at, path),
        folder.base_entry(at, path),
        folder.path,
        at,
        BASE_KINDS[value] if relation is Relation.SAME or relation is Relation.DIFFERS else None,
    )


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
    progress.start(None, None)
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
    progress.finish()
    return found, problems


def whole_folders(scan: WorkspaceScan, found: Differences) -> frozenset[bytes]:
    """Return folders in which everything was added, or from which everything was removed."""
    state = scan.state
    added = Counter(path.rpartition(b"/")[0] for path in found.added if state.folder(path) is None)
    mixed: set[bytes] = set()
    for folder in state.folders():
        kept = sum(folder.kinds.count(kind) for kind in KEPT)
        if kept != added[folder.path] or (folder.is_empty and folder.own == OWN_SAME):
            mixed.update((folder.path, *folders_above(folder.path)))
    for path in (*found.changed, *found.retyped, *found.removed):
        mixed.update((path, *folders_above(path)))
    new = {way for path in found.added for way in folders_above(path) if way not in mixed}
    gone = {way for path in found.removed for way in folders_above(path) if state.folder(way) is None}
    return frozenset(new | gone)


def hash_file(scan: WorkspaceScan, item: Pending, descent: Descent) -> Problem | None:
    """Hash a file, remember the result, and update `item` with it."""
    stable = read_stable(descent, item.path, hash_content)
    if isinstance(stable, Problem):
        return stable
    item.size = stable.stat.st_size
    row, device = row_of(stable.stat), stable.stat.st_dev
    item.known = scan.record(item, row, device, stable.value, no_writer=stable.no_writer)
    item.kind = Kind.EXECUTABLE if stable.stat.st_mode & 0o100 else Kind.FILE
    if item.known is None:  # a large file: only its upload computes the recipe that a tree needs
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
