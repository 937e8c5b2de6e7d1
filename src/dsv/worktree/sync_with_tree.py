"""Making the state mirror a commit, by going through that commit's entries once."""

from __future__ import annotations

from collections.abc import Iterable

from dsv.fs.descent import split
from dsv.model.entry import Entry, Kind
from dsv.worktree.folder import (
    DIRECTORY,
    IGNORED,
    KEPT,
    OWN_SAME,
    READ,
    TRUSTED,
    UNSUPPORTED,
    Folder,
    Relation,
    with_relation,
)
from dsv.worktree.state import State

_INDEXES = 64  # folders whose names are held in a dict at a time
_TO_ABSENT = bytes(with_relation(value, Relation.ABSENT) for value in range(256))


def sync_with_tree(state: State, entries: Iterable[Entry]) -> set[bytes]:
    """Sets every relation by these entries; gives the paths that are not on disk.

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
    """Positions by name, for the folders asked for last."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._indexes: dict[bytes, dict[bytes, int]] = {}

    def clear(self) -> None:
        """Forgets them: names came or went."""
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
