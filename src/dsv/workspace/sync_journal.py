"""The journal of a sync: what it has uploaded, so that a killed sync continues."""

from __future__ import annotations

import os
import struct
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import xxhash

from dsv.files.errors import about
from dsv.files.small_files import sync_data, write_all
from dsv.format.locator import Location, ObjectKind
from dsv.values.ids import CommitId, Id, PackId, RecipeId, StoreId

_MAGIC = b"dsv journal 2\n"


_START = len(_MAGIC) + StoreId.size


_HEAD = struct.Struct("<IQ")  # length of the record in bytes, check


Row = tuple[ObjectKind, Id, Location]


class _Pack(msgspec.Struct, array_like=True, tag=1):
    id: PackId
    size: int
    rows: list[Row]


class _Recipe(msgspec.Struct, array_like=True, tag=2):
    id: RecipeId
    encoded: bytes


class Publishing(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """An intended move of a branch: to `commit`, as the entry number `seq`."""

    dataset: str
    branch: str
    seq: int
    commit: CommitId


_ENCODER = msgspec.msgpack.Encoder(enc_hook=bytes)


_DECODER = msgspec.msgpack.Decoder(_Pack | _Recipe | Publishing, dec_hook=lambda kind, raw: kind.of(raw))


class InterruptedSync(msgspec.Struct):
    """The notes of an earlier sync."""

    packs: dict[PackId, tuple[int, list[Row]]] = msgspec.field(default_factory=dict)
    """Size in bytes and rows of packs that were stored completely."""
    recipes: dict[RecipeId, bytes] = msgspec.field(default_factory=dict)
    publishing: Publishing | None = None


class SyncJournal(AbstractContextManager["SyncJournal"]):
    """The journal of one workspace. `pack_uploaded` and `recipe` may be called from any thread."""

    def __init__(self, path: Path, descriptor: int, left: InterruptedSync) -> None:
        self._path = path
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._end = _START
        self.left = left
        """The content when it was opened."""

    @classmethod
    def open(cls, path: Path, store_id: StoreId) -> SyncJournal:
        """Read the remaining records, and append to them. Records for another store are dropped. The caller
        holds the workspace's lock. Raises `Denied`, `NoRoom`, `Unreachable`."""
        with about(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            data = path.read_bytes()
            left, end = InterruptedSync(), 0
            if data[:_START] == _MAGIC + store_id:
                left, end = _replay(data)
            journal = cls(path, descriptor, left)
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
            if not end:
                write_all(descriptor, _MAGIC + store_id)
            journal._end = end or _START
            return journal

    def __exit__(self, *_: object) -> None:
        self.close()

    def pack_uploaded(self, pack_id: PackId, size: int, rows: list[Row]) -> None:
        """Note that the store has this pack. Survives a power cut."""
        self._append(_Pack(pack_id, size, rows), durable=True)

    def recipe(self, recipe_id: RecipeId, encoded: bytes) -> None:
        """Note a recipe that was computed."""
        self._append(_Recipe(recipe_id, encoded), durable=False)

    def publishing(self, dataset: str, branch: str, seq: int, commit: CommitId) -> None:
        """Note a move of the branch, just before it is made. Survives a power cut."""
        self._append(Publishing(dataset, branch, seq, commit), durable=True)

    def clear(self) -> None:
        """Forget everything: it is now in an index of the store, or in a commit."""
        with self._lock, about(self._path):
            os.ftruncate(self._descriptor, _START)
            os.lseek(self._descriptor, _START, os.SEEK_SET)
            self._end = _START
        self.left = InterruptedSync()

    def close(self) -> None:
        """Close the file, and keep the records."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _append(self, record: _Pack | _Recipe | Publishing, *, durable: bool) -> None:
        payload = _ENCODER.encode(record)
        data = _HEAD.pack(len(payload), xxhash.xxh3_64_intdigest(payload)) + payload
        with self._lock, about(self._path):
            try:
                write_all(self._descriptor, data)
            except OSError:  # no later record may follow half a record
                os.ftruncate(self._descriptor, self._end)
                os.lseek(self._descriptor, self._end, os.SEEK_SET)
                raise
            self._end += len(data)
            if durable:
                sync_data(self._descriptor)


def _replay(data: bytes) -> tuple[InterruptedSync, int]:
    """Return the content of the records, and the end of the last whole one."""
    left, end = InterruptedSync(), _START
    while end + _HEAD.size <= len(data):
        length, check = _HEAD.unpack_from(data, end)
        payload = data[end + _HEAD.size : end + _HEAD.size + length]
        if len(payload) < length or xxhash.xxh3_64_intdigest(payload) != check:
            break
        try:
            record = _DECODER.decode(payload)
        except msgspec.DecodeError:  # not what this version writes
            break
        if isinstance(record, _Pack):
            left.packs[record.id] = record.size, record.rows
        elif isinstance(record, _Recipe):
            left.recipes[record.id] = record.encoded
        else:
            left.publishing = record
        end += _HEAD.size + length
    return left, end
