"""Walking a workspace: each folder is listed, compared with the saved state, and validated."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsv.errors import NotFound, Unsupported
from dsv.files.attributes import earliest_stamp
from dsv.files.descent import Descent, join, split
from dsv.files.errors import about
from dsv.files.small_files import what_it_is
from dsv.format.tree import Entry, Kind
from dsv.transfer.stable_read import OPEN_FLAGS, ROW, Problem
from dsv.values.paths import (
    MAX_COMPONENT,
    MAX_PATH,
    PathSet,
    check_target,
    fold_clashes,
    folders_above,
    link_escapes,
    show,
    sort_key,
)
from dsv.workspace.scan import ignore
from dsv.workspace.scan.folder import (
    BASE_KINDS,
    DIRECTORY,
    IGNORED,
    KEPT,
    NO_ID,
    OWN_SAME,
    READ,
    TRUSTED,
    UNSUPPORTED,
    Folder,
    Relation,
    differing,
    is_utf8,
    list_folder,
    mark,
    with_relation,
)
from dsv.workspace.scan.ignore import IgnoreRules
from dsv.workspace.scan.result import WorkspaceScan
from dsv.workspace.scan.state import NameIndex, WorkspaceState

if TYPE_CHECKING:
    from dsv.transfer.save import NewContent
    from dsv.values.ids import CommitId

LEAVES = "it is a symlink that leads out of the dataset"
_STORE = b"This is a dsv store"
"""The first words of the `README.txt` of each store."""
_FORGET = 0xFF & ~(TRUSTED | READ)


class Compared(NamedTuple):
    """A folder as the disk has it now."""

    folder: Folder
    lost: list[tuple[bytes, int]]
    """Names and kinds of paths that the base has, or may have, and that are no longer files or symlinks."""
    fresh: Iterable[int]
    """Positions of names that have not been checked for a tree yet."""


def compare(old: Folder | None, now: Folder, rules: IgnoreRules) -> Compared | None:
    """Add what is remembered of unchanged names. None if the folder is as in the base, and as remembered."""
    if old is not None and old.names == now.names and old.rules == rules.digest:
        for at in old.positions(IGNORED):
            now.blank_row(at)
        if old.rows == now.rows and old.is_clean:
            return None
        refreshed = _refresh(old, now)
        if refreshed is not None:
            return refreshed
    return _rebuild(old, now, rules)


def _refresh(old: Folder, now: Folder) -> Compared | None:
    """Look only at rows that differ, for the same names. None if a verdict of the ignore rules may change."""
    changed = differing(old.rows, now.rows, ROW.size)
    if old.rules and any(old.type_at(at) != now.type_at(at) for at in changed):
        return None
    kinds, before = now.kinds, old.kinds
    for at in old.positions(IGNORED):
        kinds[at] = IGNORED
    fresh = list(old.positions(UNSUPPORTED))
    old.rows, old.kinds = now.rows, kinds
    lost: list[tuple[bytes, int]] = []
    names = old.name_list() if changed else []
    for at in changed:
        if before[at] in KEPT and kinds[at] in KEPT:
            old.marks[at] &= _FORGET
        elif before[at] in KEPT:
            _lose(lost, names[at], before[at], old.relation(at))
            old.set_id(at, NO_ID, None)
            old.targets.pop(at, None)
            old.sizes[at] = 0
        if kinds[at] not in KEPT:
            old.marks[at] = 0
        elif before[at] not in KEPT:
            old.marks[at] = mark(Relation.ABSENT)
    for at in fresh:
        old.marks[at] = mark(Relation.ABSENT) if kinds[at] in KEPT else 0
    return Compared(old, lost, fresh)


def _rebuild(old: Folder | None, folder: Folder, rules: IgnoreRules) -> Compared:
    """Build the folder from the listing, for other names or rules, or if nothing is remembered."""
    folder.rules = rules.digest
    names = folder.name_list()
    positions = {} if old is None else {name: at for at, name in enumerate(old.name_list())}
    if rules.digest:
        _ignore(folder, names, old, positions, rules)
    folder.unmark_others()
    if old is None:
        return Compared(folder, [], range(len(names)))
    folder.own = old.own
    lost: list[tuple[bytes, int]] = []
    fresh: list[int] = []
    for at, name in enumerate(names):
        before = positions.pop(name, None)
        if before is None or old.kinds[before] == UNSUPPORTED:
            fresh.append(at)
        if before is not None:
            _carry(folder, at, old, before, name, lost)
    for name, before in positions.items():
        _lose(lost, name, old.kinds[before], old.relation(before))
    return Compared(folder, lost, fresh)


def _ignore(
    folder: Folder, names: list[bytes], old: Folder | None, positions: dict[bytes, int], rules: IgnoreRules
) -> None:
    """Mark what the rules leave out. Matching is slow, so verdicts of the same rules on the same names are kept."""
    same_rules = old is not None and old.rules == rules.digest
    for at, name in enumerate(names):
        kind = folder.type_at(at)
        before = positions.get(name) if same_rules else None
        if before is not None and old is not None and old.type_at(before) == kind:
            ignored = old.kinds[before] == IGNORED
        else:
            ignored = rules.ignores(folder.path_of(name), directory=kind == stat.S_IFDIR)
        if ignored:
            folder.kinds[at] = IGNORED
            folder.blank_row(at)


def _carry(
    folder: Folder, at: int, old: Folder, before: int, name: bytes, lost: list[tuple[bytes, int]]
) -> None:
    if old.kinds[before] not in KEPT:
        return
    if folder.kinds[at] not in KEPT:
        _lose(lost, name, old.kinds[before], old.relation(before))
        return
    same = folder.row(at) == old.row(before)
    folder.marks[at] = old.marks[before] if same else old.marks[before] & _FORGET
    folder.copy_content(at, old, before)


def _lose(lost: list[tuple[bytes, int]], name: bytes, kind: int, relation: Relation) -> None:
    if kind in KEPT and relation is not Relation.ABSENT:
        lost.append((name, kind))


def _is_of_dsv(folder: Folder, own: list[bytes], descriptor: int) -> bool:
    """Return whether a folder is the root of a cache or of a store. Read there, a store would grow by itself."""
    names = folder.name_list() if own or b"README.txt" in folder.names else []
    if b"README.txt" not in names or b"format" not in names:
        if b".dsv" not in own or b"dsv-cache.toml" in names:
            return b".dsv" in own
        with suppress(OSError):  # as a cache has before its first commit; a workspace has no such folder
            return stat.S_ISDIR(os.stat(".dsv/stores", dir_fd=descriptor, follow_symlinks=False).st_mode)
        return False
    with suppress(OSError), os.fdopen(os.open("README.txt", OPEN_FLAGS, dir_fd=descriptor), "rb") as readme:
        return readme.read(len(_STORE)) == _STORE
    return False


def _name_fault(name: bytes, room: int) -> str | None:
    if not is_utf8(name):
        return "its name is not UTF-8"
    if len(name) > MAX_COMPONENT:
        return f"its name is longer than {MAX_COMPONENT} bytes"
    if len(name) > room:
        return f"its path is longer than {MAX_PATH} bytes"
    return None


BaseEntries = Callable[[], Iterable[Entry]]
"""Returns the entries of the base's tree, in tree order."""


def scan_workspace(
    root: Path,
    state: WorkspaceState,
    base: CommitId | None,
    base_entries: BaseEntries,
    only: Iterable[bytes] = (),
    *,
    rehash: bool = False,
    ignoring: Iterable[str] = (ignore.NAME,),
    check_links: bool = True,
    named: bool = False,
) -> WorkspaceScan:
    """List the workspace at `root` (or only these paths of it) and compare it with the base.

    Reads only symlinks and `.dsvignore`. `base_entries` is called only if the state does not mirror the base;
    then everything is listed. rehash: forget what was read of the files before. ignoring: names of files with
    ignore rules; later ones have the last word. check_links: symlinks must not lead out of the root. named:
    look into folders of `only` even if the rules leave them out. Raises `UsageError` for an invalid
    `.dsvignore`, and an error of `files.errors` if one can't be read or the root can't be listed.
    """
    with about(root):
        dot = root / ".dsv"
        try:
            state.trust_before = earliest_stamp(dot)
        except OSError:
            state.trust_before = 0  # without the right to write here nothing new is trusted
        device = dot.stat().st_dev if dot.exists() else root.stat().st_dev
        scan = WorkspaceScan(root, state, base, PathSet.of(only), device)
        with Descent(root) as descent:
            scanner = _Scanner(scan, descent, tuple(ignoring), rehash=rehash or not scan.keeps_ids)
            scanner.run(check_links=check_links, named=named)
    if not scan.exact:
        scan.sync_with_tree(base_entries())
    return scan


class _Scanner:
    def __init__(
        self, scan: WorkspaceScan, descent: Descent, ignoring: tuple[str, ...], *, rehash: bool
    ) -> None:
        self._rehash = rehash
        self._ignoring = ignoring
        self._scan = scan
        self._state = scan.state
        self._state.close_folders()  # so that a folder is a copy until it is put back
        self._descent = descent
        self._unvisited = set(self._state.paths())
        self._rules: dict[bytes, IgnoreRules] = {}  # of folders that lead to a scope
        self._problems: dict[bytes, Problem] = {}
        self._lost: set[bytes] = set()
        """Paths in the base that are neither files nor symlinks now."""
        self._unreadable: list[bytes] = []
        """Paths that can't be read."""
        self._links_moved = False
        """A symlink was added, changed or removed."""

    def run(self, *, check_links: bool, named: bool) -> None:
        scan = self._scan
        scope = scan.scope if scan.exact else PathSet()
        if scope.whole:
            self._walk(b"", IgnoreRules())
        for path in scope.paths:
            self._walk_to(path, named=named)
        self._lose_unvisited(scope)
        names = NameIndex(self._state)
        gone = self._state.gone | self._lost
        chosen = self._state.chosen
        gone = {path for path in gone if not self._is_back(path, names)}
        self._state.gone = {path for path in gone if path in chosen}
        scan.let_go = sorted(gone - self._state.gone, key=sort_key)
        if check_links:
            self._check_links()
        scan.unreadable = PathSet.of(self._unreadable) if self._unreadable else None
        scan.changed_folders.sort(key=sort_key)
        self._find_clashes()
        scan.problems = [
            self._problems[path] for path in sorted(self._problems, key=sort_key) if scan.scope.touches(path)
        ]
        scan.find_missing()

    def _walk(self, start: bytes, rules: IgnoreRules) -> None:
        stack = [(start, rules)]
        while stack:
            path, rules = stack.pop()
            visited = self._visit(path, rules)
            if visited is not None:
                folder, rules = visited
                below = list(folder.positions(DIRECTORY))
                if below:
                    names = folder.name_list()
                    stack += [(folder.path_of(names[at]), rules) for at in reversed(below)]

    def _walk_to(self, path: bytes, *, named: bool) -> None:
        """Visit the folders that lead to the path, then all below it."""
        here, rules = b"", IgnoreRules()
        for part in path.split(b"/"):
            known = self._rules.get(here)
            if known is None:
                visited = self._visit(here, rules)
                if visited is None:
                    return
                self._rules[here] = known = visited[1]
            rules = known
            folder = self._state.folder(here)
            at = None if folder is None else folder.find(part)
            if folder is None or at is None:
                return
            ignored = named and folder.kinds[at] == IGNORED and folder.type_at(at) == stat.S_IFDIR
            if folder.kinds[at] != DIRECTORY and not ignored:
                return
            here = folder.path_of(part)
        self._walk(here, rules)

    def _visit(self, path: bytes, above: IgnoreRules) -> tuple[Folder, IgnoreRules] | None:
        """Compare one folder with what is remembered of it; None if it can't be listed or is gone."""
        try:
            descriptor = self._descent.at(path)
            now, leftovers, own = list_folder(descriptor, path)
            if path and _is_of_dsv(now, own, descriptor):
                self._scan.apart.append(path)
                return None
        except (FileNotFoundError, NotADirectoryError):
            if not path:
                raise
            return None
        except OSError as error:
            if not path or error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            self._problem(path, f"it can't be listed: {error.strerror or error}")
            self._unreadable.append(path)
            return None
        rules = self._enter(above, now, descriptor)
        self._unvisited.discard(path)
        self._scan.leftovers += [join(path, name) for name in leftovers]
        paths = (join(path, name) for name in own)
        self._scan.reserved += [
            own_path
            for own_path in paths
            if own_path == b".dsv" or not rules.ignores(own_path, directory=True)
        ]
        old = self._remembered(path)
        compared = compare(old, now, rules)
        if old is not None and compared is None:
            return old, rules
        assert compared is not None
        self._validate(compared, descriptor)
        self._state.put(compared.folder)
        if not compared.folder.is_clean:
            self._scan.changed_folders.append(path)
        return compared.folder, rules

    def _validate(self, compared: Compared, descriptor: int) -> None:
        """Refuse what can't be in a tree, read symlinks, and note what the base has and the folder lacks."""
        folder = compared.folder
        names = folder.name_list()
        for name, kind in compared.lost:
            self._lost.add(folder.path_of(name))
            self._links_moved |= kind == Kind.SYMLINK
        for at in folder.positions(UNSUPPORTED):
            self._problem(folder.path_of(names[at]), what_it_is(folder.mode(at)), data=False)
        self._names(compared, names)
        for at in list(folder.positions(Kind.SYMLINK)):
            if not folder.marks[at] & TRUSTED:
                self._read_link(folder, at, names[at], descriptor)
        if not folder.all_readable():
            self._access(folder, names, descriptor)
        if folder.own == OWN_SAME and not folder.is_empty:
            self._lost.add(folder.path)
            folder.own = 0

    def _names(self, compared: Compared, names: list[bytes]) -> None:
        folder = compared.folder
        fresh = list(compared.fresh)
        if not fresh:
            return
        room = min(MAX_COMPONENT, MAX_PATH - len(folder.path) - 1)
        plain = folder.names.isascii() or is_utf8(folder.names)
        if not plain or max(map(len, names)) > room:
            for at in fresh:
                reason = _name_fault(names[at], room)
                if reason is not None and folder.kinds[at] in (*KEPT, DIRECTORY):
                    self._refuse(folder, at, names[at], reason)

    def _find_clashes(self) -> None:
        """Note names that differ only in case, in folders with unpublished changes and those above."""
        changed = set(self._scan.changed_folders)
        above = map(folders_above, changed)
        for path in sorted(changed.union(*above, [b""] if changed else [])):
            folder = self._state.folder(path)
            if folder is None or not (folder.names.isascii() or is_utf8(folder.names)):
                continue
            names = folder.name_list()
            if not folder.names.isascii() or len(set(folder.names.lower().split(b"\0"))) < len(names):
                pairs = zip(names, folder.kinds, strict=True)
                kept = [name for name, kind in pairs if kind in (*KEPT, DIRECTORY)]
                self._scan.clashes += [(folder.path_of(a), folder.path_of(b)) for a, b in fold_clashes(kept)]

    def _access(self, folder: Folder, names: list[bytes], descriptor: int) -> None:
        for at in list(folder.unclean()):
            if folder.kinds[at] != Kind.SYMLINK and not folder.marks[at] & TRUSTED:
                effective = os.access in os.supports_effective_ids
                if not os.access(names[at], os.R_OK, dir_fd=descriptor, effective_ids=effective):
                    path = folder.path_of(names[at])
                    self._refuse(folder, at, names[at], "it may not be read: Permission denied")
                    self._unreadable.append(path)

    def _read_link(self, folder: Folder, at: int, name: bytes, descriptor: int) -> None:
        self._links_moved = True
        try:
            target = os.readlink(name, dir_fd=descriptor)
        except OSError:  # it is gone, or became something else: the next scan will see
            self._refuse(folder, at, name, "it changed while dsv looked at it", changing=True)
            return
        before, relation = folder.targets.get(at), folder.relation(at)
        folder.targets[at] = target
        try:
            check_target(target)
        except ValueError as error:
            reason = (
                LEAVES if target[:1] == b"/" else f"it is a symlink whose target no tree can hold: {error}"
            )
            self._refuse(folder, at, name, reason)
            return
        base_kind = BASE_KINDS[folder.marks[at]]
        if relation is Relation.SAME and (base_kind is not Kind.SYMLINK or before != target):
            relation = Relation.DIFFERS
        known = TRUSTED if self._state.vouches(folder.row(at)) else READ
        folder.marks[at] = with_relation(known, relation, base_kind)

    def _refuse(self, folder: Folder, at: int, name: bytes, reason: str, *, changing: bool = False) -> None:
        """Leave a name out of the tree."""
        path = folder.path_of(name)
        self._problem(path, reason, changing=changing)
        if folder.kinds[at] in KEPT and folder.relation(at) is not Relation.ABSENT:
            self._lost.add(path)
        folder.kinds[at] = UNSUPPORTED
        folder.marks[at] = 0

    def _problem(self, path: bytes, reason: str, *, changing: bool = False, data: bool = True) -> None:
        self._problems.setdefault(path, Problem(path, reason, changing, data))

    def _remembered(self, path: bytes) -> Folder | None:
        """Return the folder as it was, without what is known of files that must be read again."""
        old = self._state.folder(path)
        if old is None or not self._rehash:
            return old
        scope = self._scan.scope
        if path in scope:
            old.distrust()
        elif not path or scope.touches(path):
            old.distrust(lambda name: join(path, name) in scope)
        return old

    def _enter(self, above: IgnoreRules, folder: Folder, descriptor: int) -> IgnoreRules:
        rules = above
        for name in self._ignoring:
            if folder.find(name.encode()) is not None:
                where = folder.path_of(name.encode())
                with about(where):
                    # Ignoring a part of its rules would commit what the user wanted left out.
                    rules = rules.enter(folder.path, ignore.read(descriptor, where, name), name)
        if rules is not above:
            self._scan.rules[folder.path] = rules
        return rules

    def _lose_unvisited(self, scope: PathSet) -> None:
        """Drop what is remembered below folders that are gone, or that are left out now."""
        unreadable = PathSet.of(self._unreadable) if self._unreadable else None
        for path in self._unvisited:
            if path not in scope or (unreadable is not None and path in unreadable):
                continue
            folder = self._state.folder(path)
            assert folder is not None
            names = folder.name_list()
            for at, kind in enumerate(folder.kinds):
                if kind in KEPT and folder.relation(at) is not Relation.ABSENT:
                    self._lost.add(folder.path_of(names[at]))
                    self._links_moved |= kind == Kind.SYMLINK
            if folder.own == OWN_SAME:
                self._lost.add(path)
            self._state.drop(path)

    def _is_back(self, path: bytes, names: NameIndex) -> bool:
        """Return whether a path that was gone is on disk again. If so, it must be compared with the base."""
        above, name = split(path)
        at = names.find(above, name)
        if at is None:
            return False
        folder = self._state.edit(above)
        if folder.kinds[at] not in KEPT:
            return False
        if folder.relation(at) is Relation.ABSENT:
            folder.marks[at] = with_relation(folder.marks[at], Relation.UNKNOWN)
        return True

    def _check_links(self) -> None:
        """Refuse symlinks that lead out of the tree, also by way of other symlinks in it."""
        if not self._links_moved and self._scan.exact:
            return
        links = dict(self._state.links())
        while escaping := link_escapes(links):
            for path in escaping:
                del links[path]
                above, name = split(path)
                folder = self._state.edit(above)
                at = folder.find(name)
                assert at is not None
                self._lost.clear()
                self._refuse(folder, at, name, LEAVES)
                self._state.gone |= self._lost
                self._scan.changed_folders.append(above)
        self._scan.changed_folders = list(dict.fromkeys(self._scan.changed_folders))


def walk(
    root: Path, start: bytes = b"", ignoring: tuple[str, ...] = (ignore.NAME,), *, check_links: bool = False
) -> tuple[list[tuple[bytes, NewContent]], WorkspaceScan]:
    """Return every path of a folder, which is no workspace, that belongs in a tree, in tree order; and the scan,
    with those that can't be stored or read. A folder is treated as by `dsv sync`.

    start: a folder below the root, to which the walk is limited; all paths are from the root. ignoring: names
    of files with ignore rules, in the folders from the root on; later ones have the last word. check_links:
    symlinks that lead out of the root can't be stored.
    """
    from dsv.transfer.save import NewContent

    scan = scan_workspace(
        root, WorkspaceState(root), None, lambda: (), (start,) if start else (),
        ignoring=ignoring, check_links=check_links, named=True,
    )  # fmt: skip
    found: list[tuple[bytes, NewContent]] = []
    for item in scan.pending():
        if item.kind is Kind.SYMLINK or item.kind is Kind.EMPTY_DIRECTORY:
            assert item.known is not None
            source = NewContent(item.kind, target=item.known.target)
        else:
            source = NewContent(item.kind, item.size, root, item.path)
        if item.path != start:
            found.append((item.path, source))
    return found, scan


def named_file(path: Path) -> NewContent | None:
    """Return a file that the user named, never ignored, and followed if it is a symlink; None for a folder.
    Raises `NotFound`, `Unsupported`, `Denied`."""
    from dsv.transfer.save import NewContent

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
    return NewContent(kind, info.st_size, whole.parent, os.fsencode(whole.name))
