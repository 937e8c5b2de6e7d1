"""Copying cached files: by shared blocks, else by their bytes, and each proven against its id.

The files are opened, and small ones read, ahead of their turn and by other threads: on a file server each is several
round trips, and a server that is away must hold nobody up.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import msgspec
from blake3 import blake3

from dsv.cache.lending.shelf import Lender
from dsv.format.tree import Entry
from dsv.fs import system
from dsv.fs.timeout_thread import Patient

READ_SECONDS = 30.0
"""How long a read of a few MiB may take before its cache counts as away."""
SMALL = 256 << 10
"""Bytes of the largest file that is read in one piece."""
_PIECE = 4 << 20
_BATCH_FILES = 64
_BATCH_BYTES = 4 << 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_SOURCE_LOST = (errno.EIO, errno.ESTALE)

T = TypeVar("T")
Opened = bytes | int | None
"""A small file's proven content, or a descriptor, or nothing that could be used."""


class Away(Exception):
    """The cache did not answer in time."""


class Ways(msgspec.Struct):
    """clones: whether blocks can be shared between this cache and the workspace, as far as is known."""

    clones: bool = True


class LentFiles:
    """The files that one cache lends for one run of paths, in their order."""

    def __init__(
        self, files: Sequence[tuple[Lender, Entry]], patient: Patient, ahead: int, ways: Ways
    ) -> None:
        """ahead: how many batches are read in advance."""
        self._patient = patient
        self._ahead = ahead
        self._ways = ways
        self._batches = _batches(files)
        self._answers: list[Future[list[Opened]]] = []
        self._place = [
            (number, row) for number, batch in enumerate(self._batches) for row in range(len(batch))
        ]

    def take(self, at: int, target: int) -> bool:
        """Fills `target`, an empty file open for reading and writing, with file number `at`; each is taken once.

        False if it can't be had as it should be; the target is empty then. Raises `Away`, and `OSError` of the target.
        """
        number, row = self._place[at]
        while len(self._answers) < min(number + 1 + self._ahead, len(self._batches)):
            batch = self._batches[len(self._answers)]
            self._answers.append(self._patient.ask(partial(_open_all, batch, self._ways.clones)))
        opened = self._wait(self._answers[number])
        found, opened[row] = opened[row], None
        if found is None:
            return False
        if isinstance(found, bytes):
            _write(target, found)
            return True
        try:
            return self._copy(found, target, self._batches[number][row][1])
        finally:
            os.close(found)

    def close(self) -> None:
        """Closes what was opened and not taken."""
        for answer in self._answers:
            answer.add_done_callback(_close_all)

    def _copy(self, source: int, target: int, entry: Entry) -> bool:
        if self._ways.clones:
            cloned = _clone(source, target)
            if (
                cloned and _hash(target) == entry.file_id
            ):  # of the clone: what the workspace gets is what is proven
                return True
            os.ftruncate(target, 0)
            if cloned is None or cloned:
                return False
            self._ways.clones = False
        proof, size = blake3(), 0
        while data := self._read(source, size):
            proof.update(data)
            size += len(data)
            _write(target, data)
        if size == entry.size and proof.digest() == entry.file_id:
            return True
        os.ftruncate(target, 0)
        os.lseek(target, 0, os.SEEK_SET)
        return False

    def _read(self, source: int, offset: int) -> bytes:
        """The next piece; nothing at the end, or if it can't be read."""
        try:
            return self._wait(self._patient.ask(partial(os.pread, source, _PIECE, offset)))
        except OSError:
            return b""

    def _wait(self, future: Future[T]) -> T:
        try:
            return future.result(READ_SECONDS)
        except TimeoutError:
            raise Away from None


def _batches(files: Sequence[tuple[Lender, Entry]]) -> list[list[tuple[Lender, Entry]]]:
    found: list[list[tuple[Lender, Entry]]] = []
    room = 0
    for file in files:
        size = file[1].size if file[1].size <= SMALL else 0
        if not found or len(found[-1]) == _BATCH_FILES or size > room:
            found.append([])
            room = _BATCH_BYTES
        found[-1].append(file)
        room -= size
    return found


def _open_all(batch: Sequence[tuple[Lender, Entry]], clones: bool) -> list[Opened]:
    return [_open(lender.top, entry, clones) for lender, entry in batch]


def _open(top: int, entry: Entry, clones: bool) -> Opened:
    try:
        descriptor = os.open(entry.path, _OPEN, dir_fd=top)
    except OSError:  # evicted, or not for this user
        return None
    keep = False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return None
        if clones or entry.size > SMALL:
            keep = True
            return descriptor
        data = os.read(descriptor, entry.size + 1)
        return data if len(data) == entry.size and blake3(data).digest() == entry.file_id else None
    except OSError:
        return None
    finally:
        if not keep:
            os.close(descriptor)


def _clone(source: int, target: int) -> bool | None:
    """None if the source can't be read. Raises `OSError` if there is no room."""
    try:
        return system.clone(source, target)
    except OSError as error:
        if error.errno in _SOURCE_LOST:
            return None
        raise


def _hash(descriptor: int) -> bytes:
    proof, size = blake3(), 0
    while data := os.pread(descriptor, _PIECE, size):
        proof.update(data)
        size += len(data)
    return proof.digest()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _close_all(answer: Future[list[Opened]]) -> None:
    if answer.exception() is None:
        for each in answer.result():
            if isinstance(each, int):
                os.close(each)
