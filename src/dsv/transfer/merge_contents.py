"""Merging the contents of a file that two sides changed: texts line by line, tables by a key column if asked to."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.model.diff import Change
from dsv.model.entry import Entry
from dsv.model.ids import FileId
from dsv.model.merge_lines import merge_lines
from dsv.repo.objects import Objects
from dsv.transfer.download import Fetcher, Wanted
from dsv.transfer.merge_tables import MAX_TABLE, is_table, merge_tables

_REMEMBERED = 64 << 20  # bytes
MAX_TEXT = 1 << 20  # bytes; a text of this size or more is not merged


class ContentMerger:
    """`MergeContent` for the files of one store.

    table_key: the column by which CSV and Parquet files are merged; None merges them as texts, if they are.
    """

    def __init__(self, objects: Objects, table_key: str | None = None) -> None:
        self._objects = objects
        self._table_key = table_key
        self._known: dict[object, bytes | str] = {}
        self._weight = 0

    def __call__(self, ours: Change, theirs: Change) -> bytes | str:
        fault = self._fault(ours.path, (ours.before, ours.after, theirs.after))
        if fault is not None:
            return fault
        assert ours.before is not None and ours.after is not None and theirs.after is not None
        base, mine, other = self._fetch(
            Wanted(ours.before), Wanted(ours.after, ours.location), Wanted(theirs.after, theirs.location)
        )
        return self._merge(ours.path, base, mine, other)

    def takes(self, path: bytes, entries: Sequence[Entry | None]) -> bool:
        """Whether files of these sizes are merged at all."""
        return self._fault(path, entries) is None

    def merge_local(self, theirs: Change, mine: bytes) -> bytes | str:
        """Merges a content that is here with what a commit makes of its base; what was merged is remembered."""
        key = FileId.hash(mine), theirs.path, theirs.after
        if key not in self._known:
            assert theirs.before is not None and theirs.after is not None
            base, other = self._fetch(Wanted(theirs.before), Wanted(theirs.after, theirs.location))
            merged = self._merge(theirs.path, base, mine, other)
            self._weight += len(merged)
            if self._weight > _REMEMBERED:
                return merged
            self._known[key] = merged
        return self._known[key]

    def _fault(self, path: bytes, entries: Sequence[Entry | None]) -> str | None:
        largest = max(entry.size for entry in entries if entry is not None)
        if self._key(path) is None:
            return "" if largest >= MAX_TEXT else None
        if largest > MAX_TABLE:
            return f"it is larger than the {MAX_TABLE >> 20} MiB up to which tables are merged"
        return None

    def _key(self, path: bytes) -> str | None:
        return self._table_key if is_table(path) else None

    def _fetch(self, *wanted: Wanted) -> list[bytes]:
        files = Fetcher(self._objects, connections=4).files(wanted)
        return [b"".join(pieces) for _, pieces in files]

    def _merge(self, path: bytes, base: bytes, mine: bytes, other: bytes) -> bytes | str:
        key = self._key(path)
        if key is not None:
            return merge_tables(path, key, base, mine, other)
        if not all(map(is_mergeable_text, (base, mine, other))):
            return ""
        merged = merge_lines(base, mine, other)
        return "both changed the same lines" if merged is None else merged


def is_mergeable_text(data: bytes) -> bool:
    """UTF-8 without NUL."""
    if b"\0" in data:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
