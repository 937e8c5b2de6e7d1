"""Decoding segments: once while somebody has one, and checked once.

A merge meets the same segments several times: both sides are compared with the common state, and ours is read once more
when the result is written. An id is the hash of the bytes, so what was checked under it needs no second check.
"""

from __future__ import annotations

from functools import partial
from weakref import WeakValueDictionary

from dsv.model.ids import SegmentId
from dsv.model.segment import Segment
from dsv.model.tree import PathColumns
from dsv.repo.damage import decoded

_CHECKED_MAX = 1 << 14
"""So many ids are remembered: 2 MB, for trees of 16 million files."""


class SegmentDecoder:
    """Decodes the segments of one store. paths: splits the columns that were met last."""

    def __init__(self) -> None:
        self.paths = PathColumns()
        self._in_use: WeakValueDictionary[SegmentId, Segment] = WeakValueDictionary()
        self._checked: set[SegmentId] = set()

    def decode(self, segment_id: SegmentId, data: bytes) -> Segment:
        """The segment in bytes that are those of this id, which others may have too: treat it as frozen.

        Raises `IntegrityError`, `Unsupported`.
        """
        found = self._in_use.get(segment_id)
        if found is None:
            if segment_id in self._checked:
                found = Segment.decode(data, self.paths.split_again, checked=True)
            else:
                split = partial(Segment.decode, split=self.paths.split)
                found = decoded(split, data, "segment", segment_id)
                if len(self._checked) < _CHECKED_MAX:
                    self._checked.add(segment_id)
            self._in_use[segment_id] = found
        return found
