"""The baseline of a workspace: what it has of its base, and what an interrupted command has written since.

In a sparse workspace only the paths that it has are compared. Checks against likely mistakes are here too.
"""

from __future__ import annotations

import bisect
import heapq
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dsv.errors import Conflict, Denied, NoRoom, NotFound, Unreachable
from dsv.files.descent import Descent
from dsv.files.errors import about
from dsv.files.lock import Lock
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import diff_entries, diff_trees, difference
from dsv.values.ids import CommitId
from dsv.values.paths import Both, PathSet, folders_above, show, sort_key
from dsv.values.patterns import EVERYTHING
from dsv.values.units import format_count, format_lines
from dsv.workspace.scan.folder import KEPT, OWN_SAME, Relation
from dsv.workspace.scan.result import Pending, WorkspaceScan, pending_at
from dsv.workspace.scan.scanner import scan_workspace
from dsv.workspace.scan.state import WorkspaceState
from dsv.workspace.workspace import BRIEF, StartedCommand, unfinished

if TYPE_CHECKING:
    from dsv.format.locator import Location
    from dsv.repo.objects.objects import Objects
    from dsv.repo.tree.diff import PathChange
    from dsv.repo.tree.reader import TreeLookup, TreeReader
    from dsv.values.patterns import SparsePatterns
    from dsv.values.progress import Progress
    from dsv.workspace.open import OpenWorkspace
    from dsv.workspace.plan import WorkspaceFiles
    from dsv.workspace.scan.scanner import BaseEntries
    from dsv.workspace.workspace import Workspace


class WorkspacePaths(msgspec.Struct, frozen=True):
    """The paths that a workspace has: those that its patterns match, and single paths beside these. The
    absence of other paths says nothing about the dataset."""

    chosen: SparsePatterns
    outside: frozenset[bytes] = frozenset()
    _keys: list[bytes] = []

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "_keys", sorted(map(sort_key, self.outside)))

    @property
    def whole(self) -> bool:
        return self.chosen.whole

    def __contains__(self, path: bytes) -> bool:
        return path in self.chosen or path in self.outside

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        if self.chosen.overlaps(after, last):
            return True
        at = 0 if after is None else bisect.bisect_right(self._keys, sort_key(after))
        return at < len(self._keys) and self._keys[at] <= sort_key(last)

    def with_paths(self, paths: Iterable[bytes]) -> WorkspacePaths:
        return WorkspacePaths(self.chosen, self.outside.union(paths))


def held_by(state: WorkspaceState) -> WorkspacePaths:
    """Return the paths of a workspace just scanned: the chosen ones, and every other file on disk."""
    chosen = state.chosen
    outside: set[bytes] = set()
    for path in [] if chosen.whole else state.paths():
        if chosen.all_below(path):
            continue
        folder = state.folder(path)
        if folder is None:
            continue
        for name, kind in zip(folder.name_list(), folder.kinds, strict=True):
            if kind in KEPT and folder.path_of(name) not in chosen:
                outside.add(folder.path_of(name))
        if path and folder.is_empty and folder.own == OWN_SAME and path not in chosen:
            outside.add(path)
    return WorkspacePaths(chosen, frozenset(outside))


class Collision(msgspec.Struct, frozen=True):
    """A new path that can't be in one tree with `other`, which the dataset has and the workspace does not.
    Both are the same path if it is an empty folder here and a file there."""

    path: bytes
    other: bytes

    def __str__(self) -> str:
        if self.path == self.other:
            return f"the empty folder {show(self.path)} is in the way of the dataset's file"
        return f"{show(self.path)} is in the way of {show(self.other)}"


def compare_outside(
    scan: WorkspaceScan, base: Callable[[], TreeReader | None], held: WorkspacePaths
) -> tuple[Collision, ...]:
    """Compare new paths of a sparse workspace with the base there and around them, which the state does not
    know, and return the collisions. A new file at a path of the base that the workspace leaves out is a
    change of that path.

    A folder that is empty here is nothing new if it has files in the base, and a collision if it is a file
    there. An empty folder of the base that the workspace leaves out is missing if it has content now.
    """
    new = {
        item.path: item
        for item in ([] if held.whole else scan.pending())
        if item.relation in (Relation.ABSENT, Relation.UNKNOWN)
    }
    tree = base() if new else None
    if tree is None:
        return ()
    missing: set[bytes] = set()
    filled: set[bytes] = set()
    collisions: list[Collision] = []
    from dsv.repo.tree.reader import find_paths

    for path, found in find_paths(tree, new):
        item, above = new[path], found.above
        if path not in held.chosen:
            if item.kind is not Kind.EMPTY_DIRECTORY:
                scan.relate(item, found.entry)
            elif found.entry is not None and found.entry.kind is Kind.EMPTY_DIRECTORY:
                scan.state.edit(path).own = OWN_SAME
        if above is not None and above.kind is Kind.EMPTY_DIRECTORY and above.path not in held.chosen:
            missing.add(above.path)
        if found.below and item.kind is Kind.EMPTY_DIRECTORY and _absent_below(tree, path, held) is not None:
            filled.add(path)
        collisions += _collisions_at(tree, item, found, held)
    scan.filled_elsewhere = frozenset(filled)
    if missing:
        scan.missing = sorted(missing.union(scan.missing), key=sort_key)
    return tuple(collisions)


def collisions_with(tree: TreeReader, scan: WorkspaceScan, held: WorkspacePaths) -> Iterator[Collision]:
    """Yield the collisions with a tree that is not the base, at paths that the workspace would not have."""
    new = {item.path: item for item in scan.pending() if item.relation is Relation.ABSENT}
    from dsv.repo.tree.reader import find_paths

    for path, found in find_paths(tree, new):
        yield from _collisions_at(tree, new[path], found, held)


def _collisions_at(
    tree: TreeReader, item: Pending, found: TreeLookup, held: WorkspacePaths
) -> Iterator[Collision]:
    is_empty = item.kind is Kind.EMPTY_DIRECTORY
    for there in (found.above, found.entry if is_empty else None):
        if there is not None and there.kind is not Kind.EMPTY_DIRECTORY and there.path not in held:
            yield Collision(item.path, there.path)
    if found.below and not is_empty:
        other = _absent_below(tree, item.path, held)
        if other is not None:
            yield Collision(item.path, other)


def count_held(scan: WorkspaceScan) -> int:
    """Return how many paths of the base the workspace has or had, including missing ones."""
    count = len(scan.missing)
    for folder in scan.state.folders():
        count += sum(
            kind in KEPT and folder.relation(at) is not Relation.ABSENT
            for at, kind in enumerate(folder.kinds)
        )
        count += folder.own == OWN_SAME
    return count


def links_with(tree: TreeReader, scan: WorkspaceScan, held: WorkspacePaths) -> dict[bytes, bytes]:
    """Return every symlink of the tree that a sync would make: those here, and those of the base that are not held."""
    links = {path: target for path, target in tree.links().items() if path not in held}
    links.update(scan.state.links())
    return links


def _absent_below(tree: TreeReader, path: bytes, held: WorkspacePaths) -> bytes | None:
    return next((entry.path for entry, _ in tree.below(path) if entry.path not in held), None)


# More than half of a dataset of at least this many files is never removed by accident.
MANY = 20


def check_removals(scan: WorkspaceScan, base: TreeReader | None, *, allowed: bool) -> None:
    """Raises `Conflict` if a sync would remove more than half of the files, or all of a top-level folder. In a
    sparse workspace only the part of the dataset that it has counts."""
    if base is None or allowed or not scan.missing:
        return
    whole = scan.state.chosen.whole
    here = "" if whole else " that this workspace has"
    removed, before = len(scan.missing), base.commit.entries if whole else count_held(scan)
    if before >= MANY and removed * 2 > before:
        raise _refused(f"{removed:,} of {before:,} paths{here}", str(scan.root))
    for top in emptied(scan):
        raise _refused(f"everything{here} in {top.decode(errors='backslashreplace')}/", str(scan.root))


_SECRET = re.compile(
    rb"/(?:\.ssh/id_[^/]*(?<!\.pub)|\.aws/credentials|\.kube/config|\.docker/config\.json|\.netrc|\.pgpass|"
    rb"\.git-credentials)\Z"
)
_LIKE_SECRETS = re.compile(rb"(?:\A|\0)(?:id_|credentials|config|\.netrc|\.pgpass|\.git-credentials)")


def doubts(scan: WorkspaceScan, home: Path) -> str | None:
    """Return what a person should confirm before the scan's new paths are published, see `doubts_about`."""
    top = os.fsencode(scan.root.resolve()) + b"/"
    new = (
        (path, top + path)
        for folder in filter(None, map(scan.state.folder, scan.changed_folders))
        if _LIKE_SECRETS.search(folder.names)
        for at in folder.unclean()
        if folder.relation(at) is Relation.ABSENT and (path := pending_at(folder, at).path) in scan.scope
    )
    return doubts_about([scan.root] if scan.base is None and scan.scope.whole else [], new, home)


def doubts_about(folders: Iterable[Path], new: Iterable[tuple[bytes, bytes]], home: Path) -> str | None:
    """Return what a person should confirm before all of these folders, and these new paths (each with the one that it
    is from), are published: a home folder, or files that are known to have passwords and keys. None for nothing."""
    home = home.resolve()
    for root in map(Path.resolve, folders):
        if home.is_relative_to(root):
            return f"all of {root}, which {'is' if root == home else 'contains'} your home folder"
    found = [path for path, source in new if _SECRET.search(source) or _SECRET.search(b"/" + path)]
    more = f" and {format_count(len(found) - 1, 'other file')}" if len(found) > 1 else ""
    return f"{show(found[0])}{more}, with passwords or keys" if found else None


def note_let_go(scan: WorkspaceScan, progress: Progress) -> None:
    """Report that files deleted here, beside the patterns of a sparse workspace, remain in the dataset."""
    scan.note_left_out(progress)
    if not scan.let_go:
        return
    first, others = show(scan.let_go[0]), len(scan.let_go) - 1
    more = f" and {format_count(others, 'more path')} were" if others else " was"
    progress.note(
        f"{first}{more} deleted here, and remain{'' if others else 's'} in the dataset, as the patterns of this sparse "
        "workspace don't include it: dsv rm removes files from a dataset"
    )


def left_out(scan: WorkspaceScan) -> str | None:
    """Return what a sync would remove from the dataset although it is here, because `.dsvignore` leaves it out."""
    paths = scan.ignored_files()
    if not paths:
        return None
    more = f" and {format_count(len(paths) - 1, 'other path')}" if len(paths) > 1 else ""
    return f"{show(paths[0])}{more} from the dataset for everybody, as .dsvignore leaves {'them' if more else 'it'} out"


def emptied(scan: WorkspaceScan) -> list[bytes]:
    """Return the top-level folders of the base that have no files on disk."""
    tops = {path.split(b"/", 1)[0] for path in scan.missing if b"/" in path}
    if not tops:
        return []
    for path in scan.state.paths():
        top = path.split(b"/", 1)[0]
        if top in tops:
            folder = scan.state.folder(path)
            if folder is not None and any(folder.kinds.find(kind) >= 0 for kind in KEPT):
                tops.discard(top)
    return sorted(tops)


def _refused(what: str, root: str) -> Conflict:
    return Conflict(
        f"this sync would remove {what} from the dataset; if unintended, check .dsvignore and the mounts in {root}",
        subject=root,
        hint="dsv status shows what is missing; dsv restore brings it back; dsv sync --allow-removals publishes the "
        "removal",
    )


def check_paths(root: Path, base: Callable[[], TreeReader | None], paths: Iterable[bytes]) -> None:
    """Raises `NotFound` for a path that is neither on disk nor in the base, which is read only if it is needed."""
    for path in paths:
        if os.path.lexists(os.fsencode(root) + b"/" + path):
            continue
        tree = base()
        if tree is None or next(tree.below(path), None) is None:
            raise NotFound(
                f"{show(path)} is neither in {root} nor in its base",
                subject=path.decode("utf-8", "backslashreplace"),
                hint=_meant(root, path),
            )


def _meant(root: Path, path: bytes) -> str:
    if path.startswith(b"@"):
        return f"a path is needed here; dsv ls {path.decode(errors='replace')} shows what a commit has"
    folder, _, name = path.rpartition(b"/")
    try:
        names = [one.name for one in (root / os.fsdecode(folder)).iterdir()]
    except OSError:
        names = []
    from difflib import get_close_matches

    close = get_close_matches(os.fsdecode(name), names, n=1)
    if not close:
        return "dsv ls shows the paths of the base"
    return f"did you mean {Path(os.fsdecode(folder)) / close[0]}?"


class Trees:
    """The trees of commits, each read at its first use. objects: called once, and may open the store. proven:
    the store itself must have the commits; otherwise local copies are enough."""

    def __init__(self, objects: Callable[[], Objects], *, proven: bool = False) -> None:
        self._objects = cache(objects)
        self._proven = proven
        self._trees: dict[CommitId, TreeReader] = {}

    def of(self, commit: CommitId | None) -> TreeReader | None:
        if commit is None:
            return None
        if commit not in self._trees:
            from dsv.repo.tree.reader import TreeReader  # which a clean folder does not need

            self._trees[commit] = TreeReader(self._objects(), commit)
        return self._trees[commit]

    def have(self, begun: StartedCommand) -> bool:
        """Return whether both of its commits exist. If not, what the command wrote counts as the user's own change."""
        objects = self._objects()
        find = objects.stored_commit if self._proven else objects.commit_or_none
        return find(begun.commit) is not None and (begun.base is None or find(begun.base) is not None)


class Baseline(msgspec.Struct, frozen=True):
    """The tree with which a scanned workspace is compared. The relations in the scan's state refer to it."""

    scan: WorkspaceScan
    trees: Trees
    begun: tuple[StartedCommand, ...] = ()
    """Interrupted commands."""
    written: Mapping[bytes, Entry | None] = msgspec.field(default_factory=dict)
    """Paths that these commands have written (None: removed). They replace entries of the base."""
    held: WorkspacePaths = msgspec.field(default_factory=lambda: WorkspacePaths(EVERYTHING))
    """The part of commits that the workspace has. Only that part is compared."""
    collisions: tuple[Collision, ...] = ()
    """New paths of the user in the way of paths of the base that the workspace leaves out."""
    _held_of: dict[CommitId, WorkspacePaths] = msgspec.field(default_factory=dict)

    @property
    def tree(self) -> TreeReader | None:
        return self.trees.of(self.scan.base)

    @property
    def warning(self) -> str | None:
        """A warning about files that an interrupted command has written; None if every command ended."""
        if not self.begun:
            return None
        last = self.begun[-1]
        return (
            f"{last.command} was interrupted here; what it wrote on the way to {str(last.commit)[:12]} does not count "
            f"as your change. {last.finish} finishes it"
        )

    def entry(self, path: bytes) -> Entry | None:
        """Return the entry that counts as unchanged at the path."""
        if path in self.written:
            return self.written[path]
        found = None if self.tree is None else self.tree.entry(path)
        return None if found is None else found[0]

    def below(self, path: bytes, held: WorkspacePaths | None = None) -> Iterator[Entry]:
        """Return the entry of this path, or everything below it, in tree order; all for an empty path. In a
        sparse workspace only held paths."""
        entries = (entry for entry, _ in below(self.tree, path, held or self.held))
        if not self.written:
            return entries
        inside = PathSet.of([path])
        wanted = sorted((each for each in self.written if each in inside), key=sort_key)
        new = (entry for each in wanted if (entry := self.written[each]) is not None)
        kept = (entry for entry in entries if entry.path not in self.written)
        return heapq.merge(kept, new, key=lambda entry: sort_key(entry.path))

    def changes_to(self, after: TreeReader) -> Iterator[PathChange]:
        """Return the changes from the entries that count as unchanged to those of `after`."""
        held = self.held_of(after)
        if self.written:
            return diff_entries(self.below(b"", held), after.within(held))
        return diff_trees(self.tree, after, held)

    def held_of(self, after: TreeReader) -> WorkspacePaths:
        """Return the held paths, with those of another commit that are in the way of new files here."""
        if self.held.whole:
            return self.held
        if after.commit_id not in self._held_of:  # once: what is new here changes as files are written
            others = (each.other for each in collisions_with(after, self.scan, self.held))
            self._held_of[after.commit_id] = self.held.with_paths(others)
        return self._held_of[after.commit_id]

    def check_publishable(self, progress: Progress) -> None:
        """Report the interrupted command. Raises `Conflict` for collisions, and if no tree can have both the
        user's changes and the base's entries at the paths that the command wrote, because one is a file and
        the other a folder."""
        if self.collisions:
            raise Conflict(
                f"new paths in the sparse workspace {self.scan.root} are in the way of files that it leaves out:"
                f"{format_lines(list(map(str, self.collisions)))}",
                subject=show(self.collisions[0].path),
                hint="rename yours, or move it away and fetch the dataset's: dsv sparse add PATH",
            )
        if self.warning is None:
            return
        progress.note(self.warning)
        mine = {item.path for item in self.scan.work() if isinstance(item, Pending)}
        ways = PathSet.of(mine).ways
        for path in self.written:
            if path in ways or any(part in mine for part in folders_above(path)):
                raise Conflict(
                    f"{show(path)} was written by {self.begun[-1].command}, which was interrupted, and conflicts with "
                    "a change of yours",
                    subject=path.decode("utf-8", "backslashreplace"),
                    hint=self.begun[-1].finish,
                )


def find_baseline(
    workspace: Workspace,
    state: WorkspaceState,
    base: CommitId | None,
    trees: Trees,
    only: tuple[bytes, ...] = (),
    *,
    writes: bool = False,
    rehash: bool = False,
) -> Baseline:
    """Scan the workspace, or these paths of it.

    writes: for a command that writes files; temporary files of killed commands are removed first. rehash:
    read every file again, whatever its stat is. trees: used only if the state does not mirror the base, or a
    command was interrupted.
    """
    begun = unfinished(workspace.begun(), base)
    begun = tuple(each for each in begun if trees.have(each))
    if begun:
        state.exact = None  # it may describe only what the killed command had done

    def base_entries() -> Iterator[Entry]:
        tree = trees.of(base)
        if tree is None:
            return iter(())
        return tree.objects.erasures.without(entry for entry, _ in tree.within(held_by(state)))

    if writes:
        scan = scan_clean_workspace(workspace.root, state, base, base_entries)
    else:
        scan = scan_workspace(workspace.root, state, base, base_entries, only, rehash=rehash)
    held = held_by(state)
    written = take_written(scan, _changes(begun, base, trees, held)) if begun else {}
    collisions = compare_outside(scan, lambda: trees.of(base), held)
    return Baseline(scan, trees, begun, written, held, collisions)


def load_state(workspace: Workspace) -> WorkspaceState:
    return WorkspaceState.load(workspace.state_folder, workspace.chosen)


def save_news(workspace: Workspace, state: WorkspaceState) -> None:
    """Save the state if it has changed, unless another command is at work here or it can't be written."""
    if not state.has_news:
        return
    with suppress(Denied, NoRoom, Unreachable):
        lock = workspace.try_lock(BRIEF)
        if isinstance(lock, Lock):
            with lock:
                if state.is_newest:
                    state.save()


@contextmanager
def open_baseline(
    opened: OpenWorkspace,
    base: CommitId | None,
    only: tuple[bytes, ...] = (),
    *,
    writes: bool = False,
    rehash: bool = False,
) -> Iterator[Baseline]:
    """Provide the baseline of a workspace whose lock is held; save the state after. See `find_baseline`."""
    state = load_state(opened.workspace)
    trees = Trees(lambda: opened.repository.objects, proven=True)
    try:
        yield find_baseline(opened.workspace, state, base, trees, only, writes=writes, rehash=rehash)
    finally:
        state.save()


def scan_clean_workspace(
    root: Path, state: WorkspaceState, base: CommitId | None, base_entries: BaseEntries
) -> WorkspaceScan:
    """Remove the temporary files of killed commands, and scan the whole workspace, again after a removal: a
    temporary file may be a hard link of a finished file, whose ctime then changes."""
    scan = scan_workspace(root, state, base, base_entries)
    if scan.leftovers:
        from dsv.workspace.write import CheckoutWriter

        with CheckoutWriter(root) as writer:
            for path in scan.leftovers:
                writer.remove(path, None)
        scan = scan_workspace(root, state, base, base_entries)
    return scan


def _changes(
    begun: tuple[StartedCommand, ...], base: CommitId | None, trees: Trees, held: WorkspacePaths
) -> Iterator[PathChange]:
    """Yield the changes that these commands were to make, except where the base has changed since."""
    for each in begun:
        before, after = trees.of(each.base), trees.of(each.commit)
        moved = frozenset[bytes]()
        if each.base != base:
            moved = frozenset(change.path for change in diff_trees(before, trees.of(base), held))
        chosen, less = (PathSet.of(map(str.encode, paths)) for paths in (each.paths, each.less))
        for change in diff_trees(before, after, held):
            restored = each.less and change.path in less
            if chosen.touches(change.path) and not restored and change.path not in moved:
                yield change


def below(
    tree: TreeReader | None, path: bytes, held: WorkspacePaths
) -> Iterator[tuple[Entry, Location | None]]:
    """Return the held entries at or below this path."""
    if tree is None:
        return iter(())
    return tree.below(path) if held.whole else tree.within(Both(PathSet.of([path]), held))


def take_written(scan: WorkspaceScan, changes: Iterable[PathChange]) -> dict[bytes, Entry | None]:
    """Return the entries of paths that are as an interrupted command was to make them, and mark them as
    unchanged in the scan, which is exact.

    changes: the changes of the commands, at paths where the base still has the `before`. Files are read if
    their stats are not enough. Folders above the changes may have become empty.
    """
    from dsv.workspace.plan import WorkspaceFiles  # which other commands do not need

    found: dict[bytes, Entry | None] = {}
    folders: set[bytes] = set()
    with about(scan.root), Descent(scan.root) as descent:
        disk = WorkspaceFiles(scan, descent)
        for change in changes:
            if change.path not in found and difference(change.before, change.after) is not None:
                if _take(scan, disk, change):
                    found[change.path] = change.after
                    scan.state.gone.discard(change.path)
                folders.update(folders_above(change.path))
        for path in folders:
            if found.get(path) is None and _take_empty(scan, path):
                found[path] = Entry(path, Kind.EMPTY_DIRECTORY)
    scan.compared_with_more_than_the_base()
    return found


def _take(scan: WorkspaceScan, disk: WorkspaceFiles, change: PathChange) -> bool:
    path, wanted = change.path, change.after
    if wanted is None:
        return disk.row(path) is None and disk.entry(path) is None
    if wanted.kind is Kind.EMPTY_DIRECTORY:
        return _take_empty(scan, path)
    item = disk.item(path)
    if item is None or item.kind is not wanted.kind or item.size != wanted.size:
        return False
    disk.relate(path, wanted)  # before it is read: then a large file's recipe is known
    with suppress(Conflict):  # it can't be read
        if difference(disk.entry(path), wanted) is None:
            return True
    disk.relate(path, change.before)
    return False


def _take_empty(scan: WorkspaceScan, path: bytes) -> bool:
    """Mark an empty folder that the base does not have as unchanged; False if it is none."""
    folder = scan.state.folder(path)
    if folder is None or not folder.is_empty or folder.own == OWN_SAME:
        return False
    scan.state.edit(path).own = OWN_SAME
    scan.state.gone.discard(path)
    return True
