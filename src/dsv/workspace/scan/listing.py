"""Listing a folder with the stats of all that is in it, and comparing that with what is remembered of the folder."""

from __future__ import annotations

import operator
import os
import stat
import struct
import sys
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from dsv.transfer.file_reader import ROW, row_of
from dsv.workspace.scan.folder import (
    DIRECTORY,
    IGNORED,
    KEPT,
    READ,
    RELATIONS,
    TRUSTED,
    UNSUPPORTED,
    Folder,
    Relation,
    differing,
    mark,
)

if TYPE_CHECKING:
    from dsv.workspace.scan.ignore import Rules

# The names that `model.paths` refuses as dsv's and git's own are not seen at all.
_RESERVED = (b".dsv", b".git")
_LONG_S = "ſ".encode()
# The name of a file that is being written: this and 16 hex digits. A killed pull may leave some.
TEMPORARY = b".dsv-tmp-"
_TEMPORARY_LENGTH = len(TEMPORARY) + 16

_IS_UTF8 = sys.getfilesystemencoding() == "utf-8"
_fields = operator.attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode")
_MODE = ROW.size - 4  # where the mode lies in a row

# The upper byte of a mode gives the type, the lower one whether the owner may execute; both together a kind.
_TYPES = bytearray([UNSUPPORTED]) * 256
for _bits in range(16):
    _TYPES[stat.S_IFREG >> 8 | _bits] = 0
    _TYPES[stat.S_IFLNK >> 8 | _bits] = 2
    _TYPES[stat.S_IFDIR >> 8 | _bits] = DIRECTORY
_EXECUTABLE = bytes(1 if bits & stat.S_IXUSR else 0 for bits in range(256))
_KINDS = bytes((0, 1, 2, 2, DIRECTORY, DIRECTORY, UNSUPPORTED, UNSUPPORTED)) + bytes(248)


class Listing(msgspec.Struct):
    """Names in bytewise order, as the os module gives them and as bytes joined by NUL, with a row and a kind for each.

    leftovers: names of temporary files that a killed command left.
    """

    names: list[str]
    blob: bytes
    rows: bytearray
    kinds: bytearray
    leftovers: list[str]

    def blank(self, at: int) -> None:
        """Leaves only the type in a row."""
        mode = stat.S_IFMT(self.mode(at)) | 0o444
        self.rows[at * ROW.size : (at + 1) * ROW.size] = ROW.pack(0, 0, 0, 0, mode)

    def mode(self, at: int) -> int:
        return int.from_bytes(self.rows[at * ROW.size + _MODE : (at + 1) * ROW.size], "little")

    def all_readable(self) -> bool:
        """Whether owner, group and others may all read everything here."""
        low, high = self.rows[_MODE :: ROW.size], self.rows[_MODE + 1 :: ROW.size]
        return not low.translate(None, _OTHERS_READ) and not high.translate(None, _OWNER_READS)


_OTHERS_READ = bytes(bits for bits in range(256) if bits & 0o044 == 0o044)
_OWNER_READS = bytes(bits for bits in range(256) if bits & 0o400 >> 8)


def list_folder(descriptor: int) -> Listing:
    """Everything in the folder, its stats taken without following symlinks. Raises `OSError`.

    What vanishes meanwhile is left out. The rows of folders have only the type: their times change with what is in
    them, which their own listing tells.
    """
    names = os.listdir(descriptor)
    names.sort()
    blob = os.fsencode("\0".join(names))
    if not blob.isascii() and not (_IS_UTF8 and is_utf8(blob)):
        names.sort(key=os.fsencode)  # the order of code points is not that of these bytes
        blob = os.fsencode("\0".join(names))
    folded = blob.lower()
    leftovers: list[str] = []
    if b".dsv" in folded or b".git" in folded or _LONG_S in folded:
        leftovers = [name for name in names if _is_leftover(name)]
        names = [name for name in names if not _is_reserved(name) and not _is_leftover(name)]
        blob = os.fsencode("\0".join(names))
    try:
        rows = bytearray().join(
            [ROW.pack(*_fields(os.stat(name, dir_fd=descriptor, follow_symlinks=False))) for name in names]
        )
    except (FileNotFoundError, struct.error):
        names, rows = _one_by_one(descriptor, names)
        blob = os.fsencode("\0".join(names))
    listing = Listing(names, blob, rows, _kinds(rows), leftovers)
    at = listing.kinds.find(DIRECTORY)
    while at >= 0:
        listing.blank(at)
        at = listing.kinds.find(DIRECTORY, at + 1)
    return listing


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _one_by_one(descriptor: int, names: list[str]) -> tuple[list[str], bytearray]:
    found: list[str] = []
    rows = bytearray()
    for name in names:
        try:
            rows += row_of(os.stat(name, dir_fd=descriptor, follow_symlinks=False))
        except FileNotFoundError:
            continue
        found.append(name)
    return found, rows


def _kinds(rows: bytearray) -> bytearray:
    count = len(rows) // ROW.size
    types = int.from_bytes(rows[_MODE + 1 :: ROW.size].translate(_TYPES), "little")
    executable = int.from_bytes(rows[_MODE :: ROW.size].translate(_EXECUTABLE), "little")
    return bytearray((types | executable).to_bytes(count, "little").translate(_KINDS))


def _is_reserved(name: str) -> bool:
    return os.fsencode(name).lower().replace(_LONG_S, b"s") in _RESERVED


def _is_leftover(name: str) -> bool:
    raw = os.fsencode(name)
    if len(raw) != _TEMPORARY_LENGTH or not raw.startswith(TEMPORARY):
        return False
    return not raw[len(TEMPORARY) :].translate(None, b"0123456789abcdef")


_FORGET = 0xFF & ~(TRUSTED | READ)


class Compared(msgspec.Struct):
    """A folder as the disk has it now.

    lost: (name, kind) of entries that the base has, or may have, and that are no longer files or symlinks.
    fresh: positions of names that have not been checked for a tree yet.
    """

    folder: Folder
    lost: list[tuple[bytes, int]]
    fresh: Iterable[int]


def is_unchanged(old: Folder, listing: Listing, rules: Rules) -> bool:
    """Whether the folder is as in the base and as remembered. Blanks rows of ignored names in the listing."""
    if old.names != listing.blob or old.rules != rules.digest:
        return False
    for at in old.positions(IGNORED):
        listing.blank(at)
    return old.rows == listing.rows and old.is_clean


def compare(path: bytes, old: Folder | None, listing: Listing, rules: Rules) -> Compared:
    """The folder as it is now, with what is remembered of each name that has not changed."""
    if old is not None and old.names == listing.blob and old.rules == rules.digest:
        refreshed = _refresh(old, listing)
        if refreshed is not None:
            return refreshed
    return _rebuild(path, old, listing, rules)


def _refresh(old: Folder, listing: Listing) -> Compared | None:
    """For the same names: looks only at rows that differ. None if a verdict of the ignore rules may change."""
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
    """For other names than before, other rules, or if nothing is remembered."""
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
    """Marks what the rules leave out. Matching is slow, so verdicts of the same rules on the same names are kept."""
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
    """Copies what is remembered of a name to its new position."""
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
