"""Whether what a store says of its index files is so: each whole, with its own filter, and each merge with all rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.model import index, keys
from dsv.model.ids import IndexId
from dsv.model.index import Index
from dsv.model.index_filter import FILTER_MAX, encode_filter
from dsv.model.index_merge import MERGE_MAX, IndexMerge
from dsv.repo.damage import put_back, read_record
from dsv.repo.repository import Repository
from dsv.repo.standing_rows import StandingRows
from dsv.store.base import StoreMissing, TooLargeError

# Of more index files, so many are read, chosen by chance.
_MOST_FILES = 1000


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a key, and what mends it."""

    text: str
    hint: str


class IndexReport(msgspec.Struct, frozen=True):
    """files: that the store has. read: how many of them were. standing: how many a writer needs to know."""

    files: int
    read: int
    standing: int
    faults: tuple[Fault, ...]


def check_indexes(repository: Repository) -> IndexReport:
    """Reads index files, filters and records of merges from the store itself. Raises what the store raises."""
    indexes = repository.objects.indexes
    indexes.refresh()
    listed = indexes.listed
    ids = sorted({*listed.sizes, *indexes.damaged})
    chosen = {*random.sample(ids, min(len(ids), _MOST_FILES)), *indexes.damaged}
    faults = [*_of_records(repository)]
    for index_id in sorted(chosen):
        faults += _of_file(repository, index_id)
    standing = StandingRows(indexes, index.MAX_ROWS)
    for index_id in sorted(listed.standing.replaced & chosen):
        found = indexes.proved(index_id, index.FILE_MAX)
        if found is not None and standing.lack_any(found):
            record = listed.records[max(listed.records)][0]
            text = f"{keys.index_key(index_id)} has rows that no other index file has, and {record} says otherwise"
            faults.append(Fault(text, f"remove {record}: without it all index files are read"))
    return IndexReport(len(ids), len(chosen), len(listed.standing.files), tuple(faults))


def _of_records(repository: Repository) -> Iterator[Fault]:
    records = repository.objects.indexes.listed.records
    for key in [key for number in sorted(records) for key in records[number]]:
        try:
            read_record(IndexMerge.decode, repository.store, key, MERGE_MAX)
        except IntegrityError as error:
            yield Fault(error.message, f"remove {key}: without it all index files are read")
        except Unsupported as error:
            yield Fault(error.message, error.hint or "install a newer dsv")
        except StoreMissing:
            raise
        except NotFound:
            continue  # deleted since


def _of_file(repository: Repository, index_id: IndexId) -> Iterator[Fault]:
    key, store = keys.index_key(index_id), repository.store
    try:
        found = Index.parse(store.get(key, index.FILE_MAX), str(index_id))
    except StoreMissing:
        raise
    except NotFound:
        return  # deleted since
    except (IntegrityError, Unsupported) as error:
        yield Fault(f"{key}: {error.message}", error.hint or put_back(key))
        return
    if index_id in repository.objects.indexes.listed.filtered:
        described = keys.index_filter_key(index_id)
        try:
            right = store.get(described, FILTER_MAX) == encode_filter(index_id, found)
        except (NotFound, TooLargeError, ValueError):
            right = False
        if not right:
            text = f"{described} is not the filter of its index file, so what that has may be stored twice"
            yield Fault(text, f"remove {described}: without it the index file is read whole")
