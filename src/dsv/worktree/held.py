"""What a sparse workspace has of a commit, and how it stands to what it has not."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.paths import show
from dsv.model.sparse_patterns import SparsePatterns
from dsv.repo.find_paths import find_paths
from dsv.repo.trees import TreeReader
from dsv.worktree.scan.folder import KEPT, OWN_SAME, Relation
from dsv.worktree.scan.state import State
from dsv.worktree.scan.workspace_scan import Pending, WorkspaceScan


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
    """What a workspace that was just scanned has: beside what is chosen, every other file that is there."""
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
    """Compares new paths of a sparse workspace with what the base has there and around it, which the state does not
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
    for path, found in find_paths(tree, new):
        item = new[path]
        if path not in held.chosen and not _compare(scan, item, found.entry):
            collisions.append(Collision(path, path))
        if found.above is not None and found.above.path not in held.chosen:
            if found.above.kind is Kind.EMPTY_DIRECTORY:
                missing.add(found.above.path)
            elif found.above.path not in held:
                collisions.append(Collision(path, found.above.path))
        if found.below:
            other = _absent_below(tree, path, held)
            if other is not None and item.kind is Kind.EMPTY_DIRECTORY:
                filled.add(path)
            elif other is not None:
                collisions.append(Collision(path, other))
    scan.filled_elsewhere = frozenset(filled)
    if missing:
        scan.missing = sorted(missing.union(scan.missing), key=sort_key)
    return tuple(collisions)


def collisions_with(tree: TreeReader, scan: WorkspaceScan, held: Held) -> Iterator[Collision]:
    """The same for a tree that is not the base: what it has, and the workspace would not have, is in the way."""
    new = {item.path: item for item in scan.pending() if item.relation is Relation.ABSENT}
    for path, found in find_paths(tree, new):
        empty = new[path].kind is Kind.EMPTY_DIRECTORY
        for there in (found.above, found.entry if empty else None):
            if there is not None and there.kind is not Kind.EMPTY_DIRECTORY and there.path not in held:
                yield Collision(path, there.path)
        if found.below and not empty:
            other = _absent_below(tree, path, held)
            if other is not None:
                yield Collision(path, other)


def count_held(scan: WorkspaceScan) -> int:
    """How many paths of the base the workspace has, or had before they went."""
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
    """Every symlink of the tree that a sync would make: those here, and those of the base that are not held."""
    links = {path: target for path, target in tree.links().items() if path not in held}
    for path in scan.state.paths():
        folder = scan.state.folder(path)
        if folder is not None and folder.targets:
            names = folder.name_list()
            links.update(
                (folder.path_of(names[at]), folder.targets[at]) for at in folder.positions(Kind.SYMLINK)
            )
    return links


def _compare(scan: WorkspaceScan, item: Pending, entry: Entry | None) -> bool:
    """False for an empty folder in the place of a file that is not here: a commit of it would remove the file."""
    if item.kind is not Kind.EMPTY_DIRECTORY:
        scan.relate(item, entry)
    elif entry is not None:
        if entry.kind is not Kind.EMPTY_DIRECTORY:
            return False
        scan.state.edit(item.path).own = OWN_SAME
    return True


def _absent_below(tree: TreeReader, path: bytes, held: Held) -> bytes | None:
    return next((entry.path for entry, _ in tree.below(path) if entry.path not in held), None)
