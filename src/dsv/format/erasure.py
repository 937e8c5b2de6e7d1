"""The record of an erasure: contents whose bytes are removed for good, in whatever commits they are."""

from __future__ import annotations

import msgspec

from dsv.format import envelope
from dsv.format.envelope import Buffer, Count, Long, Millis, Raw16, Raw32, Record, Short
from dsv.format.locator import ObjectKind
from dsv.values.ids import FileId, Id, Nonce

MAX_ERASED = 1 << 18
"""Files, or objects, of one record. More take several records."""
ERASURE_MAX = (1 << 19) + (34 + 38) * MAX_ERASED
"""Bytes of an `erasure` record."""

_ERASURE = Record(
    "erasure",
    tuple[tuple[Raw32, ...], tuple[tuple[Count, Raw32], ...], Raw16, Millis, Short, Long, Short],
    limit=ERASURE_MAX,
)
_KINDS = frozenset((ObjectKind.CHUNK, ObjectKind.RECIPE))

Named = tuple[ObjectKind, Id]


class Erasure(msgspec.Struct, frozen=True):
    """What was erased, by whom, when and why."""

    files: tuple[FileId, ...]
    """Files of which nothing is read any more, in any commit. Sorted, each once. Empty if they are in a later record of
    the same command."""
    objects: tuple[Named, ...]
    """Chunks and recipes that are removed, and not stored again. Sorted, each once."""
    nonce: Nonce
    """The records that one command writes have the same."""
    time_ms: int
    author: str
    reason: str
    tool: str

    def encode(self) -> bytes:
        """Raise `ValueError` where something is not sorted, or there is none or too much of it for one record."""
        if fault := self._fault():
            raise ValueError(fault)
        return _ERASURE.encode((
            tuple(map(bytes, self.files)),
            tuple((int(kind), bytes(one)) for kind, one in self.objects),
            bytes(self.nonce), self.time_ms, self.author, self.reason, self.tool,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer) -> Erasure:
        files, objects, nonce, time_ms, author, reason, tool = _ERASURE.decode(data)
        if not {kind for kind, _ in objects} <= _KINDS:
            raise envelope.damaged("erasure", "it names an object of an unknown kind")
        found = cls(
            tuple(map(FileId, files)),
            tuple((ObjectKind(kind), Id(one)) for kind, one in objects),
            Nonce(nonce), time_ms, author, reason, tool,
        )  # fmt: skip
        if fault := found._fault():
            raise envelope.damaged("erasure", fault)
        return found

    def _fault(self) -> str | None:
        if not self.files and not self.objects:
            return "it names nothing"
        lists: tuple[tuple[object, ...], ...] = (self.files, self.objects)
        for what in lists:
            if list(what) != sorted(set(what)):  # type: ignore[type-var]
                return "what it names is not sorted, each once"
            if len(what) > MAX_ERASED:
                return f"it names {len(what)} of one sort, over the limit of {MAX_ERASED}"
        return None
