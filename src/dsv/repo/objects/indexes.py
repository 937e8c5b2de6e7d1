"""The index files of a store: listed, read whole or in ranges, and searched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import chain

import msgspec

from dsv.errors import IntegrityError, Unsupported
from dsv.format import index, keys
from dsv.format.index import FILTER_MAX, ROW_SIZE, Index, IndexFilter
from dsv.format.locator import Location, ObjectKind
from dsv.format.records import MERGE_MAX, IndexMerge, MergedFile, Run
from dsv.repo.errors import put_back
from dsv.repo.objects.metadata import MetadataCache, release
from dsv.stores.base import StoreBackend, ask_each, if_there, together
from dsv.values.ids import Id, IndexId, PackId

# If the latest records can't be used, records of this many numbers are tried.
_NUMBERS = 3


class CurrentIndexes(msgspec.Struct, frozen=True):
    """The index files of a store that together have all rows."""

    runs: tuple[Run, ...]
    loose: tuple[IndexId, ...]
    """Files outside runs."""
    replaced: frozenset[IndexId]

    @property
    def files(self) -> dict[IndexId, MergedFile | None]:
        """Return the files to read, with what a merge says of those in runs."""
        files: dict[IndexId, MergedFile | None] = {file.id: file for run in self.runs for file in run}
        return files | dict.fromkeys(self.loose)


def stand(listed: Iterable[IndexId], records: Iterable[IndexMerge]) -> CurrentIndexes:
    """Return which of the listed files count, by the latest records.

    A record counts only if all files of its runs were listed. If one of them was replaced in turn, by a
    concurrent merge, the newer files have its rows.
    """
    there = set(listed)
    valid = [record for record in records if all(one.id in there for one in record.files)]
    replaced = {index_id for record in valid for index_id in record.replaced} & there
    runs: dict[Run, None] = {}
    for record in valid:
        for run in record.by_run:
            left = tuple(one for one in run if one.id not in replaced)
            if left:
                runs[left] = None
    in_runs = {one.id for run in runs for one in run}
    return CurrentIndexes(tuple(runs), tuple(sorted(there - replaced - in_runs)), frozenset(replaced))


class ListedIndexes(msgspec.Struct, frozen=True):
    """The index files in a listing of the store."""

    sizes: dict[IndexId, int]
    """Bytes of each index file."""
    filtered: frozenset[IndexId]
    records: dict[int, tuple[str, ...]]
    """Keys of merge records, by number."""
    standing: CurrentIndexes


def list_indexes(
    store: StoreBackend, read: Callable[[str], IndexMerge | None], without: Container[IndexId] = ()
) -> ListedIndexes:
    """List once, and read the latest records of merges. Each record includes all earlier ones.

    without: index files that are treated as absent, so no record that names one of them counts.
    """
    sizes: dict[IndexId, int] = {}
    filtered: set[IndexId] = set()
    records: dict[int, list[str]] = {}
    for item in store.list(keys.INDEX_PREFIX):
        if (index_id := keys.parse_index_key(item.key)) is not None:
            if index_id not in without:
                sizes[index_id] = item.size
        elif (index_id := keys.parse_index_filter_key(item.key)) is not None:
            filtered.add(index_id)
        elif (number := keys.parse_index_merge_key(item.key)) is not None:
            records.setdefault(number, []).append(item.key)
    standing = CurrentIndexes((), tuple(sorted(sizes)), frozenset())
    for number in sorted(records, reverse=True)[:_NUMBERS]:
        found = together([partial(read, key) for key in records[number]])
        later = stand(sizes, [record for record in found if record is not None])
        if later.runs:
            standing = later
            break
    by_number = {number: tuple(keyed) for number, keyed in records.items()}
    return ListedIndexes(sizes, frozenset(filtered), by_number, standing)


# After this many reads of parts the whole file is read, because it is used that much.
_PARTS = 16
_NAME = "index-filter"


class RemoteIndex:
    """Answers like an `Index`. Its filter is only a hint: without a right one the whole file is read."""

    def __init__(
        self,
        store: StoreBackend,
        metadata: MetadataCache,
        index_id: IndexId,
        size: int,
        file: MergedFile | None,
        read: Callable[[IndexId], Index | None],
    ) -> None:
        """size: of the index file, in bytes. file: what a merge says of it. read: reads the whole file."""
        self._store = store
        self._metadata = metadata
        self._id = index_id
        self._rows = size // ROW_SIZE
        self._file = file
        self._read = read
        self._filter: IndexFilter | None = None
        self._whole: Index | None = None
        self._parts: dict[int, memoryview] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return about how many rows it has."""
        return self._rows

    @property
    def packs(self) -> list[PackId]:
        """The packs that are known so far."""
        known = self._whole or self._filter
        return [] if known is None else known.packs

    def find(self, kind: ObjectKind, object_id: Id) -> Location | None:
        """Raises the same as `Index.find`, and what the store raises."""
        file = self._file
        if file is not None and not file.first <= int.from_bytes(object_id[:4], "big") <= file.last:
            return None
        with self._lock:
            if self._whole is None and self._filter is None:
                self._filter = self._load_filter()
            if self._whole is None and self._filter is not None:
                found, sure = self._look(self._filter, kind, object_id)
                if sure:
                    return found
            whole = self.whole()
        return None if whole is None else whole.find(kind, object_id)

    def whole(self) -> Index | None:
        """Return the whole file, and keep it; None if it was deleted, because a newer file has its rows."""
        if self._whole is None:
            self._whole = self._read(self._id)
            self._parts.clear()
        return self._whole

    def _look(self, known: IndexFilter, kind: ObjectKind, object_id: Id) -> tuple[Location | None, bool]:
        """Return what the rows say, and whether that is certain."""
        for block in known.blocks(object_id):
            rows = self._parts.get(block)
            if rows is None:
                if len(self._parts) == _PARTS:
                    return None, False
                key = keys.index_key(self._id)
                rows = if_there(partial(self._store.get_range, key, *known.span(block)), IntegrityError)
                if rows is None:
                    return None, False
                if not known.is_block(block, rows):
                    self._metadata.drop(_NAME, str(self._id))
                    return None, False
                self._parts[block] = rows
            found = known.find(rows, kind, object_id)
            if found is not None:
                return found, True
        return None, True

    def _load_filter(self) -> IndexFilter | None:
        key, parse = keys.index_filter_key(self._id), partial(IndexFilter.parse, index_id=self._id)
        read = partial(self._metadata.record, _NAME, str(self._id), self._store, key, parse, FILTER_MAX)
        return if_there(read, IntegrityError, Unsupported)


# With more files than this, asking each in turn is slow, and the small ones are merged in memory.
_FILES_BEFORE_MERGE = 12
_SMALL_ROWS = 1 << 16
FILTERED_BYTES = 1 << 20
"""An index file of this size has a filter, and is read in parts."""
# A listed file may be replaced by a merge and deleted before it is read. How often to list again then.
_LISTINGS = 10

AnyIndex = Index | RemoteIndex
Usable = Callable[[ObjectKind, Id, PackId], bool]
"""Returns whether an object may be taken from this pack."""


class Indexes:
    """Loads the index files at the first search. They never change, so copies are kept permanently."""

    def __init__(self, store: StoreBackend, metadata: MetadataCache) -> None:
        self._store = store
        self._metadata = metadata
        self._loaded: dict[IndexId, AnyIndex] = {}
        self._copies: dict[IndexId, memoryview] = {}
        self._search: list[AnyIndex] | None = None
        self._erased = set[tuple[ObjectKind, Id]]()
        self._gone = set[IndexId]()  # files that were read in parts, and can't be read any more
        self.listed = ListedIndexes({}, frozenset(), {}, CurrentIndexes((), (), frozenset()))
        """The index files of the store when it was last listed."""
        self.damaged = set[IndexId]()
        """Merged files that are damaged, and whose originals are read instead. They count as not listed."""

    def find(self, kind: ObjectKind, object_id: Id, *, usable: Usable = lambda *_: True) -> Location | None:
        """Return the object's location in a usable pack; None if the files loaded so far have none. A
        location outside the store is returned only if there is no other."""
        found = self._find(kind, object_id, usable)
        return self._find(kind, object_id, usable) if found is None and self._replace_gone() else found

    def _find(self, kind: ObjectKind, object_id: Id, usable: Usable) -> Location | None:
        hidden = False
        outside: Location | None = None
        files = self._arranged()
        self._refuse_erased(kind, object_id)
        for file in files:
            location = file.find(kind, object_id)
            if location is not None:
                if not usable(kind, object_id, location.pack):
                    hidden = True
                elif not location.pack.is_external:
                    return location
                else:
                    outside = outside or location
        if not hidden:
            return outside
        for place in self.places(kind, object_id):
            if usable(kind, object_id, place.pack):
                if not place.pack.is_external:
                    return place
                outside = outside or place
        return outside

    def places(self, kind: ObjectKind, object_id: Id) -> Iterator[Location]:
        """Yield every location in the files loaded so far, for use if one is damaged. May repeat itself."""
        files = self._arranged()
        self._refuse_erased(kind, object_id)
        # Merging in memory keeps only one location of each object.
        for file in chain(files, [*self._loaded.values()]):
            place = file.find(kind, object_id)
            if place is not None:
                yield place
        if self._replace_gone():
            yield from self.places(kind, object_id)

    def packs(self) -> int:
        """About how many packs the files loaded so far name."""
        return sum(len(one.packs) for one in self._loaded.values())

    def renew(self) -> None:
        """List the store again before the next search, because gc may have run since."""
        self._search = None

    def refresh(self) -> bool:
        """List again. Return whether an index file appeared that was not loaded before."""
        appeared = False
        for _ in range(_LISTINGS):
            self.list_again()
            wanted = self.listed.standing.files
            if self._search is None:
                for index_id in self._loaded.keys() - wanted.keys():
                    self._forget(index_id)
            missing = [index_id for index_id in wanted if index_id not in self._loaded]
            self._load_all(missing)
            appeared = appeared or bool(missing)
            if all(index_id in self._loaded for index_id in missing):
                break
        return appeared

    def list_again(self) -> None:
        """List the index files without reading any."""
        self.listed = list_indexes(self._store, self._record, self.damaged)

    def local_copy(self, index_id: IndexId) -> memoryview | None:
        """Return a local copy of an index file, mapped and unchecked."""
        return self._metadata.map("index", str(index_id))

    def keep_copy(self, index_id: IndexId, data: memoryview) -> None:
        """Keep a local copy of what was read from the store and checked."""
        self._metadata.put("index", str(index_id), data)

    def reload(self) -> bool:
        """Read from the store the files that were local copies, whose ids prove nothing, and the files that a
        merge is said to have replaced. Return whether this gave anything new."""
        false = [
            index_id for index_id, copy in self._copies.items() if self._get(index_id) not in (copy, None)
        ]
        for index_id in false:
            self._metadata.drop("index", str(index_id))
        self._copies.clear()
        further = [one for one in self.listed.standing.replaced if one not in self._loaded]
        self._load_all([*false, *further])
        return bool(false or further)

    def add(self, index_id: IndexId, encoded: bytes) -> None:
        """Add a file that this process has just written."""
        self._metadata.put("index", str(index_id), encoded)
        added = self._loaded[index_id] = Index.parse(encoded, str(index_id))
        self._erased.update(added.erased())
        if self._search is not None:
            self._search = _arrange([added, *self._search])

    def whole(self, index_id: IndexId) -> Index | None:
        """Return all of a listed file; None if it was deleted."""
        found = self._loaded.get(index_id)
        if isinstance(found, RemoteIndex):
            return found.whole()
        return found if found is not None else self._read(index_id)

    def is_remote(self, index_id: IndexId) -> bool:
        """Return whether it is a large file without a local copy."""
        return isinstance(self._loaded.get(index_id), RemoteIndex)

    def proved(self, index_id: IndexId, most_bytes: int) -> Index | None:
        """Return all of a listed file, as the store has it now; None if it is damaged or was deleted.

        For a large file with a local copy, only the store's hash is read and compared. Otherwise the store's
        bytes are read, and the result is also None for a large file of more than `most_bytes`.
        """
        size, name = self.listed.sizes.get(index_id, 0), str(index_id)
        if size >= FILTERED_BYTES:
            copy = self._copy(index_id)
            if copy is not None and self._hash(index_id, size) == self._copies[index_id][-index.HASH_SIZE :]:
                return copy
            if size > most_bytes:
                return None
        encoded = self._get(index_id)
        try:
            parsed = None if encoded is None else Index.parse(encoded, name)
        except (IntegrityError, Unsupported):
            return None
        if encoded is not None:
            self._metadata.put("index", name, encoded)
        return parsed

    def _hash(self, index_id: IndexId, size: int) -> memoryview | None:
        """Return the hash at the end of the store's file, if its size is as listed."""
        where = size - index.HASH_SIZE, index.HASH_SIZE
        return if_there(partial(self._store.get_range, keys.index_key(index_id), *where), IntegrityError)

    def _refuse_erased(self, kind: ObjectKind, object_id: Id) -> None:
        """Raises if a file says that the object was erased, although other files have a location."""
        if self._erased and (kind, object_id) in self._erased:
            raise index.was_erased(object_id)

    def _replace_gone(self) -> bool:
        """Return whether partly read files were deleted from the store. If so, load what replaced them."""
        gone, self._gone = self._gone, set()
        if not gone:
            return False
        for index_id in gone:
            self._forget(index_id)
        self.refresh()
        self._search = _arrange(list(self._loaded.values()))
        return True

    def _arranged(self) -> list[AnyIndex]:
        if self._search is None:
            self.refresh()
        assert self._search is not None
        return self._search

    def _forget(self, index_id: IndexId) -> None:
        self._loaded.pop(index_id, None)
        self._copies.pop(index_id, None)

    def _load_all(self, wanted: list[IndexId]) -> None:
        for index_id, one in ask_each(self._load, wanted):
            if one is not None:
                self._loaded[index_id] = one
                if isinstance(one, Index):
                    self._erased.update(one.erased())
        if wanted or self._search is None:
            self._search = _arrange(list(self._loaded.values()))

    def _load(self, index_id: IndexId) -> AnyIndex | None:
        size = self.listed.sizes.get(index_id, 0)
        if size >= FILTERED_BYTES and index_id in self.listed.filtered:
            copy, file = self._copy(index_id), self.listed.standing.files.get(index_id)
            if copy is not None:
                return copy
            return RemoteIndex(self._store, self._metadata, index_id, size, file, self._read_later)
        return self._read(index_id)

    def _read_later(self, index_id: IndexId) -> Index | None:
        found = self._read(index_id)
        if found is None:
            self._gone.add(index_id)
        return found

    def _read(self, index_id: IndexId) -> Index | None:
        """Return the whole file, from a copy or the store; None if it was deleted."""
        copy = self._copy(index_id)
        if copy is not None:
            return copy
        name = str(index_id)
        encoded = self._get(index_id)
        if encoded is None:
            return None
        try:
            parsed = Index.parse(encoded, name)
        except IntegrityError as error:
            if self.has_originals(index_id):
                self.damaged.add(index_id)
                return None
            hint = put_back(keys.index_key(index_id))
            raise IntegrityError(f"{error.message}, in {self._store.url}", subject=name, hint=hint) from None
        self._metadata.put("index", name, encoded)
        return parsed

    def has_originals(self, index_id: IndexId) -> bool:
        """Return whether all that a merge wrote to the file is also in other listed files.

        Only a record of a single run proves this, because the run is its own. A record may also name runs of
        earlier merges, whose originals may have been deleted before it was written.
        """
        listed = self.listed
        records = [self._record(key) for record_keys in listed.records.values() for key in record_keys]
        return any(
            record is not None
            and len(record.runs) == 1
            and any(file.id == index_id for file in record.files)
            and all(replaced in listed.sizes and replaced not in self.damaged for replaced in record.replaced)
            for record in records
        )

    def _copy(self, index_id: IndexId) -> Index | None:
        name = str(index_id)
        copy = self._metadata.map("index", name)
        if copy is None:
            return None
        try:
            found = Index.parse(copy, name)
        except (IntegrityError, Unsupported):
            self._metadata.drop("index", name)
            return None
        release(copy)
        self._copies[index_id] = copy
        return found

    def _get(self, index_id: IndexId) -> bytes | None:
        """Return None if the file was replaced since the listing: a newer one has its rows."""
        return if_there(partial(self._store.get, keys.index_key(index_id), index.FILE_MAX))

    def _record(self, key: str) -> IndexMerge | None:
        """Return the record of a merge; None if missing or unreadable: then more files are read."""
        name, decode = key.rpartition("/")[2], IndexMerge.decode
        read = partial(self._metadata.record, "index-merge", name, self._store, key, decode, MERGE_MAX)
        return if_there(read, IntegrityError, Unsupported)


def _arrange(files: list[AnyIndex]) -> list[AnyIndex]:
    """Return the files to search, largest first. If there are many, the small ones are merged."""
    if len(files) > _FILES_BEFORE_MERGE:
        small = [one for one in files if isinstance(one, Index) and len(one) <= _SMALL_ROWS]
        if len(small) > 1:
            others: list[AnyIndex] = [
                one for one in files if not isinstance(one, Index) or len(one) > _SMALL_ROWS
            ]
            files = [*others, Index.parse(index.merge(small), "merged in memory")]
    return sorted(files, key=len, reverse=True)
