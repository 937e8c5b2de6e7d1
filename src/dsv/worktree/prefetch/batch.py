"""A batch of small files: what is asked of a reading process, and what it answers.

Both processes map the same memory. It has a slot for each batch: the contents, then columns that describe them. The
pipe carries orders, and only the length of each answer. A whole answer could fill the pipe and block its process, while
the other side is blocked sending it an order.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array
from itertools import compress

import msgspec
from blake3 import blake3

from dsv.fs.descent import Descent, split
from dsv.model.chunking import SINGLE_CHUNK_MAX
from dsv.model.codec import Codec, Compressor
from dsv.model.columns import cut
from dsv.model.ids import ChunkId
from dsv.model.pack import Packed
from dsv.worktree.scan.file_reader import OPEN_FLAGS, is_quiet, same_times
from dsv.worktree.scan.folder import ROW, row_of

FILES = 256
"""A batch has at most so many."""
SLOT = 4 << 20
"""Bytes of a batch's memory. Each file gets one byte more than its size, so that a file that has grown is noticed."""
ANSWER = 32 << 10
"""Bytes behind a slot, for a `Batch`: 82 for each file, and some for the encoding."""
PATHS = 64 << 10
"""Bytes of a batch's paths, which is enough for most: sending an order should not block."""
LARGEST = SINGLE_CHUNK_MAX
"""Bytes of the largest file that is read in a batch: its content is one chunk."""
UNREAD = 255
"""In `Batch.codecs`: this file was not read. Whoever asked reads it alone, and finds out why."""
_NO_ROW, _NO_ID = bytes(ROW.size), bytes(32)


class Order(msgspec.Struct, array_like=True, frozen=True):
    """Which files to read. paths: joined by NUL, in tree order. sizes: of each, in bytes, none of them 0."""

    slot: int
    paths: bytes
    sizes: list[int]


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """What was read, in columns. The files are in the sequence of the order.

    rows: `folder.ROW` of each file, the same before and after the reading. devices: their `st_dev`.
    quiet: a byte each, the answer of `file_reader.is_quiet`.
    ids: 32 bytes each. codecs: a byte each. stored: how many bytes of each are in the slot.
    """

    slot: int
    rows: bytes
    devices: bytes
    quiet: bytes
    ids: bytes
    codecs: bytes
    stored: bytes


_LENGTH = struct.Struct("<I")
_batches = msgspec.msgpack.Decoder(Batch)


class Slot:
    """One of the slots in memory that both processes map."""

    SIZE = SLOT + ANSWER

    def __init__(self, memory: memoryview, number: int) -> None:
        place = memory[number * self.SIZE : (number + 1) * self.SIZE]
        self.contents, self._answer = place[:SLOT], place[SLOT:]

    def write(self, batch: Batch) -> bytes:
        """Leaves the answer in the slot, and gives what the pipe is to carry."""
        encoded = msgspec.msgpack.encode(batch)
        self._answer[: len(encoded)] = encoded
        return _LENGTH.pack(len(encoded))

    def read(self, length: bytes) -> Batch:
        """What `write` left, by what it gave."""
        return _batches.decode(self._answer[: _LENGTH.unpack(length)[0]])


class Contents(msgspec.Struct, frozen=True):
    """What one batch holds, in columns. rows, devices, quiet: see `WorkspaceScan.record`.

    read: whether each file was read; if not, its other columns mean nothing.
    """

    read: list[bool]
    rows: list[bytes]
    devices: array[int]
    quiet: bytes
    ids: list[ChunkId]
    packed: Packed
    """The files that were read, as they are stored. Valid until the slot is used again."""

    @classmethod
    def of(cls, batch: Batch, sizes: list[int], memory: memoryview) -> Contents:
        """sizes: as they were ordered. memory: the slot."""
        read = [codec != UNREAD for codec in batch.codecs]
        ids = list(map(ChunkId, cut(batch.ids, 32)))
        stored = array("I", batch.stored)
        packed = Packed(
            list(compress(ids, read)),
            bytes(compress(batch.codecs, read)),
            list(compress(sizes, read)),
            list(compress(stored, read)),
            memory[: sum(stored)],
        )
        return cls(read, cut(batch.rows, ROW.size), array("Q", batch.devices), batch.quiet, ids, packed)


def read_batch(descent: Descent, compressor: Compressor, order: Order, memory: memoryview) -> Batch:
    """Reads each file once, and leaves what is to be stored in `memory`, that of a slot.

    A file that is not there, not readable, or not stable while it is read is left `UNREAD`.
    """
    rows, ids, codecs, quiet = list[bytes](), list[bytes](), bytearray(), bytearray()
    devices, stored = array("Q"), array("I")
    end = 0
    for path, size in zip(order.paths.split(b"\0"), order.sizes, strict=True):
        place = memory[end : end + size + 1]
        found = _read(descent, path, size, place)
        quiet.append(found is not None and found[1])
        if found is None:
            rows.append(_NO_ROW)
            devices.append(0)
            ids.append(_NO_ID)
            codecs.append(UNREAD)
            stored.append(0)
            continue
        info, data = found[0], place[:size]
        codec, packed = compressor.pack_next(data)
        rows.append(row_of(info))
        devices.append(info.st_dev)
        ids.append(blake3(data).digest())
        codecs.append(codec)
        stored.append(len(packed))
        if codec is not Codec.RAW:
            memory[end : end + len(packed)] = packed
        end += len(packed)
    return Batch(
        order.slot,
        b"".join(rows),
        devices.tobytes(),
        bytes(quiet),
        b"".join(ids),
        bytes(codecs),
        stored.tobytes(),
    )


def _read(descent: Descent, path: bytes, size: int, place: memoryview) -> tuple[os.stat_result, bool] | None:
    """Fills `place` with a file of this size; its stat and whether it is quiet, or None."""
    above, name = split(path)
    try:
        descriptor = os.open(name, OPEN_FLAGS, dir_fd=descent.at(above))
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode) or before.st_size != size:
                return None
            quiet = is_quiet(descriptor, before)
            count = os.readv(descriptor, (place,))
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return (after, quiet) if count == size and same_times(before, after) else None
