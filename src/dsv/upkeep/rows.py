"""What the index files of a store say, in columns: which packs they name, and where each object lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from dsv.errors import IntegrityError, NotFound
from dsv.format.codec import Codec
from dsv.format.index import ERASED, EXTERNAL, IN_PACK, ROW_SIZE, Index
from dsv.format.locator import Location, ObjectKind
from dsv.format.pack import FOOTER_SIZE
from dsv.format.pack import ROW_SIZE as TABLE_ROW
from dsv.repo.objects.objects import Objects
from dsv.upkeep.ids import Heads, heads_of
from dsv.values.ids import Id, IndexId, PackId

ROW = np.dtype([
    ("id", "S32"), ("kind", "u1"), ("where", "u1"), ("codec", "u1"), ("zero", "u1"), ("pack", "<u4"),
    ("offset", "<u4"), ("stored", "<u4"), ("length", "<u4"), ("tail", "<u4"),
])  # fmt: skip
assert ROW.itemsize == ROW_SIZE
Rows = NDArray[np.void]
_LISTINGS = 5


class AllRows:
    """The rows of all index files that stand, by the first byte of their ids. Damaged files are left out, and named."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.packs: list[PackId] = []
        self._numbers: dict[PackId, int] = {}
        self._files: list[tuple[Index, NDArray[np.uint32]]] = []
        self.damaged: dict[IndexId, IntegrityError] = {}
        for _ in range(_LISTINGS):
            if self._load():
                return
        raise NotFound(f"index files of {objects.store.url} go faster than they can be read")

    def _load(self) -> bool:
        """Return whether all files that were listed were there."""
        indexes = self._objects.indexes
        self._files.clear()
        self.damaged.clear()
        with suppress(IntegrityError):  # a damaged file is found again below
            indexes.refresh()
        for index_id in indexes.listed.standing.files:
            try:
                found = indexes.whole(index_id)
            except IntegrityError as error:
                self.damaged[index_id] = error
                continue
            if found is None:
                return False
            numbers = [self._numbers.setdefault(one, len(self._numbers)) for one in found.packs]
            self._files.append((found, np.array(numbers, np.uint32)))
        self.packs = list(self._numbers)
        return True

    def bucket(self, first: int) -> tuple[Rows, Heads]:
        """Return the rows of the ids that begin with this byte, each once, and the heads of the ids. `pack` is a place
        in `packs`."""
        parts = []
        for file, numbers in self._files:
            rows = np.frombuffer(file.bucket(first), ROW)
            if len(rows):
                rows = rows.copy()
                rows["pack"] = numbers[rows["pack"]]
                parts.append(rows)
        if not parts:
            return np.zeros(0, ROW), np.zeros(0, np.uint64)
        found = np.concatenate(parts)
        if len(parts) > 1:
            found = np.unique(found.view(f"V{ROW_SIZE}")).view(ROW)
        return found, heads_of(ids_of(found))

    def expected_sizes(self) -> NDArray[np.int64]:
        """Return how many bytes each pack has at least, by what is said to be in it."""
        ends = np.zeros(len(self.packs), np.int64)
        rows = np.zeros(len(self.packs), np.int64)
        for first in range(256):
            found, _ = self.bucket(first)
            found = found[found["where"] == IN_PACK]
            end = found["offset"].astype(np.int64) + found["stored"] + found["tail"]
            np.maximum.at(ends, found["pack"], end)
            np.add.at(rows, found["pack"], 1 + (found["tail"] > 0))
        return np.where(rows > 0, ends + TABLE_ROW * rows + FOOTER_SIZE, 0)

    def of_packs(self, wanted: set[PackId]) -> dict[PackId, list[tuple[ObjectKind, Id, Location]]]:
        """Return what is said to be in these packs."""
        numbers = {self._numbers[one] for one in wanted if one in self._numbers}
        found: dict[PackId, list[tuple[ObjectKind, Id, Location]]] = {one: [] for one in wanted}
        if not numbers:
            return found
        chosen = np.array(sorted(numbers), np.uint32)
        for first in range(256):
            rows, _ = self.bucket(first)
            rows = rows[np.isin(rows["pack"], chosen) & (rows["where"] == IN_PACK)]
            for kind, one, where in self.decoded(rows):
                found[where.pack].append((kind, one, where))
        return found

    def decoded(self, rows: Rows) -> Iterator[tuple[ObjectKind, Id, Location]]:
        ids = ids_of(rows)
        for at, row in enumerate(rows):
            yield (
                ObjectKind(int(row["kind"])),
                Id(ids[32 * at : 32 * at + 32]),
                Location(
                    self.packs[int(row["pack"])], int(row["offset"]), int(row["stored"]), int(row["length"]),
                    Codec(int(row["codec"])), int(row["tail"]),
                ),
            )  # fmt: skip

    def number(self, pack: PackId) -> int | None:
        return self._numbers.get(pack)


def ids_of(rows: Rows) -> bytes:
    """Return the ids of these rows, one after the other."""
    return (
        np.ascontiguousarray(rows.view(np.uint8).reshape(-1, ROW_SIZE)[:, :32]).tobytes()
        if len(rows)
        else b""
    )


def is_elsewhere(rows: Rows) -> NDArray[np.bool_]:
    """Return for each row whether its object was erased, or lies outside of the store."""
    found: NDArray[np.bool_] = (rows["where"] == ERASED) | (rows["where"] == EXTERNAL)
    return found
