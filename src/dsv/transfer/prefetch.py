"""Small files are read, hashed and compressed by helper processes, ahead of the one that stores them."""

from __future__ import annotations

import mmap
import os
import stat
import struct
import subprocess
import sys
import tempfile
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import compress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
from blake3 import blake3

from dsv.files.descent import Descent, split
from dsv.files.descriptors import Opened
from dsv.files.process import read_order, start_program
from dsv.format.codec import Codec, Compressor
from dsv.format.columns import cut
from dsv.format.pack import Packed
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry
from dsv.transfer.stable_read import OPEN_FLAGS, ROW, has_no_writer, row_of, same_times
from dsv.values.ids import ChunkId

FILES = 256
"""The most files of a batch."""
SLOT = 4 << 20
"""Bytes of a batch's memory. Each file gets one byte more than its size, so that growth is noticed."""
ANSWER = 32 << 10
"""Bytes after a slot's contents, for a `ReadBatch`: 82 for each file, and some for the encoding."""
PATHS = 64 << 10
"""Bytes of a batch's paths: enough for most, and few enough that sending an order should not block."""
LARGEST = SINGLE_CHUNK_MAX
"""Bytes of the largest file that is read in a batch: its content is one chunk."""
UNREAD = 255
"""In `ReadBatch.codecs`: this file was not read. The caller reads it alone, and finds out why."""
_NO_ROW, _NO_ID = bytes(ROW.size), bytes(32)


class FolderItem(Protocol):
    """A path of a folder: a file, or something without content."""

    @property
    def path(self) -> bytes: ...
    @property
    def size(self) -> int: ...
    @property
    def is_file(self) -> bool: ...
    @property
    def known(self) -> Entry | None:
        """Its entry, if the file need not be read for that."""
        ...


T = TypeVar("T", bound=FolderItem)


class ReadRequest(msgspec.Struct, array_like=True, frozen=True):
    slot: int
    paths: bytes
    """Joined by NUL, in tree order."""
    sizes: list[int]
    """Bytes of each file, never 0."""


class ReadBatch(msgspec.Struct, array_like=True, frozen=True):
    """The files that were read, in columns, in the order of the paths."""

    slot: int
    rows: bytes
    """`stable_read.ROW` of each file, the same before and after reading."""
    devices: bytes
    """The `st_dev` of each."""
    no_writer: bytes
    """A byte for each: the result of `stable_read.has_no_writer`."""
    ids: bytes
    """32 bytes for each."""
    codecs: bytes
    """A byte for each."""
    stored: bytes
    """Bytes of each in the slot."""

    @property
    def read(self) -> list[bool]:
        """False for a file that was not read; its other columns mean nothing."""
        return [codec != UNREAD for codec in self.codecs]

    def packed(self, sizes: list[int], memory: memoryview) -> Packed:
        """Return the files that were read, as they are stored. sizes: as ordered. memory: the slot."""
        read, stored = self.read, array("I", self.stored)
        return Packed(
            list(map(ChunkId, compress(cut(self.ids, 32), read))),
            bytes(compress(self.codecs, read)),
            list(compress(sizes, read)),
            list(compress(stored, read)),
            memory[: sum(stored)],
        )


_LENGTH = struct.Struct("<I")
_batches = msgspec.msgpack.Decoder(ReadBatch)
_orders = msgspec.msgpack.Decoder(ReadRequest)


class Slot:
    """One of the slots in memory that both processes map."""

    SIZE = SLOT + ANSWER

    def __init__(self, memory: memoryview, number: int) -> None:
        place = memory[number * self.SIZE : (number + 1) * self.SIZE]
        self.contents, self._answer = place[:SLOT], place[SLOT:]

    def write(self, batch: ReadBatch) -> bytes:
        """Write the answer to the slot; return what to send through the pipe."""
        encoded = msgspec.msgpack.encode(batch)
        self._answer[: len(encoded)] = encoded
        return _LENGTH.pack(len(encoded))

    def read(self, length: bytes) -> ReadBatch:
        """Return what `write` has written; `length` is what it returned."""
        return _batches.decode(self._answer[: _LENGTH.unpack(length)[0]])


def read_batch(descent: Descent, compressor: Compressor, order: ReadRequest, memory: memoryview) -> ReadBatch:
    """Read each file once into `memory`, as it is stored. `UNREAD`: missing, not readable, or not stable."""
    rows, ids, codecs, no_writer = list[bytes](), list[bytes](), bytearray(), bytearray()
    devices, stored = array("Q"), array("I")
    end = 0
    for path, size in zip(order.paths.split(b"\0"), order.sizes, strict=True):
        place = memory[end : end + size + 1]
        found = _read(descent, path, size, place)
        no_writer.append(found is not None and found[1])
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
    return ReadBatch(
        order.slot,
        b"".join(rows),
        devices.tobytes(),
        bytes(no_writer),
        b"".join(ids),
        bytes(codecs),
        stored.tobytes(),
    )


def _read(descent: Descent, path: bytes, size: int, place: memoryview) -> tuple[os.stat_result, bool] | None:
    """Fill `place` with a file of this size. Return its stat and whether nobody writes to it, or None."""
    above, name = split(path)
    try:
        with Opened(os.open(name, OPEN_FLAGS, dir_fd=descent.at(above))) as descriptor:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode) or before.st_size != size:
                return None
            no_writer = has_no_writer(descriptor, before)
            count = os.readv(descriptor, (place,))
            after = os.fstat(descriptor)
    except OSError:
        return None
    return (after, no_writer) if count == size and same_times(before, after) else None


_SLOTS = 4  # of each process: one that is read, one that is stored, and some for changes of pace
_OWN_SLOTS = 2
_RUNS = 64  # the most that are cut in advance, because some have nothing to read
# Starting a process takes as long as reading some thousand small files. It pays from this number of paths on.
_WORTH = 4096
_MOST = 4


def suitable(files: int, processors: int) -> int:
    """Return how many helper processes suit this amount of work and this machine."""
    return min(processors - 1, _MOST) if files >= _WORTH else 0


class Readers(AbstractContextManager["Readers[T]"], Generic[T]):
    """The helper processes, whose contents are returned in order. A context manager, which ends them.

    While this process waits for contents it reads later ones itself, so no processor idles. Without helpers
    nothing is read ahead. The contents of a process that died are missing: the caller reads those files.
    """

    def __init__(self, root: Path, count: int) -> None:
        """Start `count` processes, or as many as possible."""
        self._readers: list[_Reader] = []
        self._runs: deque[Run[T]] = deque()
        self._own: list[memoryview] = []
        self._compressor = Compressor()
        self._descent = Descent(root)
        with suppress(OSError):  # no process, or no memory: slower, but otherwise the same
            for _ in range(count):
                self._readers.append(_Reader(root))
        if self._readers:
            self._own = [memoryview(bytearray(SLOT)) for _ in range(_OWN_SLOTS)]

    def __exit__(self, *_: object) -> None:
        self._descent.close()
        for reader in self._readers:
            reader.end()

    def over(self, work: Iterator[T]) -> Iterator[Run[T]]:
        """Yield all of the work, in the given order, with the contents of small files. Call it once."""
        upcoming = _cut(work)
        while self._send(upcoming):
            run = self._runs.popleft()
            if run.reader is not None:
                self._read_meanwhile(run.reader, upcoming)
                run.batch = run.reader.answer(run)
            yield run
            self._release(run)

    def _send(self, upcoming: Iterator[Run[T]]) -> bool:
        """Give the processes as much as they have room for. Return False if no run is left."""
        for reader in self._readers:
            while reader.free and len(self._runs) < _RUNS and (run := next(upcoming, None)) is not None:
                self._runs.append(run)
                if run.sizes:
                    reader.ask(run)
        if not self._runs and (run := next(upcoming, None)) is not None:  # there is no process (any more)
            self._runs.append(run)
        return bool(self._runs)

    def _read_meanwhile(self, reader: _Reader, upcoming: Iterator[Run[T]]) -> None:
        """Read runs that no process was given, until the next contents arrive."""
        while self._own and len(self._runs) < _RUNS and not reader.has_answered:
            run = next(upcoming, None)
            if run is None:
                return
            self._runs.append(run)
            if run.sizes:
                run.memory = self._own.pop()
                run.batch = read_batch(self._descent, self._compressor, run.order(0), run.memory)

    def _release(self, run: Run[T]) -> None:
        if run.reader is not None:
            run.reader.release(run)
        elif run.memory is not None:
            self._own.append(run.memory)


class Run(msgspec.Struct, Generic[T]):
    """Consecutive items of the work, with the process that reads them and the memory for their contents."""

    items: list[T] = msgspec.field(default_factory=list)
    at: list[int] = msgspec.field(default_factory=list)
    """The index of each item's content, or -1 if it is not a small file."""
    paths: list[bytes] = msgspec.field(default_factory=list)
    """Only small files, as in `sizes`."""
    sizes: list[int] = msgspec.field(default_factory=list)
    room: int = SLOT
    names: int = PATHS
    reader: _Reader | None = None
    slot: int = 0
    memory: memoryview | None = None
    batch: ReadBatch | None = None
    """The contents of the small files, valid until the next run is asked for; None if they were not read."""

    def add(self, item: T) -> bool:
        """Return False if it is full."""
        if not (item.is_file and item.known is None and 0 < item.size <= LARGEST):
            if len(self.items) - len(self.paths) == FILES:
                return False
            self.items.append(item)
            self.at.append(-1)
            return True
        count = len(self.paths)
        self.room -= item.size + 1
        self.names -= len(item.path) + 1
        if count and (self.room < 0 or self.names < 0 or count == FILES):
            return False
        self.items.append(item)
        self.at.append(count)
        self.paths.append(item.path)
        self.sizes.append(item.size)
        return True

    def order(self, slot: int) -> ReadRequest:
        return ReadRequest(slot, b"\0".join(self.paths), self.sizes)


class _Reader:
    def __init__(self, root: Path) -> None:
        """Start the process. Raises `OSError` if that fails, or if there is no memory to share."""
        ours, theirs = Pipe()
        with theirs, _shared_memory(_SLOTS * Slot.SIZE) as shared:
            memory = memoryview(mmap.mmap(shared, 0))
            given = (theirs.fileno(), shared)
            # In its own process group it does not get a Ctrl-C that is meant for its parent.
            self._process = start_program(
                "dsv.transfer.prefetch", (root.absolute(), *given),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=given, process_group=0,
            )  # fmt: skip
        self._slots = [Slot(memory, number) for number in range(_SLOTS)]
        self._pipe: Connection = ours
        self.free = list(range(_SLOTS))
        """Slots that are not in use; empty once the process has died."""

    def ask(self, run: Run[T]) -> None:
        """Have the small files of the run read into a free slot."""
        run.reader, run.slot = self, self.free.pop()
        run.memory = self._slots[run.slot].contents
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(run.order(run.slot)))
        except OSError:
            self.free.clear()

    @property
    def has_answered(self) -> bool:
        """Whether `answer` would not wait."""
        return self._pipe.poll(0)

    def answer(self, run: Run[T]) -> ReadBatch | None:
        """Return what was read for the run, the oldest without an answer; None if the process has died."""
        try:
            return self._slots[run.slot].read(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self.free.clear()
            return None

    def release(self, run: Run[T]) -> None:
        if run.batch is not None:
            self.free.append(run.slot)

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.communicate()


def _cut(work: Iterator[T]) -> Iterator[Run[T]]:
    run = Run[T]()
    for item in work:
        if not run.add(item):
            yield run
            run = Run()
            run.add(item)
    if run.items:
        yield run


@contextmanager
def _shared_memory(size: int) -> Iterator[int]:
    """Yield the descriptor of a file without a name, full of zeros, to be mapped."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("dsv")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with Opened(descriptor):
        os.ftruncate(descriptor, size)
        yield descriptor


def main() -> None:
    """A reading process, started by `Readers`.

    It answers orders until its pipe is closed, also by the death of its parent. It decides nothing: a file
    that it can't read, or that is changing, is left to the parent.
    """
    root, pipe, memory = read_order()
    slots = memoryview(mmap.mmap(memory, 0))
    compressor = Compressor()
    with Connection(pipe) as asked, Descent(root) as descent:
        while True:
            try:
                order = _orders.decode(asked.recv_bytes())
                slot = Slot(slots, order.slot)
                asked.send_bytes(slot.write(read_batch(descent, compressor, order, slot.contents)))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return


if __name__ == "__main__":
    main()
