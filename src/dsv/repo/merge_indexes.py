"""Merging and checking the index files of a store.

A merge writes new index files (a run) with all the rows of other files, and then a record of the merge.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

import msgspec

from dsv.errors import Denied, DsvError, IntegrityError, NotFound, Unsupported
from dsv.format import index, keys
from dsv.format.index import FILTER_MAX, ROW_SIZE, Index, encode_filter, merge_all
from dsv.format.locator import Location, ObjectKind
from dsv.format.records import MAX_FILES, MERGE_MAX, IndexMerge, MergedFile, Run, WriterIdentity
from dsv.repo.errors import put_back, read_record
from dsv.repo.objects.indexes import Indexes, ListedIndexes
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.base import StoreBackend, TooLargeError, if_there, together
from dsv.values.ids import Id, IndexId


class CurrentRows:
    """The rows of the index files in use, for one deletion or check. Files are read only as needed."""

    def __init__(self, indexes: Indexes, most_rows: int) -> None:
        """most_rows: the limit for rows that are read from large files without a local copy."""
        self._indexes = indexes
        self._most_bytes = most_rows * ROW_SIZE
        standing = indexes.listed.standing
        newest = [file.id for run in reversed(standing.runs) for file in run]
        known = standing.files
        ordered = sorted([*newest, *standing.loose], key=indexes.is_remote)
        self._files: list[tuple[IndexId, MergedFile | None]] = [(one, known[one]) for one in ordered]
        self._read: dict[IndexId, Index | None] = {}

    def have_all(self, found: Index) -> bool:
        """Return whether the other files have all rows of a replaced file. False if a kind is unknown."""
        known = sum(1 for _ in found.rows()) + sum(1 for _ in found.erased())
        return known == len(found) and not self.lack_any(found)

    def lack_any(self, found: Index) -> bool:
        """Return whether a file has a row that no other file has. Rows of unknown kinds are not compared."""
        places = all(self._have(*row) for row in found.rows())
        return not (places and all(self._have(*row, None) for row in found.erased()))

    def _have(self, kind: ObjectKind, object_id: Id, place: Location | None) -> bool:
        """Return whether a file has this location, or marks the object as erased (which overrides it)."""
        head = int.from_bytes(object_id[:4], "big")
        for index_id, file in self._files:
            if file is not None and not file.first <= head <= file.last:
                continue
            one = self._proved(index_id)
            try:
                if one is not None and place == one.find(kind, object_id) is not None:
                    return True
            except NotFound:
                return True
            except Unsupported:
                continue
        return False

    def _proved(self, index_id: IndexId) -> Index | None:
        if index_id not in self._read:
            found = self._indexes.proved(index_id, 0)
            if found is None and self._indexes.is_remote(index_id):
                found = self._indexes.proved(index_id, self._most_bytes)
                self._most_bytes -= 0 if found is None else len(found) * ROW_SIZE
            self._read[index_id] = found
        return self._read[index_id]


MOST_UNITS = 24
"""A sync merges if it finds more."""
SYNC_ROWS = 1 << 20
"""The most rows that a sync merges. This takes seconds."""
MOST_ROWS = 1 << 24
"""The most rows that any merge writes to a run: 940 MB in files of 15 MB."""
_FILE_ROWS = 1 << 18
GRACE_SECONDS = 3600.0
"""The age of a record, by the store's clock, at which the files that it replaces are deleted."""
_SHARE_COMPARED = 8  # an eighth of the rows that may be merged is compared before files are deleted


class IndexMergeResult(msgspec.Struct, frozen=True):
    """The numbers of index files after a merge."""

    merged: int
    """Files that were replaced."""
    files: int
    """Files that readers need now."""
    deleted: int


class Unit(msgspec.Struct, frozen=True):
    """A unit of merging: a loose file, or a run."""

    files: tuple[IndexId, ...]
    rows: int


def choose(found: Sequence[Unit], most_rows: int) -> list[Unit]:
    """Return the units to merge, smallest first. Each other has at least twice the rows of all smaller ones.

    A row is merged again only when its unit has grown by half: for n rows n log n rows are written, and log n
    units remain. Nothing is merged to more than `most_rows`.
    """
    ordered = sorted(found, key=lambda unit: unit.rows)
    chosen = total = 0
    for at, unit in enumerate(ordered):
        if total + unit.rows > most_rows or 2 * unit.rows > most_rows:
            break
        if unit.rows <= 2 * total:
            chosen = at + 1
        total += unit.rows
    return ordered[:chosen]


def tidy(repository: Repository, writer: WriterIdentity) -> None:
    """Merge if a sync found too many index files. A failure is ignored, because the next sync tries again."""
    found = _units(repository.objects.indexes.listed)
    small = [unit for unit in found if 2 * unit.rows <= SYNC_ROWS]  # the others stay as they are
    if len(small) > MOST_UNITS and len(choose(found, SYNC_ROWS)) > 1:
        with suppress(DsvError):
            merge_indexes(repository, writer, most_rows=SYNC_ROWS)


def merge_indexes(
    repository: Repository, writer: WriterIdentity, *, most_rows: int = MOST_ROWS
) -> IndexMergeResult:
    """Merge the units that `choose` returns, and delete what an earlier merge replaced. Raises `DsvError`."""
    indexes = repository.objects.indexes
    with Session.open(repository, writer, resumed=False) as session:
        indexes.refresh()
        listed = indexes.listed
        chosen = _without_condemned(session, choose(_units(listed), most_rows))
        record = _merge(session, listed, chosen) if len(chosen) > 1 else None
        deleted = _delete_replaced(session, listed, record, most_rows // _SHARE_COMPARED)
    indexes.renew()
    indexes.refresh()
    merged = sum(len(unit.files) for unit in chosen) if record is not None else 0
    return IndexMergeResult(merged, len(indexes.listed.standing.files), deleted)


def _units(listed: ListedIndexes) -> list[Unit]:
    runs = [tuple(file.id for file in run) for run in listed.standing.runs]
    return [
        Unit(files, sum(listed.sizes[index_id] // ROW_SIZE for index_id in files))
        for files in (*runs, *((index_id,) for index_id in listed.standing.loose))
    ]


def _without_condemned(session: Session, chosen: list[Unit]) -> list[Unit]:
    """Return the units that name no condemned pack. gc will write the files of the others again."""
    if not session.condemned:
        return chosen
    indexes = session.repository.objects.indexes

    def is_free(unit: Unit) -> bool:
        files = [indexes.whole(index_id) for index_id in unit.files]
        return all(file is not None and session.condemned.isdisjoint(file.packs) for file in files)

    return [unit for unit in chosen if is_free(unit)]


def _merge(session: Session, listed: ListedIndexes, chosen: Sequence[Unit]) -> str | None:
    """Write the run and then its record. Return the record's key; None if another merge was faster or if too
    many files would be listed."""
    repository = session.repository
    ids = [index_id for unit in chosen for index_id in unit.files]
    read = together([partial(repository.objects.indexes.whole, index_id) for index_id in ids])
    whole = [file for file in read if file is not None]
    replaced = sorted({*ids, *listed.standing.replaced})
    if len(whole) < len(ids) or len(replaced) + len(listed.sizes) > MAX_FILES:
        return None
    run: list[MergedFile] = []
    for encoded in merge_all(whole, _FILE_ROWS):
        first, last = Index.parse(encoded, verify=False).bounds
        run.append(MergedFile(session.put_index(encoded), first, last))
    kept = tuple(old_run for old_run in listed.standing.runs if not {file.id for file in old_run} & {*ids})
    runs: tuple[Run, ...] = (*kept, tuple(run))
    return put_merge(repository, listed, runs, replaced, session.writer.tool)


def put_merge(
    repository: Repository, listed: ListedIndexes, runs: Sequence[Run], replaced: Iterable[IndexId], tool: str
) -> str:
    """Write the record that follows the listed ones, and return its key."""
    record = IndexMerge.of(runs, replaced, repository.clock(), tool)
    key = keys.index_merge_key(max(listed.records, default=-1) + 1, IndexId.random())
    repository.store.put_if_absent(key, record.encode())
    return key


def _delete_replaced(session: Session, listed: ListedIndexes, record: str | None, most_rows: int) -> int:
    """Delete files that a merge long ago has replaced, and the records before it. Return how many files.

    Each file is first compared with those that replace it in the store, because a wrong record or a damaged
    file must not cost a row. If more than `most_rows` rows had to be compared, the rest is left to later
    merges. A user who may not delete leaves it to others.
    """
    store = session.repository.store
    number = _newest_old_merge(session, listed, record)
    if number is None:
        return 0
    replaced = set[IndexId]()
    for key in listed.records[number]:
        with suppress(DsvError):
            replaced.update(read_record(IndexMerge.decode, store, key, MERGE_MAX).replaced)
    candidates = sorted(replaced & listed.standing.replaced, key=lambda file: (listed.sizes[file], file))
    sums = accumulate(listed.sizes[file] // ROW_SIZE for file in candidates)
    taken = [file for file, rows in zip(candidates, sums, strict=True) if rows <= most_rows] or candidates[:1]
    indexes = session.repository.objects.indexes
    standing = CurrentRows(indexes, most_rows * _SHARE_COMPARED)
    read = ((index_id, indexes.proved(index_id, index.FILE_MAX)) for index_id in taken)
    safe = [index_id for index_id, merged in read if merged is not None and standing.have_all(merged)]
    with suppress(Denied):
        for first in safe[:1]:
            delete_index(store, first)  # alone: if it is refused, all others would be too
        together([partial(delete_index, store, index_id) for index_id in safe[1:]])
        if len(safe) == len(candidates):
            old = [key for earlier in listed.records if earlier < number for key in listed.records[earlier]]
            together([partial(store.delete, key) for key in old])
        return len(safe)
    return 0


def _newest_old_merge(session: Session, listed: ListedIndexes, record: str | None) -> int | None:
    """Return the latest merge whose records are older than `GRACE_SECONDS`, all by the store's clock."""
    store = session.repository.store
    now = store.modified(record or keys.session_key(session.id, "open"))
    for number in sorted(listed.records, reverse=True):
        with suppress(NotFound):
            if all(now - store.modified(key) >= GRACE_SECONDS for key in listed.records[number]):
                return number
    return None


def delete_index(store: StoreBackend, index_id: IndexId) -> None:
    """Delete an index file and its filter."""
    store.delete(keys.index_key(index_id))
    store.delete(keys.index_filter_key(index_id))


# The most index files that a check reads, chosen at random.
_MOST_FILES = 1000


class IndexFault(msgspec.Struct, frozen=True):
    """A fault of a key, and how to repair it."""

    text: str
    hint: str


class IndexReport(msgspec.Struct, frozen=True):
    """The result of a check of the index files."""

    files: int
    """Files in the store."""
    read: int
    standing: int
    """Files that a writer needs."""
    faults: tuple[IndexFault, ...]


def check_indexes(repository: Repository) -> IndexReport:
    """Check index files, filters and records of merges in the store itself. Raises what the store raises."""
    indexes = repository.objects.indexes
    indexes.refresh()
    listed = indexes.listed
    ids = sorted({*listed.sizes, *indexes.damaged})
    chosen = {*random.sample(ids, min(len(ids), _MOST_FILES)), *indexes.damaged}
    faults = [*_of_records(repository)]
    for index_id in sorted(chosen):
        faults += _of_file(repository, index_id)
    standing = CurrentRows(indexes, index.MAX_ROWS)
    for index_id in sorted(listed.standing.replaced & chosen):
        found = indexes.proved(index_id, index.FILE_MAX)
        if found is not None and standing.lack_any(found):
            record = listed.records[max(listed.records)][0]
            text = f"{keys.index_key(index_id)} has rows that no other index file has, and {record} says otherwise"
            faults.append(IndexFault(text, f"remove {record}: without it all index files are read"))
    return IndexReport(len(ids), len(chosen), len(listed.standing.files), tuple(faults))


def _of_records(repository: Repository) -> Iterator[IndexFault]:
    records = repository.objects.indexes.listed.records
    for key in [key for number in sorted(records) for key in records[number]]:
        try:
            if_there(partial(read_record, IndexMerge.decode, repository.store, key, MERGE_MAX))
        except IntegrityError as error:
            yield IndexFault(error.message, f"remove {key}: without it all index files are read")
        except Unsupported as error:
            yield IndexFault(error.message, error.hint or "install a newer dsv")


def _of_file(repository: Repository, index_id: IndexId) -> Iterator[IndexFault]:
    key, store = keys.index_key(index_id), repository.store
    try:
        data = if_there(partial(store.get, key, index.FILE_MAX))
        if data is None:
            return  # deleted since
        found = Index.parse(data, str(index_id))
    except (IntegrityError, Unsupported) as error:
        yield IndexFault(f"{key}: {error.message}", error.hint or put_back(key))
        return
    if index_id in repository.objects.indexes.listed.filtered:
        described = keys.index_filter_key(index_id)
        try:
            right = store.get(described, FILTER_MAX) == encode_filter(index_id, found)
        except (NotFound, TooLargeError, ValueError):
            right = False
        if not right:
            text = f"{described} is not the filter of its index file, so what that has may be stored twice"
            yield IndexFault(text, f"remove {described}: without it the index file is read whole")
