"""A run of a tree's entries, in columns: no Python object for an entry until somebody asks for one."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator
from itertools import compress

from dsv.errors import IntegrityError
from dsv.model.chunking import SINGLE_CHUNK_MAX
from dsv.model.columns import ColumnReader, ColumnWriter, cut
from dsv.model.entry import Entry, Kind, sort_key
from dsv.model.ids import EMPTY_FILE, FileId, RecipeId
from dsv.model.paths import check_target, show
from dsv.model.tree import MAX_ENTRIES, PATHS_LIMIT, TOTAL_LIMIT, split_paths
from dsv.model.wire import Buffer, damaged

_KINDS = tuple(Kind)
_FILES = bytes((Kind.FILE, Kind.EXECUTABLE))
_ALL_KINDS = bytes(_KINDS)
_IS_FILE = bytes(1 if kind in _FILES else 0 for kind in range(256))


class Segment:
    """Entries in tree order. Treat it as frozen.

    paths: one for each entry.
    kinds: a byte for each entry, `Kind`'s values.
    sizes: bytes of each entry; 0 for symlinks and directories.
    file_ids: 32 bytes for each file, in order, empty files included.
    recipe_ids: 32 bytes for each file above `SINGLE_CHUNK_MAX`, in order.
    targets: one for each symlink, in order.
    """

    __slots__ = ("file_ids", "kinds", "paths", "recipe_ids", "sizes", "targets")

    def __init__(
        self,
        paths: list[bytes],
        kinds: bytes,
        sizes: array[int],
        file_ids: bytes,
        recipe_ids: bytes,
        targets: list[bytes],
    ) -> None:
        """For `of` and `decode`; checks nothing."""
        self.paths = paths
        self.kinds = kinds
        self.sizes = sizes
        self.file_ids = file_ids
        self.recipe_ids = recipe_ids
        self.targets = targets

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Segment:
        """The segment of these entries, given in tree order. Raises `ValueError` for an impossible one."""
        paths, kinds, sizes = list[bytes](), bytearray(), array("Q")
        file_ids, recipe_ids, targets = list[bytes](), list[bytes](), list[bytes]()
        for entry in entries:
            paths.append(entry.path)
            kinds.append(entry.kind)
            sizes.append(entry.size)
            if entry.kind <= Kind.EXECUTABLE:
                file_ids.append(entry.file_id or b"")
                if entry.recipe_id is not None:
                    recipe_ids.append(entry.recipe_id)
                possible = entry.target is None and (entry.recipe_id is not None) == (
                    entry.size > SINGLE_CHUNK_MAX
                )
            else:
                if entry.target is not None:
                    targets.append(entry.target)
                possible = not entry.size and (entry.target is not None) == (entry.kind == Kind.SYMLINK)
                possible = possible and entry.file_id is None and entry.recipe_id is None
            if not possible:
                raise ValueError(f"entry {show(entry.path)} has fields that its kind or size does not have")
        joined, recipes = b"".join(file_ids), b"".join(recipe_ids)
        if len(joined) != 32 * len(file_ids) or len(recipes) != 32 * len(recipe_ids):
            raise ValueError("a file's ids have 32 bytes")
        return cls(paths, bytes(kinds), sizes, joined, recipes, targets)

    def __len__(self) -> int:
        return len(self.paths)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segment):
            return NotImplemented
        return self._columns() == other._columns()

    __hash__ = None  # type: ignore[assignment]

    @property
    def first(self) -> bytes:
        return self.paths[0]

    @property
    def last(self) -> bytes:
        return self.paths[-1]

    @property
    def files(self) -> int:
        """How many entries are files."""
        return len(self.file_ids) // 32

    @property
    def total_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(self.sizes)

    def entries(self) -> Iterator[Entry]:
        """Every entry, in order."""
        if self._plain:
            ids = map(FileId, cut(self.file_ids, 32))
            for path, kind, size, file_id in zip(self.paths, self.kinds, self.sizes, ids, strict=True):
                yield Entry(path, _KINDS[kind], size, file_id)
            return
        ids, recipes = map(FileId, cut(self.file_ids, 32)), map(RecipeId, cut(self.recipe_ids, 32))
        targets = iter(self.targets)
        for path, kind, size in zip(self.paths, self.kinds, self.sizes, strict=True):
            if kind <= Kind.EXECUTABLE:
                recipe = next(recipes) if size > SINGLE_CHUNK_MAX else None
                yield Entry(path, _KINDS[kind], size, next(ids), recipe)
            else:
                yield Entry(path, _KINDS[kind], target=next(targets) if kind == Kind.SYMLINK else None)

    def entry(self, at: int) -> Entry:
        """The entry at a place from 0. Raises `IndexError`."""
        path, kind, size = self.paths[at], Kind(self.kinds[at]), self.sizes[at]
        before = self.kinds[: at % len(self)]
        if kind == Kind.SYMLINK:
            return Entry(path, kind, target=self.targets[before.count(Kind.SYMLINK)])
        if kind == Kind.EMPTY_DIRECTORY:
            return Entry(path, kind)
        row = before.count(Kind.FILE) + before.count(Kind.EXECUTABLE)
        file_id, recipe = FileId(self.file_ids[32 * row : 32 * row + 32]), None
        if size > SINGLE_CHUNK_MAX:
            row = sum(one > SINGLE_CHUNK_MAX for one in self.sizes[: at % len(self)])
            recipe = RecipeId(self.recipe_ids[32 * row : 32 * row + 32])
        return Entry(path, kind, size, file_id, recipe)

    def find(self, path: bytes) -> Entry | None:
        """The entry of exactly this path."""
        at = self.position(path)
        return None if at is None else self.entry(at)

    def position(self, path: bytes) -> int | None:
        """At which place, from 0, the entry of exactly this path is."""
        at = bisect.bisect_left(self.paths, sort_key(path), key=sort_key)
        return at if at < len(self) and self.paths[at] == path else None

    def rows_unlike(self, other: Segment) -> tuple[list[int], list[int]]:
        """The places of the entries that this segment alone has, and of those that the other one alone has.

        Much faster than to compare entries, as none is made.
        """
        if self._plain and other._plain:
            mine, others = list(self._plain_rows()), list(other._plain_rows())
        else:
            mine, others = list(self.entries()), list(other.entries())  # type: ignore[arg-type]
        if self.paths == other.paths:
            rows = [at for at, (one, two) in enumerate(zip(mine, others, strict=True)) if one != two]
            return rows, rows
        known, there = set(mine), set(others)
        return (
            [at for at, row in enumerate(mine) if row not in there],
            [at for at, row in enumerate(others) if row not in known],
        )

    @property
    def _plain(self) -> bool:
        """Whether all entries are files of one chunk."""
        return self.files == len(self) and not self.recipe_ids

    def _plain_rows(self) -> Iterator[tuple[bytes, int, int, bytes]]:
        return zip(self.paths, self.kinds, self.sizes, cut(self.file_ids, 32), strict=True)

    def encode(self) -> bytes:
        """Raises `ValueError` for what `decode` would refuse."""
        paths = b"".join([path + b"\0" for path in self.paths])
        sizes = self.sizes
        if self.files != len(self):
            sizes = array("Q", compress(sizes, self.kinds.translate(_IS_FILE)))
        out = ColumnWriter("segment")
        out.u32(len(self.paths))
        out.u32(len(paths))
        out.raw(paths)
        out.raw(self.kinds)
        out.numbers(sizes)
        out.raw(self.file_ids)
        out.raw(self.recipe_ids)
        out.raw(b"".join([target + b"\0" for target in self.targets]))
        try:
            split_paths("segment", _limited(paths), len(self))
            self._check()
        except IntegrityError as error:
            raise ValueError(error.message) from None
        return out.finish()

    @classmethod
    def decode(cls, data: Buffer) -> Segment:
        """Raises `IntegrityError`, or `Unsupported` for a newer version."""
        read = ColumnReader("segment", data)
        count = read.u32(MAX_ENTRIES, "entries")
        column = bytes(read.raw(read.u32(PATHS_LIMIT, "bytes of paths")))
        kinds = bytes(read.raw(count))
        files = kinds.count(Kind.FILE) + kinds.count(Kind.EXECUTABLE)
        sizes = read.numbers("Q", files)
        file_ids = bytes(read.raw(32 * files))
        recipes = (
            0 if not files or max(sizes) <= SINGLE_CHUNK_MAX else sum(s > SINGLE_CHUNK_MAX for s in sizes)
        )
        recipe_ids = bytes(read.raw(32 * recipes))
        targets = _split_targets(bytes(read.rest()))
        if files != count:
            of_files = iter(sizes)
            sizes = array("Q", [next(of_files) if is_file else 0 for is_file in kinds.translate(_IS_FILE)])
        segment = cls(split_paths("segment", column, count), kinds, sizes, file_ids, recipe_ids, targets)
        segment._check()
        return segment

    def _check(self) -> None:
        """Raises `IntegrityError` where columns contradict each other; the paths are checked already."""
        if not 0 < len(self) <= MAX_ENTRIES:
            raise damaged("segment", f"it has {len(self)} entries")
        if self.kinds.translate(None, _ALL_KINDS):
            raise damaged("segment", "it has an entry of an unknown kind")
        if sum(self.sizes) >= TOTAL_LIMIT:
            raise damaged("segment", "its files are too large")
        empty = self.sizes.count(0) - (len(self) - self.files)
        if self.file_ids.count(EMPTY_FILE) != empty or (empty and not self._empty_ids_fit()):
            raise damaged("segment", "a file's size and id contradict each other")
        if len(self.targets) != self.kinds.count(Kind.SYMLINK):
            raise damaged("segment", "its symlinks and their targets differ in number")
        for target in self.targets:
            try:
                check_target(target)
            except ValueError as error:
                raise damaged("segment", f"symlink target {show(target)}: {error}") from None

    def _empty_ids_fit(self) -> bool:
        sizes = compress(self.sizes, self.kinds.translate(_IS_FILE))
        return all(
            self.file_ids[32 * row : 32 * row + 32] == EMPTY_FILE
            for row, size in enumerate(sizes)
            if not size
        )

    def _columns(self) -> tuple[object, ...]:
        return self.paths, self.kinds, self.sizes, self.file_ids, self.recipe_ids, self.targets


def _split_targets(column: bytes) -> list[bytes]:
    if not column:
        return []
    if column[-1:] != b"\0":
        raise damaged("segment", "its symlink targets are cut short")
    if column.count(b"\0") > MAX_ENTRIES:
        raise damaged("segment", "it has more symlink targets than entries")
    return column[:-1].split(b"\0")


def _limited(paths: bytes) -> bytes:
    if len(paths) > PATHS_LIMIT:
        raise damaged("segment", f"it has {len(paths)} bytes of paths, over the limit of {PATHS_LIMIT}")
    return paths
