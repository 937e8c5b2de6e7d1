"""The index files of one store: where every object lies."""

from __future__ import annotations

from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.model import index, keys
from dsv.model.ids import Id, IndexId, PackId
from dsv.model.index import Index
from dsv.model.location import Location, ObjectKind
from dsv.repo.damage import put_back
from dsv.repo.metadata import MetadataCache
from dsv.store.base import Store

_CONNECTIONS = 16
# Above this many files a search that asks each in turn gets slow; the small ones are then merged in memory.
_FILES_BEFORE_MERGE = 12
_SMALL_ROWS = 1 << 18


class Indexes:
    """Loaded when first asked; an index file never changes, so a copy is kept for ever."""

    def __init__(self, store: Store, metadata: MetadataCache) -> None:
        self._store = store
        self._metadata = metadata
        self._loaded: dict[IndexId, Index] = {}
        self._copies: dict[IndexId, memoryview] = {}
        self._search: list[Index] | None = None

    def find(self, kind: ObjectKind, object_id: Id, *, absent: Container[PackId] = ()) -> Location | None:
        """Where the object lies, outside the packs in `absent`; None is a miss in what was loaded so far."""
        hidden = False
        for one in self._arranged():
            found = one.find(kind, object_id)
            if found is not None:
                if found.pack not in absent:
                    return found
                hidden = True
        if not hidden:
            return None
        return next((place for place in self.places(kind, object_id) if place.pack not in absent), None)

    def places(self, kind: ObjectKind, object_id: Id) -> Iterator[Location]:
        """Every place that the files loaded so far give: where one is damaged, another may do. May repeat itself."""
        for one in chain(self._arranged(), self._loaded.values()):  # merging keeps one place for each object
            found = one.find(kind, object_id)
            if found is not None:
                yield found

    def packs(self) -> int:
        """About how many packs the files loaded so far name; at least as many as there are."""
        return sum(len(one.packs) for one in self._loaded.values())

    def renew(self) -> None:
        """Has the store asked again before the next search, if it was asked before: gc may have been there since."""
        self._search = None

    def refresh(self) -> bool:
        """Lists again; True where an index file appeared that was not loaded before."""
        keyed = (keys.parse_index_key(item.key) for item in self._store.list(keys.INDEX_PREFIX))
        listed = [index_id for index_id in keyed if index_id is not None]
        missing = [index_id for index_id in listed if index_id not in self._loaded]
        if self._search is None:
            for index_id in self._loaded.keys() - set(listed):
                del self._loaded[index_id]
                self._copies.pop(index_id, None)
        self._load_all(missing)
        return bool(missing)

    def reload(self) -> bool:
        """Asks the store for what came from local copies, whose ids prove nothing; True where one was another."""
        false = [
            index_id for index_id, copy in self._copies.items() if self._get(index_id) not in (copy, None)
        ]
        for index_id in false:
            self._metadata.drop("index", str(index_id))
        self._copies.clear()
        self._load_all(false)
        return bool(false)

    def add(self, index_id: IndexId, encoded: bytes) -> None:
        """Makes known what this process has just written."""
        self._metadata.put("index", str(index_id), encoded)
        self._loaded[index_id] = Index.parse(encoded, str(index_id))
        if self._search is not None:
            self._search = _arrange([self._loaded[index_id], *self._search])

    def _arranged(self) -> list[Index]:
        if self._search is None:
            self.refresh()
        assert self._search is not None
        return self._search

    def _load_all(self, wanted: list[IndexId]) -> None:
        if len(wanted) > 1:
            with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="dsv-index") as pool:
                loaded = list(pool.map(self._load, wanted))
        else:
            loaded = [self._load(index_id) for index_id in wanted]
        for index_id, one in zip(wanted, loaded, strict=True):
            if one is not None:
                self._loaded[index_id] = one
        if wanted or self._search is None:
            self._search = _arrange(list(self._loaded.values()))

    def _load(self, index_id: IndexId) -> Index | None:
        name = str(index_id)
        copy = self._metadata.map("index", name)
        if copy is not None:
            try:
                found = Index.parse(copy, name)
                self._copies[index_id] = copy
                return found
            except (IntegrityError, Unsupported):
                self._metadata.drop("index", name)
        encoded = self._get(index_id)
        if encoded is None:
            return None
        try:
            parsed = Index.parse(encoded, name)
        except IntegrityError as error:
            hint = put_back(keys.index_key(index_id))
            raise IntegrityError(f"{error.message}, in {self._store.url}", subject=name, hint=hint) from None
        self._metadata.put("index", name, encoded)
        return parsed

    def _get(self, index_id: IndexId) -> bytes | None:
        """None where gc replaced it since the listing; what it said is in a newer one."""
        try:
            return self._store.get(keys.index_key(index_id), index.FILE_MAX)
        except NotFound:
            return None


def _arrange(files: list[Index]) -> list[Index]:
    """The files to search, largest first, with the small ones merged when there are many."""
    if len(files) > _FILES_BEFORE_MERGE:
        small = [one for one in files if len(one) <= _SMALL_ROWS]
        large = [one for one in files if len(one) > _SMALL_ROWS]
        if len(small) > 1:
            files = [*large, Index.parse(index.merge(small), "merged in memory")]
    return sorted(files, key=len, reverse=True)
