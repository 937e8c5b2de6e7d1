"""One folder of a workspace in columns: as the disk lists it, as remembered, and as bytes of the state file.

A workspace of a million files has a few thousand folders. Each is usually compared with the disk as a whole,
so an unchanged file needs no Python object.
"""

from __future__ import annotations

import bisect
import enum
import operator
import os
import stat
import struct
import sys
from array import array
from collections.abc import Callable, Iterator

import msgspec

from dsv.format.tree import Entry, Kind
from dsv.transfer.stable_read import ROW, row_of
from dsv.values.ids import FileId, RecipeId

_SIZES = struct.Struct("<8xQ20x")  # the sizes alone, out of rows
NO_ID = bytes(32)

# The kinds of names in the column `kinds`: `Kind.FILE`, `EXECUTABLE` and `SYMLINK`, and these.
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
    return value & (TRUSTED | READ) | relation << _RELATION | base_kind << _BASE_KIND


class Folder(msgspec.Struct, array_like=True):
    """The names in one folder in bytewise order, with columns of facts about them."""

    path: bytes
    """Relative to the workspace's root; empty for the root."""
    names: bytes = b""
    """Joined by NUL. Includes ignored names, but not dsv's and git's own files."""
    rows: bytearray = msgspec.field(default_factory=bytearray)
    """`ROW` for each name; only the type for folders and ignored names."""
    kinds: bytearray = msgspec.field(default_factory=bytearray)
    """A byte for each name, as `marks` has."""
    marks: bytearray = msgspec.field(default_factory=bytearray)
    sizes: array = msgspec.field(  # type: ignore[type-arg]
        default_factory=lambda: array("Q")
    )
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
        """Return a folder of which only the listing is known."""
        count = len(kinds)
        unknown = bytearray([mark(relation)]) * count
        return cls(path, names, rows, kinds, unknown, array("Q", bytes(8 * count)), bytearray(32 * count))

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def is_clean(self) -> bool:
        """Return whether every name is known to be as in the base."""
        return self.kinds.translate(_CLEAN) == self.marks and (
            self.own == (OWN_SAME if self.is_empty else 0) or not self.path
        )

    @property
    def is_empty(self) -> bool:
        """Return whether no name belongs in a tree, so that the folder itself does."""
        return not self.kinds.translate(None, _NOT_KEPT)

    def name_list(self) -> list[bytes]:
        return self.names.split(b"\0") if self.kinds else []

    def find(self, name: bytes) -> int | None:
        """Return a name's position; None if it is not there."""
        names = self.name_list()
        at = bisect.bisect_left(names, name)
        return at if at < len(names) and names[at] == name else None

    def path_of(self, name: bytes) -> bytes:
        return self.path + b"/" + name if self.path else name

    def row(self, at: int) -> bytes:
        return bytes(self.rows[at * ROW.size : (at + 1) * ROW.size])

    def blank_row(self, at: int) -> None:
        self.rows[at * ROW.size : (at + 1) * ROW.size] = ROW.pack(0, 0, 0, 0, self.type_at(at) | 0o444)

    def mode(self, at: int) -> int:
        return int.from_bytes(self.rows[at * ROW.size + _MODE : (at + 1) * ROW.size], "little")

    def type_at(self, at: int) -> int:
        return stat.S_IFMT(self.mode(at))

    def all_readable(self) -> bool:
        """Return whether owner, group and others may all read everything here."""
        low, high = self.rows[_MODE :: ROW.size], self.rows[_MODE + 1 :: ROW.size]
        return not low.translate(None, _OTHERS_READ) and not high.translate(None, _OWNER_READS)

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
        """Yield the positions of names that belong in a tree and are not known to be as in the base."""
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
        """Note that the base now has what is known of this folder."""
        for at in self.unclean():
            self.adopt_name(at)

    def adopt_name(self, at: int) -> None:
        """Note that the base now has what is known of this name. Does nothing if nothing is known."""
        kind = self.kinds[at]
        if self.marks[at] & (TRUSTED | READ) or kind == Kind.SYMLINK:
            self.marks[at] = mark(Relation.SAME, kind, trusted=bool(self.marks[at] & TRUSTED))
            self.sizes[at] = self.size_on_disk(at) if kind != Kind.SYMLINK else 0


OWN_SAME = mark(Relation.SAME, Kind.EMPTY_DIRECTORY, trusted=True)
_NOT_KEPT = bytes((IGNORED, UNSUPPORTED))


def differing(left: bytes | bytearray, right: bytes | bytearray, width: int) -> list[int]:
    """Return positions where two columns of equal length differ. Fast for few, in columns of any length."""
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


encode_folder = msgspec.msgpack.Encoder(
    enc_hook=lambda column: column.tobytes() if isinstance(column, array) else bytes(column)
).encode
decode_folder = msgspec.msgpack.Decoder(Folder, dec_hook=lambda _, sizes: array("Q", sizes)).decode


# The names that `values.paths` refuses as dsv's and git's own are skipped.
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


_OTHERS_READ = bytes(bits for bits in range(256) if bits & 0o044 == 0o044)
_OWNER_READS = bytes(bits for bits in range(256) if bits & 0o400 >> 8)


def list_folder(descriptor: int, path: bytes = b"") -> tuple[Folder, list[bytes], list[bytes]]:
    """Return the folder as on disk, with stats that do not follow symlinks, the temporary files of killed
    commands in it, and names of dsv's and git's own that are left out. Raises `OSError`.

    Names that vanish while this runs are left out. The rows of folders have only the type: their times change
    with their content, which their own listing shows.
    """
    names = os.listdir(descriptor)
    names.sort()
    blob = os.fsencode("\0".join(names))
    if not blob.isascii() and not (_IS_UTF8 and is_utf8(blob)):
        names.sort(key=os.fsencode)  # the order of code points is not that of these bytes
        blob = os.fsencode("\0".join(names))
    folded = blob.lower()
    leftovers, reserved = list[str](), list[str]()
    if b".dsv" in folded or b".git" in folded or _LONG_S in folded:
        leftovers = [name for name in names if _is_leftover(name)]
        reserved = [name for name in names if os.fsencode(name).lower().replace(_LONG_S, b"s") in _RESERVED]
        names = [name for name in names if name not in reserved and name not in leftovers]
        blob = os.fsencode("\0".join(names))
    try:
        rows = bytearray().join(
            [ROW.pack(*_fields(os.stat(name, dir_fd=descriptor, follow_symlinks=False))) for name in names]
        )
    except (FileNotFoundError, struct.error):
        names, rows = _one_by_one(descriptor, names)
        blob = os.fsencode("\0".join(names))
    folder = Folder.blank(path, blob, rows, _kinds(rows), Relation.ABSENT)
    for at in folder.positions(DIRECTORY):
        folder.blank_row(at)
    return folder, list(map(os.fsencode, leftovers)), list(map(os.fsencode, reserved))


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


def _is_leftover(name: str) -> bool:
    raw = os.fsencode(name)
    if len(raw) != _TEMPORARY_LENGTH or not raw.startswith(TEMPORARY):
        return False
    return not raw[len(TEMPORARY) :].translate(None, b"0123456789abcdef")
