"""Sparse workspaces: which paths are here, and checks against likely mistakes."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dsv.errors import Conflict, NotFound
from dsv.format.tree import Kind
from dsv.values.paths import folders_above, show, sort_key
from dsv.values.units import format_count
from dsv.workspace.scan.folder import KEPT, OWN_SAME, Relation

if TYPE_CHECKING:
    from dsv.format.tree import Entry
    from dsv.repo.tree.read import Found, TreeReader
    from dsv.values.patterns import SparsePatterns
    from dsv.values.progress import Progress
    from dsv.workspace.scan.result import Pending, WorkspaceScan
    from dsv.workspace.scan.state import State


@dataclass(frozen=True)
class Held:
    """Paths that a workspace has: what its patterns match, and single paths beside these.

    Anything else is absent here, which says nothing about the dataset.
    """

    chosen: SparsePatterns
    outside: frozenset[bytes] = frozenset()
    _keys: list[bytes] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keys", sorted(map(sort_key, self.outside)))

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

    def with_paths(self, paths: Iterable[bytes]) -> Held:
        return Held(self.chosen, self.outside.union(paths))


def held_by(state: State) -> Held:
    """Return the paths of a workspace that was just scanned: the chosen ones, and every other file that is there."""
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
    return Held(chosen, frozenset(outside))


class Collision(msgspec.Struct, frozen=True):
    """The new path can't be in one tree with `other`, which the dataset has and the workspace does not.

    They are one path if it is an empty folder here and a file there.
    """

    path: bytes
    other: bytes

    def __str__(self) -> str:
        if self.path == self.other:
            return f"the empty folder {show(self.path)} is in the way of the dataset's file"
        return f"{show(self.path)} is in the way of {show(self.other)}"


def compare_outside(
    scan: WorkspaceScan, base: Callable[[], TreeReader | None], held: Held
) -> tuple[Collision, ...]:
    """Compare new paths of a sparse workspace with what the base has there and around it, which the state does not
    know: a new file may be in the place of one that is not here, and then it is a change of it. Gives the collisions.

    A folder that is empty here, and has files in the base, is nothing new; where the base has a file, it is a
    collision. A folder that is empty in the base, and not here, is
    missing if there is something in it now.
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
    from dsv.repo.tree.read import find_paths

    for path, found in find_paths(tree, new):
        item, above = new[path], found.above
        if path not in held.chosen:
            _compare(scan, item, found.entry)
        if above is not None and above.kind is Kind.EMPTY_DIRECTORY and above.path not in held.chosen:
            missing.add(above.path)
        if found.below and item.kind is Kind.EMPTY_DIRECTORY and _absent_below(tree, path, held) is not None:
            filled.add(path)
        collisions += _collisions_at(tree, item, found, held)
    scan.filled_elsewhere = frozenset(filled)
    if missing:
        scan.missing = sorted(missing.union(scan.missing), key=sort_key)
    return tuple(collisions)


def collisions_with(tree: TreeReader, scan: WorkspaceScan, held: Held) -> Iterator[Collision]:
    """Return the same for a tree that is not the base: what it has, and the workspace would not have, is in the way."""
    new = {item.path: item for item in scan.pending() if item.relation is Relation.ABSENT}
    from dsv.repo.tree.read import find_paths

    for path, found in find_paths(tree, new):
        yield from _collisions_at(tree, new[path], found, held)


def _collisions_at(tree: TreeReader, item: Pending, found: Found, held: Held) -> Iterator[Collision]:
    is_empty = item.kind is Kind.EMPTY_DIRECTORY
    for there in (found.above, found.entry if is_empty else None):
        if there is not None and there.kind is not Kind.EMPTY_DIRECTORY and there.path not in held:
            yield Collision(item.path, there.path)
    if found.below and not is_empty:
        other = _absent_below(tree, item.path, held)
        if other is not None:
            yield Collision(item.path, other)


def count_held(scan: WorkspaceScan) -> int:
    """Return how many paths of the base the workspace has, or had before they went."""
    count = len(scan.missing)
    for path in scan.state.paths():
        folder = scan.state.folder(path)
        if folder is not None:
            count += sum(
                kind in KEPT and folder.relation(at) is not Relation.ABSENT
                for at, kind in enumerate(folder.kinds)
            )
            count += folder.own == OWN_SAME
    return count


def links_with(tree: TreeReader, scan: WorkspaceScan, held: Held) -> dict[bytes, bytes]:
    """Return every symlink of the tree that a sync would make: those here, and those of the base that are not held."""
    links = {path: target for path, target in tree.links().items() if path not in held}
    links.update(scan.state.links())
    return links


def _compare(scan: WorkspaceScan, item: Pending, entry: Entry | None) -> None:
    if item.kind is not Kind.EMPTY_DIRECTORY:
        scan.relate(item, entry)
    elif entry is not None and entry.kind is Kind.EMPTY_DIRECTORY:
        scan.state.edit(item.path).own = OWN_SAME


def _absent_below(tree: TreeReader, path: bytes, held: Held) -> bytes | None:
    return next((entry.path for entry, _ in tree.below(path) if entry.path not in held), None)


# More than half of a dataset of at least this many files is never removed by accident.
MANY = 20


def check_removals(scan: WorkspaceScan, base: TreeReader | None, *, allowed: bool) -> None:
    """Raise `Conflict` if a sync would remove more than half of the files, or all of a top-level folder.

    Of a sparse workspace, what counts is the part of the dataset that it has.
    """
    if base is None or allowed or not scan.missing:
        return
    whole = scan.state.chosen.whole
    here = "" if whole else " that this workspace has"
    removed, before = len(scan.missing), base.commit.entries if whole else count_held(scan)
    if before >= MANY and removed * 2 > before:
        raise _refused(f"{removed:,} of {before:,} paths{here}", str(scan.root))
    for top in emptied(scan):
        raise _refused(f"everything{here} in {top.decode(errors='backslashreplace')}/", str(scan.root))


def note_let_go(scan: WorkspaceScan, progress: Progress) -> None:
    """Say that what went here, beside what a sparse workspace is to have, stays in the dataset."""
    if not scan.let_go:
        return
    first, others = show(scan.let_go[0]), len(scan.let_go) - 1
    more = f" and {format_count(others, 'more path')} were" if others else " was"
    progress.note(
        f"{first}{more} deleted here, and remain{'' if others else 's'} in the dataset, as the patterns of this sparse "
        "workspace don't include it: dsv rm removes files from a dataset"
    )


def emptied(scan: WorkspaceScan) -> list[bytes]:
    """Top-level folders that are in the base and missing on disk."""
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


def restorable(scan: WorkspaceScan, renamed: Container[bytes]) -> list[bytes]:
    """Return what is missing and not renamed, in few paths: a folder if no file is left in it. To restore these loses
    no local change.
    """
    root, tops = os.fsencode(scan.root) + b"/", set(emptied(scan))
    gone: dict[bytes, bool] = {}

    def is_gone(folder: bytes) -> bool:
        if folder not in gone:
            empty = folder in tops and scan.state.folder(folder) is not None
            gone[folder] = empty or not os.path.lexists(root + folder)
        return gone[folder]

    found: dict[bytes, None] = {}
    for path in scan.missing:
        if path in renamed:
            continue
        above = [*folders_above(path), b""]
        way = next((each for each in reversed(above[:-1]) if is_gone(each)), None)
        if way is None and scan.state.folder(above[0]) is not None and not os.path.lexists(root + path):
            way = path
        if way is not None:
            found[way] = None
    return list(found)


def _refused(what: str, root: str) -> Conflict:
    return Conflict(
        f"this sync would remove {what} from the dataset; if unintended, check the mounts in {root}",
        subject=root,
        hint="dsv status shows what is missing; dsv restore brings it back; dsv sync --allow-removals publishes the "
        "removal",
    )


def check_paths(root: Path, base: Callable[[], TreeReader | None], paths: Iterable[bytes]) -> None:
    """Raise `NotFound` for a path that is neither on disk nor in the base, which is read only if it is needed."""
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
        return f"a path is wanted here; dsv ls {path.decode(errors='replace')} shows what a commit has"
    folder, _, name = path.rpartition(b"/")
    try:
        names = [one.name for one in (root / os.fsdecode(folder)).iterdir()]
    except OSError:
        names = []
    close = get_close_matches(os.fsdecode(name), names, n=1)
    if not close:
        return "dsv ls shows the paths of the base"
    return f"did you mean {Path(os.fsdecode(folder)) / close[0]}?"
