"""Merging the contents of a file that two sides changed: texts line by line, tables by a key column if asked to."""

from __future__ import annotations

from dsv.model.diff import Change
from dsv.model.merge_lines import merge_lines
from dsv.repo.objects import Objects
from dsv.transfer.download import Fetcher, Wanted
from dsv.transfer.merge_tables import MAX_TABLE, is_table, merge_tables

MAX_TEXT = 1 << 20  # bytes; a text of this size or more is not merged


class ContentMerger:
    """`MergeContent` for the files of one store.

    table_key: the column by which CSV and Parquet files are merged; None merges them as texts, if they are.
    """

    def __init__(self, objects: Objects, table_key: str | None = None) -> None:
        self._objects = objects
        self._table_key = table_key

    def __call__(self, ours: Change, theirs: Change) -> bytes | str:
        key = self._table_key if is_table(ours.path) else None
        assert ours.before is not None and ours.after is not None and theirs.after is not None
        largest = max(entry.size for entry in (ours.before, ours.after, theirs.after))
        if key is not None and largest > MAX_TABLE:
            return f"it is larger than the {MAX_TABLE >> 20} MiB up to which tables are merged"
        if key is None and largest >= MAX_TEXT:
            return ""
        wanted = [
            Wanted(ours.before),
            Wanted(ours.after, ours.location),
            Wanted(theirs.after, theirs.location),
        ]
        files = Fetcher(self._objects, connections=4).files(wanted)
        base, mine, other = (b"".join(pieces) for _, pieces in files)
        if key is not None:
            return merge_tables(ours.path, key, base, mine, other)
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
