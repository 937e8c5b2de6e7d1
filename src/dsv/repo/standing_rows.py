"""Whether rows are in index files that stand. The store itself proves that, and not the copies that are here."""

from __future__ import annotations

from dsv.errors import NotFound, Unsupported
from dsv.model.ids import Id, IndexId
from dsv.model.index import ROW_SIZE, Index
from dsv.model.index_merge import MergedFile
from dsv.model.location import Location, ObjectKind
from dsv.repo.indexes import Indexes


class StandingRows:
    """Made for one deletion. A file is read when a row is looked for that those before it lack."""

    def __init__(self, indexes: Indexes, most_rows: int) -> None:
        """most_rows: of large files that are not here, at most so many rows are read."""
        self._indexes = indexes
        self._most_bytes = most_rows * ROW_SIZE
        standing = indexes.listed.standing
        newest = [file.id for run in reversed(standing.runs) for file in run]
        known = standing.files
        ordered = sorted([*newest, *standing.loose], key=indexes.is_remote)
        self._files: list[tuple[IndexId, MergedFile | None]] = [(one, known[one]) for one in ordered]
        self._read: dict[IndexId, Index | None] = {}

    def have_all(self, found: Index) -> bool:
        """Whether every row of a file that was replaced is in others. False if it has rows of a kind not known here."""
        known = sum(1 for _ in found.rows()) + sum(1 for _ in found.erased())
        return known == len(found) and not self.lack_any(found)

    def lack_any(self, found: Index) -> bool:
        """Whether a file has a row that no other has; of a kind not known here, nobody can tell."""
        places = all(self._have(*row) for row in found.rows())
        return not (places and all(self._have(*row, None) for row in found.erased()))

    def _have(self, kind: ObjectKind, object_id: Id, place: Location | None) -> bool:
        """Whether a file has the place, or says that the object was erased, which counts more than any place."""
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
