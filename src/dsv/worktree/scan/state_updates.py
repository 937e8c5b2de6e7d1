"""Changes to the state that do not come from a scan: what the base has, and what dsv itself wrote."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from dsv.fs.descent import split
from dsv.model.diff import difference
from dsv.model.entry import Entry, Kind
from dsv.worktree.scan.folder import (
    DIRECTORY,
    IGNORED,
    KEPT,
    NO_ID,
    OWN_SAME,
    READ,
    ROW,
    TRUSTED,
    UNSUPPORTED,
    Folder,
    Relation,
    with_relation,
)
from dsv.worktree.scan.state import State

_INDEXES = 64  # folders whose names are held in a dict at a time
_TO_ABSENT = bytes(with_relation(value, Relation.ABSENT) for value in range(256))


def sync_with_tree(state: State, entries: Iterable[Entry]) -> set[bytes]:
    """Sets every relation by these entries, and gives the paths that are not on disk.

    A file whose content is not known is taken to be the base's until it is read: SAME, and not trusted.
    """
    for path in state.paths():
        _forget(state.edit(path))
    names = NameIndex(state)
    gone: set[bytes] = set()
    for entry in entries:
        if entry.kind is Kind.EMPTY_DIRECTORY:
            folder = state.folder(entry.path)
            if folder is not None and folder.is_empty:
                state.edit(entry.path).own = OWN_SAME
            else:
                gone.add(entry.path)
            continue
        above, name = split(entry.path)
        at = names.find(above, name)
        if at is None or state.edit(above).kinds[at] not in KEPT:
            gone.add(entry.path)
        else:
            relate(state.edit(above), at, entry)
    return gone


def relate(folder: Folder, at: int, entry: Entry) -> None:
    """Sets one name's relation to the base, which has `entry` there."""
    kind, known = folder.kinds[at], folder.marks[at] & (TRUSTED | READ)
    relation = Relation.DIFFERS
    if kind == Kind.SYMLINK or entry.kind is Kind.SYMLINK:
        if kind == entry.kind and folder.targets.get(at) == entry.target:
            relation = Relation.SAME
    elif not known & TRUSTED:
        assert entry.file_id is not None
        relation, known = Relation.SAME, 0
        folder.set_id(at, entry.file_id, entry.recipe_id)
        folder.sizes[at] = entry.size
    elif kind == entry.kind and folder.id_at(at) == entry.file_id:
        relation = Relation.SAME
        folder.set_id(at, entry.file_id, entry.recipe_id)
        folder.sizes[at] = entry.size
    folder.marks[at] = with_relation(known, relation, entry.kind)


def _forget(folder: Folder) -> None:
    folder.marks = bytearray(folder.marks.translate(_TO_ABSENT))
    for kind in (DIRECTORY, IGNORED, UNSUPPORTED):
        for at in folder.positions(kind):
            folder.marks[at] = 0
    folder.own = 0


class NameIndex:
    """Positions by name, for the folders that were asked for last."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._indexes: dict[bytes, dict[bytes, int]] = {}

    def clear(self) -> None:
        """To be called if names were added or removed."""
        self._indexes.clear()

    def find(self, folder: bytes, name: bytes) -> int | None:
        index = self._indexes.get(folder)
        if index is None:
            known = self._state.folder(folder)
            index = {} if known is None else {each: at for at, each in enumerate(known.name_list())}
            if len(self._indexes) >= _INDEXES:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[folder] = index
        return index.get(name)


# So many names are held before they are merged into their folders.
_LIMIT = 1 << 16


class _Written(msgspec.Struct, frozen=True):
    """A file or symlink that dsv wrote: its stat afterwards, its entry, and what the base has there."""

    row: bytes
    entry: Entry
    base: Entry | None


class Patches:
    """What dsv wrote, to be merged into the state's folders. Flush before the state is used for anything else."""

    def __init__(self, state: State, *, trusted: bool = True) -> None:
        """trusted: whether a stat vouches for a file on this file system at all."""
        self._known = TRUSTED if trusted else READ
        self._state = state
        self._folders: dict[bytes, dict[bytes, _Written | None]] = {}
        self._held = 0

    def written(self, entry: Entry, row: bytes, base: Entry | None) -> None:
        """The path is now `entry`. Nobody else could open the file before it had its name, so its stat is trusted."""
        self._note(entry.path, _Written(row, entry, base))

    def removed(self, path: bytes) -> None:
        self._note(path, None)

    def folder(self, path: bytes, *, in_base: bool) -> bool:
        """Notes an empty folder; False if it is not empty, or not there."""
        known = self._state.folder(path)
        if known is None or not known.is_empty:
            return False
        known.own = OWN_SAME if in_base else 0
        self._state.put(known)
        return True

    @property
    def is_full(self) -> bool:
        """Whether it is time to flush, so that they do not take too much memory."""
        return self._held >= _LIMIT

    def flush(self) -> None:
        """Merges them. Positions in folders change by it."""
        for path, changes in self._folders.items():
            merged = _merge(self._state.folder(path) or Folder(path), changes, self._known)
            if len(merged):
                self._state.put(merged)
            else:
                self._state.drop(path)
        self._folders.clear()
        self._held = 0

    def _note(self, path: bytes, change: _Written | None) -> None:
        above, name = split(path)
        self._folders.setdefault(above, {})[name] = change
        self._held += 1


def _merge(old: Folder, changes: dict[bytes, _Written | None], known: int) -> Folder:
    positions = {name: at for at, name in enumerate(old.name_list())}
    names = sorted({*positions, *changes} - {name for name, change in changes.items() if change is None})
    count = len(names)
    new = Folder(old.path, b"\0".join(names), rules=old.rules)
    new.rows, new.ids = bytearray(count * ROW.size), bytearray(count * 32)
    new.kinds, new.marks, new.sizes = bytearray(count), bytearray(count), array("Q", bytes(8 * count))
    for at, name in enumerate(names):
        change = changes.get(name)
        if change is None:
            _copy(old, positions[name], new, at)
        else:
            _fill(new, at, change, known)
    return new


def _copy(old: Folder, before: int, new: Folder, at: int) -> None:
    new.rows[at * ROW.size : (at + 1) * ROW.size] = old.row(before)
    new.kinds[at], new.marks[at], new.sizes[at] = old.kinds[before], old.marks[before], old.sizes[before]
    new.set_id(at, old.id_at(before), old.recipes.get(before))
    if before in old.targets:
        new.targets[at] = old.targets[before]


def _fill(new: Folder, at: int, change: _Written, known: int) -> None:
    entry = change.entry
    new.rows[at * ROW.size : (at + 1) * ROW.size] = change.row
    new.kinds[at], new.sizes[at] = entry.kind, entry.size
    new.set_id(at, entry.file_id or NO_ID, entry.recipe_id)
    if entry.kind is Kind.SYMLINK:
        assert entry.target is not None
        new.targets[at] = entry.target
    if change.base is None:
        new.marks[at] = with_relation(known, Relation.ABSENT)
    elif difference(change.base, entry) is not None:
        new.marks[at] = with_relation(known, Relation.DIFFERS, change.base.kind)
    else:
        new.marks[at] = with_relation(known & TRUSTED, Relation.SAME, entry.kind)
