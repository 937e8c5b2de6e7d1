"""The record of an erasure: contents whose bytes are removed for good, in whatever commits they are."""

from __future__ import annotations

from dsv.format.envelope import Long, Millis, Record, Short, is_sorted
from dsv.format.locator import ObjectKind
from dsv.values.ids import FileId, Id, Nonce

MAX_ERASED = 1 << 18
"""Files, or objects, of one record. More take several records."""
ERASURE_MAX = (1 << 19) + (34 + 38) * MAX_ERASED
"""Bytes of an `erasure` record."""

_KINDS = frozenset((ObjectKind.CHUNK, ObjectKind.RECIPE))

Named = tuple[ObjectKind, Id]


class Erasure(Record, frozen=True):
    """What was erased, by whom, when and why."""

    kind = "erasure"
    limit = ERASURE_MAX
    files: tuple[FileId, ...]
    """Files of which nothing is read any more, in any commit. Sorted, each once. Empty if they are in a later record of
    the same command."""
    objects: tuple[Named, ...]
    """Chunks and recipes that are removed, and not stored again. Sorted, each once."""
    nonce: Nonce
    """The records that one command writes have the same."""
    time_ms: Millis
    author: Short
    reason: Long
    tool: Short

    def fault(self) -> str | None:
        if not self.files and not self.objects:
            return "it names nothing"
        if not {kind for kind, _ in self.objects} <= _KINDS:
            return "it names an object of an unknown kind"
        for named in (self.files, self.objects):
            if not is_sorted(named):
                return "what it names is not sorted, each once"
            if len(named) > MAX_ERASED:
                return f"it names {len(named)} of one sort, over the limit of {MAX_ERASED}"
        return None
