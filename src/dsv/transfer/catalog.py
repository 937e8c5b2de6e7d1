"""What one sync added to the store, until it is written as index files."""

from __future__ import annotations

from dsv.model.ids import Id
from dsv.model.index import IndexBuilder
from dsv.model.location import Location, ObjectKind
from dsv.repo.session import Session
from dsv.transfer.packing import Row

# An index file is written at about this many rows, so that a sync's memory does not grow with the dataset.
INDEX_ROWS = 1 << 18


class Catalog:
    """Answers where an object lies: in what this sync packed, or in the store's indexes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._new: dict[tuple[ObjectKind, bytes], Location] = {}

    def __len__(self) -> int:
        """How many rows no index file has yet."""
        return len(self._new)

    def find(self, kind: ObjectKind, object_id: Id) -> Location | None:
        return self._new.get((kind, object_id)) or self._session.find(kind, object_id)

    def add(self, kind: ObjectKind, object_id: Id, location: Location) -> None:
        self._new[kind, object_id] = location

    def add_rows(self, rows: list[Row]) -> None:
        self._new.update(((kind, object_id), location) for kind, object_id, location in rows)

    def write_index(self) -> int:
        """Writes the rows as one index file; every pack they name must be stored. Returns its size in bytes."""
        if not self._new:
            return 0
        builder = IndexBuilder()
        for (kind, object_id), location in self._new.items():
            builder.add(kind, Id(object_id), location)
        encoded = builder.finish()
        self._session.put_index(encoded)
        self._new.clear()
        return len(encoded)
