"""How many bytes an object of each kind can have, so that a reader takes memory for no more.

The limits follow from the counts that each kind's decoder allows.
"""

from __future__ import annotations

from typing import Final

from dsv.model import recipe, tree
from dsv.model.chunking import MAX_CHUNK
from dsv.model.location import Location, ObjectKind
from dsv.model.locator import largest
from dsv.model.paths import MAX_TARGET
from dsv.model.wire import Buffer

_HEADER: Final = 64
"""More than any header line and the counts behind it."""

OBJECT_LIMITS: Final = {
    ObjectKind.CHUNK: MAX_CHUNK,
    ObjectKind.RECIPE: _HEADER + recipe.MAX_ROWS * (32 + 8),
    ObjectKind.SEGMENT: _HEADER
    + tree.PATHS_LIMIT
    + tree.MAX_ENTRIES * (1 + 8 + 32 + 32)
    + tree.MAX_ENTRIES * (MAX_TARGET + 1),
    ObjectKind.NODE: _HEADER + tree.PATHS_LIMIT + tree.MAX_ENTRIES * (32 + 3 * 8),
}
"""Bytes of an unpacked object."""

LOCATOR_ROWS: Final = {
    ObjectKind.NODE: tree.MAX_ENTRIES,
    ObjectKind.SEGMENT: tree.MAX_ENTRIES,
    ObjectKind.RECIPE: recipe.MAX_ROWS,
}
"""Rows of the locator that travels with an object."""

FRAME_SLACK: Final = 64 << 10
"""Bytes by which a zstd frame may be larger than what it holds."""

STORED_CHILD: Final = 30
"""Bytes that a stored node has for each child at least: an id is a hash of 32 bytes, and hashes don't shrink."""


def has_real_ids(stored: int, node: Buffer) -> bool:
    """Whether so few stored bytes can hold the ids of a node's children, which all differ.

    A reader keeps every child of a tree in memory, before it has read what is below. Ids that somebody made up
    compress to almost nothing, and some MB of such nodes would take it GBs.
    """
    return stored >= STORED_CHILD * tree.count_of_children(node)


def is_possible(kind: ObjectKind, where: Location) -> bool:
    """Whether an object of this kind, and its own locator, can have the lengths that a location gives."""
    rows = LOCATOR_ROWS.get(kind)
    tail = 0 if rows is None else largest(rows) + FRAME_SLACK
    limit = OBJECT_LIMITS[kind]
    return where.length <= limit and where.stored <= limit + FRAME_SLACK and where.tail <= tail
