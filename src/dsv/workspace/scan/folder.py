"""One folder of a workspace, in columns, and as bytes of the state file.

A workspace of a million files is a few thousand of these. Most of the time each is compared as a whole with what the
disk says, so that there is no Python object for a file that did not change.
"""

from __future__ import annotations

import bisect
import enum
import struct
from array import array
from collections.abc import Callable, Iterator

import msgspec

from dsv.format.tree import Entry, Kind
from dsv.transfer.file_reader import ROW
from dsv.values.ids import FileId, RecipeId

_SIZES = struct.Struct("<8xQ20x")  # the sizes alone, out of rows
NO_ID = bytes(32)

# What a name is, in the column `kinds`: `Kind.FILE`, `EXECUTABLE` and `SYMLINK`, or one of these.
DIRECTORY = 4
IGNORED = 5
UNSUPPORTED = 6
KEPT = frozenset((Kind.FILE, Kind.EXECUTABLE, Kind.SYMLINK))


class Relation(enum.IntEnum):
    """The relation of a path of the workspace to the base commit's tree."""

    UNKNOWN = 0
    """The base has the path. Whether it has the same entry is not known."""
    SAME = 1
    """The base has the remembered entry. So has the disk if the mark says TRUSTED; else the file must be read."""
    DIFFERS = 2
    """The base has something else there."""
    ABSENT = 3
    """The base has no such path."""


# A mark is one byte: whether the row vouches for the content; the relation; the base's kind, if the relation is SAME or
# DIFFERS; and whether the content was read, so that the id is right even if the row is too young to vouch for it later.
TRUSTED = 1
READ = 1 << 5
_RELATION = 1
_BASE_KIND = 3

_DISTRUSTED = bytes(value & ~(TRUSTED | READ) for value in range(256))

# The mark of a name that is as in the base, by its kind. UNSUPPORTED never is, so that it is reported every time.
_CLEAN = bytes(
    TRUSTED | Relation.SAME << _RELATION | kind << _BASE_KIND
    if kind in KEPT
    else 0xFF
    if kind == UNSUPPORTED
    else 0
    for kind in range(256)
)


def mark(relation: Relation, base_kind: int = 0, *, trusted: bool = False) -> int:
    return (TRUSTED if trusted else 0) | relation << _RELATION | base_kind << _BASE_KIND


# Calling an enumeration is slow, and these are asked for of every file that is read.
RELATIONS = tuple(Relation(value >> _RELATION & 3) for value in range(256))
BASE_KINDS = tuple(Kind(value >> _BASE_KIND & 3) for value in range(256))
KINDS = tuple(Kind)


def with_relation(value: int, relation: Relation, base_kind: int = 0) -> int:
    """Return the mark with another relation."""
    return value & (TRUSTED | READ) | relation << _RELATION | base_kind << _BASE_KIND


class Folder(msgspec.Struct):
    """The names in one folder in bytewise order, and columns with the facts about them."""

    path: bytes
    """Relative to the workspace's root; empty for the root."""
    names: bytes = b""
    """Joined by NUL. Includes ignored names, but not dsv's and git's own files."""
    rows: bytearray = msgspec.field(default_factory=bytearray)
    """`ROW` for each name; only the type for folders and ignored names."""
    kinds: bytearray = msgspec.field(default_factory=bytearray)
    """A byte for each name, as in `marks`."""
    marks: bytearray = msgspec.field(default_factory=bytearray)
    sizes: array[int] = msgspec.field(default_factory=lambda: array("Q"))
    """The base's size if the relation is SAME, else the size last read; 0 if unknown. `ids` likewise."""
    ids: bytearray = msgspec.field(default_factory=bytearray)
    recipes: dict[int, bytes] = msgspec.field(default_factory=dict)
    """By position, for large files."""
    targets: dict[int, bytes] = msgspec.field(default_factory=dict)
    """By position, for symlinks."""
    own: int = 0
    """The mark of the folder's own entry as an empty directory."""
    rules: int = 0
    """Digest of the ignore rules by which `kinds` was made, 0 for none."""

    @classmethod
    def blank(
        cls, path: bytes, names: bytes, rows: bytearray, kinds: bytearray, relation: Relation
    ) -> Folder:
        """A folder whose listing alone is known."""
        count = len(kinds)
        unknown = bytearray([mark(relation)]) * count
        return cls(path, names, rows, kinds, unknown, array("Q", bytes(8 * count)), bytearray(32 * count))

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def is_clean(self) -> bool:
        """Return whether every name is known to be as in the base."""
        return self.kinds.translate(_CLEAN) == self.marks and (
            self.own == (_CLEAN_DIRECTORY if self.is_empty else 0) or not self.path
        )

    @property
    def is_empty(self) -> bool:
        """Return whether no name goes into a tree, so that the folder itself does."""
        return not self.kinds.translate(None, _NOT_KEPT)

    def name_list(self) -> list[bytes]:
        return self.names.split(b"\0") if self.kinds else []

    def find(self, name: bytes) -> int | None:
        """Return the position of a name."""
        names = self.name_list()
        at = bisect.bisect_left(names, name)
        return at if at < len(names) and names[at] == name else None

    def path_of(self, name: bytes) -> bytes:
        return self.path + b"/" + name if self.path else name

    def row(self, at: int) -> bytes:
        return bytes(self.rows[at * ROW.size : (at + 1) * ROW.size])

    def size_on_disk(self, at: int) -> int:
        return int.from_bytes(self.rows[at * ROW.size + 8 : at * ROW.size + 16], "little")

    def id_at(self, at: int) -> bytes:
        return bytes(self.ids[at * 32 : (at + 1) * 32])

    def set_id(self, at: int, file_id: bytes, recipe_id: bytes | None) -> None:
        self.ids[at * 32 : (at + 1) * 32] = file_id
        if recipe_id is not None:
            self.recipes[at] = recipe_id
        else:
            self.recipes.pop(at, None)

    def copy_content(self, at: int, other: Folder, there: int) -> None:
        """Copy what is remembered of a name's content."""
        self.sizes[at] = other.sizes[there]
        self.set_id(at, other.id_at(there), other.recipes.get(there))
        if there in other.targets:
            self.targets[at] = other.targets[there]

    def unmark_others(self) -> None:
        """Remove the marks of names that are neither files nor symlinks."""
        for kind in (DIRECTORY, IGNORED, UNSUPPORTED):
            for at in self.positions(kind):
                self.marks[at] = 0

    def relation(self, at: int) -> Relation:
        return RELATIONS[self.marks[at]]

    def positions(self, kind: int) -> Iterator[int]:
        """Return the positions at which `kinds` has this kind."""
        at = self.kinds.find(kind)
        while at >= 0:
            yield at
            at = self.kinds.find(kind, at + 1)

    def unclean(self) -> Iterator[int]:
        """Positions of names that go into a tree and are not known to be as in the base."""
        wanted = self.kinds.translate(_CLEAN)
        if wanted == self.marks:
            return
        for at, (kind, clean, now) in enumerate(zip(self.kinds, wanted, self.marks, strict=True)):
            if clean != now and kind in KEPT:
                yield at

    def unclean_totals(self) -> tuple[int, int]:
        """Return how many names are not known to be as in the base, and the bytes of those that must be read."""
        wanted = self.kinds.translate(_CLEAN)
        columns = zip(self.kinds, wanted, self.marks, _SIZES.iter_unpack(self.rows), strict=True)
        sizes = [
            0 if kind == Kind.SYMLINK or now & TRUSTED else size
            for kind, clean, now, (size,) in columns
            if clean != now and kind in KEPT
        ]
        return len(sizes), sum(sizes)

    def known_entry(self, at: int, path: bytes) -> Entry | None:
        """Return the name's entry for a tree, if its content is known as it is on disk now."""
        kind = self.kinds[at]
        if kind == Kind.SYMLINK:
            return Entry(path, Kind.SYMLINK, target=self.targets[at])
        if kind not in KEPT or not self.marks[at] & TRUSTED:
            return None
        return self._file_entry(at, path, KINDS[kind], self.size_on_disk(at))

    def base_entry(self, at: int, path: bytes) -> Entry | None:
        """Return the base's entry of the name, if the relation is SAME."""
        if RELATIONS[self.marks[at]] is not Relation.SAME:
            return None
        kind = BASE_KINDS[self.marks[at]]
        if kind is Kind.SYMLINK:
            return Entry(path, kind, target=self.targets[at])
        return self._file_entry(at, path, kind, self.sizes[at])

    def _file_entry(self, at: int, path: bytes, kind: Kind, size: int) -> Entry:
        recipe = self.recipes.get(at)
        return Entry(path, kind, size, FileId(self.id_at(at)), None if recipe is None else RecipeId(recipe))

    def distrust(self, names: Callable[[bytes], bool] | None = None) -> None:
        """Make the next scan read the contents of these names, or of all, even if their stats are unchanged."""
        if names is None:
            self.marks = bytearray(self.marks.translate(_DISTRUSTED))
            return
        for at, name in enumerate(self.name_list()):
            if names(name):
                self.marks[at] = _DISTRUSTED[self.marks[at]]

    def adopt(self) -> None:
        """The base now has what is known of this folder."""
        for at in self.unclean():
            self.adopt_name(at)

    def adopt_name(self, at: int) -> None:
        """The base now has what is known of this name. Does nothing if nothing is known."""
        kind = self.kinds[at]
        if self.marks[at] & (TRUSTED | READ) or kind == Kind.SYMLINK:
            self.marks[at] = mark(Relation.SAME, kind, trusted=bool(self.marks[at] & TRUSTED))
            self.sizes[at] = self.size_on_disk(at) if kind != Kind.SYMLINK else 0


_CLEAN_DIRECTORY = mark(Relation.SAME, Kind.EMPTY_DIRECTORY, trusted=True)
_NOT_KEPT = bytes((IGNORED, UNSUPPORTED))
OWN_SAME = _CLEAN_DIRECTORY


def differing(left: bytes | bytearray, right: bytes | bytearray, width: int) -> list[int]:
    """Positions at which two columns of equal length differ. Costs little if they are few, however long the column."""
    found: list[int] = []
    spans = [(0, len(left) // width)]
    while spans:
        low, high = spans.pop()
        if left[low * width : high * width] == right[low * width : high * width]:
            continue
        if high - low == 1:
            found.append(low)
        else:
            middle = (low + high) // 2
            spans += [(middle, high), (low, middle)]
    return found


# path and names in bytes, names in number, recipes, targets; own mark, digest of the ignore rules
_HEADER = struct.Struct("<HIIIIBQ")
_RECIPE = struct.Struct("<I32s")
_TARGET = struct.Struct("<IH")


def encode_folder(folder: Folder) -> bytes:
    header = _HEADER.pack(
        len(folder.path),
        len(folder.names),
        len(folder),
        len(folder.recipes),
        len(folder.targets),
        folder.own,
        folder.rules,
    )
    pieces: list[bytes | bytearray] = [
        header,
        folder.path,
        folder.names,
        folder.rows,
        folder.kinds,
        folder.marks,
    ]
    pieces += [folder.sizes.tobytes(), folder.ids]
    pieces += [_RECIPE.pack(at, recipe) for at, recipe in folder.recipes.items()]
    for at, target in folder.targets.items():
        pieces += [_TARGET.pack(at, len(target)), target]
    return b"".join(pieces)


def split_folders(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the (path, encoded folder) of each of several encoded folders in a row. Raises `ValueError`."""
    found: list[tuple[bytes, bytes]] = []
    offset = 0
    while offset < len(data):
        try:
            path_size, names_size, count, recipes, targets, _, _ = _HEADER.unpack_from(data, offset)
            path = data[offset + _HEADER.size : offset + _HEADER.size + path_size]
            end = offset + _HEADER.size + path_size + names_size
            end += count * (ROW.size + 1 + 1 + 8 + 32) + recipes * _RECIPE.size
            for _ in range(targets):
                end += _TARGET.size + _TARGET.unpack_from(data, end)[1]
        except struct.error as error:
            raise ValueError("a folder is cut short") from error
        if end > len(data):
            raise ValueError("a folder is cut short")
        found.append((path, data[offset:end]))
        offset = end
    return found


def decode_folder(data: bytes) -> Folder:
    """Return a folder from bytes that `split_folders` gave."""
    path_size, names_size, count, recipes, targets, own, rules = _HEADER.unpack_from(data)
    position = _HEADER.size

    def take(size: int) -> bytes:
        nonlocal position
        position += size
        return data[position - size : position]

    folder = Folder(take(path_size), take(names_size), own=own, rules=rules)
    folder.rows = bytearray(take(count * ROW.size))
    folder.kinds = bytearray(take(count))
    folder.marks = bytearray(take(count))
    folder.sizes = array("Q", take(count * 8))
    folder.ids = bytearray(take(count * 32))
    for _ in range(recipes):
        at, recipe = _RECIPE.unpack(take(_RECIPE.size))
        folder.recipes[at] = recipe
    for _ in range(targets):
        at, size = _TARGET.unpack(take(_TARGET.size))
        folder.targets[at] = take(size)
    return folder
