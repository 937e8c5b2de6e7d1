"""The rows of all index files of a store, a bucket at a time, over files that are mapped into memory."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias, overload

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.format import index, keys
from dsv.format.codec import Codec
from dsv.format.index import ROW_SIZE, Index
from dsv.format.locator import PACK_MAX, ObjectKind
from dsv.repo.errors import put_back
from dsv.repo.repository import Repository
from dsv.store.base import StoreMissing, together
from dsv.values.ids import IndexId, PackId

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
"""A row: `head` is the number that the id begins with (`ids.heads_of`), `pack` a place in `IndexRows.packs`. `id` is 32
bytes of which NumPy does not show zeros at the end: compare whole columns, or take `id_of`."""

_LISTINGS = 10
_PART = 8 << 20


def id_of(rows: Rows, at: int) -> bytes:
    """Return the id of a row."""
    found: bytes = rows["id"][at]
    return found.ljust(32, b"\0")


class PackList(Sequence[PackId]):
    """Many pack ids, sorted: 16 bytes of memory for each."""

    def __init__(self, ids: bytes) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids) // 16

    @overload
    def __getitem__(self, at: int) -> PackId: ...
    @overload
    def __getitem__(self, at: slice) -> list[PackId]: ...
    def __getitem__(self, at: int | slice) -> PackId | list[PackId]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        return PackId(self._ids[16 * place : 16 * place + 16])

    @property
    def column(self) -> NDArray[Any]:
        """The ids as an array, of type S16."""
        return np.frombuffer(self._ids, "S16")


class IndexRows:
    """The rows of all index files that stand (`index_merge.Standing`), as the store has them now.

    packs: every pack that a row names, sorted; a row's `pack` is a place in it. Raises `IntegrityError` for a file that
    is damaged or lost, unless others have all its rows, and what the store raises.
    """

    packs: PackList

    def __init__(
        self, repository: Repository, folder: Path, files: dict[IndexId, Index] | None = None
    ) -> None:
        """folder: made here for index files of which there is no local copy, and removed by `__exit__`.

        files: those that the caller has looked at before, which are not asked for again; new ones are added.
        """
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
        self._parts = [self._files[one] for one in standing]
        columns = [np.frombuffer(b"".join(one.packs), "S16") for one in self._parts]
        self.packs = PackList(np.unique(np.concatenate([np.zeros(0, "S16"), *columns])).tobytes())
        known = self.packs.column
        self._numbers = [np.searchsorted(known, column).astype(np.uint32) for column in columns]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.clear()
        self._files = {}
        shutil.rmtree(self._folder, ignore_errors=True)

    def __len__(self) -> int:
        """How many rows there are; two places of one object are two."""
        return sum(map(len, self._parts))

    def naming(self, packs: Set[PackId]) -> int:
        """Return how many of the files name one of these packs."""
        return sum(not packs.isdisjoint(one.packs) for one in self._parts)

    def bucket(self, first: int) -> Rows:
        """Return the rows of the ids that begin with this byte, in the order of ids and kinds; equal rows come once."""
        parts: list[Rows] = []
        for one, numbers in zip(self._parts, self._numbers, strict=True):
            stored = np.frombuffer(one.bucket(first), _STORED)
            if not len(stored):
                continue
            rows = np.empty(len(stored), ROW)
            rows["head"] = np.frombuffer(one.bucket(first), ">u8").reshape(-1, ROW_SIZE // 8)[:, 0]
            for name in ROW.names or ():
                if name not in ("head", "pack"):
                    rows[name] = stored[name]
            in_pack = stored["where"] == index.IN_PACK
            rows["pack"] = numbers[stored["pack"]]
            rows["pack"][~in_pack] = 0
            parts.append(rows)
        if not parts:
            return np.empty(0, ROW)
        found = np.concatenate(parts) if len(parts) > 1 else parts[0]
        found = found[np.argsort(found["head"], kind="stable")]
        alike = np.zeros(len(found) + 1, np.bool_)
        alike[1:-1] = found["head"][1:] == found["head"][:-1]
        if not alike.any():
            return found
        tied = alike[1:] | alike[:-1]
        some = found[tied]
        found[tied] = some[
            np.lexsort([some[name] for name in ("offset", "pack", "where", "kind", "id", "head")])
        ]
        again = alike[:-1]
        for name in ("id", "kind", "where", "pack", "offset"):
            again[1:] &= found[name][1:] == found[name][:-1]
        return found[~again]

    def _open(self, index_id: IndexId) -> bool:
        """Open a file; False if it has gone, or is damaged and its originals are to be read instead."""
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
            raise IntegrityError(
                f"{error.message} ({key} in {self._repository.store.url})", subject=key, hint=put_back(key)
            ) from None
        self._files[index_id] = found
        return True

    def _mapped(self, index_id: IndexId, size: int) -> memoryview | None:
        """Return the file's bytes: a local copy that ends with the same hash as the store's file, else that itself."""
        store, key = self._repository.store, keys.index_key(index_id)
        copy = self._repository.objects.indexes.local_copy(index_id)
        try:
            if copy is not None and len(copy) == size:
                end = store.get_range(key, size - index.HASH_SIZE, index.HASH_SIZE)
                if end == copy[-index.HASH_SIZE :] and blake3(copy[: -index.HASH_SIZE]).digest() == end:
                    return copy
            path = self._folder / str(index_id)
            with path.open("wb") as file:
                for start in range(0, size, _PART):
                    file.write(store.get_range(key, start, min(_PART, size - start)))
        except StoreMissing:
            raise
        except NotFound:
            return None
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if blake3(view[: -index.HASH_SIZE]).digest() != view[-index.HASH_SIZE :]:
            raise IntegrityError(f"index {index_id} is damaged", subject=str(index_id))
        self._repository.objects.indexes.keep_copy(index_id, view)
        return view

    def _check(self, index_id: IndexId, view: memoryview, found: Index) -> None:
        """Raise for rows that no writer makes, as `Index.parse`, a bucket at a time."""
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
                or (rows["pack"] >= max(1, len(found.packs))).any()
                or (ends > PACK_MAX).any()
            ):
                raise IntegrityError(f"index {index_id} has a row that is impossible", subject=str(index_id))
            if (rows["where"] == index.EXTERNAL).any():
                raise Unsupported(
                    f"index {index_id} has objects that lie outside the store, which this dsv can't read",
                    subject=str(index_id),
                    hint="install a newer dsv",
                )
