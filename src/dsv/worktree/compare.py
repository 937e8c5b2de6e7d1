"""What a listing says against what is remembered of the folder. Pure: looks at columns, touches no file."""

from __future__ import annotations

import stat
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from dsv.worktree.folder import (
    DIRECTORY,
    IGNORED,
    KEPT,
    READ,
    RELATIONS,
    ROW,
    TRUSTED,
    UNSUPPORTED,
    Folder,
    Relation,
    differing,
    mark,
)
from dsv.worktree.ignore import Rules
from dsv.worktree.listing import Listing

_FORGET = 0xFF & ~(TRUSTED | READ)


@dataclass(slots=True)
class Compared:
    """A folder as the disk has it now.

    lost: (name, kind) of entries that the base has, or may have, and that are no files or symlinks any more.
    fresh: positions whose names were not found fit for a tree before.
    """

    folder: Folder
    lost: list[tuple[bytes, int]]
    fresh: Iterable[int]


def is_unchanged(old: Folder, listing: Listing, rules: Rules) -> bool:
    """Whether the folder is as in the base and as remembered. Blanks the rows of ignored names in the listing."""
    if old.names != listing.blob or old.rules != rules.digest:
        return False
    for at in old.positions(IGNORED):
        listing.blank(at)
    return old.rows == listing.rows and old.is_clean


def compare(path: bytes, old: Folder | None, listing: Listing, rules: Rules) -> Compared:
    """The folder as it is now, with what is remembered of each name that still is what it was."""
    if old is not None and old.names == listing.blob and old.rules == rules.digest:
        refreshed = _refresh(old, listing)
        if refreshed is not None:
            return refreshed
    return _rebuild(path, old, listing, rules)


def _refresh(old: Folder, listing: Listing) -> Compared | None:
    """The same names: only rows that differ are looked at. None if a verdict of the ignore rules may change."""
    changed = differing(old.rows, listing.rows, ROW.size)
    if old.rules and any(_type(old, at) != stat.S_IFMT(listing.mode(at)) for at in changed):
        return None
    kinds = listing.kinds
    for at in old.positions(IGNORED):
        kinds[at] = IGNORED
    folder = Folder(
        old.path,
        old.names,
        listing.rows,
        kinds,
        bytearray(old.marks),
        array("Q", old.sizes),
        bytearray(old.ids),
        dict(old.recipes),
        dict(old.targets),
        old.own,
        old.rules,
    )
    lost: list[tuple[bytes, int]] = []
    fresh = list(old.positions(UNSUPPORTED))
    names = old.name_list() if changed or fresh else []
    for at in changed:
        if old.kinds[at] in KEPT and kinds[at] in KEPT:
            folder.marks[at] &= _FORGET
        elif old.kinds[at] in KEPT:
            _lose(lost, old, at, names[at])
            _clear(folder, at)
        if kinds[at] not in KEPT:
            folder.marks[at] = 0
        elif old.kinds[at] not in KEPT:
            folder.marks[at] = mark(Relation.ABSENT)
    for at in fresh:
        folder.marks[at] = mark(Relation.ABSENT) if kinds[at] in KEPT else 0
    return Compared(folder, lost, fresh)


def _rebuild(path: bytes, old: Folder | None, listing: Listing, rules: Rules) -> Compared:
    """Other names than before, other rules, or nothing remembered."""
    folder = Folder.blank(path, listing.blob, listing.rows, listing.kinds, Relation.ABSENT)
    folder.rules = rules.digest
    names = folder.name_list()
    positions = {} if old is None else {name: at for at, name in enumerate(old.name_list())}
    if rules.digest:
        _ignore(folder, names, old, positions, listing, rules)
    for at in _places_without_entry(folder):
        folder.marks[at] = 0
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
        _lose(lost, old, before, name)
    return Compared(folder, lost, fresh)


def _ignore(
    folder: Folder,
    names: list[bytes],
    old: Folder | None,
    positions: dict[bytes, int],
    listing: Listing,
    rules: Rules,
) -> None:
    """Marks what the rules leave out. Verdicts of the same rules on the same names are remembered: matching is slow."""
    same_rules = old is not None and old.rules == rules.digest
    for at, name in enumerate(names):
        kind = stat.S_IFMT(listing.mode(at))
        before = positions.get(name) if same_rules else None
        if before is not None and old is not None and _type(old, before) == kind:
            ignored = old.kinds[before] == IGNORED
        else:
            ignored = rules.ignores(folder.path_of(name), directory=kind == stat.S_IFDIR)
        if ignored:
            folder.kinds[at] = IGNORED
            listing.blank(at)


def _places_without_entry(folder: Folder) -> Iterable[int]:
    for kind in (DIRECTORY, IGNORED, UNSUPPORTED):
        yield from folder.positions(kind)


def _carry(
    folder: Folder, at: int, old: Folder, before: int, name: bytes, lost: list[tuple[bytes, int]]
) -> None:
    """What is remembered of a name, at its new position."""
    if old.kinds[before] not in KEPT:
        return
    if folder.kinds[at] not in KEPT:
        _lose(lost, old, before, name)
        return
    same = folder.row(at) == old.row(before)
    folder.marks[at] = old.marks[before] if same else old.marks[before] & _FORGET
    folder.sizes[at] = old.sizes[before]
    folder.set_id(at, old.id_at(before), old.recipes.get(before))
    if before in old.targets:
        folder.targets[at] = old.targets[before]


def _lose(lost: list[tuple[bytes, int]], old: Folder, at: int, name: bytes) -> None:
    if old.kinds[at] in KEPT and RELATIONS[old.marks[at]] is not Relation.ABSENT:
        lost.append((name, old.kinds[at]))


def _clear(folder: Folder, at: int) -> None:
    folder.set_id(at, bytes(32), None)
    folder.targets.pop(at, None)
    folder.sizes[at] = 0


def _type(folder: Folder, at: int) -> int:
    return stat.S_IFMT(int.from_bytes(folder.rows[(at + 1) * ROW.size - 4 : (at + 1) * ROW.size], "little"))
