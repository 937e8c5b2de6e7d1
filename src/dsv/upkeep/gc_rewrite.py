"""Writing anew what a garbage collection keeps of packs that it deletes, and of index files that name them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np

from dsv.format import index, keys
from dsv.format.codec import Codec
from dsv.format.columns import cut
from dsv.format.index import Index, IndexBuilder
from dsv.format.index_merge import IndexMerge, MergedFile
from dsv.format.locator import Location, Locator, ObjectKind
from dsv.repo.errors import may_write
from dsv.repo.merge_indexes import delete_index
from dsv.repo.objects.metadata import release
from dsv.repo.objects.objects import checked
from dsv.repo.repository import Repository
from dsv.repo.session import put_index
from dsv.store.base import ask_each, if_there, together
from dsv.transfer.packing import PackStream, SealedPack
from dsv.upkeep.index_rows import Rows, id_of
from dsv.values.ids import Id, IndexId, PackId

AT_ONCE = 256
"""Requests that are made together."""
_INDEX_ROWS = 1 << 18
INDEX_BYTES = 1 << 30
"""Copied bytes after which an index file is written: what a killed garbage collection copied before that stays."""


class Copies:
    """New packs with copies of objects, and an index of them."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._data, self._metadata = PackStream(self._seal), PackStream(self._seal)
        self._builder, self._rows, self._bytes = IndexBuilder(), 0, 0
        self.stored = 0
        """Bytes of the new packs."""

    def add(self, row: Rows, pack: memoryview, pack_id: PackId) -> None:
        """Copy the object of a row out of a pack, with the locator behind it.

        Raises `IntegrityError` for one that is not what its id says.
        """
        kind, object_id = ObjectKind(int(row["kind"][0])), Id(id_of(row, 0))
        start, size, tail = int(row["offset"][0]), int(row["stored"][0]), int(row["tail"][0])
        codec, length = Codec(int(row["codec"][0])), int(row["length"][0])
        where = Location(pack_id, start, size, length, codec, tail)
        stored = pack[start : start + size]
        checked(kind, object_id, where, stored)
        if kind is ObjectKind.CHUNK:
            self._data.add(kind, object_id, codec, stored, length)
            return
        behind = bytes(pack[start + size : start + size + tail]) if tail else None
        unpacked = 0 if behind is None else Locator.decode(behind).encoded_length
        self._metadata.add(kind, object_id, codec, stored, length, behind, unpacked)

    def finish(self) -> None:
        self._data.flush()
        self._metadata.flush()
        self._put_index()

    def _seal(self, pack: SealedPack) -> None:
        with may_write(self._repository.store.url):
            self._repository.store.put_if_absent(keys.pack_key(pack.id), pack.data)
        for kind, object_id, where in pack.rows:
            self._builder.add(kind, Id(object_id), where)
        self._rows += len(pack.rows)
        self._bytes += len(pack.data)
        self.stored += len(pack.data)
        if self._rows >= _INDEX_ROWS or self._bytes >= INDEX_BYTES:
            self._put_index()

    def _put_index(self) -> None:
        if self._rows:
            put_index(self._repository, self._builder.finish())
        self._builder, self._rows, self._bytes = IndexBuilder(), 0, 0


def replace_indexes(
    repository: Repository,
    gone: Collection[PackId],
    known: Mapping[IndexId, Index],
    tool: str,
    check: Callable[[], None],
    ends: dict[IndexId, bytes],
) -> None:
    """Write index files without the rows of these packs, and a record of what stands now; then delete the old ones.

    Those of which nothing is left are only deleted. known: files of which it need not be asked what packs they name.
    check: called before anything is written or deleted. ends: gets the hashes at the ends of new files.
    """
    if not gone:
        return
    store, indexes = repository.store, repository.objects.indexes
    indexes.list_again()
    listed = indexes.listed
    new: dict[IndexId, MergedFile | None] = {}
    for index_id, packs in ask_each(partial(_packs_of, repository, known), sorted(listed.sizes), AT_ONCE):
        if not packs.isdisjoint(gone):
            data = if_there(partial(store.get, keys.index_key(index_id), index.FILE_MAX))
            if data is not None:  # else another garbage collection or a merge has replaced it
                new[index_id] = _without(repository, Index.parse(data, str(index_id)), gone, check, ends)
    if not new:
        return
    runs = [
        tuple(one for file in run if (one := new.get(file.id, file)) is not None)
        for run in listed.standing.runs
    ]
    runs = [run for run in runs if run]
    replaced = sorted({*new, *listed.standing.replaced} - {one.id for run in runs for one in run})
    if runs:
        record = IndexMerge.of(runs, replaced, repository.clock(), tool)
        key = keys.index_merge_key(max(listed.records, default=-1) + 1, IndexId.random())
        check()
        with may_write(store.url):
            store.put_if_absent(key, record.encode())
    check()
    together([partial(delete_index, store, one) for one in sorted(new)])
    indexes.renew()


def _packs_of(repository: Repository, known: Mapping[IndexId, Index], index_id: IndexId) -> set[PackId]:
    """Return the packs that an index file names; none if it has gone."""
    if index_id in known:
        found = set(known[index_id].packs)
        release(known[index_id].pack_ids)
        return found
    key, store = keys.index_key(index_id), repository.store
    size = repository.objects.indexes.listed.sizes[index_id]

    def read() -> bytes:
        head = store.get_range(key, 0, min(size, index.FIXED_SIZE))
        count = int.from_bytes(head[8:12], "little")
        length = min(16 * count, max(0, size - index.FIXED_SIZE))
        return bytes(store.get_range(key, index.FIXED_SIZE, length))

    table = if_there(read) or b""
    return {PackId(table[at : at + 16]) for at in range(0, len(table) - 15, 16)}


def _without(
    repository: Repository,
    parsed: Index,
    gone: Collection[PackId],
    check: Callable[[], None],
    ends: dict[IndexId, bytes],
) -> MergedFile | None:
    """Write what is left of an index file without the rows of these packs; None if nothing is."""
    numbers = [at for at, pack in enumerate(parsed.packs) if pack in gone]
    buckets: list[list[bytes]] = []
    for first in range(256):
        rows = np.frombuffer(parsed.bucket(first), np.uint8).reshape(-1, index.ROW_SIZE)
        places = rows[:, 36:40].copy().view("<u4")[:, 0]
        left = (rows[:, 33] == index.ERASED) | ~np.isin(places, numbers)
        buckets.append(cut(rows[left].tobytes(), index.ROW_SIZE))
    encoded = index.join(parsed.packs, buckets)
    bounds = Index.parse(encoded, verify=False)
    if not len(bounds):
        return None
    check()
    made = put_index(repository, encoded)
    ends[made] = encoded[-index.HASH_SIZE :]
    return MergedFile(made, *bounds.bounds)
