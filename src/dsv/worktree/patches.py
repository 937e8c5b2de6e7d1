"""Noting in the state what was written to the workspace, a folder at a time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from dsv.fs.descent import split
from dsv.model.entry import Entry, Kind
from dsv.worktree.folder import NO_ID, OWN_SAME, READ, ROW, TRUSTED, Folder, Relation, with_relation
from dsv.worktree.state import State
from dsv.worktree.status import difference

# So many names are held before they are merged into their folders.
_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class _Written:
    """A file or symlink that dsv wrote: its stat afterwards, its entry, and what the base has there."""

    row: bytes
    entry: Entry
    base: Entry | None


class Patches:
    """Changes to be merged into the state's folders. Flush before the state is used for anything else."""

    def __init__(self, state: State, *, trusted: bool = True) -> None:
        """trusted: whether a stat vouches for a file on this file system at all."""
        self._known = TRUSTED if trusted else READ
        self._state = state
        self._folders: dict[bytes, dict[bytes, _Written | None]] = {}
        self._held = 0

    def written(self, entry: Entry, row: bytes, base: Entry | None) -> None:
        """The path now is `entry`. Nobody else knew the file before it had its name, so its row vouches for it."""
        self._note(entry.path, _Written(row, entry, base))

    def removed(self, path: bytes) -> None:
        self._note(path, None)

    def folder(self, path: bytes, *, in_base: bool) -> bool:
        """Notes an empty folder; False where it is not empty, or not there."""
        known = self._state.folder(path)
        if known is None or not known.is_empty:
            return False
        known.own = OWN_SAME if in_base else 0
        self._state.put(known)
        return True

    @property
    def is_full(self) -> bool:
        """Whether it is time to flush, lest they take too much memory."""
        return self._held >= _LIMIT

    def flush(self) -> None:
        """Merges them. Positions in folders are others afterwards."""
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
