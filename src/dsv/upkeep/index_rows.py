"""The rows of all index files of a store, a bucket at a time, over files that are mapped into memory."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterable, Iterator, Set
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from dsv.errors import IntegrityError, NotFound
from dsv.format import index, keys
from dsv.format.codec import Codec
from dsv.format.index import ROW_SIZE, Index
from dsv.format.locator import PACK_MAX, Location, ObjectKind
from dsv.format.pack import FOOTER_SIZE
from dsv.format.pack import ROW_SIZE as TABLE_ROW
from dsv.repo.errors import broken
from dsv.repo.objects.metadata import release
from dsv.repo.repository import Repository
from dsv.stores.base import StoreMissing, together
from dsv.values.ids import EXTERNAL_END, Id, IndexId, PackId

Rows: TypeAlias = NDArray[Any]
"""An array of `ROW`."""

_STORED = np.dtype(
    [
        *(("id", "S32"), ("kind", "u1"), ("where", "u1"), ("codec", "u1"), ("pad", "u1")),
        *((name, "<u4") for name in ("pack", "offset", "stored", "length", "tail")),
    ]
)
assert _STORED.itemsize == ROW_SIZE
ROW = np.dtype([("head", "u8"), *((name, _STORED[name]) for name in _STORED.names or () if name != "pad")])
"""A row: `head` is the number that its id begins with (`ids.heads_of`), `pack` a position in
`IndexRows.packs`. NumPy drops zeros at the end of `id`: compare whole columns, or use `id_of`."""

_LISTINGS = 10
_MIX = [
    np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
]
_PART, _HASHED = 8 << 20, 1 << 20
_HELD = 1 << 12
"""Pack ids with one first byte that are held before duplicates are dropped."""


def id_of(rows: Rows, at: int) -> bytes:
    found: bytes = rows["id"][at]
    return found.ljust(32, b"\0")


def row_sums(heads: Rows, kinds: Rows, offsets: Rows, stored: Rows) -> NDArray[np.uint32]:
    """Return a number for each row, to add up by pack. Packs with other rows seldom have the same sum."""
    mixed = heads.astype(np.uint64) * _MIX[0] + kinds.astype(np.uint64) * _MIX[1]
    mixed += offsets.astype(np.uint64) * _MIX[2] + stored.astype(np.uint64) * _MIX[3]
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX[0]
    found: NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return found


def _hash(view: memoryview) -> bytes:
    hashed = blake3()
    for start in range(0, len(view), _HASHED):
        hashed.update(view[start : start + _HASHED])
        release(view)
    return hashed.digest()


class PackList:
    """Many pack ids, sorted: 16 bytes of memory for each."""

    def __init__(self, ids: bytes) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids) // 16

    def __getitem__(self, at: int) -> PackId:
        place = range(len(self))[at]
        return PackId(self._ids[16 * place : 16 * place + 16])

    def __iter__(self) -> Iterator[PackId]:
        return (self[at] for at in range(len(self)))

    @property
    def column(self) -> NDArray[Any]:
        """The ids as an array, of type S16."""
        return np.frombuffer(self._ids, "S16")

    @classmethod
    def of(cls, columns: Iterable[NDArray[Any]]) -> Self:
        """Return the ids of these arrays of type S16, each once. An id may be repeated very often."""
        known: list[NDArray[Any]] = [np.zeros(0, "S16")] * 256
        held: list[list[NDArray[Any]]] = [[] for _ in range(256)]
        for column in columns:
            firsts = column.view(np.uint8)[::16] if len(column) else np.zeros(0, np.uint8)
            order = np.argsort(firsts, kind="stable")
            ends = np.searchsorted(firsts[order], np.arange(257))
            for first in range(256):
                some = held[first]
                if ends[first] < ends[first + 1]:
                    some.append(column[order[ends[first] : ends[first + 1]]])
                if sum(map(len, some)) > len(known[first]) + _HELD:
                    known[first] = np.unique(np.concatenate([known[first], *some]))
                    some.clear()
        return cls(
            b"".join(
                np.unique(np.concatenate([one, *some])).tobytes()
                for one, some in zip(known, held, strict=True)
            )
        )

    def places(self, packs: Iterable[PackId]) -> NDArray[np.int64]:
        """Return the position of each of these packs; -1 if it is not here."""
        wanted = packs.column if isinstance(packs, PackList) else np.frombuffer(b"".join(packs), "S16")
        known = self.column
        if not len(known):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[at] == wanted, at, -1).astype(np.int64)


class IndexRows(AbstractContextManager["IndexRows"]):
    """The rows of all index files in force (`objects.indexes.CurrentIndexes`), as the store has them now.

    packs: every pack that a row names, sorted; a row's `pack` is a position in it. Raises `IntegrityError`
    for a damaged or lost file, unless others have all its rows, and what the store raises.
    """

    packs: PackList

    def __init__(
        self,
        repository: Repository,
        folder: Path,
        files: dict[IndexId, Index] | None = None,
        *,
        damaged: dict[IndexId, IntegrityError] | None = None,
        copies_from: float = 0,
        ends: dict[IndexId, bytes] | None = None,
    ) -> None:
        """folder: created for index files without a local copy, and removed by `__exit__`. files: files that
        the caller has read, which are not read again; new ones are added. damaged: gets damaged files, which
        then do not raise and are left out. copies_from: size in bytes from which a local copy is enough.
        ends: the hashes at the ends of files that the caller has read; new ones are added."""
        self._damaged = damaged
        self._copies_from = copies_from
        self._ends: dict[IndexId, bytes] = {} if ends is None else ends
        self._repository = repository
        self._folder = folder
        self._folder.mkdir(parents=True)
        self._files: dict[IndexId, Index] = {} if files is None else files
        indexes = repository.objects.indexes
        for _ in range(_LISTINGS):
            indexes.list_again()
            standing = list(indexes.listed.standing.files)
            if all(together([partial(self._open, index_id) for index_id in standing])):
                break
        else:
            raise IntegrityError(
                f"index files of {repository.store.url} go while they are read", subject=keys.INDEX_PREFIX,
                hint="run the same command again",
            )  # fmt: skip
        self.files = {one: self._files[one] for one in standing if one in self._files}
        self.packs = PackList.of(map(_packs_of, self.files.values()))
        self._numbers: dict[IndexId, NDArray[np.uint32]] = {}
        """The positions of the packs of each file with rows in the last bucket."""

    def __exit__(self, *_: object) -> None:
        self.files = {}
        self._files = {}
        shutil.rmtree(self._folder, ignore_errors=True)

    def __len__(self) -> int:
        """The number of rows: two locations of one object count twice."""
        return sum(map(len, self.files.values()))

    def naming(self, packs: Set[PackId]) -> tuple[int, int]:
        """Return how many files name one of these packs, and how many of those also name another pack."""
        wanted = np.frombuffer(b"".join(packs), "S16")
        are_named = [np.isin(_packs_of(file), wanted) for file in self.files.values()]
        named = [flags for flags in are_named if flags.any()]
        return len(named), sum(not flags.all() for flags in named)

    def bucket(self, first: int) -> Rows:
        """Return the rows of ids that begin with this byte, sorted by id and kind, without duplicates."""
        parts: list[Rows] = []
        for at, file in self.files.items():
            stored = np.frombuffer(file.bucket(first), _STORED)
            if not len(stored):
                self._numbers.pop(at, None)
                continue
            numbers = self._numbers.get(at)
            if numbers is None:
                places = np.searchsorted(self.packs.column, _packs_of(file))
                numbers = self._numbers[at] = places.astype(np.uint32)
            rows = np.empty(len(stored), ROW)
            rows["head"] = np.frombuffer(file.bucket(first), ">u8").reshape(-1, ROW_SIZE // 8)[:, 0]
            for name in ROW.names or ():
                if name not in ("head", "pack"):
                    rows[name] = stored[name]
            rows["pack"] = numbers[stored["pack"]]
            rows["pack"][stored["where"] == index.ERASED] = 0
            parts.append(rows)
            release(file.row_bytes)
        if not parts:
            return np.empty(0, ROW)
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        joined = joined[np.argsort(joined["head"], kind="stable")]
        alike = np.zeros(len(joined) + 1, np.bool_)
        alike[1:-1] = joined["head"][1:] == joined["head"][:-1]
        if not alike.any():
            return joined
        tied = alike[1:] | alike[:-1]
        some = joined[tied]
        order = np.lexsort([some[name] for name in ("offset", "pack", "where", "kind", "id", "head")])
        joined[tied] = some[order]
        again = alike[:-1]
        for name in ("id", "kind", "where", "pack", "offset"):
            again[1:] &= joined[name][1:] == joined[name][:-1]
        return joined[~again]

    def expected_sizes(self, sums: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
        """Return the least bytes of each pack, by its rows. sums: gets the sum of each pack's rows."""
        ends = np.zeros(len(self.packs), np.uint32)
        rows = np.zeros(len(self.packs), np.uint32)
        for first in range(256):
            found = self.bucket(first)
            ends[found["pack"][found["where"] == index.EXTERNAL]] = 1  # it has none of its objects' bytes
            if sums is not None:
                placed = found[found["where"] != index.ERASED]
                of_rows = row_sums(placed["head"], placed["kind"], placed["offset"], placed["stored"])
                np.add.at(sums, placed["pack"], of_rows)
            found = found[found["where"] == index.IN_PACK]
            np.maximum.at(ends, found["pack"], found["offset"] + found["stored"] + found["tail"])
            np.add.at(rows, found["pack"], 1 + (found["tail"] > 0).astype(np.uint32))
        ends += TABLE_ROW * rows
        ends[rows > 0] += FOOTER_SIZE
        return ends

    def of_packs(self, wanted: set[PackId]) -> dict[PackId, list[tuple[ObjectKind, Id, Location]]]:
        chosen = self.packs.places(wanted)
        by_pack: dict[PackId, list[tuple[ObjectKind, Id, Location]]] = {pack: [] for pack in wanted}
        for first in range(256) if (chosen >= 0).any() else ():
            rows = self.bucket(first)
            rows = rows[np.isin(rows["pack"], chosen[chosen >= 0]) & (rows["where"] != index.ERASED)]
            for kind, object_id, where in self.decoded(rows):
                by_pack[where.pack].append((kind, object_id, where))
        return by_pack

    def decoded(self, rows: Rows) -> Iterator[tuple[ObjectKind, Id, Location]]:
        """Yield the kind, id and location of these rows, all of which name packs."""
        for at, row in enumerate(rows):
            yield (
                ObjectKind(int(row["kind"])),
                Id(id_of(rows, at)),
                Location(
                    self.packs[int(row["pack"])], int(row["offset"]), int(row["stored"]), int(row["length"]),
                    Codec(int(row["codec"])), int(row["tail"]),
                ),
            )  # fmt: skip

    def _open(self, index_id: IndexId) -> bool:
        """Open a file; False if it was deleted, or is damaged and its originals must be read instead."""
        if index_id in self._files:
            return True
        indexes = self._repository.objects.indexes
        size = indexes.listed.sizes[index_id]
        try:
            view = self._mapped(index_id, size)
            if view is None:
                return False
            found = Index.parse(view, str(index_id), verify=False)
            self._check(index_id, view, found)
        except IntegrityError as error:
            if indexes.has_originals(index_id):
                indexes.damaged.add(index_id)
                return False
            key = keys.index_key(index_id)
            named = broken(key, f"{error.message} ({key} in {self._repository.store.url})")
            if self._damaged is None:
                raise named from None
            self._damaged[index_id] = named
            return True
        self._files[index_id] = found
        return True

    def _mapped(self, index_id: IndexId, size: int) -> memoryview | None:
        """Return a local copy with the hash of the store's file at its end, else that file; None if
        deleted."""
        store, key = self._repository.store, keys.index_key(index_id)
        copy = self._repository.objects.indexes.local_copy(index_id) if size >= self._copies_from else None
        try:
            if copy is not None and len(copy) == size:
                end = bytes(copy[-index.HASH_SIZE :])
                known = end == self._ends.get(index_id)
                if not known:
                    known = end == store.get_range(key, size - index.HASH_SIZE, index.HASH_SIZE)
                if known and _hash(copy[: -index.HASH_SIZE]) == end:
                    self._ends[index_id] = end
                    return copy
            path = self._folder / str(index_id)
            with path.open("wb") as file:
                for start in range(0, size, _PART):
                    file.write(store.get_range(key, start, min(_PART, size - start)))
        except StoreMissing:
            raise
        except NotFound:
            return None
        view = memoryview(b"")
        if path.stat().st_size:  # an empty file can't be mapped
            with path.open("rb") as file:
                view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if _hash(view[: -index.HASH_SIZE]) != view[-index.HASH_SIZE :]:
            raise IntegrityError(f"index {index_id} is damaged", subject=str(index_id))
        self._ends[index_id] = bytes(view[-index.HASH_SIZE :])
        self._repository.objects.indexes.keep_copy(index_id, view)
        return view

    def _check(self, index_id: IndexId, view: memoryview, found: Index) -> None:
        """Raises for rows that no writer makes, as `Index.parse` does, but a bucket at a time."""
        kinds, codecs = [*map(int, ObjectKind)][:-1], [*map(int, Codec)]
        for first in range(256):
            rows = np.frombuffer(found.bucket(first), _STORED)
            if not len(rows):
                continue
            heads = np.frombuffer(found.bucket(first), ">u8").reshape(-1, ROW_SIZE // 8)[:, 0]
            ends = rows["offset"].astype(np.uint64) + rows["stored"] + rows["tail"]
            if (
                (heads[1:] < heads[:-1]).any()
                or (heads >> np.uint64(56) != first).any()
                or not np.isin(rows["kind"], kinds).all()
                or not np.isin(rows["codec"], codecs).all()
                or (rows["where"] > index.ERASED).any()
                or (rows["pack"] >= max(1, len(found.pack_ids) // 16)).any()
                or (ends > PACK_MAX).any()
            ):
                raise IntegrityError(f"index {index_id} has a row that is impossible", subject=str(index_id))
            release(view)


def are_external(packs: PackList) -> NDArray[np.bool_]:
    """Return for each pack whether its objects lie outside the store."""
    ids = packs.column.view(np.uint8).reshape(-1, PackId.size)
    found: NDArray[np.bool_] = (ids[:, -len(EXTERNAL_END) :] == list(EXTERNAL_END)).all(axis=1)
    return found


def _packs_of(file: Index) -> NDArray[Any]:
    ids = bytes(file.pack_ids)
    release(file.pack_ids)
    return np.frombuffer(ids, "S16")
