"""A segment: a run of tree entries in columns, and its rows as an edit copies them."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import compress

from dsv.errors import IntegrityError
from dsv.format.columns import ColumnReader, ColumnWriter, any_above, count_zeros, cut
from dsv.format.envelope import Buffer, damaged
from dsv.format.locator import Locator, LocatorBuilder
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import MAX_ENTRIES, PATHS_LIMIT, TOTAL_LIMIT, Entry, Kind, split_paths
from dsv.values.ids import EMPTY_FILE, FileId, RecipeId
from dsv.values.paths import check_target, show, sort_key

SplitPaths = Callable[[str, bytes, int], list[bytes]]

_KINDS = tuple(Kind)
_FILES = bytes((Kind.FILE, Kind.EXECUTABLE))
_ALL_KINDS = bytes(_KINDS)
_IS_FILE = bytes(1 if kind in _FILES else 0 for kind in range(256))
_TYPES = bytes(Kind.FILE if kind in _FILES else kind for kind in range(256))  # kinds without modes


class Segment:
    """Entries in tree order. Do not change the attributes."""

    __slots__ = (
        "__weakref__",
        "_total",
        "_zeros",
        "file_ids",
        "kinds",
        "paths",
        "recipe_ids",
        "sizes",
        "targets",
    )

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
        """`Kind`, a byte for each entry."""
        self.sizes = sizes
        """Bytes of each entry; 0 for symlinks and directories."""
        self.file_ids = file_ids
        """32 bytes for each file, including empty files."""
        self.recipe_ids = recipe_ids
        """32 bytes for each file above `SINGLE_CHUNK_MAX`."""
        self.targets = targets
        """One for each symlink."""
        self._total: int | None = None
        self._zeros: int | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Segment:
        """Return the segment of these entries in tree order. Raises `ValueError` for an impossible one."""
        columns = SegmentBuilder()
        for entry in entries:
            columns.add(entry)
        return columns.finish()

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
        return len(self.file_ids) // 32

    @property
    def total_bytes(self) -> int:
        if self._total is None:
            self._total = sum(self.sizes)
        return self._total

    @property
    def without_content(self) -> int:
        """The number of entries without bytes: empty files, symlinks and folders."""
        if self._zeros is None:
            self._zeros = count_zeros(self.sizes)
        return self._zeros

    def entries(self) -> Iterator[Entry]:
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
        """Return the entry at a position, from 0. Raises `IndexError`."""
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

    def position(self, path: bytes) -> int | None:
        """Return the position, from 0, of the entry with exactly this path, or None."""
        at = bisect.bisect_left(self.paths, sort_key(path), key=sort_key)
        return at if at < len(self) and self.paths[at] == path else None

    def rows_unlike(self, other: Segment) -> tuple[list[int], list[int]]:
        """Return the positions of entries that only this segment has, and of those only in the other one.

        It compares columns and makes no entries if it can, which is much faster.
        """
        if self._same_but_for_files(other):
            rows = self._files_unlike(other)
            return rows, rows
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

    def _same_but_for_files(self, other: Segment) -> bool:
        """Return whether only the contents and modes of files can differ, and no file has a recipe."""
        return (
            not self.recipe_ids
            and not other.recipe_ids
            and self.paths == other.paths
            and self.targets == other.targets
            and self.kinds.translate(_TYPES) == other.kinds.translate(_TYPES)
        )

    def _files_unlike(self, other: Segment) -> list[int]:
        rows = {*_unlike(self.kinds, other.kinds, 1)}
        rows.update(_unlike(self.sizes.tobytes(), other.sizes.tobytes(), self.sizes.itemsize))
        contents = _unlike(self.file_ids, other.file_ids, 32)
        if contents and self.files != len(self):
            of_files = list(compress(range(len(self)), self.kinds.translate(_IS_FILE)))
            contents = [of_files[at] for at in contents]
        return sorted(rows.union(contents))

    @property
    def _plain(self) -> bool:
        """Return whether all entries are files of one chunk."""
        return self.files == len(self) and not self.recipe_ids

    def _plain_rows(self) -> Iterator[tuple[bytes, int, int, bytes]]:
        return zip(self.paths, self.kinds, self.sizes, cut(self.file_ids, 32), strict=True)

    def encode(self, split: SplitPaths = split_paths) -> bytes:
        """Raises `ValueError` for what `decode` would refuse. split: checks the paths."""
        paths = b"\0".join([*self.paths, b""])
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
        out.raw(b"\0".join([*self.targets, b""]) if self.targets else b"")
        try:
            if len(paths) > PATHS_LIMIT:
                raise damaged(
                    "segment", f"it has {len(paths)} bytes of paths, over the limit of {PATHS_LIMIT}"
                )
            split("segment", paths, len(self))
            self._check()
        except IntegrityError as error:
            raise ValueError(error.message) from None
        return out.finish()

    @classmethod
    def decode(cls, data: Buffer, split: SplitPaths = split_paths, *, checked: bool = False) -> Segment:
        """Raises `IntegrityError`, or `Unsupported` for a newer version.

        split: splits and checks the column of paths. checked: exactly these bytes were decoded before.
        """
        read = ColumnReader("segment", data)
        count = read.u32(MAX_ENTRIES, "entries")
        column = bytes(read.raw(read.u32(PATHS_LIMIT, "bytes of paths")))
        kinds = bytes(read.raw(count))
        files = kinds.count(Kind.FILE) + kinds.count(Kind.EXECUTABLE)
        sizes = read.numbers("Q", files)
        file_ids = bytes(read.raw(32 * files))
        recipes = sum(s > SINGLE_CHUNK_MAX for s in sizes) if any_above(sizes, SINGLE_CHUNK_MAX) else 0
        recipe_ids = bytes(read.raw(32 * recipes))
        targets = _split_targets(bytes(read.rest()))
        if files != count:
            of_files = iter(sizes)
            sizes = array("Q", [next(of_files) if is_file else 0 for is_file in kinds.translate(_IS_FILE)])
        segment = cls(split("segment", column, count), kinds, sizes, file_ids, recipe_ids, targets)
        if not checked:
            segment._check()
        return segment

    def _check(self) -> None:
        """Raises `IntegrityError` if columns contradict each other; the paths are checked already."""
        if not 0 < len(self) <= MAX_ENTRIES:
            raise damaged("segment", f"it has {len(self)} entries")
        if self.kinds.translate(None, _ALL_KINDS):
            raise damaged("segment", "it has an entry of an unknown kind")
        if self.total_bytes >= TOTAL_LIMIT:
            raise damaged("segment", "its files are too large")
        empty = self.without_content - (len(self) - self.files)
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


class SegmentBuilder:
    """Collects a segment's columns, by entries or by slices of other segments' columns, in tree order."""

    __slots__ = ("file_ids", "kinds", "paths", "recipe_ids", "sizes", "targets")

    def __init__(self) -> None:
        self.paths = list[bytes]()
        self.kinds = bytearray()
        self.sizes = array("Q")
        self.file_ids = bytearray()
        self.recipe_ids = bytearray()
        self.targets = list[bytes]()

    def __len__(self) -> int:
        return len(self.paths)

    def add(self, entry: Entry) -> None:
        """Raises `ValueError` for an impossible entry."""
        path, kind, size, file_id, recipe_id, target = entry
        if kind <= Kind.EXECUTABLE:
            possible = target is None and (recipe_id is not None) == (size > SINGLE_CHUNK_MAX)
            if file_id is None or len(file_id) != 32 or (recipe_id is not None and len(recipe_id) != 32):
                raise ValueError("a file's ids have 32 bytes")
            self.file_ids += file_id
            if recipe_id is not None:
                self.recipe_ids += recipe_id
        else:
            possible = not size and (target is not None) == (kind == Kind.SYMLINK)
            possible = possible and file_id is None and recipe_id is None
            if target is not None:
                self.targets.append(target)
        if not possible:
            raise ValueError(f"entry {show(path)} has fields that its kind or size does not have")
        self.paths.append(path)
        self.kinds.append(kind)
        self.sizes.append(size)

    def finish(self) -> Segment:
        """Return the segment; the builder can't be used any more."""
        return Segment(
            self.paths,
            bytes(self.kinds),
            self.sizes,
            bytes(self.file_ids),
            bytes(self.recipe_ids),
            self.targets,
        )


def _unlike(mine: bytes, others: bytes, width: int) -> list[int]:
    """Return the rows in which two columns of one length differ. It bisects: most rows are alike."""
    found: list[int] = []
    open_ranges = [(0, len(mine) // width)]
    while open_ranges:
        start, stop = open_ranges.pop()
        if mine[start * width : stop * width] == others[start * width : stop * width]:
            continue
        if stop - start == 1:
            found.append(start)
            continue
        middle = (start + stop) // 2
        open_ranges += [(middle, stop), (start, middle)]
    return found


def _split_targets(column: bytes) -> list[bytes]:
    if not column:
        return []
    if column[-1:] != b"\0":
        raise damaged("segment", "its symlink targets are cut short")
    if column.count(b"\0") > MAX_ENTRIES:
        raise damaged("segment", "it has more symlink targets than entries")
    return column[:-1].split(b"\0")


class SegmentRows:
    """The rows of a segment, consumed in order: each is taken or skipped."""

    __slots__ = ("_file", "_plain", "_recipe", "_row", "_target", "at", "locator", "segment")

    def __init__(self, segment: Segment, locator: Locator) -> None:
        """`locator` has the locations of all contents. Raises `ValueError` if it has too few rows."""
        full = len(segment) - segment.without_content
        if len(locator) < full:
            raise ValueError(f"a locator of {len(locator)} rows is not that of {full} files")
        self.segment = segment
        self.locator = locator
        self.at = 0
        self._plain = full == len(segment) and not segment.recipe_ids
        self._file = self._recipe = self._target = self._row = 0

    def position(self, path: bytes) -> int:
        """Return the position of this path among the remaining rows, or where it would be inserted."""
        paths = self.segment.paths
        if self.at < len(paths) and paths[self.at] == path:
            return self.at
        return bisect.bisect_left(paths, sort_key(path), self.at, key=sort_key)

    def take(self, stop: int, columns: SegmentBuilder, places: LocatorBuilder) -> None:
        """Copy the rows up to `stop` (exclusive)."""
        segment, start = self.segment, self.at
        file, recipe, target, row = self._file, self._recipe, self._target, self._row
        self.skip(stop)
        columns.paths += segment.paths[start:stop]
        columns.kinds += segment.kinds[start:stop]
        columns.sizes += segment.sizes[start:stop]
        columns.file_ids += segment.file_ids[32 * file : 32 * self._file]
        if not self._plain:
            columns.recipe_ids += segment.recipe_ids[32 * recipe : 32 * self._recipe]
            columns.targets += segment.targets[target : self._target]
        places.extend(self.locator, row, self._row)

    def skip(self, stop: int) -> None:
        """Leave out the rows up to `stop` (exclusive)."""
        start, self.at = self.at, stop
        if self._plain:
            self._file = self._row = stop
            return
        kinds, sizes = self.segment.kinds, self.segment.sizes[start:stop]
        self._file += kinds.count(Kind.FILE, start, stop) + kinds.count(Kind.EXECUTABLE, start, stop)
        self._target += kinds.count(Kind.SYMLINK, start, stop)
        self._row += len(sizes) - sizes.count(0)
        if self.segment.recipe_ids:
            self._recipe += sum(size > SINGLE_CHUNK_MAX for size in sizes)
