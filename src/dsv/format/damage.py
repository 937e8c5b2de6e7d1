"""Damage marks: which places of a store nobody may rely on, and which objects were found to be lost; and the record of
which packs were verified when.

Like the format log, each record of either kind gives the whole state, and the last one counts.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dsv.format.envelope import U32, Count, Millis, Record, Short, is_sorted
from dsv.format.locator import ObjectKind
from dsv.values.ids import Id, Nonce, PackId

MAX_MARKS = 1 << 18
"""Packs, damaged objects, or missing objects of one record."""
DAMAGE_MAX = (1 << 12) + (18 + 56 + 38) * MAX_MARKS
"""Bytes of a `damage` record."""

_KINDS = frozenset(ObjectKind) - {ObjectKind.LOCATOR}

Place = tuple[PackId, ObjectKind, Id]
"""An object in a pack."""
Named = tuple[ObjectKind, Id]


MAX_DIGITS = 4


class Damage(Record, frozen=True):
    """What is known to be damaged in a store."""

    kind = "damage"
    limit = DAMAGE_MAX
    packs: tuple[PackId, ...]
    """Packs that are gone, or of which nothing is to be used. Sorted, each once."""
    objects: tuple[Place, ...]
    """Objects whose bytes in a pack are damaged. Sorted, each once."""
    missing: tuple[Named, ...]
    """Objects that had no other place when this was written. Sorted, each once."""
    all_missing: bool
    """Whether `missing` has all of them."""
    nonce: Nonce
    time_ms: Millis
    author: Short
    tool: Short

    def fault(self) -> str | None:
        if not {kind for _, kind, _ in self.objects} | {kind for kind, _ in self.missing} <= _KINDS:
            return "it names an object of an unknown kind"
        for named in (self.packs, self.objects, self.missing):
            if not is_sorted(named):
                return "what it names is not sorted, each once"
            if len(named) > MAX_MARKS:
                return f"it names {len(named)} of one sort, over the limit of {MAX_MARKS}"
        return None


class Verified(Record, frozen=True):
    """When the packs of each slice were last verified. A slice has the packs whose ids begin with the same digits."""

    kind = "verified"
    digits: Count
    """Hex digits that the packs of a slice share: there are 16^digits slices."""
    times: Annotated[bytes, Meta(max_length=4 << 4 * MAX_DIGITS)]
    """A `u32` for each slice: seconds since 1970 by the store's clock, 0 if it was not verified yet."""
    fresh: tuple[U32, ...]
    """Slices that were verified just before this was written: their time is that of this record in the store. Sorted,
    each once."""
    nonce: Nonce
    time_ms: Millis
    author: Short
    tool: Short

    def fault(self) -> str | None:
        if not 1 <= self.digits <= MAX_DIGITS or len(self.times) != 4 * 16**self.digits:
            return "it does not have a time for each slice"
        if not is_sorted(self.fresh) or any(one >= 16**self.digits for one in self.fresh):
            return "its slices are not sorted, each once"
        return None
