"""What an object with an id must be: the limits of each kind, and the check against its id."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from dsv.errors import IntegrityError
from dsv.format import codec, recipe, tree
from dsv.format.envelope import Buffer
from dsv.format.locator import Location, ObjectKind, largest
from dsv.format.recipe import MAX_CHUNK
from dsv.repo.errors import damaged
from dsv.stores.base import Bytes
from dsv.values.ids import Id, NodeId, RecipeId, SegmentId
from dsv.values.paths import MAX_TARGET

_HEADER: Final = 64
"""Bytes: more than any header line and the counts behind it."""


OBJECT_LIMITS: Final = {
    ObjectKind.CHUNK: MAX_CHUNK,
    ObjectKind.RECIPE: _HEADER + recipe.MAX_ROWS * (32 + 8),
    ObjectKind.SEGMENT: _HEADER
    + tree.PATHS_LIMIT
    + tree.MAX_ENTRIES * (1 + 8 + 32 + 32)
    + tree.MAX_ENTRIES * (MAX_TARGET + 1),
    ObjectKind.NODE: _HEADER + tree.PATHS_LIMIT + tree.MAX_ENTRIES * (32 + 3 * 8),
}
"""The most bytes of an unpacked object."""


LOCATOR_ROWS: Final = {
    ObjectKind.NODE: tree.MAX_ENTRIES,
    ObjectKind.SEGMENT: tree.MAX_ENTRIES,
    ObjectKind.RECIPE: recipe.MAX_ROWS,
}
"""The most rows of the locator that is stored with an object."""


FRAME_SLACK: Final = 64 << 10
"""Bytes by which a zstd frame may be larger than what it holds."""


STORED_CHILD: Final = 30
"""The fewest stored bytes of a node for each child: an id is a hash of 32 bytes, and hashes don't shrink."""


def has_real_ids(stored: int, node: Buffer) -> bool:
    """Return whether so few stored bytes can hold the ids of a node's children, which all differ.

    A reader keeps every child of a tree in memory before it reads what is below. Forged ids compress to
    almost nothing, so a few MB of such nodes would take GBs of memory.
    """
    return stored >= STORED_CHILD * tree.count_of_children(node)


def is_possible(kind: ObjectKind, where: Location) -> bool:
    """Return whether an object of this kind and its locator can have the lengths of this location."""
    rows = LOCATOR_ROWS.get(kind)
    tail = 0 if rows is None else largest(rows) + FRAME_SLACK
    limit = OBJECT_LIMITS[kind]
    return where.length <= limit and where.stored <= limit + FRAME_SLACK and where.tail <= tail


_CONTEXTS: dict[int, str] = {
    ObjectKind.RECIPE: RecipeId.context,
    ObjectKind.SEGMENT: SegmentId.context,
    ObjectKind.NODE: NodeId.context,
}


def is_object(kind: int, object_id: bytes, data: Bytes) -> bool:
    """Return whether these unpacked bytes match the id."""
    context = _CONTEXTS.get(kind)
    hashed = blake3(data) if context is None else blake3(data, derive_key_context=context)
    return hashed.digest() == object_id


def checked(kind: ObjectKind, object_id: Id, where: Location, stored: Bytes) -> bytes:
    """Return the object in these stored bytes. Raises `IntegrityError` if they do not unpack to its id."""
    if not is_possible(kind, where):
        raise damaged(kind, object_id, where)
    try:
        data = codec.unpack(where.codec, stored, where.length)
    except IntegrityError as error:
        raise damaged(kind, object_id, where) from error
    if not is_object(kind, object_id, data):
        raise damaged(kind, object_id, where)
    if kind is ObjectKind.NODE and not has_real_ids(where.stored, data):
        raise damaged(kind, object_id, where)
    return data
