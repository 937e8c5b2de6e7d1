"""Damage marks: which places of a store nobody may rely on, and which objects were found to be lost; and the record of
which packs were verified when.

Like the format log, each record of either kind gives the whole state, and the last one counts.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dsv.format import envelope
from dsv.format.envelope import U32, Buffer, Count, Millis, Raw16, Raw32, Record, Short
from dsv.format.locator import ObjectKind
from dsv.values.ids import Id, Nonce, PackId

MAX_MARKS = 1 << 18
"""Packs, damaged objects, or missing objects of one record."""
DAMAGE_MAX = (1 << 12) + (18 + 56 + 38) * MAX_MARKS
"""Bytes of a `damage` record."""

_DAMAGE = Record(
    "damage",
    tuple[
        tuple[Raw16, ...],
        tuple[tuple[Raw16, Count, Raw32], ...],
        tuple[tuple[Count, Raw32], ...],
        bool,
        Raw16,
        Millis,
        Short,
        Short,
    ],
    limit=DAMAGE_MAX,
)
_KINDS = frozenset(ObjectKind) - {ObjectKind.LOCATOR}

Place = tuple[PackId, ObjectKind, Id]
"""An object in a pack."""
Named = tuple[ObjectKind, Id]


MAX_DIGITS = 4
_VERIFIED = Record(
    "verified",
    tuple[
        Count,
        Annotated[bytes, Meta(max_length=4 << 4 * MAX_DIGITS)],
        tuple[U32, ...],
        Raw16,
        Millis,
        Short,
        Short,
    ],
)


class Damage(msgspec.Struct, frozen=True):
    """What is known to be damaged in a store."""

    packs: tuple[PackId, ...]
    """Packs that are gone, or of which nothing is to be used. Sorted, each once."""
    objects: tuple[Place, ...]
    """Objects whose bytes in a pack are damaged. Sorted, each once."""
    missing: tuple[Named, ...]
    """Objects that had no other place when this was written. Sorted, each once."""
    all_missing: bool
    """Whether `missing` has all of them."""
    nonce: Nonce
    time_ms: int
    author: str
    tool: str

    def encode(self) -> bytes:
        """Raise `ValueError` where something is not sorted, or there is too much of it for one record."""
        if fault := self._fault():
            raise ValueError(fault)
        return _DAMAGE.encode((
            tuple(map(bytes, self.packs)),
            tuple((bytes(pack), int(kind), bytes(one)) for pack, kind, one in self.objects),
            tuple((int(kind), bytes(one)) for kind, one in self.missing),
            self.all_missing, bytes(self.nonce), self.time_ms, self.author, self.tool,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer) -> Damage:
        packs, objects, missing, all_missing, nonce, time_ms, author, tool = _DAMAGE.decode(data)
        if not {kind for _, kind, _ in objects} | {kind for kind, _ in missing} <= _KINDS:
            raise envelope.damaged("damage", "it names an object of an unknown kind")
        found = cls(
            tuple(map(PackId, packs)),
            tuple((PackId(pack), ObjectKind(kind), Id(one)) for pack, kind, one in objects),
            tuple((ObjectKind(kind), Id(one)) for kind, one in missing),
            all_missing, Nonce(nonce), time_ms, author, tool,
        )  # fmt: skip
        if fault := found._fault():
            raise envelope.damaged("damage", fault)
        return found

    def _fault(self) -> str | None:
        lists: tuple[tuple[Any, ...], ...] = (self.packs, self.objects, self.missing)
        for what in lists:
            if list(what) != sorted(set(what)):
                return "what it names is not sorted, each once"
            if len(what) > MAX_MARKS:
                return f"it names {len(what)} of one sort, over the limit of {MAX_MARKS}"
        return None


class Verified(msgspec.Struct, frozen=True):
    """When the packs of each slice were last verified. A slice has the packs whose ids begin with the same digits."""

    digits: int
    """Hex digits that the packs of a slice share: there are 16^digits slices."""
    times: bytes
    """A `u32` for each slice: seconds since 1970 by the store's clock, 0 if it was not verified yet."""
    fresh: tuple[int, ...]
    """Slices that were verified just before this was written: their time is that of this record in the store. Sorted,
    each once."""
    nonce: Nonce
    time_ms: int
    author: str
    tool: str

    def encode(self) -> bytes:
        """Raise `ValueError` where the numbers of slices do not agree."""
        if fault := self._fault():
            raise ValueError(fault)
        return _VERIFIED.encode((
            self.digits, self.times, self.fresh, bytes(self.nonce), self.time_ms, self.author,
            self.tool,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer) -> Verified:
        digits, times, fresh, nonce, time_ms, author, tool = _VERIFIED.decode(data)
        found = cls(digits, times, fresh, Nonce(nonce), time_ms, author, tool)
        if fault := found._fault():
            raise envelope.damaged("verified", fault)
        return found

    def _fault(self) -> str | None:
        if not 1 <= self.digits <= MAX_DIGITS or len(self.times) != 4 * 16**self.digits:
            return "it does not have a time for each slice"
        if list(self.fresh) != sorted(set(self.fresh)) or any(one >= 16**self.digits for one in self.fresh):
            return "its slices are not sorted, each once"
        return None
