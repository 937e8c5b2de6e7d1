"""Merging the index files of a store, so that a writer reads few of them however many syncs there have been.

A merge is a session of its own: gc waits for it, as for every writer, and while packs are condemned nobody merges. It
writes a run, then the record that the run stands for other files. Those are deleted by a later merge, when everybody
who listed the store before the record was there has long read what they wanted. Killed at any point, a merge leaves
files that say what others say too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

import msgspec

from dsv.errors import Denied, DsvError, NotFound
from dsv.model import index, keys
from dsv.model.ids import IndexId
from dsv.model.index import ROW_SIZE, Index
from dsv.model.index_merge import (
    MAX_FILES,
    MERGE_MAX,
    IndexMerge,
    MergedFile,
    Run,
    Unit,
    choose,
    crowd,
    units,
)
from dsv.model.index_rows import merge_all
from dsv.repo.damage import read_record
from dsv.repo.listed_indexes import ListedIndexes
from dsv.repo.repository import Repository
from dsv.repo.session import Session, Writer
from dsv.repo.standing_rows import StandingRows
from dsv.store.together import together

MOST_UNITS = 24
"""A sync merges if there are more."""
SYNC_ROWS = 1 << 20
"""What a sync merges has at most so many rows, which takes seconds."""
MOST_ROWS = 1 << 24
"""The most rows that anybody merges to a run: 940 MB in files of 15 MB."""
_FILE_ROWS = 1 << 18
GRACE_SECONDS = 3600.0
"""What was replaced is deleted when the record has been there so long, by the store's clock."""
_SHARE_COMPARED = 8  # of the rows that may be merged, a part is compared before files are deleted


class Merged(msgspec.Struct, frozen=True):
    """merged: how many index files were replaced. files: how many are to be read now. deleted: how many are gone."""

    merged: int
    files: int
    deleted: int


def tidy(repository: Repository, writer: Writer) -> None:
    """Merges if a sync met too many index files. What goes wrong is no failure of the sync: the next one tries."""
    found = _units(repository.objects.indexes.listed)
    if crowd(found, SYNC_ROWS) > MOST_UNITS and len(choose(found, SYNC_ROWS)) > 1:
        with suppress(DsvError):
            merge_indexes(repository, writer, most_rows=SYNC_ROWS)


def merge_indexes(repository: Repository, writer: Writer, *, most_rows: int = MOST_ROWS) -> Merged:
    """Merges what `choose` chooses, and deletes what an earlier merge has replaced. Raises what the store raises."""
    indexes = repository.objects.indexes
    with Session.open(repository, writer) as session:
        try:
            indexes.refresh()
            listed = indexes.listed
            if session.condemned:
                return Merged(0, len(listed.standing.files), 0)
            chosen = choose(_units(listed), most_rows)
            record = _merge(session, listed, chosen) if len(chosen) > 1 else None
            deleted = _delete_replaced(session, listed, record, most_rows // _SHARE_COMPARED)
        finally:
            session.close()
    indexes.renew()
    indexes.refresh()
    merged = sum(len(unit.files) for unit in chosen) if record is not None else 0
    return Merged(merged, len(indexes.listed.standing.files), deleted)


def _units(listed: ListedIndexes) -> list[Unit]:
    return units(listed.standing, {index_id: size // ROW_SIZE for index_id, size in listed.sizes.items()})


def _merge(session: Session, listed: ListedIndexes, chosen: Sequence[Unit]) -> str | None:
    """Writes the run and its record, whose key it returns; None if another merge was faster."""
    repository = session.repository
    ids = [index_id for unit in chosen for index_id in unit.files]
    found = together([partial(repository.objects.indexes.whole, index_id) for index_id in ids])
    whole = [one for one in found if one is not None]
    replaced = sorted({*ids, *listed.standing.replaced})
    if len(whole) < len(ids) or len(replaced) + len(listed.sizes) > MAX_FILES:
        return None
    run: list[MergedFile] = []
    for encoded in merge_all(whole, _FILE_ROWS):
        first, last = Index.parse(encoded, verify=False).bounds
        run.append(MergedFile(session.put_index(encoded), first, last))
    kept = tuple(one for one in listed.standing.runs if not {file.id for file in one} & {*ids})
    runs: tuple[Run, ...] = (*kept, tuple(run))
    record = IndexMerge.of(runs, replaced, repository.clock(), session.writer.tool)
    key = keys.index_merge_key(max(listed.records, default=-1) + 1, IndexId.random())
    repository.store.put_if_absent(key, record.encode())
    return key


def _delete_replaced(session: Session, listed: ListedIndexes, record: str | None, most_rows: int) -> int:
    """Deletes files that a merge of long ago has replaced, and the records before that merge. Returns how many files.

    Each is compared before with what stands for it in the store: a record that is wrong, or a file that is damaged,
    must not cost a row. The comparison of more than `most_rows` rows is left to later merges. Who may not delete leaves
    it to others.
    """
    store = session.repository.store
    number = _settled(session, listed, record)
    if number is None:
        return 0
    replaced = set[IndexId]()
    for key in listed.records[number]:
        with suppress(DsvError):
            replaced.update(read_record(IndexMerge.decode, store, key, MERGE_MAX).replaced)
    candidates = sorted(replaced & listed.standing.replaced, key=lambda one: (listed.sizes[one], one))
    sums = accumulate(listed.sizes[one] // ROW_SIZE for one in candidates)
    taken = [one for one, rows in zip(candidates, sums, strict=True) if rows <= most_rows] or candidates[:1]
    indexes = session.repository.objects.indexes
    standing = StandingRows(indexes, most_rows * _SHARE_COMPARED)
    read = ((index_id, indexes.proved(index_id, index.FILE_MAX)) for index_id in taken)
    safe = [index_id for index_id, found in read if found is not None and standing.have_all(found)]
    with suppress(Denied):
        for first in safe[:1]:
            _delete(session, first)  # alone: if it is refused, so would be all others
        together([partial(_delete, session, index_id) for index_id in safe[1:]])
        if len(safe) == len(candidates):
            old = [key for earlier in listed.records if earlier < number for key in listed.records[earlier]]
            together([partial(store.delete, key) for key in old])
        return len(safe)
    return 0


def _settled(session: Session, listed: ListedIndexes, record: str | None) -> int | None:
    """The latest merge whose record is older than the time of grace: by the store's clock, which dates both."""
    store = session.repository.store
    now = store.modified(record or keys.session_open_key(session.id))
    for number in sorted(listed.records, reverse=True):
        with suppress(NotFound):
            if all(now - store.modified(key) >= GRACE_SECONDS for key in listed.records[number]):
                return number
    return None


def _delete(session: Session, index_id: IndexId) -> None:
    session.repository.store.delete(keys.index_key(index_id))
    session.repository.store.delete(keys.index_filter_key(index_id))
