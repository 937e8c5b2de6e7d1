"""Tree entries, and the rule that cuts a tree into segments and nodes by its paths alone."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Iterable, Sequence
from itertools import chain
from threading import Lock
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from dsv.errors import IntegrityError
from dsv.format.columns import ColumnReader, ColumnWriter, cut, u64s
from dsv.format.envelope import Buffer, damaged
from dsv.values.ids import FileId, Id, NodeId, RecipeId, SegmentId
from dsv.values.paths import check_joined, disorder, show, sort_key


class Kind(enum.IntEnum):
    """The kinds of paths. No other mode bits are kept, because umasks differ."""

    FILE = 0
    EXECUTABLE = 1
    SYMLINK = 2
    EMPTY_DIRECTORY = 3

    @property
    def word(self) -> str:
        """The kind in output for people and programs."""
        return "directory" if self is Kind.EMPTY_DIRECTORY else self.name.lower()


class Entry(NamedTuple):
    """One path of a tree. A named tuple, because millions are made."""

    path: bytes
    """UTF-8 bytes without normalization, relative, parts joined by `/`."""
    kind: Kind
    size: int = 0
    """Bytes of the content; 0 for symlinks and directories."""
    file_id: FileId | None = None
    """BLAKE3 of the content; None for symlinks and directories."""
    recipe_id: RecipeId | None = None
    """Only for files above `recipe.SINGLE_CHUNK_MAX`."""
    target: bytes | None = None
    """The target of a symlink, not normalized."""

    @property
    def is_file(self) -> bool:
        return self.kind <= Kind.EXECUTABLE


MIN_ENTRIES = 512
MAX_ENTRIES = 4096
MAX_PATH_BYTES = 1 << 20  # ends a segment or node even before `MIN_ENTRIES`; each path counts one byte more
MAX_LEVEL = 8
# The limit of a decoder: the path that exceeds MAX_PATH_BYTES still belongs to the segment.
PATHS_LIMIT = MAX_PATH_BYTES + 4096
MAX_TREE_ENTRIES = 1 << 40
TOTAL_LIMIT = 1 << 63
_REMEMBERED = 8  # columns of paths


class Cutter:
    """Decides where segments (level 0) or the nodes of a level end. Each cut resets it."""

    __slots__ = ("_bytes", "_count", "_level")

    def __init__(self, level: int) -> None:
        self._level = level
        self._count = 0
        self._bytes = 0

    def add(self, path: bytes) -> bool:
        """Return whether the segment or node ends with this entry's (child's last) path."""
        self._count += 1
        self._bytes += len(path) + 1
        if (
            (self._count >= MIN_ENTRIES and xxh3_64_intdigest(path, self._level) % MIN_ENTRIES == 0)
            or self._count == MAX_ENTRIES
            or self._bytes >= MAX_PATH_BYTES
        ):
            self._count = self._bytes = 0
            return True
        return False

    def add_all(self, paths: Sequence[bytes], at: int = 0, of: int = 0) -> int | None:
        """Add paths up to the first one that ends the segment or node. Return how many; None if none ends it.

        at, of: the paths begin at position `at` of a segment with `of` paths, cut by the same rule. From its
        `MIN_ENTRIES`-th path on, only its last can be a boundary, and only that one is hashed.
        """
        added = len(paths)
        count = self._count + added
        size = self._bytes + len(b"\0".join(paths)) + bool(paths)
        if count >= MAX_ENTRIES or size >= MAX_PATH_BYTES:
            return next((at for at, path in enumerate(paths, 1) if self.add(path)), None)
        first = max(0, MIN_ENTRIES - 1 - self._count)
        known = max(0, MIN_ENTRIES - 1 - at)
        unknown = chain(range(first, min(known, added)), range(max(first, known, of - 1 - at), added))
        level, every = self._level, MIN_ENTRIES
        for number in unknown:
            if xxh3_64_intdigest(paths[number], level) % every == 0:
                self._count = self._bytes = 0
                return number + 1
        self._count, self._bytes = count, size
        return None


class Child(msgspec.Struct, frozen=True):
    """A node's row for a node or segment below it."""

    last: builtins.bytes
    id: Id
    entries: int
    """Paths of all kinds."""
    files: int
    bytes: int
    """The sum of the files' sizes."""


class Node(msgspec.Struct, frozen=True):
    level: int
    children: tuple[Child, ...]

    def encode(self) -> bytes:
        """Raises `ValueError` for what `decode` would refuse."""
        out = ColumnWriter("node")
        paths = b"".join([child.last + b"\0" for child in self.children])
        out.u32(self.level)
        out.u32(len(self.children))
        out.u32(len(paths))
        out.raw(paths)
        out.raw(b"".join([child.id for child in self.children]))
        out.numbers(u64s(child.entries for child in self.children))
        out.numbers(u64s(child.files for child in self.children))
        out.numbers(u64s(child.bytes for child in self.children))
        data = out.finish()
        try:
            same = Node.decode(data) == self
        except IntegrityError as error:
            raise ValueError(error.message) from None
        if not same:
            raise ValueError("a node's ids have 32 bytes")
        return data

    @classmethod
    def decode(cls, data: Buffer) -> Node:
        """Raises `IntegrityError`, or `Unsupported` for a newer version."""
        read = ColumnReader("node", data)
        level = read.u32(MAX_LEVEL, "levels")
        count = read.u32(MAX_ENTRIES, "children")
        paths = bytes(read.raw(read.u32(PATHS_LIMIT, "bytes of paths")))
        kind: type[Id] = SegmentId if level == 1 else NodeId
        ids = [kind(one) for one in cut(bytes(read.raw(32 * count)), 32)]
        totals = [read.numbers("Q", count) for _ in range(3)]
        read.end()
        if level < 1 or (level > 1 and not count):
            raise damaged("node", "it has no level or no children")
        last = split_paths("node", paths, count)
        for entries, files, size in zip(*totals, strict=True):
            if not files <= entries or not entries or (size and not files):
                raise damaged("node", "a child's totals contradict each other")
        if any(sum(column) >= TOTAL_LIMIT for column in totals):
            raise damaged("node", "its totals are too large")
        return cls(level, tuple(map(Child, last, ids, *totals)))


def count_of_children(data: Buffer) -> int:
    """Return the unchecked number of children of an encoded node. Raises `IntegrityError`, `Unsupported`."""
    read = ColumnReader("node", data)
    read.u32(MAX_LEVEL, "levels")
    return read.u32(MAX_ENTRIES, "children")


def split_paths(kind: str, column: bytes, count: int) -> list[bytes]:
    """Return the `count` paths of a column, each ended by NUL. Raises `IntegrityError` for invalid ones."""
    if not count and not column:
        return []
    if column[-1:] != b"\0":
        raise damaged(kind, "its paths are cut short")
    joined = column[:-1]
    if joined.count(b"\0") != count - 1:
        raise damaged(kind, f"it does not have the {count} paths that it says")
    try:
        paths = check_joined(joined)
    except ValueError as error:
        raise damaged(kind, str(error)) from None
    wrong = disorder(joined)
    if wrong is not None:
        raise damaged(kind, f"path {show(paths[wrong])} does not follow {show(paths[wrong - 1])}")
    return paths


class PathColumns:
    """Splits columns of paths. Thread-safe. Caches the last ones: most versions of a segment share them."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[bytes]] = {}
        self._lock = Lock()

    def split(self, kind: str, column: bytes, count: int) -> list[bytes]:
        """Do as `split_paths`. Other segments may share the list: do not change it."""
        found = self._known.get(column)
        if found is None or len(found) != count:
            found = self._keep(column, split_paths(kind, column, count))
        return found

    def split_again(self, kind: str, column: bytes, count: int) -> list[bytes]:
        """Do as `split`, for a column that was checked with this count before."""
        found = self._known.get(column)
        return self._keep(column, column.split(b"\0")[:-1]) if found is None else found

    def _keep(self, column: bytes, paths: list[bytes]) -> list[bytes]:
        with self._lock:
            if len(self._known) == _REMEMBERED and column not in self._known:
                del self._known[next(iter(self._known))]
            self._known[column] = paths
        return paths


def check_follows(previous: bytes | None, path: bytes) -> None:
    """Raises `IntegrityError` if `path` can't follow `previous`: it is out of order, or below a file."""
    if previous is None:
        return
    # Of the paths after `previous`, those below it, and no others, sort before `previous` + byte 1.
    if sort_key(path) < sort_key(previous) + b"\1":
        below = "below" if path.startswith(previous + b"/") else "not after"
        raise IntegrityError(f"a tree is damaged: path {show(path)} lies {below} {show(previous)}")


class Totals(NamedTuple):
    entries: int
    files: int
    bytes: int

    @classmethod
    def of(cls, children: Sequence[Child]) -> Totals:
        return cls(
            sum(child.entries for child in children),
            sum(child.files for child in children),
            sum(child.bytes for child in children),
        )


def parent(node_id: NodeId, children: Iterable[Child]) -> Child:
    """Return the row of the level above for a node with these children, of which there is at least one."""
    below = list(children)
    return Child(below[-1].last, node_id, *Totals.of(below))
