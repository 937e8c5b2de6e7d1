"""Where an object lies."""

from __future__ import annotations

import enum
from typing import NamedTuple

from dsv.model.codec import Codec
from dsv.model.ids import PackId

OBJECT_MAX = 32 << 20  # bytes of one object, unpacked
PACK_MAX = 128 << 20  # bytes of a pack; larger ones are refused, and so is a place beyond


class ObjectKind(enum.IntEnum):
    """What an object of a pack is, and so how its id is made."""

    CHUNK = 1
    RECIPE = 2
    SEGMENT = 3
    NODE = 4
    LOCATOR = 5


class Location(NamedTuple):
    """A run of bytes in a pack. A named tuple, as millions are made and a dataclass takes four times as long.

    offset, stored: where its stored bytes begin and how many they are.
    length: bytes of the object when unpacked.
    tail: stored bytes of the object's own locator, which then lies directly behind it; 0 where it has none.
    """

    pack: PackId
    offset: int
    stored: int
    length: int
    codec: Codec
    tail: int = 0
