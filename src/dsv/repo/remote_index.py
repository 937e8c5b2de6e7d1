"""A large index file that is not here: its filter is read first, then only the rows that an answer needs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.model import keys
from dsv.model.ids import Id, IndexId, PackId
from dsv.model.index import ROW_SIZE, Index
from dsv.model.index_filter import FILTER_MAX, IndexFilter
from dsv.model.index_merge import MergedFile
from dsv.model.location import Location, ObjectKind
from dsv.repo.metadata import MetadataCache
from dsv.store.base import Store, StoreMissing

# After so many reads of parts the whole file is read: it is used so much that it would be anyway.
_PARTS = 16
_NAME = "index-filter"


class RemoteIndex:
    """Answers as an `Index` does. Its filter is only a hint: without a right one the whole file is read."""

    def __init__(
        self,
        store: Store,
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
        """About how many rows it has."""
        return self._rows

    @property
    def packs(self) -> list[PackId]:
        """Those that are known so far."""
        known = self._whole or self._filter
        return [] if known is None else known.packs

    def find(self, kind: ObjectKind, object_id: Id) -> Location | None:
        """Raises as `Index.find`, and what the store raises."""
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
        """The file itself, which is kept; None if it has gone, as what it said is in a newer one."""
        if self._whole is None:
            self._whole = self._read(self._id)
            self._parts.clear()
        return self._whole

    def _look(self, known: IndexFilter, kind: ObjectKind, object_id: Id) -> tuple[Location | None, bool]:
        """What the rows say, and whether that is sure."""
        for block in known.blocks(object_id):
            rows = self._parts.get(block)
            if rows is None:
                if len(self._parts) == _PARTS:
                    return None, False
                try:
                    rows = self._store.get_range(keys.index_key(self._id), *known.span(block))
                except StoreMissing:
                    raise
                except (NotFound, IntegrityError):
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
        name = str(self._id)
        copy = self._metadata.get(_NAME, name, FILTER_MAX)
        if copy is not None:
            try:
                return IndexFilter.parse(copy, self._id)
            except (IntegrityError, Unsupported):
                self._metadata.drop(_NAME, name)
        try:
            data = self._store.get(keys.index_filter_key(self._id), FILTER_MAX)
            found = IndexFilter.parse(data, self._id)
        except StoreMissing:
            raise
        except (NotFound, IntegrityError, Unsupported):
            return None
        self._metadata.put(_NAME, name, data)
        return found
