"""The rows of a segment as an edit passes over them: runs that stay are copied as slices of columns."""

from __future__ import annotations

import bisect

from dsv.model.chunking import SINGLE_CHUNK_MAX
from dsv.model.entry import Kind, sort_key
from dsv.model.locator import Locator, LocatorBuilder
from dsv.model.segment import Segment, SegmentBuilder


class SegmentRows:
    """The rows of a segment, taken or left out from the first to the last.

    at: how many are done with. locator: where the contents of all of them lie.
    """

    __slots__ = ("_file", "_plain", "_recipe", "_row", "_target", "at", "locator", "segment")

    def __init__(self, segment: Segment, locator: Locator) -> None:
        """Raises `ValueError` if the locator has too few rows."""
        full = len(segment) - segment.without_content
        if len(locator) < full:
            raise ValueError(f"a locator of {len(locator)} rows is not that of {full} files")
        self.segment = segment
        self.locator = locator
        self.at = 0
        self._plain = full == len(segment) and not segment.recipe_ids
        self._file = self._recipe = self._target = self._row = 0

    def position(self, path: bytes) -> int:
        """The place of this path, or the one that it would get, among the rows that are left."""
        paths = self.segment.paths
        if self.at < len(paths) and paths[self.at] == path:
            return self.at
        return bisect.bisect_left(paths, sort_key(path), self.at, key=sort_key)

    def take(self, stop: int, columns: SegmentBuilder, places: LocatorBuilder) -> None:
        """Copies the rows up to, not including, `stop`."""
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
        """Leaves out the rows up to, not including, `stop`."""
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
