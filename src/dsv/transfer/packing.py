"""Filling packs and sending them while the next one fills; the index rows of what was sent."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import msgspec

from dsv.format.codec import Codec
from dsv.format.locator import Location, ObjectKind
from dsv.format.pack import CODECS, PACK_TARGET, PackBuilder, Packed
from dsv.repo.session import Session
from dsv.stores.base import Bytes
from dsv.values.ids import Id, PackId

# Bytes that a killed sync may have to send again.
IN_FLIGHT = 64 << 20
_SPARES = 2  # packs' memory kept: what is in flight, while the next one fills

Row = tuple[ObjectKind, Id, Location]
OnStored = Callable[[PackId, int, list[Row]], None]


class SealedPack(msgspec.Struct):
    """A full pack, to be finished and stored: its hash takes time."""

    id: PackId
    builder: PackBuilder
    rows: list[Row]


class Memory:
    """The memory of stored packs, for reuse. Thread-safe."""

    def __init__(self) -> None:
        self._spare: deque[bytearray] = deque(maxlen=_SPARES)

    def take(self) -> bytearray | None:
        """Return memory for a pack, or None if there is none to spare."""
        with suppress(IndexError):
            return self._spare.pop()
        return None

    def give(self, view: memoryview) -> None:
        """Take back a stored pack, unless it is still read, for example by a request that was given up."""
        memory = view.obj
        if isinstance(memory, bytearray) and len(memory) >= PACK_TARGET:
            with suppress(BufferError):  # a view can't be released, nor a length changed, while it is read
                view.release()
                memory.append(0)
                memory.pop()
                self._spare.append(memory)


class Sender:
    """Stores packs in threads, at most `IN_FLIGHT` bytes at a time; calls `on_stored` for each in its thread.
    The next `send` or `wait` and all later ones raise a failure: nothing more is sent.
    """

    def __init__(self, session: Session, on_stored: OnStored | None, memory: Memory) -> None:
        self._session = session
        self._on_stored = on_stored
        self._memory = memory
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="dsv-send")
        self._room = threading.Condition()
        self._in_flight = 0
        self._pending: list[Future[None]] = []
        self.sent_bytes = 0

    def send(self, pack: SealedPack) -> None:
        """Take over the pack; block while too much is in flight."""
        size = pack.builder.size
        with self._room:
            self._room.wait_for(lambda: self._in_flight == 0 or self._in_flight + size <= IN_FLIGHT)
        self._raise_failures()
        with self._room:
            self._in_flight += size
        self._pending.append(self._pool.submit(self._store, pack))

    def wait(self) -> None:
        """Wait until everything sent so far is durable in the store."""
        for future in self._pending:
            future.result()
        self._pending.clear()

    def close(self) -> None:
        """Cancel what has not started, and wait for the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _raise_failures(self) -> None:
        """Forget a pack only when it is known to be stored, so that a failed one never counts as stored."""
        going: list[Future[None]] = []
        for future in self._pending:
            if future.done():
                future.result()
            else:
                going.append(future)
        self._pending = going

    def _store(self, pack: SealedPack) -> None:
        size = pack.builder.size
        try:
            data = pack.builder.finish()
            self._session.put_pack(pack.id, data)
            if self._on_stored is not None:
                self._on_stored(pack.id, size, pack.rows)
            self._memory.give(data)
        finally:
            with self._room:
                self._in_flight -= size
                self.sent_bytes += size
                self._room.notify_all()


class PackStream:
    """A series of packs of one kind, data or metadata. An object's location is known once it is added."""

    def __init__(self, seal: Callable[[SealedPack], None], memory: Memory | None = None) -> None:
        self._seal = seal
        self._memory = memory
        self._start()

    @property
    def pack(self) -> PackId:
        return self._id

    def add(
        self,
        kind: ObjectKind,
        object_id: Id,
        codec: Codec,
        stored: Bytes,
        length: int,
        locator: bytes | None = None,
        unpacked: int = 0,
    ) -> Location:
        """Append a stored object and then its locator. length, unpacked: their bytes when unpacked."""
        tail = 0 if locator is None else len(locator)
        if self._builder.rows and self._builder.size + len(stored) + tail > PACK_TARGET:
            self.flush()
        offset = self._builder.add(kind, object_id, codec, stored, length)
        location = Location(self._id, offset, len(stored), length, codec, tail)
        if locator is not None:
            self._builder.add(ObjectKind.LOCATOR, object_id, Codec.ZSTD, locator, unpacked)
        self._rows.append((kind, object_id, location))
        return location

    def add_all(self, packed: Packed) -> list[Row] | None:
        """Append chunks at once; return None, and append none, if the current pack has no room for all."""
        if not self._builder.has_room(packed, PACK_TARGET):
            return None
        pack, columns = self._id, (packed.stored, packed.lengths, packed.codecs)
        offsets = self._builder.add_all(packed)
        rows: list[Row] = [
            (ObjectKind.CHUNK, chunk_id, Location(pack, offset, stored, length, CODECS[codec]))
            for chunk_id, offset, stored, length, codec in zip(packed.ids, offsets, *columns, strict=True)
        ]
        self._rows += rows
        return rows

    def flush(self) -> None:
        if self._rows:
            self._seal(SealedPack(self._id, self._builder, self._rows))
            self._start()

    def _start(self) -> None:
        self._id = PackId.random()
        self._builder = PackBuilder(self._memory.take() if self._memory else None)
        self._rows: list[Row] = []
